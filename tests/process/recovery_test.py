"""Servers with a push log die and come back; the model has the bits of an undisturbed run."""

import os
import re
import resource
import signal
import unittest

from harness import ProcessTest, children, process_state, wait_for

FLAGS = ['--servers=2', '--set', 'train.passes=10']


class RecoveryTest(ProcessTest):

    def server_pid(self, launcher, index):
        """The pid of the process that is there now; None between two."""
        mark = 'server-%d.port' % index
        pids = [pid for pid, command in children(launcher.pid).items()
                if mark in command and 'thermocline-server' in command]
        return pids[0] if len(pids) == 1 else None

    def kill_servers(self, launcher, kills):
        """Ends servers in turn, a number of steps apart; each time another takes the place.

        Every other one gets SIGTERM: it still answers what it can, and cancels the rest.
        """
        def steps():
            return len(self.events('progress', launcher.run_dir))
        for kill in range(kills):
            index = kill % 2
            target = steps() + 30
            wait_for(lambda: steps() >= target, 'step %d' % target)
            pid = wait_for(lambda: self.server_pid(launcher, index), 'server %d' % index)
            os.kill(pid, signal.SIGTERM if kill % 2 else signal.SIGKILL)
            wait_for(lambda: self.server_pid(launcher, index) not in (None, pid),
                     'another server %d' % index)

    def test_killed_servers_lose_nothing(self):
        for workers in (1, 2):
            name = '%s-%d' % (self.run_dir, workers)
            flags = [*FLAGS, '--workers=%d' % workers]
            undisturbed = self.train(*flags, run_dir=name + '-undisturbed')
            for durability in ('LOG_ASYNC', 'LOG_SYNC'):
                with self.subTest(workers=workers, durability=durability):
                    launcher = self.start(*flags, '--set=cluster.durability=' + durability,
                                          run_dir='%s-%s' % (name, durability))
                    self.kill_servers(launcher, 5)
                    code, out, err = self.finish(launcher)
                    self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
                    summary = self.summary(launcher)
                    self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
                    self.assertEqual(summary['server_restarts'], 5)
                    self.assertEqual(summary['samples'], undisturbed['samples'])
                    self.assertIn('was killed by signal 9 (Killed); started again', out)
                    self.assertIn('exited with code 0; started again', out)

    def test_a_full_disk_is_said_at_once_and_when_it_goes_on(self):
        flags = ['--servers=2', '--set=train.passes=40']  # It trains for long after there is room again.
        undisturbed = self.train(*flags, run_dir=self.run_dir + '-undisturbed')
        console = self.run_dir + '.out'
        with open(console, 'w') as out:
            launcher = self.start(*flags, '--set=cluster.durability=LOG_ASYNC', stdout=out)
        folder = os.path.join(self.run_dir, 'server-0.data')

        def log_bytes():
            if not os.path.exists(folder):
                return 0
            return max([os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)
                        if name.startswith('push-')], default=0)

        def says(path, text):
            with open(path) as file:
                return any(re.search(text, line) for line in file)
        # A limit on the size of its files stands for a full disk.
        wait_for(lambda: log_bytes() > 1 << 20, 'a long log')
        server = self.server_pid(launcher, 0)
        _, hard = resource.prlimit(server, resource.RLIMIT_FSIZE)
        resource.prlimit(server, resource.RLIMIT_FSIZE, (log_bytes(), hard))
        full = (r"can't write '\S+/server-0.data/push-\S+': File too large; \w+ at /\S* has \d+ "
                r"bytes free, and \d+ bytes were to be written")
        for path in (console, os.path.join(self.run_dir, 'server-0.log'),
                     os.path.join(self.run_dir, 'worker-0.log')):
            wait_for(lambda: says(path, full), 'the full disk in ' + path)
        resource.prlimit(server, resource.RLIMIT_FSIZE, (hard, hard))
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.summary(launcher)['model_digest'], undisturbed['model_digest'])
        self.assertTrue(says(console, 'server 0: .*; the job waits until there is room'))
        self.assertTrue(says(console, 'server 0 has room for its push log again'))
        self.assertTrue(says(os.path.join(self.run_dir, 'server-0.log'), 'there is room again'))
        self.assertTrue(says(os.path.join(self.run_dir, 'worker-0.log'), 'server 0 takes a push again'))

    def test_a_server_killed_while_it_is_asked_for_the_result(self):
        undisturbed = self.train('--servers=2', run_dir=self.run_dir + '-undisturbed')
        launcher = self.start_with_server_1_stopped_at_the_end(
            '--set=cluster.durability=LOG_ASYNC')
        server = wait_for(lambda: self.server_pid(launcher, 1), 'server 1')
        wait_for(lambda: process_state(server) == 'T' and len(children(launcher.pid)) == 2,
                 'the end of the worker')
        os.kill(server, signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        self.assertEqual(self.summary(launcher)['model_digest'], undisturbed['model_digest'])

    def test_a_server_that_cant_recover_ends_the_job_with_the_reason(self):
        launcher = self.start_long('--servers=2', '--set=cluster.durability=LOG_ASYNC')
        pids = list(children(launcher.pid))
        folder = os.path.join(self.run_dir, 'server-0.data')

        def segments():
            return sorted(name for name in os.listdir(folder) if name.startswith('push-'))
        # What has not been synced may be damaged.
        wait_for(lambda: len(segments()) > 1, 'a segment that has ended')
        segment = os.path.join(folder, segments()[0])
        with open(segment, 'r+b') as file:
            file.seek(24)
            file.write(b'damage')
        os.kill(wait_for(lambda: self.server_pid(launcher, 0), 'server 0'), signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1, out)
        self.assertIn("server 0 can't recover: ", err)
        self.assertIn("'%s': the header is damaged" % segment, err)
        self.assert_all_gone(pids)

    def test_restarts_count_anew_once_the_job_got_further(self):
        undisturbed = self.train(*FLAGS, run_dir=self.run_dir + '-undisturbed')
        launcher = self.start(*FLAGS, '--set=cluster.durability=LOG_ASYNC',
                              '--set=cluster.max_server_restarts=1')
        self.kill_servers(launcher, 3)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        summary = self.summary(launcher)
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        self.assertEqual(summary['server_restarts'], 3)

    def test_a_port_that_is_taken_for_a_while(self):
        undisturbed = self.train(*FLAGS, run_dir=self.run_dir + '-undisturbed')
        launcher = self.start(*FLAGS, '--set=cluster.durability=LOG_ASYNC')
        wait_for(lambda: self.server_pid(launcher, 1), 'server 1')
        wait_for(lambda: os.path.exists(os.path.join(self.run_dir, 'worker-0.port')), 'the worker')
        listener = self.kill_and_take_port(launcher, 'server 1')

        def failed_starts():
            with open(os.path.join(self.run_dir, 'server-1.log')) as log:
                return log.read().count('cannot listen on')
        wait_for(lambda: failed_starts() >= 3, 'three starts')
        listener.close()
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        self.assertEqual(self.summary(launcher)['model_digest'], undisturbed['model_digest'])
        self.assertIn('server 1 was killed by signal 9 (Killed); started again\n', out)
        for delay in ('100ms', '200ms', '400ms'):
            self.assertRegex(out, r'server 1 exited with code 1 \(.* in use.*\); started again in '
                             + delay)

    def test_one_death_too_many_ends_the_job(self):
        launcher = self.start_long('--servers=2', '--set=cluster.durability=LOG_ASYNC',
                                   '--set=cluster.max_server_restarts=1')
        pids = list(children(launcher.pid))
        # Training does not advance meanwhile.
        os.kill(self.pid_of(launcher, 'worker 0'), signal.SIGSTOP)

        def kill_server():
            pid = self.server_pid(launcher, 0)
            if pid is not None and launcher.poll() is None:
                os.kill(pid, signal.SIGKILL)
            return launcher.poll() is not None
        wait_for(kill_server, 'the end of the job')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('server 0 was killed by signal 9 (Killed)', err)
        self.assertEqual(out.count('not started again: cluster.max_server_restarts is 1'), 1, out)
        restart, = self.events('server_restart')
        self.assertEqual((restart['process'], restart['reason']),
                         ('server 0', 'was killed by signal 9 (Killed)'))
        # The limit of rollbacks, which is 0 without a checkpoint policy, comes after it.
        limit, rollbacks = self.events('limit')
        self.assertEqual((rollbacks['field'], rollbacks['limit']), ('checkpoint.max_rollbacks', 0))
        self.assertEqual((limit['field'], limit['limit'], limit['reason']),
                         ('cluster.max_server_restarts', 1,
                          'server 0 was killed by signal 9 (Killed)'))
        end = self.events()[-1]
        self.assertEqual((end['event'], end['status']), ('end', 'ABORTED'))
        self.assert_all_gone(pids)


if __name__ == '__main__':
    unittest.main()
