"""Tables with a memory budget hold most of their rows on disk, and tables with max_rows forget some;
the model has the same bits on any number of servers, on disk or not, and whatever dies."""

import json
import os
import signal
import unittest

from harness import ProcessTest, wait_for

# Each table has this budget on each server; the larger tables have some thousand rows.
SPILLING = '--set=default_table.storage.rocksdb.memory=64KiB'


class SpillTest(ProcessTest):

    def test_same_digest_as_in_memory(self):
        in_memory = self.train('--workers=2', run_dir=self.run_dir + '-memory')
        for servers in (1, 2):
            with self.subTest(servers=servers):
                run_dir = '%s-%d' % (self.run_dir, servers)
                spilling = self.train('--workers=2', '--servers=%d' % servers, SPILLING,
                                      run_dir=run_dir)
                self.assertEqual(spilling['model_digest'], in_memory['model_digest'])
                self.assertTrue(os.listdir(os.path.join(run_dir, 'server-0.data', 'spill')))

    def test_a_killed_server_begins_with_an_empty_store(self):
        flags = ['--servers=1', '--set=train.passes=3', '--set=cluster.durability=LOG_ASYNC']
        undisturbed = self.train(*flags, run_dir=self.run_dir + '-undisturbed')
        summary = self.train_with_a_death(*flags, SPILLING)
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        self.assertEqual(summary['server_restarts'], 1)

    def test_a_limit_of_rows(self):
        limit = ['--set=default_table.eviction.max_rows=100']
        flags = limit + ['--servers=1', '--set=train.passes=3']
        undisturbed = self.train(*flags, run_dir=self.run_dir + '-undisturbed')
        longer = self.train(*flags, '--set=train.passes=4', run_dir=self.run_dir + '-longer')
        unlimited = self.train('--set=train.passes=3', run_dir=self.run_dir + '-unlimited')
        self.assertNotEqual(undisturbed['model_digest'], unlimited['model_digest'])
        summary = self.train_with_a_death(*limit, SPILLING, '--servers=2', '--set=train.passes=3',
                                          '--set=cluster.durability=LOG_ASYNC',
                                          '--set=checkpoint.every_steps=50')
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        self.assertEqual(summary['server_restarts'], 1)
        # Readers of its last checkpoint, whose older files have rows that are forgotten by now.
        path = os.path.join(self.run_dir, 'checkpoints', summary['checkpoints']['last'])
        evaluated = self.thermocline('eval', self.job, *limit, '--checkpoint', path,
                                     '--run-dir', self.run_dir + '-eval')
        self.assertEqual(evaluated.returncode, 0, evaluated.stderr)
        with open(os.path.join(self.run_dir + '-eval', 'summary.json')) as file:
            scored = json.load(file)
        for name in ('auc', 'logloss', 'model_digest'):
            self.assertEqual(scored[name], undisturbed[name], name)
        resumed = self.resume('--servers=3', '--set=train.passes=4')
        self.assertEqual(resumed['model_digest'], longer['model_digest'])

    def train_with_a_death(self, *flags):
        """Kills a server amid the job, which must succeed; returns its summary."""
        launcher = self.start(*flags)
        wait_for(lambda: len(self.events('progress', launcher.run_dir)) >= 40, 'step 40')
        os.kill(self.pid_of(launcher, 'server 0'), signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        return self.summary(launcher)


if __name__ == '__main__':
    unittest.main()
