"""Starts a launcher and ends it with the process that wants it: `python3 -I _guard.py PID FOLDER COMMAND...`.

PID is the process that has started this one; standard input is a pipe that it holds. When it writes to the pipe, or
ends in whatever way, the launcher is asked to end (SIGTERM), which ends all that it has started; later it is killed.
The exit code is the launcher's. FOLDER is removed where that process has ended before it could do so.
"""
from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys

TICK_MS = 50  # Between looks at processes where the system has no pidfd (before Linux 5.3).
# Between SIGTERM and SIGKILL. Longer than the launcher waits for a last checkpoint (20 s) and for its processes (5 s).
GRACE_S = 30.0


def watch(*pids: int) -> tuple[select.poll, int | None]:
    """A poll of standard input and of the ends of these processes, and how long it may wait; None: as it likes."""
    events = select.poll()
    events.register(sys.stdin, select.POLLIN)
    try:
        for pid in pids:
            events.register(os.pidfd_open(pid), select.POLLIN)
    except OSError:  # No pidfd, or the process has ended.
        return events, TICK_MS
    return events, None


def main() -> int:
    parent = int(sys.argv[1])
    launcher = subprocess.Popen(sys.argv[3:], stdin=subprocess.DEVNULL)
    events, timeout = watch(parent, launcher.pid)
    is_stopped = False
    # The pipe does not tell the end of that process: its forked children may hold it open.
    while launcher.poll() is None and not is_stopped and os.getppid() == parent:
        is_stopped = any(fd == sys.stdin.fileno() for fd, _ in events.poll(timeout))
    if launcher.poll() is None:
        launcher.terminate()
        try:
            launcher.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
    if os.getppid() != parent:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
    return launcher.returncode if launcher.returncode >= 0 else 128 - launcher.returncode


if __name__ == '__main__':
    sys.exit(main())
