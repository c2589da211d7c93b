"""Jobs on Slurm and over ssh, on five hosts that are namespaces of this machine, with faults.

    cluster_test.py PROGRAMS [--rounds N] [--seed N] [--only NAME[,NAME]] [--list]

PROGRAMS is the folder where the build leaves its programs (bazel-bin). Each round submits a job as a user does,
does something to a host, a link, a process or the job, and compares the digest of the trained model with that of
the same job on one machine. The first rounds are those of SHORT, in order; later ones are drawn by the seed.
Ends with the line "N passed, N failed"; where there can be no hosts, it says why and that the rounds are skipped.
"""

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import time
import traceback

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
train { batch_size: 256 passes: %(passes)d learning_rate { base: 0.02 } metrics_every_steps: 5 }
checkpoint { every_steps: 100 }
cluster { servers: 2 workers: %(workers)d worker_threads: 1 insecure: true
          node_lease_s: 4 host_timeout_s: 7 host_wait_s: 300 }
"""
PASSES = 60


class Cluster:
    """Five hosts with Slurm and sshd, the programs, and the data of all jobs."""

    def __init__(self, programs, folder):
        self.folder = folder
        self.thermocline = os.path.realpath(os.path.join(programs, 'deploy/thermocline'))
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

    def job_file(self, workers):
        path = os.path.join(self.folder, 'job-%d.textproto' % workers)
        if not os.path.exists(path):
            with open(path, 'w') as job:
                job.write(JOB % {'data': self.data, 'passes': PASSES, 'workers': workers})
        return path

    def digest(self, workers):
        """Of the model that one machine trains."""
        if workers not in self._digests:
            run_dir = os.path.join(self.folder, 'local-%d' % workers)
            begin = time.monotonic()
            self.login.run(self.thermocline, 'train', self.job_file(workers), '--run-dir', run_dir)
            self._digests[workers] = summary_of(run_dir)['model_digest']
            print('  one machine, %d workers: %s in %.1f s' % (
                workers, self._digests[workers], time.monotonic() - begin), flush=True)
        return self._digests[workers]

    def boot(self, host):
        """A host that was killed comes back, with its daemons."""
        host.up()
        self.slurm.start_on(host)
        self.ssh.start_on(host)

    def await_quiet(self):
        """Hosts that are all there, and idle."""
        wait_for(lambda: self.slurm.sinfo().count(' idle') == len(self.nodes),
                 'idle hosts; Slurm says ' + self.slurm.sinfo(), 90, 0.3)


def summary_of(run_dir):
    with open(os.path.join(run_dir, 'summary.json')) as summary:
        return json.load(summary)


class Job:
    """A submitted job, as its user sees it."""

    def __init__(self, cluster, name, engine, nodes, workers, *flags):
        self.cluster = cluster
        self.engine = engine
        self.nodes = nodes
        self.workers = workers
        self.run_dir = os.path.join(cluster.folder, 'run-' + name)
        self.hosts = []
        if engine == 'ssh':
            self.hosts = cluster.nodes[:nodes]
            flags += ('--hosts', ','.join(host.name for host in self.hosts))
        self.submit(cluster.job_file(workers), *flags)

    def submit(self, *flags):
        self.follower = self.cluster.login.start(
            self.cluster.thermocline, 'submit', *flags, '--engine', self.engine, '--nodes', str(self.nodes),
            '--run-dir', self.run_dir, '--node-dir', '/run/local/agent', log=self.run_dir + '-submit.log')

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
        def reached():
            if self.follower.poll() is not None:
                raise AssertionError('the job ended: ' + self.tail())
            return self.step() >= step
        wait_for(reached, 'step %d' % step)

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

    def finish(self, deadline_s=200):
        """Waits for its end, and compares the model."""
        try:
            code = self.follower.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError('the job does not end: ' + self.tail())
        if code != 0:
            raise AssertionError('submit ends with exit code %d: %s' % (code, self.tail()))
        digest = summary_of(self.run_dir)['model_digest']
        expected = self.cluster.digest(self.workers)
        if digest != expected:
            raise AssertionError('the model has digest %s, and on one machine %s' % (digest, expected))

    def tail(self):
        text = ''
        for path in [self.run_dir + '-submit.log', self.run_dir + '/submit/batch.log']:
            try:
                with open(path, errors='replace') as log:
                    text += '\n%s:\n%s' % (path, log.read()[-3000:])
            except FileNotFoundError:
                pass
        return text


# Rounds
# ------------------------------------------------------------------------------------------------
# Each gets the cluster, a random generator and a name of its own.

def early_step(rng):
    """A step in the first third of a job."""
    return rng.randrange(50, 700)


def plain(cluster, rng, name):
    """Nothing happens."""
    job = Job(cluster, name, rng.choice(['slurm', 'ssh']), rng.randrange(1, 6), rng.randrange(1, 4))
    job.finish()


def requeue(cluster, rng, name):
    """An administrator puts the job back into the queue."""
    job = Job(cluster, name, 'slurm', 3, 2)
    job.await_step(early_step(rng))
    cluster.login.run('scontrol', 'requeue', job.id())
    job.finish()
    assert job.generations() >= 2, job.story()


def walltime(cluster, rng, name):
    """The walltime comes before the job's end: it writes a checkpoint, is requeued by itself, and goes on."""
    job = Job(cluster, name, 'slurm', 2, 1, '--time', '1', '--notice', '30', '--set',
              'train.passes=%d' % (PASSES * 6))
    del rng
    wait_for(lambda: 'back into the queue' in job.tail(), 'the walltime', 200, 0.5)
    wait_for(lambda: job.generations() >= 2, 'the second start', 100, 0.5)
    cluster.login.run(cluster.thermocline, 'stop', job.run_dir)
    job.follower.wait(60)


