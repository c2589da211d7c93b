"""Checkpoints of real jobs: what is kept, who asks for one, what goes on from one."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest

from harness import (THERMOCLINE, WORKER, ProcessTest, children, manifest_of, set_signals,
                     wait_for)

FLAGS = ['--servers=2', '--set=train.passes=3', '--set=checkpoint.every_steps=20']
# Enough that a job is killed long before its end.
PASSES = 20
LONG_FLAGS = ['--servers=2', '--set=train.passes=%d' % PASSES, '--set=checkpoint.every_steps=20']


def turn_rows(path):
    """Puts the second half of the 10,000 rows of an .npy file before the first, in a new file."""
    with open(path, 'rb') as file:
        header, rows = file.read(128), file.read()
    half = len(rows) // 2
    with open(path + '.new', 'wb') as file:
        file.write(header + rows[half:] + rows[:half])
    os.rename(path + '.new', path)


class CheckpointTest(ProcessTest):

    _undisturbed = {}

    def undisturbed(self, workers=1):
        """The summary of a long job with nothing in its way; trained once for all tests."""
        if workers not in self._undisturbed:
            self._undisturbed[workers] = self.train('--set=train.passes=%d' % PASSES,
                                                    '--workers=%d' % workers,
                                                    run_dir=self.run_dir + '-undisturbed')
        return self._undisturbed[workers]

    def checkpoints(self, run_dir=None):
        """The names of those that are whole, by step."""
        folder = os.path.join(run_dir or self.run_dir, 'checkpoints')
        names = [name for name in os.listdir(folder)
                 if manifest_of(os.path.join(folder, name)) is not None]
        return sorted(names)  # step-000000099

    def wait_for_checkpoints(self, launcher, count):
        def committed():
            self.assertIsNone(launcher.poll(), 'the job ended')
            return len(self.events('checkpoint')) >= count
        wait_for(committed, '%d checkpoints' % count)

    def kill_launcher(self, launcher):
        pids = list(children(launcher.pid))
        launcher.kill()
        self.finish(launcher)
        self.assert_all_gone(pids)

    def test_a_killed_launcher_is_resumed_with_other_servers(self):
        undisturbed = self.undisturbed()
        launcher = self.start(*LONG_FLAGS, '--set=checkpoint.keep=2')
        self.wait_for_checkpoints(launcher, 1)
        # An engine ends it so, and goes on with it.
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)
        committed = len(self.events('checkpoint'))
        launcher = self.start('--restarted', *LONG_FLAGS, '--set=checkpoint.keep=2')
        self.wait_for_checkpoints(launcher, committed + 1)
        self.kill_launcher(launcher)
        summary = self.resume('--servers=3')
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        for name in ('steps', 'samples', 'auc', 'logloss'):
            self.assertEqual(summary[name], undisturbed[name], name)
        self.assertEqual(summary['generation'], 3)
        self.assertEqual(summary['resumed_from_step'] % 20, 0)
        self.assertEqual([event['generation'] for event in self.events('resume')], [2, 3])
        # Two are kept, and the last step's is one of them.
        names = self.checkpoints()
        self.assertEqual(len(names), 2)
        self.assertEqual(names[-1], 'step-%09d' % (40 * PASSES - 1))
        self.assertEqual(summary['checkpoints']['last'], names[-1])

        # The job is done: an engine that starts it again is only shown that.
        reported = self.thermocline('train', '--restarted', '--run-dir', self.run_dir)
        self.assertEqual(reported.returncode, 0, reported.stderr)
        self.assertIn('job small has been trained before', reported.stdout)
        self.assertEqual(len(self.events('resume')), 2)
        # For a user nothing is left to train, and the model is as it was.
        def worker():
            with open(os.path.join(self.run_dir, 'worker-0.json')) as file:
                return json.load(file)
        trained = worker()
        self.assertGreater(trained['new_samples'], 0)
        again = self.resume('--servers=1')
        self.assertEqual(again['model_digest'], undisturbed['model_digest'])
        self.assertEqual(again['steps'], undisturbed['steps'])
        # Its counts stay.
        self.assertEqual(worker(), trained)
        for field in ('samples_per_s', 'wall_s', 'bad_lines'):
            self.assertEqual(again[field], summary[field])
        self.assertEqual(again['checkpoints']['committed'], summary['checkpoints']['committed'])
        # More passes are more steps, and fewer are a mistake.
        more = self.resume('--set=train.passes=%d' % (PASSES + 1))
        self.assertEqual(more['steps'], 40 * (PASSES + 1))
        fewer = self.thermocline('train', '--resume', '--run-dir', self.run_dir,
                                 '--set=train.passes=1')
        self.assertEqual(fewer.returncode, 1)
        self.assertIn('train.passes=1 ends before step %d of the checkpoint' % (more['steps'] - 1),
                      fewer.stderr)

    def test_evaluation_of_a_checkpoint(self):
        summary = self.train(*FLAGS)
        path = os.path.join(self.run_dir, 'checkpoints', summary['checkpoints']['last'])
        run_dir = self.run_dir + '-eval'
        evaluated = self.thermocline('eval', self.job, '--checkpoint', path, '--run-dir', run_dir)
        self.assertEqual(evaluated.returncode, 0, evaluated.stderr)
        self.assertIn('AUC %.4f' % summary['auc'], evaluated.stdout)
        with open(os.path.join(run_dir, 'summary.json')) as file:
            scored = json.load(file)
        for name in ('auc', 'logloss', 'eval_samples', 'model_digest'):
            self.assertEqual(scored[name], summary[name], name)
        other = self.thermocline('eval', self.job, '--checkpoint', path,
                                 '--set=default_table.dim=4')
        self.assertEqual(other.returncode, 2)
        self.assertIn("table 'C1': dim is 4 here, 8 there", other.stderr)
        none = self.thermocline('eval', self.job, '--checkpoint', path + '9')
        self.assertEqual(none.returncode, 2)
        self.assertIn(path + '9', none.stderr)
        workers = self.thermocline('eval', self.job, '--checkpoint', path, '--workers=2')
        self.assertEqual(workers.returncode, 2)
        self.assertIn('unknown flag --workers', workers.stderr)
        for flag in ('--set=cluster.workers=2', '--set=train.learning_rate.base=1', '--clear=cache'):
            senseless = self.thermocline('eval', self.job, '--checkpoint', path, flag)
            self.assertEqual(senseless.returncode, 2)
            self.assertIn('%s means nothing to eval' % flag.replace('=', ' ', 1), senseless.stderr)
        resolved = os.path.join(self.run_dir, 'job.textproto')
        ignored = self.thermocline('eval', resolved, '--checkpoint', path,
                                   '--set=default_table.dim=4')
        self.assertEqual(ignored.returncode, 2)
        self.assertIn('--set default_table.dim=4 would change nothing: %s' % resolved,
                      ignored.stderr)

    def evaluate(self, *flags, name):
        """The result of `eval --json`, whose standard output has nothing else."""
        done = self.thermocline('eval', *flags, '--json', '--run-dir', self.run_dir + '-' + name)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_evaluation_of_a_run_directory_on_whole_files(self):
        summary = self.train(*FLAGS)
        last = summary['checkpoints']['last']
        # Without a job file, it is the run's: its held-out rows.
        held_out = self.evaluate('--checkpoint', self.run_dir, name='held-out')
        self.assertEqual(held_out['checkpoint'], last)
        self.assertEqual(held_out['rows'], "all rows of '%s/test_*.npy'" % self.data)
        for name in ('auc', 'logloss', 'eval_samples', 'model_digest'):
            self.assertEqual(held_out[name], summary[name], name)
        # Files of its own: all rows, in whichever form they come.
        folder = self.run_dir + '-other'
        rows = {}
        for form, file, flags in (('npy', '', []),
                                  ('tsv', 'train.tsv', ['--set=data.format=CRITEO_TSV'])):
            data = os.path.join(folder, form)
            subprocess.run([THERMOCLINE, 'generate', data, '--format=' + form, '--rows=500',
                            '--test-rows=0', '--shrink=1000'],
                           check=True, stdout=subprocess.DEVNULL)
            path = os.path.join(data, file) if file else data
            rows[form] = self.evaluate('--checkpoint', self.run_dir, '--data', path, *flags,
                                       name=form)
            self.assertEqual(rows[form]['eval_samples'], 500)
            self.assertIn("all rows of '%s" % path, rows[form]['rows'])
        # Skips a damaged newest checkpoint, and says so.
        manifest = manifest_of(os.path.join(self.run_dir, 'checkpoints', last))
        with open(manifest, 'r+b') as file:
            file.truncate(10)
        older = self.thermocline('eval', '--checkpoint', self.run_dir, '--run-dir',
                                 self.run_dir + '-older')
        self.assertEqual(older.returncode, 0, older.stderr)
        self.assertIn('checkpoint %s is passed over' % last, older.stdout)
        self.assertNotIn('\ncheckpoint %s\n' % last, older.stdout)

    def test_ctrl_c_ends_eval_while_it_reads_the_checkpoint(self):
        self.train(*FLAGS)

        def interrupt():
            """Leaves a Ctrl-C to be found as soon as the program looks for one."""
            set_signals()
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            os.kill(os.getpid(), signal.SIGINT)
        run_dir = self.run_dir + '-eval'
        code, out, err = self.finish(self.start('--checkpoint', self.run_dir, command='eval',
                                                run_dir=run_dir, preexec_fn=interrupt))
        self.assertEqual((code, err), (1, 'thermocline: stopped by signal 2 (Interrupt)\n'))
        self.assertRegex(out, r'^\[[=> ]{24}\] +\d+%  reading the checkpoint  \S+ \S+ of ')
        self.assertFalse(os.path.exists(run_dir))

    def test_what_eval_passes_over(self):
        self.train(*FLAGS, '--set=checkpoint.full_every=1')
        oldest, older, newest = self.checkpoints()
        folder = os.path.join(self.run_dir, 'checkpoints')
        with open(os.path.join(folder, newest, 'generation-1-server-0.1.rows'), 'r+b') as file:
            file.seek(1000)
            byte = file.read(1)[0]
            file.seek(1000)
            file.write(bytes([byte ^ 1]))
        # Its files have their sizes; the list does not read more, and says so.
        listed = self.thermocline('checkpoint', 'list', self.run_dir)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertIn('contents are not read', listed.stdout)
        for path, scored, passed_over in ((self.run_dir, older, [newest]),
                                          (folder, oldest, [newest, older])):
            result = self.thermocline('eval', self.job, '--checkpoint', path,
                                      '--run-dir', self.run_dir + '-' + scored)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn('\ncheckpoint %s\nscored: ' % scored, result.stdout)
            self.assertEqual([line.split()[1] for line in result.stdout.splitlines()
                              if ' is passed over: ' in line], passed_over)
            with open(manifest_of(os.path.join(folder, older)), 'r+b') as file:
                file.truncate(10)
        # One that is named has to be whole.
        for name in (older, newest):
            refused = self.thermocline('eval', self.job, '--checkpoint',
                                       os.path.join(folder, name))
            self.assertEqual(refused.returncode, 2)
            self.assertIn(os.path.join(folder, name), refused.stderr)

    def test_where_a_checkpoint_was_made_is_kept_and_reported(self):
        with open('/proc/cpuinfo') as file:
            best = 'AVX512' if 'avx512f' in file.read() else 'AVX2'
        self.train('--set=checkpoint.every_steps=20')
        listed = self.thermocline('checkpoint', 'list', '--json', self.run_dir)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        checkpoints = json.loads(listed.stdout)['checkpoints']
        self.assertEqual({each['cpu_isa'] for each in checkpoints}, {best})
        self.assertEqual(len({each['build'] for each in checkpoints}), 1)
        newest = checkpoints[-1]['name']
        if best == 'AVX2':
            return  # There is no other to go on with.
        said = 'checkpoint %s was made with cpu_isa AVX512 (this run: AVX2)\n' % newest
        path = os.path.join(self.run_dir, 'checkpoints', newest)
        for command in (['train', '--resume', '--run-dir', self.run_dir],
                        ['eval', self.job, '--checkpoint', path, '--run-dir',
                         self.run_dir + '-eval']):
            done = self.thermocline(*command, '--set=cluster.cpu_isa=AVX2')
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(said, done.stdout)
        # A job's own checkpoint gives no notice.
        self.assertNotIn('was made with', self.thermocline(
            'train', '--resume', '--run-dir', self.run_dir,
            '--set=cluster.cpu_isa=AVX512').stdout)

    def test_a_damaged_checkpoint_is_named_and_not_passed_over(self):
        digest = self.train(*FLAGS)['model_digest']
        older, newest = self.checkpoints()[-2:]
        path = manifest_of(os.path.join(self.run_dir, 'checkpoints', newest))
        with open(path, 'r+b') as file:
            file.seek(100)
            byte = file.read(1)[0]
            file.seek(100)
            file.write(bytes([byte ^ 1]))
        refused = self.thermocline('train', '--resume', '--run-dir', self.run_dir)
        self.assertEqual(refused.returncode, 2)
        self.assertIn(path, refused.stderr)
        self.assertIn('--resume-from', refused.stderr)
        # In the run directory a checkpoint has its whole name, too.
        summary = self.resume('--resume-from', os.path.join(self.run_dir, older))
        self.assertEqual(summary['model_digest'], digest)
        self.assertEqual(summary['resumed_from_step'], int(older.rsplit('-', 1)[1]) + 1)

    def test_rows_that_are_damaged_end_the_job(self):
        # None is removed: how many are made depends on how fast they are written.
        digest = self.train(*FLAGS, '--set=checkpoint.full_every=1',
                            '--set=checkpoint.keep=10')['model_digest']
        older, newest = self.checkpoints()[-2:]
        path = os.path.join(self.run_dir, 'checkpoints', newest, 'generation-1-server-1.1.rows')
        with open(path, 'r+b') as file:
            file.seek(1000)
            byte = file.read(1)[0]
            file.seek(1000)
            file.write(bytes([byte ^ 1]))
        for _ in range(2):  # Trying again is of no use.
            refused = self.thermocline('train', '--resume', '--run-dir', self.run_dir)
            self.assertEqual(refused.returncode, 1, refused.stdout)
            self.assertIn(path, refused.stderr)
            self.assertNotIn('train --resume ', refused.stderr)
            self.assertRegex(refused.stderr, 'thermocline train --run-dir %s --resume-from NAME.*'
                             'whole, by every byte: %s' % (self.run_dir, older))
        # By its path, as `checkpoint now` prints it.
        summary = self.resume('--resume-from', os.path.join(os.path.dirname(path), '..', older))
        # The fourth generation made the damaged one again, in its folder.
        self.assertEqual(summary['checkpoints']['last'], newest)
        self.assertIn('generation-4-server-1.1.rows', os.listdir(os.path.dirname(path)))
        self.assertEqual(summary['model_digest'], digest)
        # What the new generation made is the newest now.
        self.assertEqual(self.checkpoints()[-1], summary['checkpoints']['last'])
        again = self.thermocline('train', '--resume-from', '/tmp/' + older, '--run-dir',
                                 self.run_dir)
        self.assertEqual(again.returncode, 2)
        self.assertIn("there is no checkpoint '/tmp/%s'" % older, again.stderr)
        elsewhere = os.path.join(self.folder, older)
        shutil.copytree(os.path.join(self.run_dir, 'checkpoints', older), elsewhere)
        again = self.thermocline('train', '--resume-from', elsewhere, '--run-dir', self.run_dir)
        self.assertEqual(again.returncode, 2)
        self.assertIn('is not in', again.stderr)

    def test_one_before_stands_in_for_a_base_that_is_gone(self):
        digest = self.train(*FLAGS, '--set=checkpoint.full_every=1')['model_digest']
        older, newest = self.checkpoints()[-2:]
        self.resume()  # Its generation begins with the newest, and makes none.
        shutil.rmtree(os.path.join(self.run_dir, 'checkpoints', newest))
        resumed = self.thermocline('train', '--resume', '--run-dir', self.run_dir)
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertIn('checkpoint %s, with which the last generation began, is gone; going on with %s'
                      % (newest, older), resumed.stdout)
        with open(os.path.join(self.run_dir, 'summary.json')) as file:
            self.assertEqual(json.load(file)['model_digest'], digest)

    def test_a_step_is_not_silently_other_samples(self):
        data = self.run_dir + '-data'
        shutil.copytree(self.data, data)
        summary = self.train(*FLAGS, '--data', data)
        for flag, said in (('--set=data.test_share=0.25', 'data.test_share is 0.25'),
                           ('--set=feature[3].pooling=MEAN',
                            '--set feature[3].pooling=MEAN: feature[3].pooling is MEAN'),
                           ('--set=train.batch_size=128',
                            '--set train.batch_size=128: train.batch_size is 128')):
            refused = self.thermocline('train', '--resume', '--run-dir', self.run_dir, flag)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(said, refused.stderr)
        # Data that were moved are the same; those whose rows have other places are not.
        moved = data + '-moved'
        os.rename(data, moved)
        again = self.resume('--data', moved)
        self.assertEqual(again['model_digest'], summary['model_digest'])
        path = os.path.join(moved, 'train_sparse.npy')
        turn_rows(path)
        more = ['train', '--resume', '--run-dir', self.run_dir, '--data', moved,
                '--set=train.passes=4']
        refused = self.thermocline(*more)
        self.assertEqual(refused.returncode, 2)
        other = ('the data are not those of checkpoint %s: %s is training file 3, in place of %s, and is '
                 'another: it has %d bytes as before, but others at its beginning and end'
                 % (summary['checkpoints']['last'], path, os.path.join(data, 'train_sparse.npy'),
                    os.path.getsize(path)))
        self.assertIn(other, refused.stderr)
        self.assertIn('insist: --other-data', refused.stderr)
        insisted = self.thermocline(*more, '--other-data')
        self.assertEqual(insisted.returncode, 0, insisted.stderr)
        self.assertIn(other, insisted.stdout)
        # The checkpoints that were made since know the new data.
        self.resume('--data', moved)

    def test_a_job_does_not_go_back_to_other_data(self):
        data = self.run_dir + '-data'
        shutil.copytree(self.data, data)
        launcher = self.start(*LONG_FLAGS, '--data', data)
        self.wait_for_checkpoints(launcher, 1)
        # It sees nothing of the change.
        worker = self.pid_of(launcher, 'worker 0')
        os.kill(worker, signal.SIGSTOP)
        path = os.path.join(data, 'train_sparse.npy')
        turn_rows(path)
        os.kill(worker, signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1, 'out: %s\nerr: %s' % (out, err))
        self.assertIn('going back to step', out)
        self.assertIn('worker 0 exited with code 1', err)
        self.assertIn('%s is not the file that the job began with: it has %d bytes as before, but '
                      'others at its beginning and end' % (path, os.path.getsize(path)), err)

    def test_checkpoint_now(self):
        launcher = self.start_long('--servers=2', '--workers=2', '--set=checkpoint.at_end=true')
        paths = []
        for _ in range(2):
            now = self.thermocline('checkpoint', 'now', '--run-dir', self.run_dir)
            self.assertEqual(now.returncode, 0, now.stderr)
            paths.append(now.stdout.strip())
            self.assertIsNotNone(manifest_of(paths[-1]), now.stdout)
        self.assertNotEqual(paths[0], paths[1])
        verified = self.thermocline('checkpoint', 'verify', paths[1])
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        # No other launcher can take this run meanwhile.
        second = self.thermocline('train', '--resume', '--run-dir', self.run_dir)
        self.assertEqual(second.returncode, 2)
        said = r'another launcher \(process %d on host \S+\) uses %s' % (launcher.pid, self.run_dir)
        self.assertRegex(second.stderr, '^thermocline: %s; waiting up to 10s .*\n'
                                        'thermocline: %s\n$' % (said, said))
        self.kill_launcher(launcher)
        nobody = self.thermocline('checkpoint', 'now', '--run-dir', self.run_dir)
        self.assertEqual(nobody.returncode, 1)
        self.assertIn('no launcher runs in ' + self.run_dir, nobody.stderr)
        self.assertEqual([name for name in os.listdir(self.run_dir) if 'request' in name], [])

    def test_a_long_log_makes_a_checkpoint_and_gets_shorter(self):
        launcher = self.start_long('--set=cluster.durability=LOG_ASYNC',
                                   '--set=cluster.max_log_size=1MiB',
                                   '--set=checkpoint.every_steps=0')
        data = os.path.join(self.run_dir, 'server-0.data')

        def log_bytes():
            sizes = []
            for folder, _, files in os.walk(data):
                for name in files:
                    try:
                        sizes.append(os.path.getsize(os.path.join(folder, name)))
                    except FileNotFoundError:
                        pass
            return sum(sizes)
        wait_for(lambda: log_bytes() > 1 << 20, 'a long log')
        self.wait_for_checkpoints(launcher, 1)
        longest = log_bytes()

        def is_shorter():
            nonlocal longest
            size = log_bytes()
            longest = max(longest, size)
            return size < longest / 2
        wait_for(is_shorter, 'a shorter log')
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)

    def test_a_dead_worker_takes_the_job_back(self):
        flags = [*LONG_FLAGS, '--workers=2']
        undisturbed = self.undisturbed(workers=2)
        launcher = self.start(*flags)
        self.wait_for_checkpoints(launcher, 1)
        os.kill(self.pid_of(launcher, 'worker 1'), signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        self.assertRegex(out, r'worker 1 was killed by signal 9 \(Killed\).*; going back to step '
                              r'\d+ \(generation 2\)')
        summary = self.summary(launcher)
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        self.assertEqual((summary['rollbacks'], summary['generation']), (1, 2))
        rollback, = self.events('rollback')
        self.assertEqual(rollback['step'] % 20, 0)
        self.assertEqual(rollback['process'], 'worker 1')
        started = self.events('started')[0]
        self.assertLess(abs(time.time() - started['time']), 3600)

    def test_a_damaged_log_takes_the_job_back(self):
        undisturbed = self.undisturbed()
        launcher = self.start(*LONG_FLAGS, '--set=cluster.durability=LOG_ASYNC')
        self.wait_for_checkpoints(launcher, 1)
        folder = os.path.join(self.run_dir, 'server-0.data')
        segment = min(name for name in os.listdir(folder) if name.startswith('push-'))
        with open(os.path.join(folder, segment), 'r+b') as file:
            file.seek(24)  # In its header.
            file.write(b'damage')
        os.kill(self.pid_of(launcher, 'server 0'), signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        self.assertRegex(out, r'; going back to step \d+ \(generation 2\)')
        summary = self.summary(launcher)
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        self.assertEqual((summary['rollbacks'], summary['generation']), (1, 2))

    def test_a_worker_that_hangs_takes_the_job_back(self):
        flags = [*LONG_FLAGS, '--workers=2']
        undisturbed = self.undisturbed(workers=2)
        launcher = self.start(*flags, '--set=cluster.stall_timeout_s=5')
        self.wait_for_checkpoints(launcher, 1)
        os.kill(self.pid_of(launcher, 'worker 1'), signal.SIGSTOP)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        # Worker 0 waits for a push of worker 1, or for rows that a server gives after that push.
        self.assertRegex(out, r'nothing has advanced for 5s \(cluster.stall_timeout_s\): '
                              r'(server \d at \S+ is waited for: worker 0 has waited [^;]*; )?worker 1 is '
                              r'waited for: .*; going back to step \d+ \(generation 2\)')
        summary = self.summary(launcher)
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        self.assertEqual((summary['rollbacks'], summary['generation']), (1, 2))

    def test_a_worker_that_hangs_again_before_it_got_further_ends_the_job(self):
        # The worker of the second generation serves, and does nothing.
        programs = self.fake_programs(worker="""
            case "$*" in *--generation=2*)
              for flag in "$@"; do
                case "$flag" in --port_file=*) echo 127.0.0.1:9 >"${flag#*=}" ;; esac
              done
              exec sleep 600 ;;
            esac
            exec '%s' "$@"
            """ % WORKER)
        launcher = self.start(*LONG_FLAGS, '--bin-dir', programs,
                              '--set=cluster.stall_timeout_s=5')
        self.wait_for_checkpoints(launcher, 1)
        os.kill(self.pid_of(launcher, 'worker 0'), signal.SIGSTOP)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('going back to step', out)
        self.assertIn('(generation 2)', out)
        self.assertNotIn('(generation 3)', out)
        self.assertIn('nothing has advanced for 5s', err)
        self.assertIn('the job has gone back for a stall before, and got no further since', err)
        self.assertEqual([event['field'] for event in self.events('limit')],
                         ['cluster.stall_timeout_s'])
        self.assertIn('to go on from the last checkpoint: thermocline train --resume --run-dir '
                      + self.run_dir, err)

    def test_a_port_that_stays_taken_takes_the_job_back_to_another(self):
        undisturbed = self.undisturbed()
        launcher = self.start(*LONG_FLAGS, '--set=cluster.durability=LOG_ASYNC')
        self.wait_for_checkpoints(launcher, 1)
        self.kill_and_take_port(launcher, 'server 0')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r'server 0 exited with code 1 \(.* in use.*\); not started again: it did '
                              r'not come up 5 times in a row\n')
        self.assertRegex(out, r'server 0 exited with code 1 .*; going back to step \d+ \(generation 2\)')
        summary = self.summary(launcher)
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        self.assertEqual((summary['rollbacks'], summary['server_restarts']), (1, 5))

    def test_restarts_that_are_exhausted_take_the_job_back(self):
        undisturbed = self.undisturbed()
        launcher = self.start(*LONG_FLAGS, '--set=cluster.durability=LOG_ASYNC',
                              '--set=cluster.max_server_restarts=0')
        self.wait_for_checkpoints(launcher, 1)
        os.kill(self.pid_of(launcher, 'server 0'), signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        self.assertIn('not started again: cluster.max_server_restarts is 0', out)
        self.assertRegex(out, r'going back to step \d+ \(generation 2\)')
        summary = self.summary(launcher)
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        self.assertEqual((summary['rollbacks'], summary['server_restarts']), (1, 0))

    def test_rollbacks_count_anew_once_the_job_got_further(self):
        undisturbed = self.undisturbed()
        launcher = self.start(*LONG_FLAGS, '--set=checkpoint.max_rollbacks=1')
        for kills in range(1, 4):
            # Each further than the job was at the loss before, of which not every step was reported.
            target = 10 + max([event['step'] for event in self.events('progress')], default=0)
            wait_for(lambda: any(event['step'] >= target for event in self.events('progress')),
                     'step %d' % target)
            self.wait_for_checkpoints(launcher, kills)
            os.kill(self.pid_of(launcher, 'worker 0'), signal.SIGKILL)
            wait_for(lambda: len(self.events('rollback')) == kills, 'rollback %d' % kills)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        summary = self.summary(launcher)
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        self.assertEqual(summary['rollbacks'], 3)

    def test_a_checkpoint_that_was_called_off_leaves_no_folder(self):
        launcher = self.start('--servers=2', '--set=train.passes=%d' % PASSES,
                              '--set=checkpoint.at_end=true')
        wait_for(lambda: self.events('progress'), 'a step')
        # No part fits on the disk.
        server = self.pid_of(launcher, 'server 1')
        _, hard = resource.prlimit(server, resource.RLIMIT_FSIZE)
        resource.prlimit(server, resource.RLIMIT_FSIZE, (4096, hard))
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1, out)
        self.assertIn("the model is trained, but its checkpoint can't be written: ", err)
        self.assertIn('File too large', err)
        # It was tried three times, and reported once.
        name = 'step-%09d' % (40 * PASSES - 1)
        self.assertEqual(out.count('checkpoint %s was called off: ' % name), 1, out)
        self.assertEqual([event['name'] for event in self.events('checkpoint_called_off')],
                         [name] * 3)
        # The result is there, and says what is missing.
        with open(os.path.join(self.run_dir, 'summary.json')) as file:
            summary = json.load(file)
        self.assertIn('File too large', summary['checkpoints']['missing'])
        self.assertIsNotNone(summary['model_digest'])
        stats = self.thermocline('stats', '--run-dir', self.run_dir)
        self.assertEqual(stats.returncode, 1)
        self.assertIn("has ended and failed: the model is trained, but its checkpoint can't be "
                      'written: ', stats.stdout)
        self.assertNotIn('launch before', stats.stdout)
        for text in (out, stats.stdout):
            self.assertIn('\nAUC %.4f ' % summary['auc'], text)
            self.assertIn('\nmodel digest %s\n' % summary['model_digest'], text)
            self.assertIn('\nthe checkpoint of the last step is missing: ', text)
        left = os.listdir(os.path.join(self.run_dir, 'checkpoints'))
        self.assertEqual([name for name in left if name.startswith('step-')], [])
        self.assertIn('there is no checkpoint yet', err)

    def test_so_many_rollbacks_and_no_more(self):
        launcher = self.start_long('--set=checkpoint.max_rollbacks=0', '--workers=2')
        os.kill(self.pid_of(launcher, 'worker 0'), signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('worker 0 was killed by signal 9 (Killed)', err)
        self.assertEqual(out.count('not going back: checkpoint.max_rollbacks is 0'), 1, out)
        limit, = self.events('limit')
        self.assertEqual((limit['field'], limit['limit']), ('checkpoint.max_rollbacks', 0))
        # Said by worker 1, if it has come to wait.
        self.assertRegex(limit['reason'], r'^worker 0 was killed by signal 9 \(Killed\)'
                         r'(; worker 1 waited for the [a-z ]+ of step \d+ from worker 0)?$')
        self.assertIn('there is no checkpoint yet; to begin anew in this run directory: thermocline '
                      'train --resume --run-dir ' + self.run_dir, err)

    def test_what_the_job_brings_about_is_no_reason_to_go_back(self):
        launcher = self.start('--set=train.learning_rate.base=1e38', *FLAGS)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('worker 0 exited with code 1', err)
        self.assertNotIn('going back', out)

    def test_nothing_to_resume(self):
        self.train('--set=checkpoint.none=true')
        self.assertFalse(os.path.exists(os.path.join(self.run_dir, 'checkpoints')))
        refused = self.thermocline('train', '--resume', '--run-dir', self.run_dir)
        self.assertEqual(refused.returncode, 2)
        self.assertIn('the job writes no checkpoints (checkpoint.none)', refused.stderr)
        refused = self.thermocline('train', '--resume', '--run-dir', self.run_dir,
                                   '--set=checkpoint.none=false')
        self.assertEqual(refused.returncode, 2)
        self.assertIn('nothing to resume', refused.stderr)
        self.assertEqual(self.thermocline('train', '--resume').returncode, 2)


if __name__ == '__main__':
    unittest.main(verbosity=2)
