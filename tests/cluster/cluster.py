"""A cluster of five hosts with Slurm and sshd, and jobs on it as their users see them."""

import json
import os
import re
import subprocess
import time

import hosts as hosts_lib
import slurm as slurm_lib
import ssh as ssh_lib
from hosts import wait_for

# About ten seconds on the processors of one machine; a checkpoint every few hundred milliseconds.
JOB = """
name: "cluster"
seed: 7
data { format: DLRM_NPY path: "%(data)s" }
default_table { dim: 8 }
dlrm { bottom: [32] top: [32] }
train { batch_size: 256 passes: 45 learning_rate { base: 0.02 } metrics_every_steps: 5 }
checkpoint { every_steps: 100 }
cluster { servers: 2 workers: %(workers)d worker_threads: 1 tls { automatic: true }
          node_lease_s: 4 host_timeout_s: 7 host_wait_s: 300 }
"""
# The same with a script as its model.
SCRIPT_JOB = JOB.replace('dlrm { bottom: [32] top: [32] }', """
worker { command: ["/usr/bin/env", "PYTHONPATH=%(python)s", "/usr/bin/python3", "-B", "%(script)s"] threads: 1 }
""").replace('passes: 45', 'passes: 15')
SCRIPT = """
import torch
from torch.nn import functional as F
import thermocline

torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self, run):
        super().__init__()
        self.embeddings = run.embeddings()
        self.layer = torch.nn.Linear(len(run.job.numeric) + 8 * len(run.job.features), 1)

    def forward(self, batch):
        return self.layer(torch.cat([batch.numeric, self.embeddings(batch).flatten(1)], dim=1)).squeeze(1)


with thermocline.worker() as run:
    net = Net(run)
    optimizer = torch.optim.Adam(net.parameters())
    run.track(net=net, optimizer=optimizer)
    for batch in run.batches():
        loss = F.binary_cross_entropy_with_logits(net(batch), batch.label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss)
    run.evaluate(net)
"""
HAS_TORCH = subprocess.run(['/usr/bin/python3', '-c', 'from importlib.util import find_spec as find; '
                            'raise SystemExit(find("torch") is None)'], check=False).returncode == 0
# For what takes longer than the lease of the job above.
DEFAULT_LEASE = ('--clear', 'cluster.node_lease_s', '--clear', 'cluster.host_timeout_s')
NODE_DIR = '/run/local/agent'
# Servers and workers; agents.
PROCESSES = r'thermocline-(server|worker) '
AGENTS = r'thermocline node '


class Cluster:
    """Six hosts: one to log in, and five for jobs."""

    def __init__(self, programs, folder):
        self.folder = folder
        self.thermocline = os.path.realpath(os.path.join(programs, 'bin/thermocline'))
        self.python = os.path.realpath(os.path.join(programs, 'python'))
        self.hosts = hosts_lib.make_hosts(6, folder)
        self.login = self.hosts[0]
        self.nodes = self.hosts[1:]
        os.environ['XDG_STATE_HOME'] = os.path.join(folder, 'state')
        self.slurm = slurm_lib.Slurm(self.hosts, self.nodes, folder + '/slurm')
        self.ssh = ssh_lib.Ssh(self.hosts, folder + '/ssh')
        self.data = os.path.join(folder, 'clicklog')
        self.login.run(self.thermocline, 'generate', self.data, '--rows=10000', '--test-rows=2000',
                       '--shrink=1000', '--threads=1')
        self._digests = {}

    def job_file(self, workers, has_script=False):
        name = 'job-%d%s' % (workers, '-script' if has_script else '')
        path = os.path.join(self.folder, name + '.textproto')
        if not os.path.exists(path):
            script = os.path.join(self.folder, 'train.py')
            with open(script, 'w') as file:
                file.write(SCRIPT)
            with open(path, 'w') as job:
                job.write((SCRIPT_JOB if has_script else JOB) % {
                    'data': self.data, 'workers': workers, 'python': self.python, 'script': script})
        return path

    def own_certificates(self, name, with_key):
        """Flags of a job whose user has made its certificates."""
        folder = os.path.join(self.folder, 'certificates-' + name)
        self.login.run(self.thermocline, 'certificates', '--job=cluster', '--out', folder,
                       *['--host=' + host.address for host in self.hosts])
        if not with_key:
            os.remove(folder + '/ca.key')
        return ['--clear', 'cluster.tls', '--set', 'cluster.tls.directory=' + folder]

    def digest(self, workers, has_script=False):
        """The digest of the model that one machine trains."""
        job = self.job_file(workers, has_script)
        if job not in self._digests:
            run_dir = job.replace('.textproto', '').replace('job-', 'local-')
            begin = time.monotonic()
            self.login.run(self.thermocline, 'train', job, '--clear', 'cluster.tls', '--run-dir', run_dir)
            self._digests[job] = summary_of(run_dir)['model_digest']
            print('  one machine, %d workers%s: %s in %.1f s' % (
                workers, ' with a script' if has_script else '', self._digests[job], time.monotonic() - begin),
                flush=True)
        return self._digests[job]

    def boot(self, host):
        """A host that was killed comes back, with its daemons."""
        host.up()
        self.slurm.start_on(host)
        self.ssh.start_on(host)

    def leftovers(self):
        """Processes of jobs, by host."""
        found = {host.name: host.processes('thermocline') for host in self.hosts}
        return {name: lines for name, lines in found.items() if lines}

    def end_all(self):
        """Whatever a round has left behind."""
        self.login.run('scancel', '--user=root', check=False)
        for host in self.hosts:
            host.run('pkill', '-KILL', '-f', 'submit/batch.sh', check=False)
            host.run('pkill', '-KILL', '-f', 'thermocline', check=False)
            host.run('umount', '--lazy', NODE_DIR, check=False)
            host.run('rm', '-rf', NODE_DIR)

    def await_quiet(self):
        """Hosts that are all there, and idle."""
        wait_for(lambda: self.slurm.sinfo().count(' idle') == len(self.nodes),
                 'idle hosts; Slurm says ' + self.slurm.sinfo(), 120, 0.3)