def host_killed(cluster, rng, name):
    """A host loses its power; the others take over what it ran. Then it comes back."""
    engine = rng.choice(['slurm', 'ssh'])
    job = Job(cluster, name, engine, 3, 2)
    job.await_step(early_step(rng))
    victim = some_host(job, rng)
    victim.kill()
    try:
        job.finish()
    finally:
        cluster.boot(victim)
    assert job.generations() >= 2, job.story()


def some_host(job, rng):
    """A host that runs a process of the job, and not its controller."""
    with open(os.path.join(job.run_dir, 'hosts.json')) as places:
        used = {place['host'] for place in json.load(places).values()}
    hosts = job.hosts_of_slurm()[1:] if job.engine == 'slurm' else job.hosts
    return rng.choice([host for host in hosts if host.name in used])


def short_cut(cluster, rng, name):
    """A link is cut for a moment: nothing but a pause."""
    job = Job(cluster, name, rng.choice(['slurm', 'ssh']), 3, 2)
    job.await_step(early_step(rng))
    victim = some_host(job, rng)
    victim.cut()
    time.sleep(1.5)
    victim.mend()
    job.finish()
    assert job.generations() == 1, job.story()


def long_cut(cluster, rng, name):
    """A link is cut for longer than host_timeout_s: the host is lost, and the job goes on without it."""
    job = Job(cluster, name, rng.choice(['slurm', 'ssh']), 3, 2)
    job.await_step(early_step(rng))
    victim = some_host(job, rng)
    victim.cut()
    try:
        wait_for(lambda: job.generations() >= 2, 'the second generation', 60)
    finally:
        victim.mend()
    job.finish()


def slow_link(cluster, rng, name):
    """A host has a slow link for a while, and one that loses packets."""
    job = Job(cluster, name, rng.choice(['slurm', 'ssh']), 3, 2)
    job.await_step(30)
    victim = some_host(job, rng)
    victim.shape('%dmbit' % rng.choice([30, 60]), 30000)
    try:
        job.await_step(300)
        assert victim.lost_packets() > 0
        print('  %d packets were lost' % victim.lost_packets())
    finally:
        victim.unshape()
    job.finish()
    assert job.generations() <= 1, job.story()


def agent_killed(cluster, rng, name):
    """The agent of a host is killed, and with it all that it runs; it is started again."""
    job = Job(cluster, name, rng.choice(['slurm', 'ssh']), 2, 2)
    job.await_step(early_step(rng))
    some_host(job, rng).run('pkill', '-KILL', '-f', 'thermocline node')
    job.finish()
    assert job.generations() >= 2, job.story()


