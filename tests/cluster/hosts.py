"""Hosts of a cluster on one machine: namespaces with their own addresses, host names and processes.

enter() moves this program into namespaces of its own; every host, process, mount and link that is made
afterwards lies in them, so that the kernel removes all of it when this program ends, however it ends. A
host is the first process of a PID namespace: when that is killed, so is every process of the host.

    10.77.0.1    10.77.0.2    ...
       h0           h1               each with its own network, host name, processes and /run
       |            |
       +----- bridge (of the program)

All hosts see the same files, as on a shared file system, but for /run, which is each host's own disk.
"""

import ctypes
import os
import subprocess
import sys
import time

NETWORK = '10.77.0'
_INSIDE = 'THERMOCLINE_CLUSTER_INSIDE'
_UNSHARE = ['unshare', '--mount', '--net', '--pid', '--ipc', '--fork', '--kill-child', '--mount-proc']


def missing():
    """Why hosts can't be made on this machine; '': they can."""
    if os.geteuid() != 0:
        return 'namespaces need root'
    for name in ('unshare', 'nsenter', 'ip', 'tc', 'mount', 'pgrep'):
        if not _which(name):
            return 'there is no program %s' % name
    probe = ' && '.join(['ip link add tc0 type bridge', 'ip link add tc1 type veth peer name tc2',
                         'tc qdisc add dev tc1 root tbf rate 1gbit burst 512kb latency 100ms',
                         'mount -t tmpfs tmpfs /run'])
    done = subprocess.run(_UNSHARE + ['sh', '-c', probe], capture_output=True, text=True)
    return '' if done.returncode == 0 else 'namespaces are refused: ' + done.stderr.strip()


def _which(name):
    return any(os.access(os.path.join(folder, name), os.X_OK)
               for folder in os.environ.get('PATH', '').split(':') + ['/usr/sbin', '/sbin'])


def enter():
    """Runs this program again in namespaces of its own, and returns only there."""
    if os.environ.get(_INSIDE):
        return
    # The namespaces end with this program, even if it is killed.
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    os.environ[_INSIDE] = '1'
    os.execvp('unshare', _UNSHARE + [sys.executable, *sys.argv])


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError('%s: %s%s' % (' '.join(command), done.stdout, done.stderr))
    return done.stdout


class Host:
    """One host. `up()` makes it, `kill()` takes its power; then `up()` boots it again, with an empty /run."""

    def __init__(self, index):
        self.index = index
        self.name = 'h%d' % index
        self.address = '%s.%d' % (NETWORK, index + 1)
        self._link = 'link%d' % index
        self._holder = None
        self._init = 0

    def up(self):
        # The first process of the host ignores SIGCHLD: the kernel buries what it adopts.
        boot = ('hostname %s && mount -t tmpfs tmpfs /run && mkdir -p /run/munge /run/sshd /run/local && '
                'ip link set lo up && echo up && exec env --ignore-signal=CHLD sleep infinity' % self.name)
        self._holder = subprocess.Popen(
            ['unshare', '--uts', '--net', '--mount', '--pid', '--fork', '--kill-child', '--mount-proc',
             'sh', '-c', boot], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            text=True)
        if self._holder.stdout.readline() != 'up\n':
            raise RuntimeError('host %s does not come up' % self.name)
        with open('/proc/%d/task/%d/children' % (self._holder.pid, self._holder.pid)) as children:
            self._init = int(children.read().split()[0])
        run('ip', 'link', 'add', self._link, 'type', 'veth', 'peer', 'name', 'eth0', 'netns',
            str(self._init))
        run('ip', 'link', 'set', self._link, 'master', 'bridge', 'up')
        self.run('ip', 'address', 'add', self.address + '/24', 'dev', 'eth0')
        self.run('ip', 'link', 'set', 'eth0', 'up')

    def command(self, *command):
        return ['nsenter', '--target', str(self._init), '--mount', '--uts', '--net', '--pid', '--',
                *command]

    def run(self, *command, check=True):
        """Runs a command on the host to its end; returns what it printed."""
        return run(*self.command(*command), check=check)

    def start(self, *command, log, **options):
        with open(log, 'ab') as output:
            return subprocess.Popen(self.command(*command), stdin=subprocess.DEVNULL, stdout=output,
                                    stderr=output, **options)

    def processes(self, pattern):
        """The command lines, with process ids, that match a regular expression."""
        return self.run('pgrep', '-a', '-f', pattern, check=False).splitlines()

    def pause(self):
        """None of its processes gets any further."""
        self.run('sh', '-c', 'kill -STOP -1')

    def go_on(self):
        self.run('sh', '-c', 'kill -CONT -1')

    def kill(self):
        """Every process of the host ends at once; its network is gone without a word to others."""
        self.cut()  # First: a real host that loses its power sends no FIN either.
        os.kill(self._init, 9)
        self._holder.wait()
        # The kernel removes it with the host's network, which may take a while.
        run('ip', 'link', 'delete', self._link, check=False)

    def cut(self):
        run('ip', 'link', 'set', self._link, 'down')

    def mend(self):
        run('ip', 'link', 'set', self._link, 'up')

    def deafen(self, other):
        """What this host sends to `other` gets lost; the other direction works."""
        self.run('ip', 'neigh', 'replace', other.address, 'lladdr', '02:00:00:00:00:99', 'dev', 'eth0',
                 'nud', 'permanent')

    def hear(self, other):
        self.run('ip', 'neigh', 'del', other.address, 'dev', 'eth0')

    def shape(self, rate, queue_bytes, burst='16kb'):
        """A slow link in both directions; its queue is short, so that it loses packets when it is full."""
        tbf = ['root', 'tbf', 'rate', rate, 'burst', burst, 'limit', str(queue_bytes)]
        run('tc', 'qdisc', 'replace', 'dev', self._link, *tbf)
        self.run('tc', 'qdisc', 'replace', 'dev', 'eth0', *tbf)

    def lost_packets(self):
        text = run('tc', '-s', 'qdisc', 'show', 'dev', self._link) + self.run(
            'tc', '-s', 'qdisc', 'show', 'dev', 'eth0')
        return sum(int(part.split(',')[0]) for part in text.split('dropped ')[1:])

    def unshape(self):
        run('tc', 'qdisc', 'del', 'dev', self._link, 'root')
        self.run('tc', 'qdisc', 'del', 'dev', 'eth0', 'root')


def make_hosts(count, folder):
    """`count` hosts that know each other by name. REQUIRES: enter()"""
    run('ip', 'link', 'set', 'lo', 'up')
    run('ip', 'link', 'add', 'bridge', 'type', 'bridge')
    run('ip', 'link', 'set', 'bridge', 'up')
    hosts = [Host(index) for index in range(count)]
    names = os.path.join(folder, 'hosts')
    with open(names, 'w') as file:
        file.write('127.0.0.1 localhost\n')
        for host in hosts:
            file.write('%s %s\n' % (host.address, host.name))
    run('mount', '--bind', names, '/etc/hosts')
    for host in hosts:
        host.up()
    return hosts


def wait_for(condition, what, deadline_s=120, period_s=0.05):
    """Returns the first true value of `condition()`."""
    deadline = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError('waited in vain for ' + what)
        time.sleep(period_s)