def summary_of(run_dir):
    with open(os.path.join(run_dir, 'summary.json')) as summary:
        return json.load(summary)


class Job:
    """A submitted job."""

    def __init__(self, cluster, name, engine, nodes, workers, *flags, at=None, has_script=False):
        """`at`: for ssh, the hosts; default: the first."""
        self.cluster = cluster
        self.engine = engine
        self.nodes = nodes
        self.workers = workers
        self.has_script = has_script
        self.run_dir = os.path.join(cluster.folder, 'run-' + name)
        self.hosts = (at or cluster.nodes)[:nodes] if engine == 'ssh' else []
        cluster.last_job = self
        self.submit(cluster.job_file(workers, has_script), *flags)

    def submit(self, *flags):
        if self.hosts:
            flags += ('--hosts', ','.join(host.name for host in self.hosts))
        self.follower = self.cluster.login.start(
            self.cluster.thermocline, 'submit', *flags, '--engine', self.engine, '--nodes', str(self.nodes),
            '--run-dir', self.run_dir, '--node-dir', NODE_DIR, log=self.run_dir + '-submit.log')

    def resume(self):
        """As its user does after its end."""
        self.submit('--resume')

    def events(self):
        try:
            with open(os.path.join(self.run_dir, 'metrics.jsonl')) as metrics:
                lines = metrics.read().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                pass  # It is being written.
        return found

    def story(self):
        """Its events without the steps."""
        return [event for event in self.events() if event['event'] not in ('progress', 'checkpoint')]

    def step(self):
        return max([event.get('step', 0) for event in self.events() if event['event'] == 'progress'], default=0)

    def generations(self):
        return max([event.get('generation', 1) for event in self.events()], default=0)

    def await_step(self, step):
        self.wait_for(lambda: self.step() >= step, 'step %d' % step)

    def node_flags(self):
        """The flags of an agent that no engine starts."""
        folder = self.run_dir + '/certificates'
        return ['--tls-certificate=%s/node.pem' % folder, '--tls-private-key=%s/node.key' % folder,
                '--tls-ca=%s/ca.pem' % folder]

    def wait_for(self, condition, what, deadline_s=120):
        """A condition that comes before the job's end."""
        def reached():
            value = condition()
            if not value and self.follower.poll() is not None:
                raise AssertionError('the job ended before %s: %s' % (what, self.tail()))
            return value
        return wait_for(reached, what, deadline_s)

    def await_generation(self, generation=2):
        self.wait_for(lambda: self.generations() >= generation, 'generation %d' % generation)

    def id(self):
        with open(os.path.join(self.run_dir, 'submit/engine.json')) as record:
            return json.load(record)['id']

    def hosts_of_slurm(self):
        """Its hosts; the first has the batch script."""
        text = self.cluster.login.run('scontrol', 'show', 'job', '-o', self.id())
        fields = dict(part.split('=', 1) for part in text.split() if '=' in part)
        names = self.cluster.login.run('scontrol', 'show', 'hostnames', fields['NodeList']).split()
        by_name = {host.name: host for host in self.cluster.hosts}
        names.sort(key=lambda name: name != fields['BatchHost'])
        return [by_name[name] for name in names]

    def controller(self):
        """The host of its controller."""
        return self.hosts_of_slurm()[0] if self.engine == 'slurm' else self.cluster.login

    def places(self):
        """Where its processes are: {'worker 0': 'h2'}."""
        with open(os.path.join(self.run_dir, 'hosts.json')) as places:
            return {name: place['host'] for name, place in json.load(places).items()}

    def host_in_use(self, rng, role=''):
        """A host that runs a process of the job, and not its controller."""
        controller = self.controller()
        used = sorted({host for name, host in self.places().items()
                       if name.startswith(role) and host != controller.name})
        name = rng.choice(used)
        return next(host for host in self.cluster.hosts if host.name == name)

    def batch_log(self):
        try:
            with open(self.run_dir + '/submit/batch.log', errors='replace') as log:
                return log.read()
        except FileNotFoundError:
            return ''

    def await_end(self, deadline_s=300):
        """The exit code of what follows it."""
        try:
            return self.follower.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError('the job does not end: ' + self.tail())

    def finish(self):
        """Waits for its end, and compares the model."""
        code = self.await_end()
        if code != 0:
            raise AssertionError('submit ends with exit code %d: %s' % (code, self.tail()))
        self.check_digest()

    def check_digest(self):
        digest = summary_of(self.run_dir)['model_digest']
        expected = self.cluster.digest(self.workers, self.has_script)
        if digest != expected:
            raise AssertionError('the model has digest %s, and on one machine %s' % (digest, expected))
        workers = [name for name in self.places() if name.startswith('worker ')]
        assert len(workers) == self.workers, workers

    def tail(self):
        text = ''
        submit = os.path.join(self.run_dir, 'submit')
        logs = sorted(os.listdir(submit)) if os.path.isdir(submit) else []
        for path in [self.run_dir + '-submit.log'] + [os.path.join(submit, name) for name in logs
                                                      if name.endswith('.log')]:
            try:
                with open(path, errors='replace') as log:
                    text += '\n%s:\n%s' % (path, re.sub(r'.*\r', '', log.read())[-2500:])
            except FileNotFoundError:
                pass
        return text
