"""Servers, workers, their script and the launcher are killed at random; the model has the bits of an
undisturbed run. THERMOCLINE_TEST_SEED repeats a run."""

import os
import random
import signal
import unittest

from harness import ProcessTest, children, wait_for
from script_test import HAS_TORCH, ScriptJob

FLAGS = ['--set=checkpoint.every_steps=25',
         '--set=checkpoint.max_rollbacks=1000', '--set=cluster.max_server_restarts=1000']


class RandomKills(ProcessTest):
    passes = 20
    budgets = ('450KiB', '1MiB', '64MiB')  # for cache.budget

    def setUp(self):
        super().setUp()
        seed = int(os.environ.get('THERMOCLINE_TEST_SEED') or random.SystemRandom().getrandbits(32))
        print('seed', seed, flush=True)
        self.random = random.Random(seed)

    def flags(self):
        return [*FLAGS, '--set=train.passes=%d' % self.passes]

    def lines(self):
        return len(self.events('progress'))

    def begin(self, workers, *flags):
        """Starts the launcher, or goes on with what it left."""
        # All of these give the same bits. Without a log a dead server takes the job back.
        cache = self.random.choice((
            [], ['--set=cache.budget=%s' % self.random.choice(self.budgets),
                 '--set=cache.window_steps=%d' % self.random.randint(3, 12)]))
        return self.start(
            *self.flags(), *cache, '--workers=%d' % workers, '--servers=%d' % self.random.randint(1, 3),
            '--set=cluster.durability=' + self.random.choice(('NONE', 'LOG_ASYNC')),
            '--set=default_table.storage=' + self.random.choice(
                ('{memory{}}', "{rocksdb{memory:'64KiB'}}")), *flags)

    def let_it_run(self, launcher):
        """Waits for a random number of steps, often none."""
        target = self.lines() + self.random.choice((0, 0, 1, 7, 20, 40))
        wait_for(lambda: launcher.poll() is not None or self.lines() >= target, 'more steps')

    def kill_somebody(self, launcher):
        """Returns who was killed; None where nobody was there."""
        targets = [*children(launcher.pid).items(), *self.scripts(launcher)]
        if not targets or self.random.random() < 0.3:
            launcher.kill()
            return 'launcher'
        pid, command = self.random.choice(sorted(targets))
        try:
            os.kill(pid, self.random.choice((signal.SIGKILL, signal.SIGTERM)))
        except ProcessLookupError:
            return None
        return next((role for role in ('server', 'worker') if 'thermocline-' + role in command), 'script')

    def scripts(self, launcher):
        """[(process id, command line)] of the script, and of the guard between it and the worker."""
        return []

    def kill_at_random(self, workers, kills):
        undisturbed = self.train(*self.flags(), '--workers=%d' % workers, '--servers=2',
                                 run_dir=self.run_dir + '-undisturbed')
        launcher = self.begin(workers)
        wait_for(lambda: self.lines() > 0 or launcher.poll() is not None, 'the first step')
        killed = []
        while len(killed) < kills:
            self.let_it_run(launcher)
            self.assertIsNone(launcher.poll(), 'after %s: %s' % (
                killed, self.finish(launcher) if launcher.poll() is not None else ''))
            victim = self.kill_somebody(launcher)
            if victim is None:
                continue
            killed.append(victim)
            if victim == 'launcher':
                self.finish(launcher)
                launcher = self.begin(workers, '--resume')
        code, out, err = self.finish(launcher)
        print('killed:', ', '.join(killed))
        self.assertEqual(code, 0, 'killed: %s\nout: %s\nerr: %s' % (killed, out, err))
        summary = self.summary(launcher)
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        for name in ('steps', 'samples', 'auc'):
            self.assertEqual(summary[name], undisturbed[name], name)


class ChaosTest(RandomKills):

    def test_random_kills(self):
        self.kill_at_random(workers=2, kills=20)

    def test_random_kills_of_a_worker_with_a_cache(self):
        self.kill_at_random(workers=1, kills=12)


@unittest.skipUnless(HAS_TORCH, 'no PyTorch')
class ScriptChaosTest(ScriptJob, RandomKills):
    passes = 6
    budgets = ('800KiB', '64MiB')

    def scripts(self, launcher):
        guards = [guard for worker in children(launcher.pid) for guard in children(worker).items()]
        return guards + [script for pid, _ in guards for script in children(pid).items()]

    def test_random_kills_of_a_script(self):
        self.kill_at_random(workers=1, kills=6)


if __name__ == '__main__':
    unittest.main(verbosity=2)
