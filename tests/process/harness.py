"""What the tests of real processes share: programs, a small click log, jobs, waiting.

Every wait has a deadline that only a hanging program reaches; nothing sleeps to synchronize.
"""

import errno
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import unittest

DEADLINE_S = 120
POLL_S = 0.01

_RUNFILES = os.path.join(os.environ.get('TEST_SRCDIR', ''), os.environ.get('TEST_WORKSPACE', ''))


def program(path):
    """The absolute path of a program that the build made, such as 'server/thermocline-server'."""
    found = os.path.realpath(os.path.join(_RUNFILES, path))
    if not os.access(found, os.X_OK):
        raise FileNotFoundError(found)
    return found


THERMOCLINE = program('deploy/thermocline')
SERVER = program('server/thermocline-server')
WORKER = program('worker/thermocline-worker')

# Small enough for a slow machine; every optimizer of the sparse and dense side is Adagrad.
JOB = """
name: "small"
seed: 7
data { format: DLRM_NPY path: "%(data)s" }
default_table { dim: 8 }
dlrm { bottom: [32] top: [32] }
train { batch_size: 256 learning_rate { base: 0.02 } metrics_every_steps: 1 }
cluster { worker_threads: 1 }
"""


def manifest_of(folder):
    """The path of the manifest in a checkpoint's folder; None: there is none."""
    if not os.path.isdir(folder):
        return None
    names = [name for name in os.listdir(folder) if re.fullmatch(r'MANIFEST(-\d+)?', name)]
    return os.path.join(folder, max(names)) if names else None


def wait_for(condition, what):
    """Returns the first true value of `condition()`."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError('waited in vain for ' + what)
        time.sleep(POLL_S)


def set_signals(ignored=()):
    """Before exec: what a program does at a signal that somebody may have set to be ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)


def modes_below(folder):
    """The permissions of a folder and of all files and folders in it, each once."""
    paths = [folder]
    for above, folders, files in os.walk(folder):
        paths += [os.path.join(above, name) for name in folders + files]
    return {stat.S_IMODE(os.lstat(path).st_mode) for path in paths}