def controller_killed(cluster, rng, name):
    """The controller is killed; its script starts it again."""
    engine = rng.choice(['slurm', 'ssh'])
    job = Job(cluster, name, engine, 2, 2)
    job.await_step(early_step(rng))
    host = job.hosts_of_slurm()[0] if engine == 'slurm' else cluster.login
    host.run('pkill', '-KILL', '-f', 'thermocline train')
    job.finish()
    assert job.generations() >= 2, job.story()


def stopped(cluster, rng, name):
    """The user stops the job, which no engine starts again, and goes on with it later."""
    engine = rng.choice(['slurm', 'ssh'])
    job = Job(cluster, name, engine, 2, 2)
    job.await_step(early_step(rng))
    text = cluster.login.run(cluster.thermocline, 'stop', job.run_dir)
    assert 'checkpoint step-' in text, text
    assert job.follower.wait(60) == 1
    name = text.split('checkpoint step-')[1].split()[0]
    shown = json.loads(cluster.login.run(cluster.thermocline, 'jobs', '--json'))
    assert [line['state'] for line in shown if line['run_dir'] == job.run_dir] == ['ended: CANCELLED'], shown
    job.submit('--resume', *(['--hosts', ','.join(host.name for host in job.hosts)] if job.hosts else []))
    job.finish()
    starts = [event['checkpoint'] for event in job.events() if event['event'] == 'resume']
    assert starts == ['step-' + name], (name, job.story())


ROUNDS = collections.OrderedDict((round.__name__, round) for round in [
    plain, requeue, walltime, host_killed, short_cut, long_cut, slow_link, agent_killed,
    controller_killed, stopped])
SHORT = ['plain', 'host_killed', 'stopped']


def run_round(cluster, name, seed, index):
    """Whether it passed."""
    begin = time.monotonic()
    print('%s (seed %d)' % (name, seed), flush=True)
    try:
        ROUNDS[name](cluster, random.Random(seed), '%d-%s' % (index, name))
        print('  passed in %.0f s' % (time.monotonic() - begin), flush=True)
        return True
    except Exception:  # Of any kind: the round failed, and others may pass.
        traceback.print_exc(file=sys.stdout)
        kept = os.path.join(os.environ.get('TMPDIR', '/tmp'), 'thermocline-cluster-%d-%s' % (seed, name))
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(cluster.folder, kept, symlinks=True,
                        ignore=shutil.ignore_patterns('clicklog', 'spool-*', 'local-*', 'ssh', 'munged-*'))
        print('  FAILED in %.0f s; logs in %s' % (time.monotonic() - begin, kept), flush=True)
        return False
    finally:
        cluster.login.run('scancel', '--user=root', check=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('programs', nargs='?', default='bazel-bin')
    parser.add_argument('--rounds', type=int, default=int(os.environ.get('THERMOCLINE_CLUSTER_ROUNDS', '3')))
    parser.add_argument('--seed', type=int, default=int(os.environ.get('THERMOCLINE_TEST_SEED', '1')))
    parser.add_argument('--only', default='')
    parser.add_argument('--list', action='store_true')
    arguments = parser.parse_args()
    if arguments.list:
        for name, function in ROUNDS.items():
            print('%-18s %s' % (name, function.__doc__))
        return 0
    why = hosts_lib.missing() or slurm_lib.missing() or ssh_lib.missing()
    if why:
        print('skipped: %s\n0 passed, 0 failed' % why)
        return 0
    hosts_lib.enter()
    # All hosts' disk: it goes with this program.
    folder = '/mnt'
    hosts_lib.run('mount', '-t', 'tmpfs', '-o', 'size=4g,mode=755', 'tmpfs', folder)
    begin = time.monotonic()
    cluster = Cluster(arguments.programs, folder)
    print('%d hosts with Slurm and sshd in %.1f s' % (len(cluster.hosts), time.monotonic() - begin), flush=True)
    draw = random.Random(arguments.seed)
    names = [name for name in arguments.only.split(',') if name]
    passed = 0
    for index in range(arguments.rounds):
        if names:
            name = names[index % len(names)]
        else:
            name = SHORT[index] if index < len(SHORT) else draw.choice(list(ROUNDS))
        passed += run_round(cluster, name, draw.randrange(1 << 30), index)
        cluster.await_quiet()
    print('%d passed, %d failed' % (passed, arguments.rounds - passed))
    return 0 if passed == arguments.rounds else 1


if __name__ == '__main__':
    sys.exit(main())
