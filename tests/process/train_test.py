"""Whole jobs of real processes: what they leave, and that the bits don't depend on the cluster."""

import json
import os
import random
import re
import signal
import struct
import subprocess
import unittest

from harness import DEADLINE_S, THERMOCLINE, ProcessTest, modes_below, set_signals, wait_for


def read_json(*path):
    with open(os.path.join(*path)) as file:
        return json.load(file)


def spoil_line(path, number):
    """Makes a line of a click log, counted from 1, one without a label."""
    with open(path) as file:
        lines = file.readlines()
    lines[number - 1] = 'no label\n'
    with open(path, 'w') as file:
        file.writelines(lines)


def write_npy(path, dtype, shape, data):
    header = repr({'descr': dtype, 'fortran_order': False, 'shape': shape}).encode() + b'\n'
    with open(path, 'wb') as file:
        file.write(b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header + data)


class TrainTest(ProcessTest):

    def test_run_directory(self):
        launcher = self.start('--servers=2')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        self.assertEqual(err, '')
        summary = read_json(self.run_dir, 'summary.json')
        self.assertEqual(summary['steps'], 40)  # 10,000 rows in batches of 256
        self.assertEqual(summary['samples'], 10000)
        self.assertEqual(summary['servers'], 2)
        self.assertEqual(summary['workers'], 1)
        self.assertGreater(summary['auc'], 0.5)
        self.assertGreater(summary['logloss'], 0)
        self.assertGreater(summary['samples_per_s'], 0)
        self.assertGreater(summary['wall_s'], 0)
        self.assertRegex(summary['model_digest'], '^[0-9a-f]{32}$')
        for name in ('server-0.log', 'server-1.log', 'worker-0.log'):
            self.assertGreater(os.path.getsize(os.path.join(self.run_dir, name)), 0)
        self.assertEqual(modes_below(self.run_dir), {0o700, 0o600})
        progress = self.events('progress')
        self.assertEqual([event['step'] for event in progress], list(range(1, 41)))
        self.assertEqual(progress[-1]['samples'], 10000)
        self.assertEqual(len(self.events('eval')), 1)
        self.assertIn('AUC %.4f' % summary['auc'], out)
        self.assertIn(summary['model_digest'], out)
        for address in read_json(self.run_dir, 'servers.json')['servers']:
            self.assertIn(address, out)
        stats = [server['stats'] for server in
                 read_json(self.run_dir, 'server_stats.json')['servers']]
        self.assertEqual(sum(server['pushes_accepted'] for server in stats), 80)
        self.assertEqual([server['complete_through'] for server in stats], [39, 39])
        self.assertEqual(len(stats[0]['tables']), 26 + 8)

    def test_resolved_job_gives_the_same_run(self):
        first = self.train()
        again = self.train(job=os.path.join(self.run_dir, 'job.textproto'),
                           run_dir=self.run_dir + '-again')
        self.assertEqual(first['model_digest'], again['model_digest'])
        with open(os.path.join(self.run_dir, 'job.textproto')) as one, \
                open(os.path.join(self.run_dir + '-again', 'job.textproto')) as two:
            self.assertEqual(one.read(), two.read())

    def test_digest_does_not_depend_on_servers_and_threads(self):
        digests = {}
        for number, flags in enumerate([
                ['--servers=1'], ['--servers=2'], ['--servers=4'],
                ['--set=cluster.worker_threads=2', '--set=cluster.server_threads=2'],
                ['--servers=2', '--set=cluster.worker_threads=4',
                 '--set=cluster.server_threads=4'],
        ]):
            run_dir = '%s-%d' % (self.run_dir, number)
            digests[' '.join(flags)] = self.train(*flags, run_dir=run_dir)['model_digest']
        self.assertEqual(len(set(digests.values())), 1, digests)
        other = self.train('--set=seed=8', run_dir=self.run_dir + '-seed')
        self.assertNotIn(other['model_digest'], digests.values())

    def test_digest_does_not_depend_on_the_size_of_messages(self):
        """The smallest leaves little beside one row; dense rows of Adam are written back whole."""
        digests = [
            self.train('--set=cluster.max_message_bytes=%d' % limit, '--set=dense_optimizer={adam{}}',
                       '--set=train.max_steps=10', run_dir='%s-%d' % (self.run_dir, limit))
            ['model_digest'] for limit in (65536, 4 << 20)]
        self.assertEqual(digests[0], digests[1])

    def test_two_workers_in_sync_mode(self):
        summaries = [
            self.train('--workers=2', '--servers=%d' % servers,
                       run_dir='%s-%d' % (self.run_dir, number))
            for number, servers in enumerate([1, 2, 2])]
        self.assertEqual(len({summary['model_digest'] for summary in summaries}), 1, summaries)
        self.assertEqual([summary['samples'] for summary in summaries], [10000] * 3)
        self.assertEqual([summary['steps'] for summary in summaries], [40] * 3)

    def test_bounded_staleness(self):
        summary = self.train('--workers=2', '--set=train.staleness_steps=3')
        self.assertEqual(summary['samples'], 10000)
        # The staleness depends on the machine (digest_test forces it); the bound holds everywhere.
        for rank in range(2):
            worker = read_json(self.run_dir, 'worker-%d.json' % rank)
            self.assertLessEqual(worker['mean_staleness'], worker['max_staleness'])
            self.assertLessEqual(worker['max_staleness'], 3)
        for server in read_json(self.run_dir, 'server_stats.json')['servers']:
            self.assertLessEqual(server['stats']['max_staleness_seen'], 3)

    def test_staleness_of_one_worker(self):
        def says(*flags):
            self.run_dir += '-'
            code, out, err = self.finish(self.start('--set=train.max_steps=3', *flags))
            self.assertEqual(code, 0, out + err)
            return [line for line in out.splitlines() if 'staleness_steps' in line]
        self.assertEqual(says(), [])
        self.assertEqual(says('--workers=2', '--set=train.staleness_steps=2'), [])
        self.assertEqual(
            says('--set=train.staleness_steps=2'),
            ['train.staleness_steps is 2: rows may miss the one worker\'s own last 2 steps; 0 trains '
             'in sync'])
        self.assertEqual(
            says('--set=train.staleness_steps=2', '--set=cache.budget=16MiB'),
            ['train.staleness_steps changes nothing: with a cache the one worker updates the rows '
             'that it reads itself'])

    def test_text_data_and_max_steps(self):
        folder = self.run_dir + '-data'
        subprocess.run([THERMOCLINE, 'generate', folder, '--format=tsv.gz', '--rows=3000',
                        '--test-rows=300', '--shrink=1000'],
                       check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
        summary = self.train('--data', os.path.join(folder, 'train.tsv.gz'),
                             '--set=data.format=CRITEO_TSV', '--set=train.max_steps=5',
                             '--set=data.test_path=' + os.path.join(folder, 'test.tsv.gz'))
        self.assertEqual(summary['steps'], 5)
        self.assertEqual(summary['samples'], 5 * 256)
        self.assertEqual(summary['eval_samples'], 300)

    def test_malformed_lines_are_skipped_within_the_limit(self):
        folder = self.run_dir + '-data'
        subprocess.run([THERMOCLINE, 'generate', folder, '--format=tsv', '--rows=1000',
                        '--test-rows=0', '--shrink=1000'],
                       check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
        path = os.path.join(folder, 'train.tsv')
        spoil_line(path, 100)
        flags = ['--data', path, '--set=data.format=CRITEO_TSV']
        code, _, err = self.finish(self.start(*flags, run_dir=self.run_dir + '-strict'))
        self.assertEqual(code, 1)
        self.assertIn('%s:100' % path, err)
        summary = self.train(*flags, '--set=data.max_bad_lines=1')
        self.assertEqual(summary['bad_lines'], 1)
        self.assertIn('%s:100' % path, summary['first_bad_line'])

    def test_malformed_held_out_lines_are_counted(self):
        folder = self.run_dir + '-data'
        subprocess.run([THERMOCLINE, 'generate', folder, '--format=tsv', '--rows=1000',
                        '--test-rows=100', '--shrink=1000'],
                       check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
        path = os.path.join(folder, 'test.tsv')
        spoil_line(path, 10)
        summary = self.train('--data', os.path.join(folder, 'train.tsv'),
                             '--set=data.format=CRITEO_TSV', '--set=data.max_bad_lines=1',
                             '--set=data.test_path=' + path)
        self.assertEqual((summary['bad_lines'], summary['eval_samples']), (1, 99))
        self.assertIn('%s:10' % path, summary['first_bad_line'])

    def test_a_share_of_npy_rows_is_held_out(self):
        folder = self.run_dir + '-data'
        subprocess.run([THERMOCLINE, 'generate', folder, '--rows=2000', '--test-rows=0',
                        '--shrink=1000'],
                       check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
        summary = self.train('--data', folder, '--set=data.test_share=0.25')
        self.assertEqual((summary['samples'], summary['eval_samples']), (1500, 500))
        launcher = self.start('--set=data.test_share=0.25', run_dir=self.run_dir + '-both')
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 2)
        self.assertIn('data.test_share is 0.25, and %s has test_dense.npy as well; choose one'
                      % self.data, err)

    def test_dense_or_sparse_columns_alone(self):
        for name, columns in (('dense', ['--set=data.num_categorical=0']),
                              ('sparse', ['--set=data.num_dense=0', '--clear=dlrm.bottom'])):
            run_dir = self.run_dir + '-' + name
            flags = [*columns, '--set=checkpoint.every_steps=100']
            whole = self.train(*flags, '--set=train.max_steps=20', run_dir=run_dir + '-whole')
            self.assertEqual((whole['steps'], whole['eval_samples']), (20, 2000))
            self.train(*flags, '--set=train.max_steps=11', run_dir=run_dir)
            resumed = self.thermocline('train', '--resume', '--run-dir', run_dir, '--servers=2',
                                       '--set=train.max_steps=20')
            self.assertEqual(resumed.returncode, 0, resumed.stderr)
            summary = read_json(run_dir, 'summary.json')
            self.assertEqual(summary['model_digest'], whole['model_digest'])
            self.assertEqual(summary['resumed_from_step'], 11)
            scored = self.thermocline(
                'eval', os.path.join(run_dir, 'job.textproto'), '--checkpoint',
                os.path.join(run_dir, 'checkpoints', summary['checkpoints']['last']),
                '--run-dir', run_dir + '-eval')
            self.assertEqual(scored.returncode, 0, scored.stderr)
            self.assertEqual(read_json(run_dir + '-eval', 'summary.json')['auc'], whole['auc'])

    def test_negative_ids_are_keys_and_padding_is_counted(self):
        # Half of the ids are negative, and each determines the label. Of the two columns of a bag
        # one is padding.
        random.seed(7)
        ids = [random.randrange(-2**63, 2**63) for _ in range(40)]
        self.assertTrue(any(number < 0 for number in ids))
        rows = [random.randrange(len(ids)) for _ in range(1000)]
        folder = self.run_dir + '-data'
        os.mkdir(folder)
        write_npy(os.path.join(folder, 'train_sparse.npy'), '<i8', (len(rows), 3),
                  struct.pack('<%dq' % (3 * len(rows)),
                              *(number for row in rows for number in (ids[row], 7, -1))))
        write_npy(os.path.join(folder, 'train_labels.npy'), '<i4', (len(rows),),
                  struct.pack('<%di' % len(rows), *(row % 2 for row in rows)))
        with open(self.job, 'w') as job:
            job.write("""
name: "ids"
data { format: DLRM_NPY path: "%s" test_share: 0.2 num_dense: 0 }
default_table { dim: 8 }
feature { name: "id" }
feature { name: "bag" columns: 2 }
dlrm { top: [32] }
train { batch_size: 50 passes: 10 learning_rate { base: 0.1 } }
""" % folder)
        launcher = self.start()
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        summary = self.summary(launcher)
        self.assertGreater(summary['auc'], 0.99)
        self.assertEqual(summary['padding_ids'], 10 * 800)
        self.assertIn('8,000 ids were padding\n', out)

    def test_stats_of_a_running_job(self):
        launcher = self.start_long('--servers=2', '--workers=2')
        # The workers' addresses join servers.json once they serve.
        wait_for(lambda: len(read_json(self.run_dir, 'servers.json')['workers']) == 2,
                 'the addresses of the workers')
        # The second step needs both workers' pushes of the first.
        wait_for(lambda: len(self.events('progress')) >= 2, 'the second step')
        stats = subprocess.run([THERMOCLINE, 'stats', '--json', '--run-dir', self.run_dir],
                               capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(stats.returncode, 0, stats.stderr)
        shown = json.loads(stats.stdout)
        self.assertEqual([server['stats']['server_index'] for server in shown['servers']], [0, 1])
        self.assertEqual([worker['stats']['worker_rank'] for worker in shown['workers']], [0, 1])
        self.assertGreaterEqual(shown['servers'][0]['stats']['complete_through'], 0)
        address = shown['servers'][1]['address']
        table = subprocess.run([THERMOCLINE, 'stats', address], capture_output=True, text=True,
                               timeout=DEADLINE_S)
        self.assertEqual(table.returncode, 0, table.stderr)
        self.assertTrue(re.search(r'^C26 +8 ', table.stdout, re.MULTILINE), table.stdout)
        self.assertIn(address, table.stdout)
        self.assertIsNone(launcher.poll())

    def test_stats_of_a_finished_run(self):
        summary = self.train('--servers=2', '--workers=2')
        shown = self.thermocline('stats', '--run-dir', self.run_dir)
        self.assertEqual((shown.returncode, shown.stderr), (0, ''))
        self.assertIn('the job in %s has ended\n' % self.run_dir, shown.stdout)
        self.assertIn('model digest ' + summary['model_digest'], shown.stdout)
        self.assertRegex(shown.stdout, r'(?m)^C26 +8 ')
        self.assertRegex(shown.stdout, r'(?m)^worker 1 +1 +- +40 ')  # "-": it has no phase any more
        watched = self.thermocline('stats', '--watch', '--json', '--run-dir', self.run_dir)
        self.assertEqual(watched.returncode, 0)
        line, = watched.stdout.splitlines()
        left = json.loads(line)
        self.assertEqual(left['ended']['summary'], summary)
        self.assertTrue(left['ended']['done'])
        self.assertEqual([server['stats']['complete_through'] for server in left['servers']],
                         [39, 39])
        self.assertEqual([worker['stats']['step'] for worker in left['workers']], [40, 40])

    def watch_stats(self, *flags):
        stats = subprocess.Popen(
            [THERMOCLINE, 'stats', '--watch', '--run-dir', self.run_dir, *flags],
            stdout=subprocess.PIPE, text=True, preexec_fn=set_signals)

        def clean_up():
            stats.kill()
            stats.communicate()
        self.addCleanup(clean_up)
        return stats

    def test_watching_stats(self):
        self.start_long('--servers=2')
        stats = self.watch_stats()
        looks = 0
        while looks < 2:  # each begins with the head of the servers' table
            line = stats.stdout.readline()
            self.assertNotEqual(line, '')
            looks += line.startswith('server ')
        stats.send_signal(signal.SIGINT)
        self.assertEqual(stats.wait(DEADLINE_S), 0)

    def test_watching_stats_as_json(self):
        self.start_long('--servers=2')
        stats = self.watch_stats('--json')
        for _ in range(2):
            look = json.loads(stats.stdout.readline())  # a line is a document
            self.assertEqual([server['stats']['server_index'] for server in look['servers']],
                             [0, 1])
        stats.send_signal(signal.SIGINT)
        self.assertEqual(stats.wait(DEADLINE_S), 0)

    def test_ctrl_c_ends_stats_of_a_server_that_hangs(self):
        launcher = self.start_long('--servers=2', '--set=cluster.rpc_timeout_s=600')
        server = self.pid_of(launcher, 'server 0')
        os.kill(server, signal.SIGSTOP)
        for flags, code in (((), -signal.SIGINT), (('--watch',), 0)):
            stats = subprocess.Popen([THERMOCLINE, 'stats', '--run-dir', self.run_dir, *flags],
                                     stdout=subprocess.DEVNULL, preexec_fn=set_signals)
            self.addCleanup(stats.kill)
            # It has connected, or is about to: it can't exit with this code by itself.
            wait_for(lambda: stats.poll() is None and self.threads(stats.pid) > 1, 'its threads')
            wait_for(lambda: self.catches_ctrl_c(stats.pid) == bool(flags), 'its signal handler')
            stats.send_signal(signal.SIGINT)
            self.assertEqual(stats.wait(DEADLINE_S), code)

    @staticmethod
    def threads(pid):
        return len(os.listdir('/proc/%d/task' % pid))

    @staticmethod
    def catches_ctrl_c(pid):
        with open('/proc/%d/status' % pid) as status:
            caught = next(line for line in status if line.startswith('SigCgt:'))
        return bool(int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1)

    def test_bench_train(self):
        launcher = self.start('--repeats=2', command='bench')
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 2)  # says what to measure
        bench = subprocess.run([THERMOCLINE, 'bench', 'train', self.job, '--repeats=2',
                                '--run-dir', self.run_dir + '-bench'],
                               capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(bench.returncode, 0, bench.stderr + err)
        self.assertRegex(bench.stdout, r'samples/s: median \d+, from \d+ to \d+ over 2 runs')
        self.assertRegex(bench.stdout, r'model digest: [0-9a-f]{32}')


if __name__ == '__main__':
    unittest.main(verbosity=2)
