"""libthermocline through ctypes: its calls as methods, its errors as exceptions, and waits that Ctrl-C ends."""
from __future__ import annotations

import ctypes
import os
import typing
import weakref

VERSION = '0.1.0'  # The library and the programs have the same version.

OK, AGAIN, GONE, REFUSED, TROUBLE = range(5)  # enum tc_status
BATCH, EVALUATION, SAVE, LOAD, PHASE = range(1, 6)  # enum tc_event_kind
# enum tc_array_kind: the arrays of a batch.
(NUMERIC, LABELS, WEIGHTS, ROWS, INDICES, OFFSETS, LOOKUP_WEIGHTS, GRADIENTS, HAS_GRADIENT, SCORES,
 OWN_METRIC, SEGMENT_OFFSETS, SEGMENTS, SEGMENT_WEIGHTS) = range(1, 15)
ENVIRONMENT = 'THERMOCLINE_WORKER'  # The way to the worker, as FD:PID.
SKIPS = 2  # A flag of tc_step: no gradient of this batch is applied.

_PYBUF_WRITE = 0x200


class Error(Exception):
    """The job cannot go on, or a call was made that may not be made there. The message says what to do."""
    __module__ = 'thermocline'  # Its public name, which tracebacks show.


class WorkerGone(Error):
    """The worker that started this script has ended, so the script ends as well."""
    __module__ = 'thermocline'


class Event(ctypes.Structure):
    """What the worker wants next: struct tc_event."""
    kind: int
    slot: int
    step: int
    size: int
    text: bytes | None
    _fields_ = [('kind', ctypes.c_uint32), ('slot', ctypes.c_uint32), ('step', ctypes.c_int64),
                ('size', ctypes.c_uint64), ('text', ctypes.c_char_p)]


_SIGNATURES: dict[str, list[typing.Any]] = {
    'tc_connect': [ctypes.POINTER(ctypes.c_void_p)],
    'tc_next': [ctypes.c_void_p, ctypes.POINTER(Event)],
    'tc_array': [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32,
                 ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint64)],
    'tc_step': [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_double, ctypes.c_float, ctypes.c_uint32],
    'tc_scores': [ctypes.c_void_p, ctypes.c_uint32],
    'tc_release': [ctypes.c_void_p, ctypes.c_uint32],
    'tc_save': [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64],
    'tc_loaded': [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint64)],
    'tc_evaluate': [ctypes.c_void_p],
    'tc_fail': [ctypes.c_void_p, ctypes.c_char_p],
    'tc_warn': [ctypes.c_void_p, ctypes.c_char_p],
    'tc_done': [ctypes.c_void_p],
}


def library_path() -> str:
    """The path of the library: $THERMOCLINE_LIBRARY, or libthermocline.so beside this file."""
    path = os.environ.get('THERMOCLINE_LIBRARY')
    return path or os.path.join(os.path.dirname(os.path.abspath(__file__)), 'libthermocline.so')


def load_library() -> ctypes.CDLL:
    """The library, with the types of its functions. Errors: it is not there, or of another version than the package."""
    path = library_path()
    try:
        library = ctypes.CDLL(path)
        library.tc_version.argtypes, library.tc_version.restype = [], ctypes.c_char_p
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        library.tc_close.argtypes, library.tc_close.restype = [ctypes.c_void_p], None
        for name in ('tc_message', 'tc_job'):
            getattr(library, name).argtypes, getattr(library, name).restype = [ctypes.c_void_p], ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise Error('The package thermocline cannot load its library %s: %s. Install the wheel of the programs\' build.'
                    % (path, error)) from None
    version = library.tc_version().decode(errors='replace')
    if version != VERSION:
        raise Error('The package thermocline has version %s and its library %s version %s. Install the wheel of the '
                    'programs\' build.' % (VERSION, path, version))
    return library


def view_memory(address: int, size: int) -> memoryview:
    """Writable memory as a buffer, which owns nothing."""
    view = ctypes.pythonapi.PyMemoryView_FromMemory
    view.argtypes, view.restype = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int], ctypes.py_object
    return typing.cast(memoryview, view(address, size, _PYBUF_WRITE))


class Connection:
    """The script's end of the way to its worker.

    The memory of the batches stays mapped as long as anything refers to the connection: its run, or a batch.
    """

    def __init__(self) -> None:
        self._library = load_library()
        self._run = ctypes.c_void_p()
        self._is_closed = False
        while self._check(self._library.tc_connect(ctypes.byref(self._run))) == AGAIN:
            pass
        os.environ.pop(ENVIRONMENT, None)  # What this process starts is no script of the worker's.
        # Not at the interpreter's exit: tensors over the memory may outlive it.
        weakref.finalize(self, self._library.tc_close, self._run).atexit = False

    def _check(self, status: int) -> int:
        if status in (OK, AGAIN):
            return status
        message = self._library.tc_message(self._run).decode(errors='replace')
        raise (WorkerGone if status == GONE else Error)(message[:1].upper() + message[1:])

    def _call(self, name: str, *arguments: typing.Any) -> None:
        """Calls until it is done. Python handles signals between two calls."""
        if self._is_closed:
            raise Error('The run is over: what needs its worker belongs into the `with` block of the run.')
        function = getattr(self._library, name)
        while self._check(function(self._run, *arguments)) == AGAIN:
            pass

    @property
    def job(self) -> bytes:
        """JSON that describes the job."""
        return typing.cast(bytes, self._library.tc_job(self._run))

    def next(self) -> Event:
        """Waits for what the worker wants next."""
        event = Event()
        self._call('tc_next', ctypes.byref(event))
        return event

    def array(self, slot: int, what: int, index: int = 0) -> tuple[int, int] | None:
        """(address, number of elements) of an array of a batch; None: the batch has no such array."""
        data, count = ctypes.c_void_p(), ctypes.c_uint64()
        status = self._library.tc_array(self._run, slot, what, index, ctypes.byref(data), ctypes.byref(count))
        if status == REFUSED:
            return None
        self._check(status)
        return data.value or 0, count.value

    def step(self, slot: int, loss_sum: float, rate: float, flags: int = 0) -> None:
        """Closes a step with the gradients that stand in its slot. rate: NaN is the job's."""
        self._call('tc_step', slot, loss_sum, rate, flags)

    def scores(self, slot: int) -> None:
        """Says that the scores of an evaluated batch stand in its slot."""
        self._call('tc_scores', slot)

    def release(self, slot: int) -> None:
        """Gives the memory of a batch back."""
        self._call('tc_release', slot)

    def save(self, state: bytes) -> None:
        """Answers SAVE."""
        self._call('tc_save', state, len(state))

    def loaded(self) -> bytes:
        """A copy of the state that came with LOAD."""
        data, size = ctypes.c_void_p(), ctypes.c_uint64()
        self._call('tc_loaded', ctypes.byref(data), ctypes.byref(size))
        return bytes(view_memory(data.value or 0, size.value)) if size.value else b''

    def evaluate(self) -> None:
        """Asks for the batches that are held out, after training."""
        self._call('tc_evaluate')

    def fail(self, text: str) -> None:
        """Says that the script has failed, and why."""
        self._call('tc_fail', text.replace('\0', '?').encode(errors='replace'))

    def warn(self, text: str) -> None:
        """Warns the user, by way of the launcher."""
        self._call('tc_warn', text.replace('\0', '?').encode(errors='replace'))

    def done(self) -> None:
        """Says that the script needs nothing more."""
        self._call('tc_done')

    def close(self) -> None:
        """Refuses all further calls. Batches that are kept stay readable."""
        self._is_closed = True
