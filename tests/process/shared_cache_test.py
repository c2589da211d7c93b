"""Several workers with one cache over all of them: a worker that dies or hangs while they exchange
rows is named, and the job goes back and makes the undisturbed model. THERMOCLINE_TEST_SEED repeats
a run."""

import json
import os
import random
import re
import signal
import unittest

from harness import ProcessTest, wait_for

FLAGS = ['--workers=3', '--servers=2', '--set=train.passes=8', '--set=cache.budget=600KiB',
         '--set=cache.window_steps=6', '--set=checkpoint.every_steps=25',
         '--set=checkpoint.max_rollbacks=100']


class SharedCacheTest(ProcessTest):

    def setUp(self):
        super().setUp()
        seed = int(os.environ.get('THERMOCLINE_TEST_SEED') or random.SystemRandom().getrandbits(32))
        print('seed', seed, flush=True)
        self.random = random.Random(seed)

    def events(self):
        metrics = os.path.join(self.run_dir, 'metrics.jsonl')
        if not os.path.exists(metrics):
            return []
        with open(metrics) as file:
            # The last line may not be whole.
            return [json.loads(line) for line in file if line.endswith('\n')]

    def disturb(self, number, flags, times):
        """Sends a signal to a worker at random points. Returns the ranks, and what followed."""
        without = [flag for flag in FLAGS if 'cache.' not in flag]
        undisturbed = self.train(*without, run_dir=self.run_dir + '-undisturbed')
        launcher = self.start(*FLAGS, *flags)
        ranks = []
        for _ in range(times):
            def progress():
                return sum(event['event'] == 'progress' for event in self.events())

            def rollbacks():
                return sum(event['event'] == 'rollback' for event in self.events())
            target = progress() + self.random.randint(1, 40)
            wait_for(lambda: launcher.poll() is not None or progress() >= target, 'more steps')
            ranks.append(self.random.randrange(3))
            before = rollbacks()
            os.kill(self.pid_of(launcher, 'worker %d' % ranks[-1]), number)
            wait_for(lambda: launcher.poll() is not None or rollbacks() > before, 'a rollback')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'ranks %s\nout: %s\nerr: %s' % (ranks, out, err))
        summary = self.summary(launcher)
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        self.assertEqual(summary['auc'], undisturbed['auc'])
        self.assertEqual(summary['cache']['mode'], 'shared')
        self.assertGreater(summary['exchange']['bytes_sent'], 0)
        return ranks, [event['reason'] for event in self.events() if event['event'] == 'rollback']

    def test_a_worker_that_is_killed_is_named(self):
        ranks, reasons = self.disturb(signal.SIGKILL, [], times=2)
        self.assertEqual(len(reasons), len(ranks))
        for rank, reason in zip(ranks, reasons):
            # Others may have lost it; it stands first.
            self.assertTrue(reason.startswith('worker %d was killed by signal 9' % rank), reason)

    def test_a_worker_that_hangs_is_named(self):
        ranks, reasons = self.disturb(signal.SIGSTOP, ['--set=cluster.stall_timeout_s=3'], times=1)
        self.assertEqual(len(reasons), len(ranks))
        for rank, reason in zip(ranks, reasons):
            self.assertIn('nothing has advanced for 3s', reason)
            named = re.findall(r'worker (\d+) is waited for', reason)
            self.assertEqual(named, [str(rank)], reason)


if __name__ == '__main__':
    unittest.main(verbosity=2)
