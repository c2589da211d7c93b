"""A job over several hosts: agents on this machine, each with a folder of its own."""

import json
import os
import re
import signal
import subprocess
import unittest

from harness import DEADLINE_S, THERMOCLINE, ProcessTest, children, set_signals, wait_for

FLAGS = ['--servers=2', '--workers=2']
LONG = [*FLAGS, '--set=train.passes=15', '--set=checkpoint.every_steps=50']


class NodeTest(ProcessTest):
    summaries = {}  # Of jobs on one machine, by their flags.

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

    def node(self, address, name, *flags):
        """An agent; it is killed after the test at the latest."""
        folder = '%s-%s' % (self.run_dir, name)
        agent = subprocess.Popen(
            [THERMOCLINE, 'node', '--controller', address, '--name', name, '--dir', folder, *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=set_signals)

        def clean_up():
            if agent.poll() is None:
                agent.kill()
            agent.communicate()
        self.addCleanup(clean_up)
        return agent

    def steps(self):
        """The last step of metrics.jsonl."""
        metrics = os.path.join(self.run_dir, 'metrics.jsonl')
        if not os.path.exists(metrics):
            return 0
        with open(metrics) as file:
            found = re.findall(r'"step": ?(\d+)', file.read())
        return int(found[-1]) if found else 0

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
        launcher, address = self.controller(*FLAGS, '--set=train.passes=5')
        nodes = [self.node(address, name) for name in ('h1', 'h2')]
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
        # Each host took a server and a worker; their own files lie there.
        for name in ('h1', 'h2'):
            files = os.listdir('%s-%s' % (self.run_dir, name))
            self.assertEqual(len([f for f in files if f.endswith('.log')]), 2, files)
        left = self.thermocline('logs', self.run_dir, 'worker-0')
        self.assertRegex(left.stdout, r'worker 0 ran on host h[12], its log: /.*worker-0\.log')

    def test_roles_of_hosts_and_certificates(self):
        certificates = self.run_dir + '-certificates'
        self.thermocline('certificates', '--job=small', '--out', certificates)

        def tls(role):
            return ['--tls-certificate=%s/%s.pem' % (certificates, role),
                    '--tls-private-key=%s/%s.key' % (certificates, role),
                    '--tls-ca=%s/ca.pem' % certificates]
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
        gone.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(gone)[0], 1)
        self.assert_all_gone(pids)
        summary = self.finish_well(launcher, *[node for node in nodes if node is not gone])
        self.assertEqual(summary['model_digest'], self.local(*LONG)['model_digest'])

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
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertRegex(err, r'0 of 1 hosts can be used; .* h1 \(its build is \S+')

    def test_a_host_that_does_not_see_the_run_directory_is_refused(self):
        launcher, address = self.controller(*FLAGS, nodes=1)
        for name in os.listdir(self.run_dir):
            if re.fullmatch('controller-[0-9a-f]+', name):
                os.remove(os.path.join(self.run_dir, name))
        code, _, err = self.finish(self.node(address, 'h1'))
        self.assertEqual(code, 1)
        self.assertIn("host h1 does not see the controller's run directory " + self.run_dir, err)
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
