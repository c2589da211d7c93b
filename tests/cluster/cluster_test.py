"""Jobs on Slurm and over ssh, on five hosts that are namespaces of this machine, with faults.

    cluster_test.py PROGRAMS [--rounds N] [--seed N] [--only KIND[:ENGINE[:SEED]],...] [--list]

PROGRAMS is the folder that deploy/build.sh fills (build). Each round submits a job as a user does,
does something to a host, a link, a process or the job, and compares the digest of the trained model with that of
the same job on one machine; then no process of it is left on any host. The first rounds are those of SHORT; later
ones are drawn by the seed, every kind once before any comes again. Ends with a table of the rounds and the line
"N passed, N failed"; where there can be no hosts, it says why and that the rounds are skipped.
"""

import argparse
import collections
import json
import os
import random
import shutil
import sys
import time
import traceback

import engine_rounds
import hosts as hosts_lib
import slurm as slurm_lib
import ssh as ssh_lib
from cluster import AGENTS, DEFAULT_LEASE, HAS_TORCH, NODE_DIR, PROCESSES, Cluster, Job
from hosts import wait_for

# Rounds
# ------------------------------------------------------------------------------------------------
# Each gets the cluster, a random generator, a name of its own and the engine. Those that need one engine
# say so in ENGINES.


def early_step(rng):
    """A step in the first third of a job."""
    return rng.randrange(50, 500)


def started(cluster, rng, name, engine, *flags, nodes=3, workers=2, **options):
    """A job in its first third."""
    job = Job(cluster, name, engine, nodes, workers, *flags, **options)
    job.await_step(early_step(rng))
    return job


def plain(cluster, rng, name, engine):
    """Nothing happens."""
    flags = rng.choice([[], cluster.own_certificates(name + '-signing', True), cluster.own_certificates(name, False)])
    job = Job(cluster, name, engine, rng.randrange(1, 6), rng.randrange(1, 4), *flags)
    job.finish()
    assert job.generations() <= 1, job.story()


def requeue(cluster, rng, name, engine):
    """An administrator puts the job back into the queue."""
    job = started(cluster, rng, name, engine)
    cluster.login.run('scontrol', 'requeue', job.id())
    job.finish()
    assert job.generations() >= 2, job.story()


def walltime(cluster, rng, name, engine):
    """The walltime comes: the job writes a checkpoint, is requeued by itself, and goes on."""
    job = started(cluster, rng, name, engine, '--time', '2', '--notice', '100', nodes=2)
    # Whatever the machine's speed, the walltime comes before the end.
    host = job.host_in_use(rng, 'worker')
    host.run('pkill', '-STOP', '-f', 'thermocline-worker ')
    wait_for(lambda: 'the walltime is near' in job.batch_log(), 'the walltime', 150)
    host.run('pkill', '-CONT', '-f', 'thermocline-worker ')
    job.wait_for(lambda: 'back into the queue' in job.batch_log(), 'the requeue')
    wait_for(lambda: cluster.slurm.state(job.id()) == 'RUNNING', 'the second start')
    cluster.login.run('scontrol', 'update', 'JobId=' + job.id(), 'TimeLimit=60')
    job.finish()
    assert job.generations() >= 2, job.story()


def host_killed(cluster, rng, name, engine):
    """A host loses its power; the others take over what it ran. Then it comes back."""
    job = started(cluster, rng, name, engine)
    victim = job.host_in_use(rng)
    victim.kill()
    try:
        job.finish()
    finally:
        cluster.boot(victim)
    assert job.generations() >= 2, job.story()


def torch_host_killed(cluster, rng, name, engine):
    """The same where the worker runs a script in PyTorch."""
    if not HAS_TORCH:
        print('  SKIPPED: no PyTorch; the worker computes the model itself')
    job = Job(cluster, name, engine, 3, 1, has_script=HAS_TORCH)
    job.await_step(rng.randrange(50, 200))
    victim = job.host_in_use(rng)
    victim.kill()
    try:
        job.finish()
    finally:
        cluster.boot(victim)
    assert job.generations() >= 2, job.story()


