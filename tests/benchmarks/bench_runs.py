"""What arms.py and sweep.py share: runs of `thermocline train`, over loopback or with each server and worker on a host
of its own behind a link of some rate; and the folder with their results.

enter_hosts() comes first where links are shaped: from there on the program and all its runs are in namespaces of their
own (tests/cluster/hosts.py), which the kernel removes with it."""
import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import run_figures

_TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(_TESTS, 'cluster'))
import hosts as namespaces  # noqa: E402

ROOT = os.path.dirname(_TESTS)
STOP_GRACE_S = 40  # how long a run may take to end after Ctrl-C
CONTROLLER_WAIT_S = 60  # how long the controller of a run over hosts may take to listen
POLL_S = 0.02
QUEUE_BYTES = 4 << 20  # what a link holds back; it drops what comes beyond


class Usage(Exception):
    """The flags, or the job that they make, are wrong."""


class RunFailed(Exception):
    """A run ended without a result."""


def add_program_arguments(parser):
    parser.add_argument('--thermocline', metavar='PROGRAM', default=f'{ROOT}/build/bin/thermocline')
    parser.add_argument('--bin-dir', metavar='DIR', default='',
                        help='the folder of thermocline-server and thermocline-worker; default: that of PROGRAM')
    parser.add_argument('--link', metavar='RATE', default='',
                        help='shapes the link of every server and worker: 1gbit; default: loopback')


