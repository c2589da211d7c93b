"""Several workers that exchange rows and dense parameters: one that dies or hangs is named, and the
job goes back and makes the undisturbed model; one that can't go on ends the job with its own error,
behind the steps that all could train, also where a file is cut off; everyone's waits are on record.
THERMOCLINE_TEST_SEED repeats a run."""

import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import zlib

from harness import DEADLINE_S, THERMOCLINE, WORKER, ProcessTest, wait_for

FLAGS = ['--workers=3', '--servers=2', '--set=train.passes=8', '--set=cache.budget=600KiB',
         '--set=cache.window_steps=6', '--set=checkpoint.every_steps=25',
         '--set=checkpoint.max_rollbacks=100']


class SharedCacheTest(ProcessTest):

    def setUp(self):
        super().setUp()
        seed = int(os.environ.get('THERMOCLINE_TEST_SEED') or random.SystemRandom().getrandbits(32))
        print('seed', seed, flush=True)
        self.random = random.Random(seed)

    def disturb(self, number, flags, times):
        """Sends a signal to a worker at random points. Returns the ranks, and what followed."""
        without = [flag for flag in FLAGS if 'cache.' not in flag]
        undisturbed = self.train(*without, run_dir=self.run_dir + '-undisturbed')
        launcher = self.start(*FLAGS, *flags)
        ranks = []
        for _ in range(times):
            def progress():
                return len(self.events('progress'))

            def rollbacks():
                return len(self.events('rollback'))
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
        return ranks, [event['reason'] for event in self.events('rollback')]

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

    def logs(self):
        texts = []
        for rank in range(3):
            with open(os.path.join(self.run_dir, 'worker-%d.log' % rank)) as file:
                texts.append(file.read())
        return texts

    def test_workers_of_a_host_exchange_over_unix_sockets(self):
        folder = tempfile.mkdtemp(dir='/tmp')  # Bazel's is too long for a socket.
        self.addCleanup(shutil.rmtree, folder)

        def connections():
            """Connections of listening workers: lines of connected (03) sockets with a path in the folder."""
            with open('/proc/net/unix') as file:
                fields = [line.split() for line in file]
            return sum(len(each) > 7 and each[5] == '03' and each[7].startswith(folder)
                       for each in fields)
        launcher = self.start(*FLAGS, env={**os.environ, 'TMPDIR': folder})
        wait_for(lambda: launcher.poll() is not None or connections() == 6, 'connections')
        self.assertIsNone(launcher.poll(), 'the job has ended without a connection for each pair')
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        for rank, text in enumerate(self.logs()):
            others = ', '.join(str(other) for other in range(3) if other != rank)
            self.assertIn('blocks go to ranks %s over a Unix socket\n' % others, text)
        sockets = os.path.join(folder, 'thermocline-exchange-%d' % os.geteuid())
        self.assertEqual(os.listdir(sockets), [])
        self.assertEqual(os.stat(sockets).st_mode & 0o777, 0o700)
        summary = self.summary(launcher)

        # Where none can be made they use TCP, for the same model.
        self.run_dir += '-tcp'
        over_tcp = self.train(*FLAGS, env={**os.environ, 'TMPDIR': folder + '/' + 100 * 'x'})
        for text in self.logs():
            self.assertRegex(text, 'no Unix socket .*, which use TCP: .* is no path of a socket')
            self.assertRegex(text, 'blocks go to ranks [0-9, ]* over TCP\n')
        self.assertEqual(over_tcp['model_digest'], summary['model_digest'])

    def write_log(self, name, rows=5000):
        """A click log as text; its path."""
        folder = self.run_dir + '-' + name
        subprocess.run([THERMOCLINE, 'generate', folder, '--format=tsv', '--rows=%d' % rows,
                        '--test-rows=0', '--shrink=1000'],
                       check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
        return os.path.join(folder, 'train.tsv')

    def last_step(self):
        return max(event['step'] for event in self.events('progress'))

    def assert_fails(self, flags, says, trained):
        code, _, err = self.finish(self.start('--workers=2', *flags))
        self.assertEqual(code, 1, err)
        for text in says:
            self.assertRegex(err, text)
        self.assertEqual(self.last_step(), trained, err)
        self.assertEqual(self.events('rollback'), [])

    def test_a_rank_with_a_bad_line_ends_the_job_with_it(self):
        for name, cache in (('alone', []), ('cache', ['--set=cache.budget=600KiB'])):
            self.run_dir += '-' + name
            path = self.write_log('data')
            with open(path) as file:
                lines = file.readlines()
            # Rank 1 has the second half of a batch of 256.
            lines[7 * 256 + 200] = 'no label\n'
            with open(path, 'w') as file:
                file.writelines(lines)
            self.assert_fails(['--data', path, '--set=data.format=CRITEO_TSV', *cache],
                              # Rank 0 may be the first to say what rank 1 can't read.
                              ['(worker|rank) 1 ', re.escape('%s:%d: ' % (path, 7 * 256 + 200 + 1))],
                              trained=7)

    def test_a_file_that_is_cut_off_ends_the_job_where_it_ends(self):
        folder = self.run_dir
        path = self.write_log('data')
        with open(path, 'rb') as file:
            lines = file.readlines()
        compressed = gzip.compress(b''.join(lines))
        half = len(compressed) // 2
        whole_rows = zlib.decompressobj(wbits=31).decompress(compressed[:half]).count(b'\n')
        self.assertGreater(whole_rows, 256)
        row = 7 * 256 + 200
        cases = (('text', b''.join(lines[:row]) + lines[row][:20], ':%d: ' % (row + 1), 7),
                 ('gz', compressed[:half], ': gzip data is cut off at byte %d, the end of the file' % half,
                  whole_rows // 256))
        for name, data, where, trained in cases:
            cut = '%s-cut.%s' % (folder, name)
            with open(cut, 'wb') as file:
                file.write(data)
            for way, cache in (('alone', []), ('cache', ['--set=cache.budget=600KiB'])):
                self.run_dir = '%s-%s-%s' % (folder, name, way)
                # Where rows are held out, they are counted first, and it shows then.
                self.assert_fails(['--data', cut, '--set=data.format=CRITEO_TSV',
                                   '--set=data.test_share=0', *cache], [re.escape(cut + where)],
                                  trained=trained)

    def test_a_rank_with_other_files_is_named_before_the_first_step(self):
        folder = self.run_dir
        path = self.write_log('data')
        with open(path, 'rb') as file, gzip.open(path + '.gz', 'wb') as compressed:
            compressed.write(file.read())
        for whole in (path, path + '.gz'):
            self.run_dir = folder + '-' + os.path.basename(whole)
            cut = whole.replace('train.tsv', 'cut.tsv')
            shutil.copy(whole, cut)
            os.truncate(cut, os.path.getsize(whole) // 2)
            job = self.run_dir + '-rank-1.textproto'
            programs = self.fake_programs(worker="""
                for flag; do case "$flag" in --job=*) all="${flag#--job=}";; esac; done
                case " $* " in *" --rank=1 "*)
                    sed 's|%s|%s|' "$all" > '%s'; set -- "$@" '--job=%s';;
                esac
                exec '%s' "$@" """ % (whole, cut, job, job, WORKER))
            launcher = self.start('--workers=2', '--bin-dir', programs, '--data', whole,
                                  '--set=data.format=CRITEO_TSV', '--set=data.test_share=0')
            code, _, err = self.finish(launcher)
            self.assertEqual(code, 1, err)
            self.assertIn('worker 1 exited with code 1', err)
            self.assertIn('%s is not the file that the job began with: it has %d bytes, and had %d'
                          % (cut, os.path.getsize(cut), os.path.getsize(whole)), err)
            self.assertEqual(self.events('progress'), [])

    def test_waits_by_rank_and_phase_are_on_record(self):
        names = ['dense gradients', 'dense weights', 'gradients', 'keys', 'plans', 'rows']
        launcher = self.start_long('--workers=2', '--set=cache.budget=600KiB')
        event = wait_for(lambda: self.events('workers'), 'an event of the workers')[-1]
        self.assertEqual(len(event['wait_for_rank_s']), 2)
        self.assertEqual(sorted(event['wait_in_phase_s']), names)
        self.assertIn(event['slowest_rank'], (0, 1))
        # Each wait counts for the phase and for the rank.
        self.assertAlmostEqual(sum(event['wait_for_rank_s']), sum(event['wait_in_phase_s'].values()),
                               delta=1e-3)
        stats = self.thermocline('stats', '--run-dir', self.run_dir, '--json')
        self.assertEqual(stats.returncode, 0, stats.stderr)
        for worker in json.loads(stats.stdout)['workers']:
            exchange = worker['stats']['exchange']
            self.assertEqual(sorted(phase['name'] for phase in exchange['phases']), names)
            self.assertEqual(len(exchange['wait_for_rank_s']), 2)
        launcher.kill()


if __name__ == '__main__':
    unittest.main(verbosity=2)
