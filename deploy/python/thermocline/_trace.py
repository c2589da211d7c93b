"""The script's part of a trace of its job (`thermocline train --trace FIRST:LAST`)."""
from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import typing

_MAX_SPANS = 1 << 17  # Spans beyond this are counted.


def _clock_name() -> str:
    """Which clock time.monotonic_ns() reads, as ClockName() of common/trace/process_trace.h says it."""
    try:
        with open('/proc/sys/kernel/random/boot_id') as file:
            boot = file.read().strip()
    except OSError:
        return ''
    try:
        return boot + ' ' + os.readlink('/proc/self/ns/time')
    except OSError:  # An old kernel has no time namespaces.
        return boot + ' '


class _Span(typing.NamedTuple):
    name: str
    thread: int
    begin_ns: int
    end_ns: int
    step: int


class Trace:
    """Keeps the spans of the steps that are traced, and writes them to the file that the worker has named.

    facts: What the worker says of the trace; None: there is none, and nothing is kept.
    """

    def __init__(self, facts: dict[str, typing.Any] | None) -> None:
        self._facts = facts
        self.step = -1  # The step that is open, or comes next.
        self._lock = threading.Lock()  # Guards all below.
        self._spans: list[_Span] = []
        self._dropped = 0
        self._threads: dict[int, str] = {}

    def begin(self, step: int) -> None:
        """The batch of a step is there. The file is written once the last traced step is over."""
        self.step = step
        if self._facts is not None and step > self._facts['last_step']:
            self.write()

    def add(self, name: str, begin_ns: int, step: int) -> None:
        """A span from begin_ns (time.monotonic_ns()) until now."""
        facts = self._facts
        if facts is None or not facts['first_step'] <= step <= facts['last_step']:
            return
        thread = threading.get_ident()
        with self._lock:
            if len(self._spans) == _MAX_SPANS:
                self._dropped += 1
                return
            self._threads.setdefault(thread, threading.current_thread().name)
            self._spans.append(_Span(str(name), thread, begin_ns, time.monotonic_ns(), step))

    @contextlib.contextmanager
    def span(self, name: str) -> typing.Iterator[None]:
        """A span around a `with` block, of the step that is open at its begin, or comes next."""
        begin_ns, step = time.monotonic_ns(), self.step
        try:
            yield
        finally:
            self.add(name, begin_ns, step)

    def write(self) -> None:
        """Writes the file, whole or not at all; nothing more is kept. A file that can't be written is left out."""
        facts, self._facts = self._facts, None
        if facts is None:
            return
        path = os.path.join(facts['directory'], 'script-%d.json' % facts['rank'])
        temporary = '%s.%d.%d.tmp' % (path, facts['generation'], os.getpid())
        with contextlib.suppress(OSError), self._lock:
            os.makedirs(facts['directory'], exist_ok=True)
            with open(temporary, 'w') as file:
                file.write(self._text(facts))
            os.replace(temporary, path)

    def _text(self, facts: dict[str, typing.Any]) -> str:
        process = 'script %d' % facts['rank']
        base_ns = min((span.begin_ns for span in self._spans), default=time.monotonic_ns())
        about = {'process': process, 'role': 'script', 'index': facts['rank'], 'job': facts['job'],
                 'generation': facts['generation'], 'first_step': facts['first_step'],
                 'last_step': facts['last_step'], 'host': socket.gethostname(), 'pid': os.getpid(),
                 'clock': _clock_name(), 'base_ns': base_ns, 'events': len(self._spans), 'dropped': self._dropped}
        pid = os.getpid()
        tids = {thread: number + 1 for number, thread in enumerate(self._threads)}
        events: list[dict[str, typing.Any]] = [
            {'ph': 'M', 'name': 'process_name', 'pid': pid, 'tid': 0, 'args': {'name': process}}]
        for thread, name in self._threads.items():
            events.append({'ph': 'M', 'name': 'thread_name', 'pid': pid, 'tid': tids[thread], 'args': {'name': name}})
        for span in self._spans:
            events.append({'ph': 'X', 'name': span.name, 'cat': 'script', 'pid': pid, 'tid': tids[span.thread],
                           'ts': (span.begin_ns - base_ns) / 1000, 'dur': (span.end_ns - span.begin_ns) / 1000,
                           'args': {'step': span.step}})
        return '{"displayTimeUnit":"ms",\n"otherData":%s,\n"traceEvents":[\n%s\n]}\n' % (
            json.dumps(about), ',\n'.join(json.dumps(event) for event in events))