def short_cut(cluster, rng, name, engine):
    """A link is cut for five seconds: nothing but a pause."""
    job = started(cluster, rng, name, engine, *DEFAULT_LEASE)
    victim = job.host_in_use(rng)
    victim.cut()
    time.sleep(5)
    victim.mend()
    job.finish()
    assert job.generations() <= 1, job.story()


def long_cut(cluster, rng, name, engine):
    """A link is cut for a minute: the host ends its processes by itself, and the job goes on without it."""
    cut_off(started(cluster, rng, name, engine, *DEFAULT_LEASE), rng, 60)


def cut(cluster, rng, name, engine):
    """The same with a short lease, until the job has lost the host."""
    cut_off(started(cluster, rng, name, engine), rng, 0)


def cut_off(job, rng, seconds):
    victim = job.host_in_use(rng)
    begin = time.monotonic()
    victim.cut()
    try:
        wait_for(lambda: not victim.processes(PROCESSES), 'the end of the processes on a host without lease')
        assert job.engine == 'slurm' or victim.processes(AGENTS)
        job.await_generation()
        time.sleep(max(0, seconds - (time.monotonic() - begin)))
    finally:
        victim.mend()
    job.finish()


def one_way(cluster, rng, name, engine):
    """What one host sends to another gets lost; what comes from there arrives."""
    job = started(cluster, rng, name, engine, '--set', 'cluster.rpc_timeout_s=8')
    victim, controller = job.host_in_use(rng), job.controller()
    others = [host for host in cluster.nodes if host.name in job.places().values() and host != victim]
    sender, receiver = rng.choice([(victim, controller), (controller, victim)] +
                                  [(victim, other) for other in others])
    print('  from %s to %s, with the controller on %s' % (sender.name, receiver.name, controller.name))
    sender.deafen(receiver)
    try:
        job.await_generation()
    finally:
        sender.hear(receiver)
    job.finish()


def slow_link(cluster, rng, name, engine):
    """A host has a slow link for a while, and one that loses packets."""
    job = started(cluster, rng, name, engine, *DEFAULT_LEASE)
    victim = job.host_in_use(rng)
    victim.shape('%dmbit' % rng.choice([30, 60]), 30000)
    try:
        job.await_step(job.step() + 200)
        assert victim.lost_packets() > 0
        print('  %d packets were lost' % victim.lost_packets())
    finally:
        victim.unshape()
    job.finish()
    assert job.generations() <= 1, job.story()


def paused(cluster, rng, name, engine):
    """All processes of a host stand still for longer than the lease, and go on."""
    job = started(cluster, rng, name, engine)
    victim = job.host_in_use(rng)
    before = victim.processes(PROCESSES)
    assert before
    victim.pause()
    try:
        job.await_generation()
    finally:
        victim.go_on()
    wait_for(lambda: not set(before) & set(victim.processes(PROCESSES)), 'the end of what was paused')
    job.finish()


def full_disk(cluster, rng, name, engine):
    """The disk of one host is full: that is named, and the job waits until there is room."""
    for host in cluster.nodes:
        host.run('mkdir', '-p', NODE_DIR)
        host.run('mount', '-t', 'tmpfs', '-o', 'size=256m,mode=0700', 'tmpfs', NODE_DIR)
    job = started(cluster, rng, name, engine, '--set', 'cluster.durability=LOG_ASYNC')
    victim = job.host_in_use(rng, 'server')
    victim.run('dd', 'if=/dev/zero', 'of=%s/full' % NODE_DIR, 'bs=1M', check=False)
    job.wait_for(lambda: 'No space left on device; tmpfs at %s has ' % NODE_DIR in job.batch_log(),
                 'the message of a full disk')
    victim.run('rm', NODE_DIR + '/full')
    job.finish()
    assert job.generations() <= 1, job.story()


def agent_killed(cluster, rng, name, engine):
    """The agent of a host is killed, and with it all that it runs; it is started again."""
    job = started(cluster, rng, name, engine, nodes=2)
    job.host_in_use(rng).run('pkill', '-KILL', '-f', AGENTS)
    job.finish()
    assert job.generations() >= 2, job.story()


def controller_killed(cluster, rng, name, engine):
    """The controller is killed; its script starts it again."""
    job = started(cluster, rng, name, engine, nodes=2)
    job.controller().run('pkill', '-KILL', '-f', 'thermocline train')
    job.finish()
    assert job.generations() >= 2, job.story()