def whole_number(low, high):
    """A type for argparse."""
    def parse(text):
        if not re.fullmatch(r'\d+', text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number in [{low}, {high}]")
        return int(text)
    return parse


def names_in(text, known, what):
    """The names of a list separated by commas; all that are known where it is empty. Raises Usage."""
    names = text.split(',') if text else list(known)
    for name in names:
        if name not in known:
            raise Usage(f"'{name}' is no {what}; there are {', '.join(known)}")
        if names.count(name) > 1:
            raise Usage(f'{name} is named twice')
    return names


def enter_hosts(args):
    """Returns only in the namespaces of the hosts. Raises Usage where they can't be made."""
    if not args.link:
        return
    missing = namespaces.missing()
    if missing:
        raise Usage(f'--link makes network namespaces: {missing}')
    namespaces.enter()


@contextlib.contextmanager
def hosts_for(args, count):
    """The hosts of `count` servers and workers, each behind a link of args.link, and before them that of the
    controller, whose link is not shaped; None: no links are shaped. Raises Usage. REQUIRES: enter_hosts"""
    if not args.link:
        yield None
        return
    folder = os.path.join('/run', 'thermocline-bench')
    namespaces.run('mount', '-t', 'tmpfs', 'tmpfs', '/run')
    os.makedirs(folder)
    made = namespaces.make_hosts(count + 1, folder)
    for host in made[1:]:
        try:
            host.shape(args.link, QUEUE_BYTES, burst='64kb')
        except RuntimeError as error:
            if 'rate' in str(error):
                raise Usage(f'--link {args.link}: tc knows no such rate; one is 1gbit, or 100mbit') from error
            raise
    yield made


def where(args):
    return f'each behind a link of {args.link}' if args.link else 'over loopback'


class Run:
    """arguments: those of `train` behind its name, without --run-dir, which is not there yet. The console goes to
    RUN_DIR.log."""

    def __init__(self, args, arguments, run_dir, servers, workers):
        self.program, self.bin_dir = args.thermocline, args.bin_dir
        self.arguments, self.run_dir = list(arguments), run_dir
        if self.bin_dir:
            self.arguments += ['--bin-dir', self.bin_dir]
        self.servers, self.workers = servers, workers
        self.log = run_dir + '.log'

    def command_line(self):
        """For people."""
        return shlex.join(['thermocline', 'train', *self.arguments, '--run-dir', self.run_dir])

    def train(self, hosts):
        """Runs it to its end; none of its processes is left. hosts: as of hosts_for; the servers and workers take
        them in this order. Raises RunFailed (with what the run said), KeyboardInterrupt."""
        processes = []
        try:
            command = [self.program, 'train', *self.arguments, '--run-dir', self.run_dir]
            if hosts is None:
                processes.append(self._start(command))
            else:
                command += ['--nodes', str(self.servers + self.workers), '--listen', hosts[0].address + ':0',
                            '--insecure']
                processes.append(self._start(hosts[0].command(*command)))
                self._start_agents(hosts, self._await_controller(processes[0]), processes)
            self._await_end(processes)
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
                processes[0].send_signal(signal.SIGINT)
                processes[0].wait(STOP_GRACE_S)
            raise
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        shutil.rmtree(self.run_dir + '.hosts', ignore_errors=True)
        try:
            return run_figures.read_run(self.run_dir)
        except run_figures.NoResult as error:
            raise RunFailed(str(error)) from error

    def _start(self, command):
        with open(self.log, 'ab') as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _await_controller(self, launcher):
        deadline = time.monotonic() + CONTROLLER_WAIT_S
        while time.monotonic() < deadline and launcher.poll() is None:
            try:
                with open(os.path.join(self.run_dir, 'controller.json')) as file:
                    return json.load(file)['address']
            except (OSError, ValueError, KeyError):
                time.sleep(POLL_S)
        if launcher.poll() is not None:
            raise RunFailed(self._failure())
        raise RunFailed('the controller does not listen')

    def _start_agents(self, hosts, controller, processes):
        for index, host in enumerate(hosts[1:]):
            role = 'server' if index < self.servers else 'worker'
            name = f'{role}-host-{index}'
            command = [self.program, 'node', '--controller', controller, '--name', name, '--insecure',
                       '--dir', os.path.join(self.run_dir + '.hosts', name), '--address', host.address, '--role', role]
            if self.bin_dir:
                command += ['--bin-dir', self.bin_dir]
            processes.append(self._start(host.command(*command)))

    def _await_end(self, processes):
        launcher, agents = processes[0], processes[1:]
        launcher.wait()
        # Agents end with their job; one that can't must not hold up the others' results.
        deadline = time.monotonic() + STOP_GRACE_S
        for agent in agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(max(0, deadline - time.monotonic()))
        if launcher.returncode != 0:
            raise RunFailed(self._failure())

    def _failure(self):
        """What the run says of its failure: the last line that names one, and what follows it of a log."""
        failure = ''
        with open(self.log, errors='replace') as log:
            for line in log.read().splitlines()[-40:]:
                if line.startswith('thermocline: '):
                    failure = line.split(' ', 1)[1]
                elif line.startswith('  | ') and failure:
                    failure += '; ' + line[4:]
        return f"{failure or 'it left no error'} ({self.log})"


def plan(args, arguments):
    """What `thermocline plan --json` says of a job: the job as `train` would run it, the machine. Raises Usage where
    `train` would refuse the job."""
    done = subprocess.run([args.thermocline, 'plan', *arguments, '--json'], capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip()
        raise Usage(said.split(': ', 1)[1] if said.startswith('thermocline: ') else said) from None


def check_program(args):
    if not os.access(args.thermocline, os.X_OK):
        raise Usage(f'there is no program {args.thermocline}; --thermocline names it (deploy/build.sh makes it)')


def make_out(path, name):
    """A new folder for results; default: runs/NAME-TIME. Raises Usage."""
    path = os.path.abspath(path or os.path.join('runs', time.strftime(f'{name}-%Y%m%d-%H%M%S')))
    os.makedirs(path, exist_ok=True)
    if os.listdir(path):
        raise Usage(f'--out {path} holds files')
    return path


def write(folder, name, text):
    with open(os.path.join(folder, name), 'w') as file:
        file.write(text)


def draw(kind, folder):
    """Where FOLDER/KIND.png is, drawn of the CSV files there; or why there is none."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'bench_picture.py')
    done = subprocess.run([sys.executable, script, kind, folder], capture_output=True, text=True)
    if done.returncode == 0:
        return f'picture: {folder}/{kind}.png'
    return f'no picture: {(done.stdout + done.stderr).strip()}'


def main_of(run):
    """Ends the program as `run` says: with its exit code; 2 where the usage is bad, 1 where it was stopped."""
    try:
        sys.exit(run())
    except Usage as error:
        print(f'{os.path.basename(sys.argv[0])}: {error}', file=sys.stderr)
        sys.exit(2)
    except (RunFailed, KeyboardInterrupt) as error:
        print(f'{os.path.basename(sys.argv[0])}: {error or "stopped"}', file=sys.stderr)
        sys.exit(1)
