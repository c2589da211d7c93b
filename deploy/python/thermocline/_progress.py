"""The bar of a job: one line on standard error, out of the job's metrics."""
from __future__ import annotations

import json
import os
import sys
import threading
import time
import typing

_BAR_S = 0.5  # Between two looks at the metrics.
_LINE_S = 10.0  # Between two lines where a line cannot be written over.
_WIDTH = 24


def describe(progress: dict[str, typing.Any]) -> str:
    """One line for a 'progress' event of metrics.jsonl."""
    done = min(max(progress.get('fraction') or 0.0, 0.0), 1.0)
    filled = int(done * _WIDTH)
    bar = '=' * filled + ('>' if filled < _WIDTH else '')
    line = '[%-*s] %3d%%  %s steps  %s samples  %s/s' % (
        _WIDTH, bar, int(done * 100), format(progress['step'], ','), format(progress['samples'], ','),
        format(int(progress['samples_per_s']), ','))
    loss = progress.get('loss')
    return line if loss is None else '%s  loss %.4f' % (line, loss)


class Progress:
    """Shows how far a job is, from its construction to close().

    metrics: the path of the job's metrics.jsonl; what it has already is not shown. stream: the bar's line is written
    over on a terminal and in a notebook; elsewhere a line is written every 10 s.
    """

    def __init__(self, metrics: str, stream: typing.TextIO | None = None) -> None:
        self._metrics = metrics
        self._stream = stream or sys.stderr
        self._is_bar = self._stream.isatty() or (self._stream is sys.stderr and 'ipykernel' in sys.modules)
        self._offset = os.path.getsize(metrics) if os.path.exists(metrics) else 0
        self._shown = ''
        self._next_line_s = time.monotonic() + _LINE_S
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name='thermocline progress', daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Shows the last state, and ends the line."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        latest = None
        is_over = False
        try:
            while not is_over:
                is_over = self._end.wait(_BAR_S)
                latest = self._read() or latest
                if latest is not None:
                    self._show(describe(latest), is_over)
            if self._is_bar and self._shown:
                self._write('\n')
        except (OSError, ValueError):
            pass  # A stream that is gone takes no bar.

    def _read(self) -> dict[str, typing.Any] | None:
        """The last 'progress' event among those that are new."""
        try:
            with open(self._metrics, 'rb') as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return None
        whole = data[:data.rfind(b'\n') + 1]
        self._offset += len(whole)
        for line in reversed(whole.splitlines()):
            if b'"event":"progress"' in line:
                return typing.cast('dict[str, typing.Any]', json.loads(line))
        return None

    def _show(self, line: str, is_last: bool) -> None:
        if line == self._shown:
            return
        if self._is_bar:
            self._write('\r' + line.ljust(len(self._shown)))
        elif is_last or time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + _LINE_S
            self._write(line + '\n')
        else:
            return
        self._shown = line

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