def script_killed(cluster, rng, name, engine):
    """The script that runs over ssh is killed with its controller; one command goes on with the job."""
    job = started(cluster, rng, name, engine, nodes=2)
    job.controller().run('kill', '-KILL', '--', '-' + job.id())
    assert job.await_end() == 1
    job.resume()
    job.finish()
    assert job.generations() >= 2, job.story()


def two_controllers(cluster, rng, name, engine):
    """A controller pauses, another takes over, and the first goes on: it ends, and harms nothing."""
    job = started(cluster, rng, name, engine, nodes=2)
    controller = job.controller()
    hosts = {job.controller()} | set(job.hosts if engine == 'ssh' else job.hosts_of_slurm())
    free = [host for host in cluster.nodes if host not in hosts][:2]
    controller.run('pkill', '-STOP', '-f', 'thermocline train')
    # Not every file system has locks that other hosts see.
    for folder in job.run_dir, job.run_dir + '/checkpoints':
        os.rename(folder + '/lock', folder + '/lock.first')
    address = free[0].address + ':21000'
    log = job.run_dir + '-second.log'
    second = free[0].start(cluster.thermocline, 'train', '--resume', '--run-dir', job.run_dir, '--nodes', '2',
                           '--listen', address, log=log)
    agents = [host.start(cluster.thermocline, 'node', '--controller=' + address, '--dir=' + NODE_DIR,
                         *job.node_flags(), log='%s-%s.log' % (job.run_dir, host.name)) for host in free]
    wait_for(lambda: job.generations() >= 2 or second.poll() is not None, 'the second generation')
    controller.run('pkill', '-CONT', '-f', 'thermocline train')
    wait_for(lambda: 'another controller' in job.batch_log(), 'the end of the first controller')
    job.await_end()
    code = second.wait(200)
    with open(log) as text:
        assert code == 0, text.read()[-3000:]
    job.check_digest()
    assert [agent.wait(60) for agent in agents] == [0, 0]


def unshared(cluster, rng, name, engine):
    """A host has another disk where the checkpoints are: it is refused by name, and taken when that is mended."""
    shared = os.path.join(cluster.folder, 'checkpoints-' + name)
    os.mkdir(shared)
    victim = rng.choice(cluster.nodes)
    # Slurm chooses the hosts.
    victim.run('mount', '-t', 'tmpfs', 'tmpfs', shared)
    job = Job(cluster, name, engine, 5, 2, '--set', 'checkpoint.directory=' + shared)
    what = 'host %s does not see the controller\'s checkpoint directory %s' % (victim.name, shared)
    wait_for(lambda: what in job.batch_log(), what)
    assert job.step() == 0
    victim.run('umount', shared)
    job.finish()


def stopped(cluster, rng, name, engine):
    """The user stops the job, which no engine starts again, and goes on with it later."""
    job = started(cluster, rng, name, engine, nodes=2)
    text = cluster.login.run(cluster.thermocline, 'stop', job.run_dir)
    assert 'checkpoint step-' in text, text
    assert job.await_end() == 1
    name = text.split('checkpoint step-')[1].split()[0]
    shown = json.loads(cluster.login.run(cluster.thermocline, 'jobs', '--json'))
    assert [line['state'] for line in shown if line['run_dir'] == job.run_dir] == ['ended: CANCELLED'], shown
    job.resume()
    job.finish()
    # The periodic checkpoint of a later step may have come before the end.
    starts = [event['checkpoint'] for event in job.events() if event['event'] == 'resume']
    assert len(starts) == 1 and starts[0] >= 'step-' + name, (name, job.story())


KINDS = collections.OrderedDict((kind.__name__, kind) for kind in [
    plain, requeue, walltime, host_killed, torch_host_killed, short_cut, long_cut, cut, one_way, slow_link, paused,
    full_disk, agent_killed, controller_killed, script_killed, two_controllers, unshared, stopped, *engine_rounds.KINDS])
ENGINES = {'requeue': 'slurm', 'walltime': 'slurm', 'script_killed': 'ssh',
           **{kind.__name__: 'slurm' for kind in engine_rounds.KINDS}}