def process_state(pid):
    """One letter of /proc/PID/stat, '' where there is no such process."""
    try:
        with open('/proc/%d/stat' % pid) as stat:
            return stat.read().rsplit(')', 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ''


def is_running(pid):
    return process_state(pid) not in ('', 'Z', 'X')


def children(pid):
    """{process id: command line} of the direct children of a process."""
    found = {}
    for name in os.listdir('/proc'):
        if not name.isdigit():
            continue
        try:
            with open('/proc/%s/stat' % name) as stat:
                parent = int(stat.read().rsplit(')', 1)[1].split()[1])
            if parent != pid:
                continue
            with open('/proc/%s/cmdline' % name) as cmdline:
                found[int(name)] = cmdline.read().replace('\0', ' ')
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def of_role(folder, role):
    """The flags of a program that shows the certificate of a role, from such a folder."""
    return ['--tls-certificate=%s/%s.pem' % (folder, role),
            '--tls-private-key=%s/%s.key' % (folder, role), '--tls-ca=%s/ca.pem' % folder]


def refusal(address, folder, role, method):
    """The code and the text with which a server refuses an empty request of a role."""
    import grpc  # Few tests need it.

    def read(name):
        with open(os.path.join(folder, name), 'rb') as file:
            return file.read()
    credentials = grpc.ssl_channel_credentials(read('ca.pem'), read(role + '.key'),
                                               read(role + '.pem'))
    with grpc.secure_channel(address, credentials) as channel:
        try:
            channel.unary_unary('/thermocline.ParameterServer/' + method)(b'', timeout=DEADLINE_S)
        except grpc.RpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ''


class ProcessTest(unittest.TestCase):
    """A folder of its own, a click log, and no process left behind by any test."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR'))
        cls.data = os.path.join(cls.folder, 'clicklog')
        subprocess.run([THERMOCLINE, 'generate', cls.data, '--rows=10000', '--test-rows=2000',
                        '--shrink=1000', '--threads=1'], check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def setUp(self):
        self.run_dir = os.path.join(self.folder, self.id().rsplit('.', 1)[1])
        self.job = self.run_dir + '.textproto'
        with open(self.job, 'w') as job:
            job.write(JOB % {'data': self.data})

    def start(self, *flags, command='train', job=None, run_dir=None, ignored=(), **options):
        """Starts the launcher; it and what it started are killed after the test at the latest.

        It starts with default actions for all signals but those `ignored`, however the test itself
        was started. `options` are those of Popen.
        """
        run_dir = run_dir or self.run_dir
        launcher = subprocess.Popen(
            [THERMOCLINE, command, job or self.job, '--run-dir', run_dir, *flags],
            **{'stdin': subprocess.DEVNULL, 'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE,
               'text': True, 'preexec_fn': lambda: set_signals(ignored), **options})
        launcher.run_dir = run_dir

        def clean_up():
            if launcher.poll() is None:
                launcher.kill()
            launcher.communicate()
        self.addCleanup(clean_up)
        return launcher

    def finish(self, launcher):
        """(exit code, standard output, standard error) of a launcher."""
        out, err = launcher.communicate(timeout=DEADLINE_S)
        return launcher.returncode, out, err

    def train(self, *flags, **options):
        """Runs a job that must succeed; returns its summary."""
        launcher = self.start(*flags, **options)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        return self.summary(launcher)

    def thermocline(self, *arguments):
        """Runs a command to its end."""
        return subprocess.run([THERMOCLINE, *arguments], capture_output=True, text=True,
                              timeout=DEADLINE_S)

    def resume(self, *flags):
        """Goes on in the run directory, without naming the job; must succeed. Returns its summary."""
        resumed = self.thermocline('train', '--resume', '--run-dir', self.run_dir, *flags)
        self.assertEqual(resumed.returncode, 0, resumed.stdout + resumed.stderr)
        with open(os.path.join(self.run_dir, 'summary.json')) as summary:
            return json.load(summary)

    def events(self, kind=None, run_dir=None):
        """The lines of metrics.jsonl (of that kind) that are whole; none before there is a file."""
        try:
            with open(os.path.join(run_dir or self.run_dir, 'metrics.jsonl')) as metrics:
                text = metrics.read()  # By lines, one could be found in two parts.
        except FileNotFoundError:
            return []
        events = [json.loads(line) for line in text.split('\n')[:-1]]
        return [event for event in events if kind in (None, event['event'])]

    def summary(self, launcher):
        with open(os.path.join(launcher.run_dir, 'summary.json')) as summary:
            return json.load(summary)

    def start_long(self, *flags, **options):
        """Starts a job that would take hours and waits until it trains."""
        launcher = self.start('--set', 'train.passes=1000000', *flags, **options)

        def trains():
            if launcher.poll() is not None:
                raise AssertionError('the job ended: %s' % (self.finish(launcher),))
            return [event for event in self.events(run_dir=launcher.run_dir) if event['event'] != 'started']
        wait_for(trains, 'the first line of metrics of a process')
        return launcher

    def fake_programs(self, server=None, worker=None):
        """A folder for --bin-dir, with shell scripts in place of the programs that are given."""
        folder = self.run_dir + '-bin'
        os.mkdir(folder)
        for name, script, real in (('thermocline-server', server, SERVER),
                                   ('thermocline-worker', worker, WORKER)):
            path = os.path.join(folder, name)
            if script is None:
                os.symlink(real, path)
                continue
            with open(path, 'w') as file:
                file.write('#!/bin/sh\n' + script + '\n')
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return folder

    def start_with_server_1_stopped_at_the_end(self, *flags):
        """Starts a job of two servers; the last thing its worker does is to stop one of them.

        A checkpoint of the last step would wait for it.
        """
        log = os.path.join(self.run_dir, 'server-1.log')
        programs = self.fake_programs(worker="""
            '%s' "$@"
            code=$?
            kill -STOP $(sed -n 's/.*process //p' '%s')
            exit $code""" % (WORKER, log))
        return self.start('--servers=2', '--bin-dir', programs, '--set=checkpoint.none=true', *flags)

    def pid_of(self, launcher, name):
        """Process id of 'server 1' or 'worker 0'."""
        kind, index = name.split()
        mark = '%s-%s.port' % (kind, index)
        for pid, command in children(launcher.pid).items():
            if mark in command:
                return pid
        raise AssertionError('no %s among %s' % (name, children(launcher.pid)))

    def logged_server_pids(self, launcher, servers):
        """Process ids of the servers 0 .. servers-1 as their logs say, also of servers that have ended.

        Empty until all have logged theirs.
        """
        pids = []
        for index in range(servers):
            log = os.path.join(launcher.run_dir, 'server-%d.log' % index)
            if os.path.exists(log):
                with open(log) as file:
                    pids += [int(pid) for pid in re.findall(r', process (\d+)\n', file.read())[-1:]]
        return pids if len(pids) == servers else []

    def kill_and_take_port(self, launcher, name):
        """Kills a server and listens at its address before the launcher can start it again.

        Returns the socket; the port is free once that is closed.
        """
        with open(os.path.join(launcher.run_dir, name.replace(' ', '-') + '.port')) as file:
            host, port = file.read().strip().rsplit(':', 1)
        server = self.pid_of(launcher, name)
        listener = socket.socket()
        self.addCleanup(listener.close)
        # Connections of the dead process still have the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def is_bound():
            try:
                listener.bind((host, int(port)))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                return False
            return True
        launcher.send_signal(signal.SIGSTOP)
        os.kill(server, signal.SIGKILL)
        wait_for(is_bound, 'the port of ' + name)
        listener.listen()
        launcher.send_signal(signal.SIGCONT)
        return listener

    def assert_all_gone(self, pids):
        wait_for(lambda: not any(is_running(pid) for pid in pids),
                 'the end of %s' % {pid: process_state(pid) for pid in pids})


def stop(process, number=signal.SIGTERM):
    process.send_signal(number)
