"""Jobs that go wrong end soon, say why, and leave no process behind."""

import json
import os
import resource
import signal
import socket
import subprocess
import unittest

from harness import (DEADLINE_S, SERVER, THERMOCLINE, WORKER, ProcessTest, children, is_running,
                     wait_for)


class FailureTest(ProcessTest):

    def fails(self, launcher, code=1):
        """Standard error of a launcher that must fail with `code`."""
        got, out, err = self.finish(launcher)
        self.assertEqual(got, code, 'out: %s\nerr: %s' % (out, err))
        self.assertFalse(os.path.exists(os.path.join(launcher.run_dir, 'summary.json')))
        return err

    def test_a_killed_server_ends_the_job(self):
        launcher = self.start_long('--servers=2', '--workers=2')
        pids = list(children(launcher.pid))
        self.assertEqual(len(pids), 4)
        os.kill(self.pid_of(launcher, 'server 1'), signal.SIGKILL)
        err = self.fails(launcher)
        self.assertIn('server 1 was killed by signal 9 (Killed)', err)
        self.assertIn('server-1.log', err)
        self.assertIn('  | ', err)  # its last log lines
        self.assertIn('serving on', err)
        self.assertIn(self.run_dir, err)
        self.assert_all_gone(pids)
        for name in ('job.textproto', 'metrics.jsonl', 'server-0.log', 'worker-0.log'):
            self.assertTrue(os.path.exists(os.path.join(self.run_dir, name)), name)

    def test_a_killed_worker_ends_the_job(self):
        launcher = self.start_long('--workers=2')
        pids = list(children(launcher.pid))
        os.kill(self.pid_of(launcher, 'worker 1'), signal.SIGKILL)
        self.assertIn('worker 1 was killed by signal 9 (Killed)', self.fails(launcher))
        self.assert_all_gone(pids)

    def test_a_server_that_stops_answering_ends_the_job(self):
        launcher = self.start_long('--servers=2', '--set=cluster.rpc_timeout_s=1')
        pids = list(children(launcher.pid))
        server = self.pid_of(launcher, 'server 0')
        with open(os.path.join(self.run_dir, 'server-0.port')) as file:
            address = file.read().strip()
        os.kill(server, signal.SIGSTOP)
        err = self.fails(launcher)
        self.assertIn('worker 0 exited with code 3', err)
        self.assertIn(address, err)
        self.assert_all_gone(pids)

    def test_a_step_that_no_server_has_room_for_ends_the_job(self):
        err = self.fails(self.start('--set=default_table.dim=256', '--set=train.batch_size=2048',
                                    '--set=cluster.max_pending_size=1MiB'))
        self.assertIn('worker 0 exited with code 1', err)
        self.assertRegex(err, r'thermocline: job \S+: .* the pushes of step 0 have \d+ bytes and more; this '
                              r'server holds at most 1048576 .*\(cluster.max_pending_size\)')

    def test_too_few_open_files_for_the_job_are_named(self):
        launcher = self.start('--set=cluster.channels_per_server=64', '--servers=2',
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                                    (150, 150)))
        err = self.fails(launcher)
        self.assertIn('a worker needs 193 open files for 129 connections; the limit is 150', err)

    def test_a_worker_that_hangs_ends_the_job(self):
        launcher = self.start_long('--servers=2', '--workers=2', '--set=cluster.stall_timeout_s=3')
        pids = list(children(launcher.pid))
        # Once rank 0 is through its third step, all have pushed the first.
        wait_for(lambda: len(self.events('progress')) >= 3, 'three steps')
        os.kill(self.pid_of(launcher, 'worker 1'), signal.SIGSTOP)
        err = self.fails(launcher)
        # Where it is stopped between its block of dense gradients and its push, rank 0 waits for a server, which waits
        # for that push.
        self.assertRegex(err, r'nothing has advanced for 3s \(cluster.stall_timeout_s\): '
                              r'(server \d at \S+ is waited for: worker 0 has waited \d+s for the rows of .*; )?'
                              r'worker 1 is waited for: (worker 0 has waited \d+s for the .*; )?'
                              r'its last push is of step \d+; logs:\n'
                              r'  \| \S+/worker-1.log\n')
        self.assert_all_gone(pids)

    def test_servers_that_hang_are_named_with_their_logs(self):
        launcher = self.start_long('--servers=2', '--set=cluster.stall_timeout_s=3',
                                   '--set=cluster.rpc_timeout_s=600')
        pids = list(children(launcher.pid))
        for name in ('server 0', 'server 1'):
            os.kill(self.pid_of(launcher, name), signal.SIGSTOP)
        err = self.fails(launcher)
        self.assertRegex(err, r'server 0 at \S+ does not answer: .*; server 1 at \S+ does not answer: '
                              r'.*; logs:\n  \| \S+/server-0.log\n  \| \S+/server-1.log\n')
        self.assert_all_gone(pids)

    def test_a_worker_that_hangs_while_others_have_ended(self):
        # Rank 0 alone evaluates, one row at a time: it is stopped in the middle of that.
        folder = self.run_dir + '-data'
        subprocess.run([THERMOCLINE, 'generate', folder, '--rows=40960', '--test-rows=100000',
                        '--shrink=1000'],
                       check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
        launcher = self.start('--workers=2', '--set=cluster.stall_timeout_s=3', '--data', folder,
                              '--set=train.eval_batch_size=1')
        pids = wait_for(lambda: len(children(launcher.pid)) == 3 and list(children(launcher.pid)),
                        'all processes')
        worker = self.pid_of(launcher, 'worker 0')
        wait_for(lambda: len(children(launcher.pid)) == 2, 'the end of worker 1')
        os.kill(worker, signal.SIGSTOP)
        self.assertRegex(self.fails(launcher),
                         r'\): worker 0 is waited for: its last push is of step 15[89];')
        self.assert_all_gone(pids)

    def test_a_worker_that_never_comes_up(self):
        programs = self.fake_programs(worker='echo stuck here; exec sleep 600')
        err = self.fails(self.start('--bin-dir', programs, '--set=cluster.startup_timeout_s=1'))
        self.assertIn('worker 0 did not come up within 1s', err)
        self.assertIn('worker-0.log', err)

    def test_a_result_without_digest_is_kept(self):
        launcher = self.start_with_server_1_stopped_at_the_end()
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('the model is trained, but summary.json lacks its digest: ', err)
        self.assertRegex(out, r'\nAUC 0\.\d+ ')
        with open(os.path.join(self.run_dir, 'summary.json')) as file:
            summary = json.load(file)
        self.assertIsNone(summary['model_digest'])
        self.assertEqual(summary['steps'], 40)
        self.assertGreater(summary['auc'], 0.5)
        # The worker may end before it is seen; the logs stay.
        pids = self.logged_server_pids(launcher, 2)
        self.assertEqual(len(pids), 2)
        self.assert_all_gone(pids)

    def test_avx512_where_the_machine_has_none(self):
        with open('/proc/cpuinfo') as file:
            has_it = 'avx512f' in file.read()
        launcher = self.start('--set=cluster.cpu_isa=AVX512', '--set=train.max_steps=2')
        if has_it:
            self.assertEqual(self.finish(launcher)[0], 0)
        else:
            self.assertIn('cluster.cpu_isa is AVX512, which this machine does not have',
                          self.fails(launcher))

    def test_a_server_that_never_comes_up(self):
        programs = self.fake_programs(server='echo stuck here; exec sleep 600')
        err = self.fails(self.start('--bin-dir', programs, '--set=cluster.startup_timeout_s=1'))
        self.assertIn('server 0 did not come up within 1s', err)
        self.assertIn('server-0.log', err)

    def test_a_server_that_dies_at_once(self):
        programs = self.fake_programs(
            server='for i in $(seq 40); do echo line $i; done; exit 3')
        err = self.fails(self.start('--bin-dir', programs, '--servers=2'))
        self.assertIn('server 0 exited with code 3', err)
        self.assertIn('  | line 40\n', err)
        self.assertIn('  | line 26\n', err)
        self.assertNotIn('  | line 25\n', err)

    def test_a_worker_that_leaves_no_result(self):
        programs = self.fake_programs(worker='exit 0')
        self.assertIn('worker-0.json', self.fails(self.start('--bin-dir', programs)))

    def test_a_worker_that_fails(self):
        programs = self.fake_programs(worker='echo out of luck >&2; exit 4')
        err = self.fails(self.start('--bin-dir', programs))
        self.assertIn('worker 0 exited with code 4', err)
        self.assertIn('  | out of luck', err)

    def test_programs_that_are_not_there(self):
        err = self.fails(self.start('--bin-dir', '/no/such/folder'), code=2)
        self.assertIn("can't find the program thermocline-server", err)

    def test_bad_job_files(self):
        with open(self.job) as job:
            text = job.read()
        with open(self.job, 'w') as job:
            job.write(text.replace('batch_size', 'batchsize'))
        err = self.fails(self.start(), code=2)
        self.assertIn("%s:7:9: unknown field 'batchsize' in Train (did you mean 'batch_size'?)"
                      % self.job, err)
        err = self.fails(self.start(job=self.run_dir + '.nothing'), code=2)
        self.assertIn('No such file or directory', err)
        self.assertFalse(os.path.exists(self.run_dir))

    def test_bad_overrides(self):
        err = self.fails(self.start('--workers=0'), code=2)
        self.assertIn('--workers 0: cluster.workers is 0; it must be at least 1', err)
        err = self.fails(self.start('--workers=x'), code=2)
        self.assertIn('--workers x: ', err)
        self.assertNotIn('--set', err)
        err = self.fails(self.start('--set=train.bach_size=1'), code=2)
        self.assertIn("did you mean 'batch_size'?", err)

    def test_missing_data(self):
        err = self.fails(self.start('--data', '/no/such/data'), code=2)
        self.assertIn("data.path '/no/such/data': No such file or directory", err)
        err = self.fails(self.start('--data', self.job), code=2)
        self.assertIn('reads a folder', err)
        os.mkdir(self.run_dir + '-empty')
        err = self.fails(self.start('--data', self.run_dir + '-empty'))
        self.assertIn('train_', err)
        self.assertIn('.npy', err)

    def test_a_run_directory_is_never_overwritten(self):
        os.mkdir(self.run_dir)
        precious = os.path.join(self.run_dir, 'summary.json')
        with open(precious, 'w') as file:
            file.write('precious')
        code, _, err = self.finish(self.start())
        self.assertEqual(code, 2)
        self.assertIn('is not empty', err)
        with open(precious) as file:
            self.assertEqual(file.read(), 'precious')

    def test_beyond_loopback_is_closed(self):
        err = self.fails(self.start('--set=cluster.listen_host=0.0.0.0'), code=2)
        self.assertIn('beyond loopback', err)
        server = subprocess.run([SERVER, '--listen=0.0.0.0:0'], capture_output=True, text=True,
                                timeout=DEADLINE_S)
        self.assertEqual(server.returncode, 2)
        self.assertIn('insecure', server.stderr)

    def test_programs_refuse_bad_flags(self):
        for program, flag in ((SERVER, '--lissten=127.0.0.1:0'), (WORKER, '--rank=first'),
                              (WORKER, '--ranc=0')):
            run = subprocess.run([program, flag], capture_output=True, text=True,
                                 timeout=DEADLINE_S)
            self.assertEqual(run.returncode, 2, flag)
            self.assertIn(flag.split('=')[0], run.stderr)
        worker = subprocess.run([WORKER, '--job', self.job, '--servers=127.0.0.1:1',
                                 '--listen=nonsense'],
                                capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(worker.returncode, 2)
        self.assertIn('host:port', worker.stderr)

    def test_an_infinite_learning_rate_is_no_model(self):
        err = self.fails(self.start('--set=train.learning_rate.base=1e38'))
        self.assertIn('worker 0 exited with code 1', err)
        self.assertRegex(err, r"thermocline: job \S+: rank 0, step \d+: gradient of table 'C\d+', "
                              r"key \d+ holds (nan|-?inf) "
                              r"\(is train.learning_rate too high\?")

    def test_a_port_in_use(self):
        with socket.socket() as listener:
            listener.bind(('127.0.0.1', 0))
            listener.listen()
            address = '127.0.0.1:%d' % listener.getsockname()[1]
            server = subprocess.run([SERVER, '--listen=' + address], capture_output=True,
                                    text=True, timeout=DEADLINE_S)
        self.assertEqual(server.returncode, 1)
        self.assertIn(address, server.stderr)
        self.assertIn('in use', server.stderr)

    def test_a_reader_that_is_gone_does_not_stop_the_job(self):
        launcher = self.start('--set=train.max_steps=20')
        launcher.stdout.close()
        wait_for(lambda: launcher.poll() is not None, 'the end of the job')
        self.assertTrue(os.path.exists(os.path.join(self.run_dir, 'summary.json')))
        launcher.stdout = open(os.devnull)
        self.assertFalse(is_running(launcher.pid))

    def full_pipe(self):
        """(read end, write end) of a pipe without room for another byte."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, writer)
        os.set_blocking(writer, False)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(writer, b'x' * 4096)
        os.set_blocking(writer, True)
        return reader, writer

    def test_deaths_are_seen_while_nobody_reads(self):
        reader, writer = self.full_pipe()
        self.addCleanup(os.close, reader)
        launcher = self.start_long('--workers=2', stdout=writer)
        os.kill(self.pid_of(launcher, 'worker 1'), signal.SIGKILL)
        self.assertIn('worker 1 was killed by signal 9 (Killed)', self.fails(launcher))

    def test_ctrl_c_is_seen_while_nobody_reads(self):
        reader, writer = self.full_pipe()
        self.addCleanup(os.close, reader)
        launcher = self.start_long(stdout=writer)
        launcher.send_signal(signal.SIGINT)
        self.assertIn('stopped by signal 2', self.fails(launcher))

    def finished_but_unread(self, writer):
        """A launcher whose job is done and whose result waits for a reader."""
        launcher = self.start('--set=train.max_steps=20', stdout=writer)
        summary = os.path.join(self.run_dir, 'summary.json')
        wait_for(lambda: os.path.exists(summary) and not children(launcher.pid), 'the result')
        self.assertIsNone(launcher.poll())
        return launcher

    def test_the_result_waits_for_its_reader(self):
        reader, writer = self.full_pipe()
        launcher = self.finished_but_unread(writer)
        text = b''
        with os.fdopen(reader, 'rb') as pipe:
            while b'run directory: ' not in text.lstrip(b'x'):
                text += os.read(pipe.fileno(), 1 << 16)
            code, _, err = self.finish(launcher)
        self.assertEqual((code, err), (0, ''))
        self.assertIn(b'model digest ', text)

    def test_ctrl_c_while_the_result_waits(self):
        reader, writer = self.full_pipe()
        self.addCleanup(os.close, reader)
        launcher = self.finished_but_unread(writer)
        launcher.send_signal(signal.SIGINT)
        code, _, err = self.finish(launcher)
        self.assertEqual((code, err), (1, ''))

    def test_stats_of_a_server_that_is_gone(self):
        self.train()
        with open(os.path.join(self.run_dir, 'servers.json')) as file:
            address, = json.load(file)['servers']
        self.assertEqual(self.thermocline('stats', address).returncode, 1)

    def test_stats_of_a_run_whose_launcher_was_killed(self):
        launcher = self.start_long()
        pids = [*children(launcher.pid), launcher.pid]
        launcher.kill()
        launcher.wait()
        self.assert_all_gone(pids)
        stats = self.thermocline('stats', '--run-dir', self.run_dir)
        self.assertEqual(stats.returncode, 1, stats.stdout)
        self.assertIn('has ended without a result: its launcher was killed\n',
                      stats.stdout)
        self.assertRegex(stats.stdout, r'last progress: [\d,]+ steps, [\d,]+ samples\n')

    def test_watching_stats_ends_with_the_run(self):
        launcher = self.start_long()
        stats = subprocess.Popen([THERMOCLINE, 'stats', '--watch', '--run-dir', self.run_dir],
                                 stdout=subprocess.PIPE, text=True)
        self.addCleanup(stats.communicate)
        self.addCleanup(stats.kill)
        while not stats.stdout.readline().startswith('server '):
            self.assertIsNone(stats.poll())
        os.kill(self.pid_of(launcher, 'worker 0'), signal.SIGKILL)
        self.fails(launcher)
        out, _ = stats.communicate(timeout=DEADLINE_S)
        self.assertEqual(stats.returncode, 1)
        self.assertIn('has ended without a result: worker 0 was killed by signal 9', out)

    def test_a_result_of_a_worker_that_cant_be_written_takes_none_away(self):
        undisturbed = self.train(run_dir=self.run_dir + '-undisturbed')
        programs = self.fake_programs(
            worker="mkdir '%s/worker-0.json'; exec '%s' \"$@\"" % (self.run_dir, WORKER))
        launcher = self.start('--bin-dir', programs)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        self.assertIn("can't write %s/worker-0.json: Is a directory\n" % self.run_dir, out)
        for field in ('model_digest', 'auc', 'samples'):
            self.assertEqual(self.summary(launcher)[field], undisturbed[field])

    def test_a_summary_that_cant_be_written_is_shown(self):
        digest = self.train(run_dir=self.run_dir + '-undisturbed')['model_digest']
        programs = self.fake_programs(
            worker="mkdir '%s/summary.json'; exec '%s' \"$@\"" % (self.run_dir, WORKER))
        code, out, err = self.finish(self.start('--bin-dir', programs))
        self.assertEqual(code, 1)
        self.assertIn("the model is trained, but its result can't be kept: can't write", err)
        self.assertIn('model digest ' + digest, out)


if __name__ == '__main__':
    unittest.main(verbosity=2)
