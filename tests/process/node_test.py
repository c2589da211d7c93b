"""A job over several hosts: agents on this machine, each with a folder of its own."""

import json
import os
import re
import signal
import subprocess
import threading
import unittest

import grpc

from harness import (DEADLINE_S, THERMOCLINE, ProcessTest, children, modes_below, of_role, refusal,
                     set_signals, wait_for)

FLAGS = ['--servers=2', '--workers=2']
ENDLESS = [*FLAGS, '--set=train.passes=1000000']
LONG = [*FLAGS, '--set=train.passes=15', '--set=checkpoint.every_steps=50']


class NodeTest(ProcessTest):
    summaries = {}  # The summaries of jobs on one machine, by their flags.

    def controller(self, *flags, nodes=2, listen='127.0.0.1:0', **options):
        """A launcher that listens for nodes, and its address."""
        file = os.path.join(self.run_dir, 'controller.json')
        if os.path.exists(file):
            os.remove(file)
        launcher = self.start('--nodes=%d' % nodes, '--listen', listen, *flags, **options)

        def address():
            has_ended = launcher.poll() is not None
            if os.path.exists(file):
                with open(file) as text:
                    return json.load(text)['address']
            if has_ended:
                raise AssertionError('the job ended: %s' % (self.finish(launcher),))
            return ''
        return launcher, wait_for(address, 'the controller\'s address')

    def node(self, address, name, *flags, env=None):
        """An agent; it is killed after the test at the latest."""
        folder = '%s-%s' % (self.run_dir, name)
        agent = subprocess.Popen(
            [THERMOCLINE, 'node', '--controller', address, '--name', name,
             *([] if '--dir' in flags else ['--dir', folder]), *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=env, preexec_fn=set_signals)

        def clean_up():
            if agent.poll() is None:
                agent.kill()
            agent.communicate()
        self.addCleanup(clean_up)
        return agent

    def stop(self, launcher, *nodes):
        """Ends a job as an engine does; returns what the launcher has printed."""
        launcher.send_signal(signal.SIGTERM)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1, out + err)
        self.assertIn('stopped by signal 15', err)
        for node in nodes:
            code, node_out, node_err = self.finish(node)
            self.assertEqual(code, 0, node_out + node_err)
        return out

    def certificates(self, name):
        folder = '%s-%s' % (self.run_dir, name)
        self.thermocline('certificates', '--job=small', '--out', folder)
        return folder

    def follow(self, *arguments):
        """`thermocline logs --follow`; it is killed after the test at the latest."""
        follower = subprocess.Popen(
            [THERMOCLINE, 'logs', '--follow', *arguments], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=set_signals)

        def clean_up():
            if follower.poll() is None:
                follower.kill()
            follower.communicate()
        self.addCleanup(clean_up)
        return follower

    def wait_for_lines(self, process, stream, *patterns):
        """Reads what a process writes until each pattern has matched a line."""
        timer = threading.Timer(DEADLINE_S, process.kill)
        timer.start()
        missing = set(patterns)
        for line in stream:
            missing -= {pattern for pattern in missing if re.search(pattern, line)}
            if not missing:
                break
        timer.cancel()
        self.assertEqual(missing, set())

    def steps(self):
        """The last step of metrics.jsonl."""
        found = [event['step'] for event in self.events() if 'step' in event]
        return found[-1] if found else 0

    def wait_for_step(self, launcher, step):
        def is_there():
            if launcher.poll() is not None:
                raise AssertionError('the job ended: %s' % (self.finish(launcher),))
            return self.steps() >= step
        wait_for(is_there, 'step %d' % step)

    def local(self, *flags):
        """The summary of the same job on this machine."""
        if flags not in self.summaries:
            self.summaries[flags] = self.train(*flags, run_dir=self.run_dir + '-local')
        return self.summaries[flags]

    def finish_well(self, launcher, *nodes):
        """The summary of a job that must succeed; its nodes end with it."""
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        for node in nodes:
            code, out, err = self.finish(node)
            self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        return self.summary(launcher)

    def test_the_same_model_as_on_one_machine(self):
        launcher, address = self.controller(*FLAGS, '--set=train.passes=5', '--set=readers=GROUP', '--trace=5:6')
        sockets = {**os.environ, 'TMPDIR': '/tmp'}  # Bazel's folder may be too long for a socket.
        nodes = [self.node(address, name, env=sockets) for name in ('h1', 'h2')]
        self.wait_for_step(launcher, 10)
        stats = self.thermocline('stats', '--run-dir', self.run_dir)
        logs = self.thermocline('logs', self.run_dir, 'server-1')
        summary = self.finish_well(launcher, *nodes)
        local = self.local(*FLAGS, '--set=train.passes=5')
        self.assertEqual(summary['model_digest'], local['model_digest'])
        self.assertEqual(summary['auc'], local['auc'])
        self.assertEqual(summary['samples'], local['samples'])
        self.assertEqual(stats.returncode, 0, stats.stderr)
        self.assertEqual(logs.returncode, 0, logs.stderr)
        self.assertIn('server 1 on host ', logs.stdout)
        self.assertIn('serving on ', logs.stdout)
        self.assertEqual(modes_below(self.run_dir), {0o750, 0o640})
        with open(os.path.join(self.run_dir, 'trace.json')) as file:
            trace = json.load(file)['otherData']
        self.assertEqual([process['name'] for process in trace['processes']],
                         ['worker 0', 'worker 1', 'server 0', 'server 1'])
        self.assertEqual(trace['missing'], [])
        # Each host took a server and a worker; their own files lie there.
        for name in ('h1', 'h2'):
            folder = '%s-%s' % (self.run_dir, name)
            self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)
            files = os.listdir(folder)
            self.assertEqual(len([f for f in files if f.endswith('.log')]), 2, files)
            # The workers of two agents of one machine find each other, too.
            log, = [f for f in files if re.fullmatch(r'worker-\d\.log', f)]
            with open('%s-%s/%s' % (self.run_dir, name, log)) as file:
                self.assertRegex(file.read(), r'blocks go to rank \d over a Unix socket')
        left = self.thermocline('logs', self.run_dir, 'worker-0')
        self.assertRegex(left.stdout, r'worker 0 ran on host h[12], its log: /.*worker-0\.log')

    def test_roles_of_hosts_and_certificates(self):
        certificates = self.certificates('certificates')

        def tls(role):
            return of_role(certificates, role)
        launcher, address = self.controller('--set=cluster.tls.directory=' + certificates,
                                            '--set=train.passes=5')
        # A worker's certificate is no agent's.
        code, _, err = self.finish(self.node(address, 'h0', *tls('worker')))
        self.assertEqual(code, 1)
        self.assertIn('role worker may not call', err)
        nodes = [self.node(address, 'h1', '--role=server', *tls('node')),
                 self.node(address, 'h2', '--role=worker', *tls('node'))]
        self.wait_for_step(launcher, 10)
        logs = self.thermocline('logs', self.run_dir)
        summary = self.finish_well(launcher, *nodes)
        self.assertEqual(summary['model_digest'],
                         self.local('--set=train.passes=5')['model_digest'])
        self.assertEqual(logs.returncode, 0, logs.stderr)
        self.assertIn('server 0 on host h1', logs.stdout)
        self.assertIn('worker 0 on host h2', logs.stdout)

    def test_the_controller_signs_certificates(self):
        """Agents have a join certificate alone; each process gets its own, and its key with it."""
        launcher, address = self.controller(*ENDLESS, '--set=cluster.tls.automatic=true')
        folder = os.path.join(self.run_dir, 'certificates')
        self.assertEqual(sorted(os.listdir(folder)), [
            'ca.key', 'ca.pem', 'controller.key', 'controller.pem', 'node.key', 'node.pem',
            'reader.key', 'reader.pem'])
        self.assertEqual(os.stat(os.path.join(folder, 'ca.key')).st_mode & 0o777, 0o600)
        stranger = self.certificates('stranger')
        strange = self.node(address, 'h3', *of_role(stranger, 'node'))
        self.wait_for_lines(strange, strange.stderr, r'the certificate that \S+ shows '
                            r'\(thermocline://small/controller\) was not signed by the CA in ')
        strange.send_signal(signal.SIGTERM)
        nodes = [self.node(address, name, *of_role(folder, 'node')) for name in ('h1', 'h2')]
        self.wait_for_step(launcher, 10)
        for name in ('h1', 'h2'):
            own = '%s-%s' % (self.run_dir, name)
            keys = [file for file in os.listdir(own) if file.endswith('.key')]
            self.assertEqual(len(keys), 2, keys)
            for key in keys:
                self.assertEqual(os.stat(os.path.join(own, key)).st_mode & 0o777, 0o600)
        # What joins may neither push nor configure.
        with open(os.path.join(self.run_dir, 'servers.json')) as file:
            server = json.load(file)['servers'][0]
        for method, role in (('Push', 'worker'), ('Configure', 'controller')):
            code, text = refusal(server, folder, 'node', method)
            self.assertEqual(code, grpc.StatusCode.PERMISSION_DENIED)
            self.assertIn('role node may not call %s; it is for %s' % (method, role), text)
        stats = self.thermocline('stats', '--run-dir', self.run_dir)
        self.assertEqual(stats.returncode, 0, stats.stderr)
        # Who may not see logs does not wait for them, and learns why.
        for tls, reason in ((of_role(folder, 'node'), 'role node may not call GetLog'),
                            (of_role(stranger, 'reader'), 'was not signed by the CA in ')):
            refused = self.thermocline('logs', '--follow', self.run_dir, *tls)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn(reason, refused.stderr)
        self.stop(launcher, *nodes)
        for name in ('h1', 'h2'):
            files = os.listdir('%s-%s' % (self.run_dir, name))
            self.assertEqual([file for file in files if file.endswith(('.key', '.pem'))], [])

    def test_without_the_key_of_the_authority_hosts_need_files(self):
        folder = self.certificates('without-key')
        for name in ('ca.key', 'server.pem'):
            os.rename(os.path.join(folder, name), os.path.join(folder, name + '.away'))
        launcher = self.start('--nodes=1', '--listen=127.0.0.1:0',
                              '--set=cluster.tls.directory=' + folder)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 2)
        self.assertIn('server.pem', err)
        # Where the key is, the controller signs what is missing.
        os.rename(os.path.join(folder, 'ca.key.away'), os.path.join(folder, 'ca.key'))
        launcher, address = self.controller('--set=cluster.tls.directory=' + folder,
                                            '--set=train.passes=5', nodes=1)
        summary = self.finish_well(launcher, self.node(address, 'h1', *of_role(folder, 'node')))
        self.assertEqual(summary['model_digest'],
                         self.local('--set=train.passes=5')['model_digest'])

    def test_two_hosts_of_one_name(self):
        launcher, address = self.controller(*ENDLESS, nodes=1)
        node = self.node(address, 'h1')
        self.wait_for_step(launcher, 1)
        code, _, err = self.finish(self.node(address, 'h1', '--dir', self.run_dir + '-other'))
        self.assertEqual(code, 1)
        self.assertRegex(err, r'there is a host h1 already, at 127\.0\.0\.1 \(\S+-h1\); an agent of '
                         r'the same name is at 127\.0\.0\.1 \(\S+-other\): give one of them '
                         r'another --name')
        out = self.stop(launcher, node)
        self.assertIn('refused: there is a host h1 already', out)
        # Nor was a rollback refused: without a checkpoint policy that would be an event of another kind.
        self.assertNotIn('rollback', str(self.events()))

    def test_logs_are_followed_until_the_job_ends(self):
        launcher, address = self.controller(*ENDLESS)
        nodes = [self.node(address, name) for name in ('h1', 'h2')]
        self.wait_for_step(launcher, 1)
        every, one, left = (self.follow(self.run_dir), self.follow(self.run_dir, 'worker-1'),
                            self.follow(self.run_dir, 'worker-1'))
        self.wait_for_lines(one, one.stdout, r'^\S+ worker 1 of job .* stats on ')
        self.wait_for_lines(left, left.stdout, 'stats on ')
        self.wait_for_lines(every, every.stdout, r'^server 0 \| .*serving on ',
                            r'^server 1 \| .*serving on ', r'^worker 0 \| .*stats on ',
                            r'^worker 1 \| .*stats on ')
        left.send_signal(signal.SIGINT)
        self.assertEqual(left.wait(DEADLINE_S), 0)
        self.assertEqual(left.stderr.read(), '')
        self.stop(launcher, *nodes)
        for follower in (every, one):
            self.assertEqual(follower.wait(DEADLINE_S), 0)
            self.assertEqual(follower.stderr.read(), '')

    def test_a_follower_says_once_why_no_lines_come(self):
        launcher, address = self.controller(*ENDLESS)
        nodes = [self.node(address, name) for name in ('h1', 'h2')]
        self.wait_for_step(launcher, 1)
        with open(os.path.join(self.run_dir, 'controller.json'), 'w') as file:
            json.dump({'address': '127.0.0.1:1'}, file)
        follower = self.follow(self.run_dir)
        self.wait_for_lines(follower, follower.stderr,
                            r'^thermocline: controller 127\.0\.0\.1:1: .*; trying again$')
        self.stop(launcher, *nodes)
        self.assertEqual(follower.wait(DEADLINE_S), 0)
        self.assertEqual(follower.stderr.read(), '')

    def test_logs_of_one_machine_are_followed(self):
        launcher = self.start(*ENDLESS)
        self.wait_for_step(launcher, 1)
        follower = self.follow(self.run_dir, 'server-1')
        first = follower.stdout.readline()
        self.stop(launcher)
        shown = first + follower.stdout.read()
        self.assertEqual(follower.wait(DEADLINE_S), 0)
        with open(os.path.join(self.run_dir, 'server-1.log')) as log:
            self.assertEqual(shown, log.read())

    def test_a_killed_agent_takes_its_processes_along_and_the_others_go_on(self):
        # Both long enough for a busy machine.
        launcher, address = self.controller(*LONG, '--set=cluster.node_lease_s=5',
                                            '--set=cluster.host_timeout_s=6')
        nodes = [self.node(address, name) for name in ('h1', 'h2')]
        self.wait_for_step(launcher, 100)
        pids = list(children(nodes[1].pid))
        self.assertEqual(len(pids), 2)
        nodes[1].kill()
        self.assert_all_gone(pids)
        summary = self.finish_well(launcher, nodes[0])
        self.assertEqual(summary['model_digest'], self.local(*LONG)['model_digest'])
        self.assertGreaterEqual(summary['rollbacks'], 1)

    def test_an_agent_that_is_stopped_says_so(self):
        # Within host_timeout_s the job would not have missed it.
        launcher, address = self.controller(*LONG, '--set=cluster.host_timeout_s=3600')
        nodes = [self.node(address, name) for name in ('h1', 'h2', 'h3')]
        self.wait_for_step(launcher, 100)
        gone = next(node for node in nodes if children(node.pid))
        pids = list(children(gone.pid))
        gone.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(gone)[0], 1)
        self.assert_all_gone(pids)
        summary = self.finish_well(launcher, *[node for node in nodes if node is not gone])
        self.assertEqual(summary['model_digest'], self.local(*LONG)['model_digest'])

    def test_sigterm_to_all_processes_leaves_a_checkpoint(self):
        # As an engine ends a job: at its walltime, or for another job.
        flags = (*LONG, '--set=checkpoint.every_steps=1000000')
        launcher, address = self.controller(*flags)
        nodes = [self.node(address, name) for name in ('h1', 'h2')]
        self.wait_for_step(launcher, 100)
        pids = [pid for node in nodes for pid in children(node.pid)]
        self.assertEqual(len(pids), 4)
        for pid in (*pids, *[node.pid for node in nodes], launcher.pid):
            os.kill(pid, signal.SIGTERM)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('stopped by signal 15', err)
        self.assertIn('train --resume --run-dir %s --nodes 2 --listen 127.0.0.1:0' % self.run_dir, err)
        for node in nodes:
            self.assertEqual(self.finish(node)[0], 0)
        # It has not ended: the engine's next start goes on.
        launcher, address = self.controller('--restarted', nodes=1,
                                            job=os.path.join(self.run_dir, 'job.textproto'))
        summary = self.finish_well(launcher, self.node(address, 'h3'))
        self.assertGreaterEqual(summary['resumed_from_step'], 100)
        self.assertEqual(summary['model_digest'], self.local(*LONG)['model_digest'])

    def test_an_agent_without_a_controller_ends_where_it_may(self):
        code, _, err = self.finish(self.node('127.0.0.1:1', 'h1', '--controller-timeout=1'))
        self.assertEqual(code, 1)
        self.assertIn('no controller has answered at 127.0.0.1:1 for 1s', err)

    def test_a_pause_shorter_than_the_lease_changes_nothing(self):
        launcher, address = self.controller(*LONG, '--set=cluster.node_lease_s=3000',
                                            '--set=cluster.host_timeout_s=3600')
        nodes = [self.node(address, name) for name in ('h1', 'h2')]
        self.wait_for_step(launcher, 50)
        quiet = next(node for node in nodes
                     if not any('--rank=0' in line for line in children(node.pid).values()))
        quiet.send_signal(signal.SIGSTOP)
        self.wait_for_step(launcher, 100)
        quiet.send_signal(signal.SIGCONT)
        summary = self.finish_well(launcher, *nodes)
        self.assertEqual(summary['model_digest'], self.local(*LONG)['model_digest'])
        self.assertEqual(summary['rollbacks'], 0)

    def test_a_controller_that_is_killed_is_followed_by_another(self):
        launcher, address = self.controller(*LONG, '--set=cluster.node_lease_s=5')
        nodes = [self.node(address, name) for name in ('h1', 'h2')]
        self.wait_for_step(launcher, 100)
        pids = [pid for node in nodes for pid in children(node.pid)]
        self.assertEqual(len(pids), 4)
        launcher.kill()
        self.finish(launcher)
        self.assert_all_gone(pids)  # By the end of the lease.
        # With the first of them that comes.
        resumed = self.thermocline('train', '--resume', '--run-dir', self.run_dir, '--nodes=1',
                                   '--listen', address)
        self.assertEqual(resumed.returncode, 0, resumed.stdout + resumed.stderr)
        for node in nodes:
            self.assertEqual(self.finish(node)[0], 0)
        self.assertEqual(self.summary(launcher)['model_digest'],
                         self.local(*LONG)['model_digest'])

    def test_another_build_is_refused(self):
        launcher, address = self.controller(*FLAGS, nodes=1)
        programs = self.fake_programs(worker='exit 1')
        node = self.node(address, 'h1', '--bin-dir', programs)
        code, out, err = self.finish(node)
        self.assertEqual(code, 1, out + err)
        self.assertRegex(err, r'host h1 is of another build: (\S+); the controller\'s is (?!\1)\S+')
        # It may be a stray one: the job waits for its own.
        node = self.node(address, 'h1')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        self.assertIn('refused: host h1 is of another build', out)
        self.assertEqual(self.finish(node)[0], 0)

    def test_a_host_that_does_not_share_the_folders_is_refused(self):
        launcher, address = self.controller(*FLAGS, '--set=checkpoint.every_steps=100', nodes=1)
        checkpoints = os.path.join(self.run_dir, 'checkpoints')

        def refuse(what, folder):
            for name in os.listdir(folder):
                if re.fullmatch('controller-[0-9a-f]+', name):
                    os.remove(os.path.join(folder, name))
            code, _, err = self.finish(self.node(address, 'h1'))
            self.assertEqual(code, 1)
            self.assertIn("host h1 does not see the controller's %s %s" % (what, folder), err)
        refuse('checkpoint directory', checkpoints)
        refuse('run directory', self.run_dir)
        launcher.send_signal(signal.SIGTERM)
        code, out, _ = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('refused: host h1 does not see', out)

    def test_too_few_hosts(self):
        launcher, address = self.controller(*FLAGS, '--set=cluster.host_wait_s=1')
        node = self.node(address, 'h1')
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('cluster.host_wait_s', err)
        node.send_signal(signal.SIGTERM)  # It may not have reached the controller in time.
        self.finish(node)

    def test_one_agent_a_folder_and_nothing_of_a_predecessor(self):
        folder = self.run_dir + '-h1'
        os.mkdir(folder)
        left = subprocess.Popen(['/bin/sh', '-c', 'sleep 600; :', 'server',
                                 '--port_file=%s/server-0.port' % folder], start_new_session=True)
        self.addCleanup(left.wait)
        launcher, address = self.controller(*FLAGS, '--set=train.passes=1000000',
                                            '--set=checkpoint.every_steps=1000000', nodes=1)
        node = self.node(address, 'h1')
        self.wait_for_step(launcher, 5)
        self.assertEqual(left.wait(DEADLINE_S), -signal.SIGKILL)
        code, _, err = self.finish(self.node(address, 'h1'))
        self.assertEqual(code, 1)
        self.assertIn(folder, err)
        written = self.thermocline('checkpoint', 'now', '--run-dir', self.run_dir)
        self.assertEqual(written.returncode, 0, written.stderr)
        launcher.send_signal(signal.SIGTERM)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('stopped by signal 15', err)
        self.assertEqual(self.finish(node)[0], 0)

    def test_bad_usage(self):
        for flags, message in ((['--nodes=2'], '--nodes and --listen belong together'),
                               (['--nodes=2', '--listen=10.0.0.1:0', '--run-dir', self.run_dir],
                                'is not on loopback')):
            with self.subTest(flags=flags):
                done = self.thermocline('train', self.job, *flags)
                self.assertEqual(done.returncode, 2)
                self.assertIn(message, done.stderr)
        done = self.thermocline('node', '--controller=10.0.0.1:7', '--dir', self.run_dir)
        self.assertEqual(done.returncode, 2)
        self.assertIn('is not on loopback', done.stderr)


if __name__ == '__main__':
    unittest.main(verbosity=2)
