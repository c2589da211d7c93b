"""Tables with a memory budget hold most of their rows on disk; the model has the same bits."""

import os
import signal
import unittest

from harness import ProcessTest, wait_for

# Of each table, on each server; the larger ones have some thousand rows.
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
        launcher = self.start(*flags, SPILLING)
        metrics = os.path.join(launcher.run_dir, 'metrics.jsonl')

        def has_trained():
            if not os.path.exists(metrics):
                return False
            with open(metrics) as file:
                return sum('"progress"' in line for line in file) >= 40
        wait_for(has_trained, 'step 40')
        os.kill(self.pid_of(launcher, 'server 0'), signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        self.assertEqual(self.summary(launcher)['model_digest'], undisturbed['model_digest'])
        self.assertEqual(self.summary(launcher)['server_restarts'], 1)


if __name__ == '__main__':
    unittest.main()
