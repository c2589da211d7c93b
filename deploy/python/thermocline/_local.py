"""A whole job, started by the process that has its model."""
from __future__ import annotations

import collections.abc
import contextlib
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import types
import typing
import warnings

from thermocline import _library as lib
from thermocline._library import Error
from thermocline._programs import find_launcher
from thermocline._progress import Progress
from thermocline._run import Run

_TICK_S = 0.1
_MAX_FOLDER = 80  # Characters; a socket's path has at most 107.
_MAX_WORDS = 8192  # The launcher's last bytes on standard error that are shown.
_WAYS_ON = {
    'to go on from the last checkpoint: ':
        'to go on from the last checkpoint: thermocline.local(..., resume=True)',
    'there is no checkpoint yet; to begin anew ':
        'there is no checkpoint yet; to begin anew in this run directory: thermocline.local(..., resume=True)',
}
_HERE = os.path.dirname(os.path.abspath(__file__))


class LocalRun(Run):
    """The Run of a job that this process has started; thermocline.local() makes it.

    Attributes, beside those of Run:
        run_dir: The job's run directory: its logs, metrics.jsonl, summary.json and checkpoints.
        summary: What summary.json has, once the `with` block has ended without an error; {} before.
    """
    _CALL = 'thermocline.local(...)'

    def __init__(self, connection: lib.Connection, run_dir: str, launcher: _Launcher) -> None:
        super().__init__(connection)
        self.run_dir = run_dir
        self.summary: dict[str, typing.Any] = {}
        self._launcher = launcher
        self._pid = os.getpid()

    def _warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        # A job whose model has left it is stopped, rather than failed.
        if error is not None and not isinstance(error, lib.WorkerGone) and os.getpid() == self._pid:
            self._launcher.stop()
        super().__exit__(kind, error, trace)


class _Launcher:
    """`thermocline train`, below a guard that ends it with this process."""

    def __init__(self, command: list[str], folder: str) -> None:
        self._errors, self._output = os.path.join(folder, 'stderr'), os.path.join(folder, 'stdout')
        with open(self._errors, 'wb') as errors, open(self._output, 'wb') as output:
            # A session of its own: a notebook's stop button interrupts the process group of its kernel.
            self._guard = subprocess.Popen(
                [sys.executable, '-I', os.path.join(_HERE, '_guard.py'), str(os.getpid()), folder, *command],
                stdin=subprocess.PIPE, stdout=output, stderr=errors, start_new_session=True)

    def has_ended(self) -> bool:
        return self._guard.poll() is not None

    def stop(self) -> None:
        """Asks the job to end; wait() waits for that."""
        assert self._guard.stdin is not None
        if not self._guard.stdin.closed:
            with contextlib.suppress(BrokenPipeError), self._guard.stdin:  # It may have ended.
                self._guard.stdin.write(b'.')  # Its closing would not do: forked children may hold it open.

    def wait(self) -> int:
        """The launcher's exit code. All processes of the job have ended then."""
        return self._guard.wait()

    def run_dir(self) -> str:
        """The run directory that it has made, which it names before it starts any process."""
        with open(self._output, 'rb') as output:
            named = re.search(b'^job .*, run directory (.*)$', output.read(), re.MULTILINE)
        if named is None:
            raise Error('The launcher does not say where its run directory is.')
        return os.fsdecode(named[1])

    def last_words(self) -> str:
        """What it has written to standard error."""
        with open(self._errors, 'rb') as errors:
            errors.seek(max(0, os.path.getsize(self._errors) - _MAX_WORDS))
            return errors.read().decode(errors='replace').strip()

    def failure(self) -> Error:
        words = self.last_words() or 'Its launcher has ended with code %s.' % self._guard.returncode
        # The launcher's own ways to go on are without this process.
        lines = [next((ours for theirs, ours in _WAYS_ON.items() if line.startswith(theirs)), line)
                 for line in words.splitlines()]
        return Error('\n'.join(lines))


