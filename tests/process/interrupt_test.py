"""Stopping a job: nothing is left but its run directory."""

import json
import os
import re
import signal
import unittest

from harness import ProcessTest, children, process_state, wait_for


class InterruptTest(ProcessTest):

    def stopped_by(self, number, name):
        launcher = self.start_long('--servers=2', '--workers=2')
        pids = list(children(launcher.pid))
        self.assertEqual(len(pids), 4)
        # A worker may train before another one has written its first line.
        logs = [os.path.join(self.run_dir, 'worker-%d.log' % rank) for rank in (0, 1)]
        wait_for(lambda: all(map(os.path.getsize, logs)), 'the workers\' first lines')
        launcher.send_signal(number)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('stopped by signal %d (%s)' % (number, name), err)
        self.assertIn('to go on from the last checkpoint: thermocline train --resume --run-dir ' + self.run_dir, err)
        # The job says nothing of checkpoints.
        step, = re.findall(r'\ncheckpoint step-(\d+)', out)
        self.assert_all_gone(pids)
        for file in ('job.textproto', 'metrics.jsonl', 'servers.json', 'server-0.log',
                     'server-1.log', 'worker-0.log', 'worker-1.log'):
            self.assertGreater(os.path.getsize(os.path.join(self.run_dir, file)), 0, file)
        self.assertFalse(os.path.exists(os.path.join(self.run_dir, 'summary.json')))
        return int(step)

    def test_ctrl_c(self):
        step = self.stopped_by(signal.SIGINT, 'Interrupt')
        summary = self.resume('--set=train.max_steps=%d' % (step + 2))
        self.assertEqual(summary['resumed_from_step'], step + 1)

    def test_sigterm(self):
        self.stopped_by(signal.SIGTERM, 'Terminated')

    def test_hang_up(self):
        self.stopped_by(signal.SIGHUP, 'Hangup')

    def test_stop_writes_a_checkpoint_first(self):
        launcher = self.start_long('--set', 'checkpoint.keep=2')
        stop = self.thermocline('stop', self.run_dir)
        self.assertEqual(stop.returncode, 0, stop.stdout + stop.stderr)
        name = re.search(r'checkpoint (step-\d+)', stop.stdout).group(1)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('stopped by `thermocline stop`', err)
        again = self.thermocline('stop', self.run_dir)
        self.assertEqual(again.returncode, 1)
        self.assertIn('no job runs in', again.stderr)
        # No engine goes on with what its user has stopped.
        restarted = self.thermocline('train', '--restarted', '--run-dir', self.run_dir)
        self.assertEqual(restarted.returncode, 1)
        self.assertIn('job small was stopped before: stopped by `thermocline stop`',
                      restarted.stderr)
        # The user does, from there; that it was stopped once no longer counts.
        steps = int(name.split('-')[1]) + 10
        resumed = self.thermocline('train', '--resume', '--run-dir', self.run_dir,
                                   '--set', 'train.max_steps=%d' % steps)
        self.assertEqual(resumed.returncode, 0, resumed.stdout + resumed.stderr)
        with open(os.path.join(self.run_dir, 'summary.json')) as summary:
            self.assertEqual(json.load(summary)['resumed_from_step'], steps - 9)

    def ignores(self, number):
        """Whether the signal that was ignored at the start still is; another one stops the job."""
        launcher = self.start_long(ignored=[number])
        pids = list(children(launcher.pid))
        metrics = os.path.join(self.run_dir, 'metrics.jsonl')
        launcher.send_signal(number)
        size = os.path.getsize(metrics)
        wait_for(lambda: launcher.poll() is not None or os.path.getsize(metrics) > size + 50000,
                 'a hundred more lines of metrics')
        launcher.send_signal(signal.SIGTERM)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('stopped by signal 15', err)
        self.assert_all_gone(pids)

    def test_nohup(self):
        self.ignores(signal.SIGHUP)

    def test_a_background_job_of_a_script_ignores_ctrl_c(self):
        self.ignores(signal.SIGINT)

    def test_ignored_sigchld(self):
        # Children of a process that ignores SIGCHLD leave no exit code.
        self.train(ignored=[signal.SIGCHLD])

    def test_ctrl_c_before_the_servers_are_up(self):
        folder = self.run_dir + '-bin'
        os.mkdir(folder)
        for name in ('thermocline-server', 'thermocline-worker'):
            with open(os.path.join(folder, name), 'w') as file:
                file.write('#!/bin/sh\nexec sleep 600\n')
            os.chmod(os.path.join(folder, name), 0o755)
        launcher = self.start('--bin-dir', folder)
        pids = wait_for(lambda: [pid for pid, command in children(launcher.pid).items()
                                 if 'sleep' in command], 'the server')
        launcher.send_signal(signal.SIGINT)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('stopped by signal 2', err)
        self.assert_all_gone(pids)

    def test_a_stopped_server_does_not_survive_ctrl_c(self):
        launcher = self.start_long('--servers=2')
        pids = list(children(launcher.pid))
        server = self.pid_of(launcher, 'server 0')
        os.kill(server, signal.SIGSTOP)
        wait_for(lambda: process_state(server) == 'T', 'the server to stop')
        # The first Ctrl-C waits for a checkpoint, which that server does not write.
        wait_for(lambda: launcher.poll() is not None or launcher.send_signal(signal.SIGINT), 'the end')
        self.finish(launcher)
        self.assert_all_gone(pids)

    def test_ctrl_c_while_the_servers_are_asked_for_the_result(self):
        launcher = self.start_with_server_1_stopped_at_the_end()
        pids = wait_for(lambda: self.logged_server_pids(launcher, 2), 'the servers')
        wait_for(lambda: process_state(pids[1]) == 'T' and len(children(launcher.pid)) == 2,
                 'the end of the worker')
        launcher.send_signal(signal.SIGINT)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('stopped by signal 2', err)
        self.assert_all_gone(pids)
        with open(os.path.join(self.run_dir, 'summary.json')) as summary:
            self.assertIsNone(json.load(summary)['model_digest'])

    def test_a_killed_launcher_leaves_no_orphans(self):
        launcher = self.start_long('--servers=2', '--workers=2')
        pids = list(children(launcher.pid))
        self.assertEqual(len(pids), 4)
        launcher.kill()
        self.finish(launcher)
        self.assert_all_gone(pids)


if __name__ == '__main__':
    unittest.main(verbosity=2)