SHORT = ['plain:slurm', 'torch_host_killed:slurm', 'two_controllers:ssh', 'stopped:slurm']

# Running them
# ------------------------------------------------------------------------------------------------

Round = collections.namedtuple('Round', ['kind', 'engine', 'seed'])


def parse_round(text, rng):
    """KIND[:ENGINE[:SEED]]; the rest is drawn."""
    parts = text.split(':')
    engine = parts[1] if len(parts) > 1 else ENGINES.get(parts[0]) or rng.choice(['slurm', 'ssh'])
    return Round(parts[0], engine, int(parts[2]) if len(parts) > 2 else rng.randrange(1 << 30))


def draw_rounds(count, rng):
    rounds = [parse_round(text, rng) for text in SHORT[:count]]
    deck = [kind for kind in KINDS if kind not in {each.kind for each in rounds}]
    while len(rounds) < count:
        deck = deck or list(KINDS)
        rounds.append(parse_round(deck.pop(rng.randrange(len(deck))), rng))
    return rounds


def run_round(cluster, each, index):
    """Its line in the table; None: it failed."""
    begin = time.monotonic()
    text = '%s:%s:%d' % each
    print(text, flush=True)
    cluster.last_job = None
    try:
        KINDS[each.kind](cluster, random.Random(each.seed), '%d-%s' % (index, each.kind), each.engine)
        wait_for(lambda: not cluster.leftovers(), 'the end of all processes of the job', 120, 0.3)
        job = cluster.last_job
        line = '%-45s %4.0f s %3d %s' % (text, time.monotonic() - begin, max(1, job.generations()),
                                         cluster.digest(job.workers, job.has_script))
        print('  passed in %.0f s' % (time.monotonic() - begin), flush=True)
        return line
    except Exception:  # Whatever it is, the round has failed, and other rounds may pass.
        traceback.print_exc(file=sys.stdout)
        print(cluster.leftovers())
        kept = os.path.join(os.environ.get('TMPDIR', '/tmp'), 'thermocline-cluster-%d-%s' % (each.seed, each.kind))
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(cluster.folder, kept, symlinks=True,
                        ignore=shutil.ignore_patterns('clicklog', 'spool-*', 'local-*', 'ssh', 'munged-*'))
        print('  FAILED in %.0f s; logs in %s' % (time.monotonic() - begin, kept), flush=True)
        return None
    finally:
        cluster.end_all()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('programs', nargs='?', default='build')
    parser.add_argument('--rounds', type=int, default=int(os.environ.get('THERMOCLINE_CLUSTER_ROUNDS', '4')))
    parser.add_argument('--seed', type=int, default=int(os.environ.get('THERMOCLINE_TEST_SEED', '1')))
    parser.add_argument('--only', default='')
    parser.add_argument('--list', action='store_true')
    arguments = parser.parse_args()
    if arguments.list:
        for name, function in KINDS.items():
            print('%-18s %s' % (name, function.__doc__))
        return 0
    why = hosts_lib.missing() or slurm_lib.missing() or ssh_lib.missing()
    if why:
        print('skipped: %s\n0 passed, 0 failed' % why)
        return 0
    hosts_lib.enter()
    rng = random.Random(arguments.seed)
    only = [text for text in arguments.only.split(',') if text]
    rounds = [parse_round(text, rng) for text in only] or draw_rounds(arguments.rounds, rng)
    # All hosts' disk: it goes with this program.
    folder = '/mnt'
    hosts_lib.run('mount', '-t', 'tmpfs', '-o', 'size=4g,mode=755', 'tmpfs', folder)
    begin = time.monotonic()
    cluster = Cluster(arguments.programs, folder)
    print('%d hosts with Slurm and sshd in %.1f s; seed %d' % (
        len(cluster.hosts), time.monotonic() - begin, arguments.seed), flush=True)
    table = []
    for index, each in enumerate(rounds):
        table.append(run_round(cluster, each, index))
        cluster.await_quiet()
    print('\n'.join(line for line in table if line))
    passed = len([line for line in table if line])
    print('%d passed, %d failed' % (passed, len(rounds) - passed))
    return 0 if passed == len(rounds) else 1


if __name__ == '__main__':
    sys.exit(main())