def _text_of(value: typing.Any) -> str:
    """A value as `--set FIELD=VALUE` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, (list, tuple)) else str(value)


def _command(job: str, run_dir: str | None, resume: bool, changes: dict[str, typing.Any],
             socket_path: str) -> list[str]:
    relay = [sys.executable, '-I', os.path.join(_HERE, '_relay.py'), socket_path]
    changes = {'cluster.stall_timeout_s': 0,  # The user may stand at a breakpoint.
               **changes, 'worker.command': relay, 'worker.directory': os.getcwd(), 'checkpoint.max_rollbacks': 0}
    return [find_launcher(), 'train', job, '--embed', '--clear=dlrm', *(['--run-dir', run_dir] if run_dir else []),
            *(['--resume'] if resume else []),
            *('--set=%s=%s' % (field, _text_of(value)) for field, value in changes.items())]


def _await_relay(listener: socket.socket, launcher: _Launcher) -> tuple[socket.socket, int]:
    """The connection of the relay, and the way to the worker that it hands over."""
    while not launcher.has_ended():
        if not select.select([listener], [], [], _TICK_S)[0]:
            continue
        relay, _ = listener.accept()
        _, ways, _, _ = socket.recv_fds(relay, 1, 1)
        if ways:
            return relay, ways[0]
        relay.close()  # It was killed.
    raise launcher.failure()


def _connect(way: int) -> lib.Connection:
    """The script's end of the way to a worker."""
    os.environ[lib.ENVIRONMENT] = '%d:%d' % (way, os.getpid())
    try:
        return lib.Connection()
    except BaseException:
        os.close(way)
        raise
    finally:
        os.environ.pop(lib.ENVIRONMENT, None)


def _release(relay: socket.socket) -> None:
    """Ends the relay, also where forked children have its connection."""
    with contextlib.suppress(OSError):
        relay.shutdown(socket.SHUT_RDWR)
    relay.close()


class _Block:
    """What local() returns: the `with` statement starts the job, and has its run."""

    def __init__(self, block: typing.ContextManager[LocalRun]) -> None:
        self._block = block

    def __enter__(self) -> LocalRun:
        return self._block.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> bool | None:
        return self._block.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> typing.Any:
        if name.startswith('_') or not (hasattr(LocalRun, name) or name in ('job', 'metrics', 'run_dir', 'summary')):
            raise AttributeError(name)
        raise Error('The job starts in a `with` statement: `with thermocline.local(...) as run:`, and run.%s is there.'
                    % name)


def local(job: str | os.PathLike[str], run_dir: str | os.PathLike[str] | None = None, *, resume: bool = False,
          set: typing.Mapping[str, typing.Any] | None = None,
          progress: bool = True) -> typing.ContextManager[LocalRun]:
    """Starts a job on this machine, with this process as its script; see help(thermocline.local)."""
    if resume and run_dir is None:
        raise Error('thermocline.local(resume=True) needs the run_dir of the job that goes on.')
    if not isinstance(set, (collections.abc.Mapping, type(None))):
        raise Error("thermocline.local(set=...) takes a dict of the job's fields, such as {'train.passes': 2}, and not "
                    '%r.' % (set,))
    return _Block(_start(job, run_dir, resume, dict(set or {}), progress))


@contextlib.contextmanager
def _start(job: str | os.PathLike[str], run_dir: str | os.PathLike[str] | None, resume: bool,
           changes: dict[str, typing.Any], progress: bool) -> typing.Iterator[LocalRun]:
    job = os.path.abspath(os.fspath(job))
    wanted = None if run_dir is None else os.path.abspath(os.fspath(run_dir))
    lib.load_library()  # What is wrong with it shows before anything starts.
    owner = os.getpid()
    with contextlib.ExitStack() as stack:
        def at_end(function: typing.Callable[..., typing.Any], *arguments: typing.Any) -> None:
            """Calls it when the block ends, but not where a forked child leaves it."""
            stack.callback(lambda: function(*arguments) if os.getpid() == owner else None)
        folder = tempfile.mkdtemp(prefix='thermocline-',
                                  dir=None if len(tempfile.gettempdir()) <= _MAX_FOLDER else '/tmp')
        at_end(shutil.rmtree, folder, True)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(os.path.join(folder, 'relay'))
        listener.listen()
        launcher = _Launcher(_command(job, wanted, resume, changes, os.path.join(folder, 'relay')), folder)
        at_end(launcher.wait)
        at_end(launcher.stop)
        relay, way = _await_relay(listener, launcher)
        listener.close()
        at_end(_release, relay)
        folder_of_run = wanted or os.path.abspath(launcher.run_dir())
        if progress:
            at_end(Progress(os.path.join(folder_of_run, 'metrics.jsonl')).close)
        try:
            run = LocalRun(_connect(way), folder_of_run, launcher)
            with run:
                yield run
        except lib.WorkerGone as gone:
            _release(relay)
            launcher.wait()
            raise launcher.failure() from gone
        if os.getpid() != owner:
            return
        _release(relay)
        if launcher.wait() != 0:
            raise launcher.failure()
        if launcher.last_words():  # Warnings.
            print(launcher.last_words(), file=sys.stderr)
        with open(os.path.join(folder_of_run, 'summary.json')) as summary:
            run.summary = json.load(summary)
