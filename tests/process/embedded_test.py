"""Jobs without servers (cluster.servers: 0): the worker's process has the rows, and all else is as with servers."""

import json
import os
import signal
import unittest

from harness import ProcessTest, children, wait_for


class EmbeddedTest(ProcessTest):

    def test_has_the_bits_of_servers(self):
        with_servers = self.train('--servers=2', run_dir=self.run_dir + '-2')
        launcher = self.start('--servers=0')
        code, out, err = self.finish(launcher)
        self.assertEqual((code, err), (0, ''), out)
        self.assertIn('job small: 1 worker, which holds the rows itself', out)
        self.assertIn('embedded server up in', out)
        self.assertIn('(embedded)', out)
        summary = self.summary(launcher)
        self.assert_same(summary, with_servers)
        self.assertEqual((summary['servers'], summary['workers']), (0, 1))
        self.assertEqual([name for name in os.listdir(self.run_dir) if name.endswith('.log')], ['worker-0.log'])
        with open(os.path.join(self.run_dir, 'server_stats.json')) as file:
            server, = [server['stats'] for server in json.load(file)['servers']]
        self.assertEqual((server['pushes_accepted'], server['complete_through']), (40, 39))
        calls = {rpc['method']: rpc for rpc in server['rpcs']}
        for method in ('Pull', 'Push', 'Read'):
            self.assertGreater(calls[method].get('count', 0), 0, method)
            self.assertEqual(calls[method].get('errors', 0), 0, method)
        for name, flags in (('spill', ['--set=default_table.storage.rocksdb.memory=64KiB']),
                            ('cache', ['--set=cache.budget=1MiB']),
                            ('tls', ['--set=cluster.tls.automatic=true']),
                            ('trace', ['--trace=10:12'])):
            with self.subTest(name):
                run_dir = '%s-%s' % (self.run_dir, name)
                self.assert_same(self.train('--servers=0', *flags, run_dir=run_dir), with_servers)
        self.assertTrue(os.listdir(os.path.join(self.run_dir + '-spill', 'server-0.data', 'spill')))
        with open(os.path.join(self.run_dir + '-trace', 'trace.json')) as file:
            events = json.load(file)['traceEvents']
        steps = {event['args']['step'] for event in events if event['name'] == 'apply'}
        self.assertLessEqual({10, 11, 12}, steps)

    def assert_same(self, summary, other):
        for name in ('model_digest', 'auc', 'logloss', 'samples'):
            self.assertEqual(summary[name], other[name], name)

    def test_is_one_process_that_stats_show(self):
        launcher = self.start_long('--servers=0')
        wait_for(lambda: self.events('progress'), 'the first step')
        worker, = [line for line in children(launcher.pid).values() if 'thermocline-' in line]
        self.assertIn('thermocline-worker', worker)
        stats = self.thermocline('stats', '--run-dir', self.run_dir)
        self.assertEqual(stats.returncode, 0, stats.stderr)
        self.assertIn('(embedded)', stats.stdout)
        launcher.send_signal(signal.SIGINT)
        launcher.send_signal(signal.SIGINT)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1, err)

    def test_a_killed_worker_takes_the_job_back(self):
        flags = ['--set=train.passes=4']
        undisturbed = self.train('--servers=2', *flags, run_dir=self.run_dir + '-undisturbed')
        launcher = self.start('--servers=0', *flags, '--set=checkpoint.every_steps=15')
        for kill in range(2):
            wait_for(lambda: len(self.events('checkpoint')) > 2 * kill, 'a checkpoint')
            pid = wait_for(lambda: next(iter(self.workers(launcher)), None), 'a worker')
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: len(self.events('rollback')) > kill, 'a rollback')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        summary = self.summary(launcher)
        self.assert_same(summary, undisturbed)
        self.assertEqual(summary['rollbacks'], 2)
        self.assertRegex(out, r'(?m)^worker 0 was killed by signal 9 \(Killed\); going back to ')

    def workers(self, launcher):
        return [pid for pid, line in children(launcher.pid).items() if 'worker-0.port' in line]

    def test_goes_on_with_any_number_of_servers(self):
        undisturbed = self.train('--servers=2', '--set=train.passes=4', run_dir=self.run_dir + '-undisturbed')
        self.train('--servers=0', '--set=checkpoint.at_end=true')
        for passes, servers in ((2, 2), (3, 0), (4, 1)):
            summary = self.resume('--servers=%d' % servers, '--set=train.passes=%d' % passes)
            self.assertEqual((summary['servers'], summary['steps']), (servers, 40 * passes))
        self.assert_same(summary, undisturbed)
        evaluated = self.thermocline('eval', '--checkpoint', self.run_dir, '--servers=0', '--run-dir',
                                     self.run_dir + '-eval')
        self.assertEqual(evaluated.returncode, 0, evaluated.stderr)
        with open(os.path.join(self.run_dir + '-eval', 'summary.json')) as file:
            scored = json.load(file)
        for name in ('auc', 'logloss', 'model_digest'):
            self.assertEqual(scored[name], undisturbed[name], name)

    def test_refusals_name_what_they_refuse(self):
        for flags, words in (
                (['--workers=2'], 'cluster.workers'),
                (['--set=cluster.durability=LOG_ASYNC'], 'cluster.durability'),
                (['--nodes=1', '--listen=127.0.0.1:0'], 'cluster.servers is 0: the worker holds the rows itself')):
            with self.subTest(words):
                refused = self.thermocline('train', self.job, '--servers=0', '--run-dir', self.run_dir, *flags)
                self.assertEqual(refused.returncode, 2, refused.stderr)
                self.assertIn(words, refused.stderr)
                self.assertFalse(os.path.exists(self.run_dir))

    def test_bad_data_end_the_job(self):
        log = self.run_dir + '.tsv'
        with open(log, 'w') as file:
            file.write('1\t5\tab\n' * 50 + 'no label\n')
        with open(self.job, 'w') as job:
            job.write('name: "bad" data { format: CRITEO_TSV path: "%s" num_dense: 1 num_categorical: 1 }'
                      ' dlrm { top: [8] bottom: [8] } default_table { dim: 8 }'
                      ' train { batch_size: 10 learning_rate { base: 0.1 } }' % log)
        refused = self.thermocline('train', self.job, '--servers=0', '--run-dir', self.run_dir,
                                   '--set=checkpoint.every_steps=2')
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertIn('bad.tsv:51', refused.stderr.replace(log, 'bad.tsv'))
        self.assertIn('| worker 0 exited with code 1', refused.stderr)
        self.assertNotIn('server 0', refused.stderr)


if __name__ == '__main__':
    unittest.main()
