"""Stands in for the script of a job of thermocline.local(): `python3 -I _relay.py SOCKET`.

The worker starts it as its script. It hands its connection to the worker over to the process that listens at SOCKET,
which then acts as the script, and ends when that process closes SOCKET's connection or ends.
"""
import os
import socket
import sys


def main() -> int:
    worker = int(os.environ['THERMOCLINE_WORKER'].split(':')[0])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as process:
        try:
            process.connect(sys.argv[1])
            socket.send_fds(process, [b'.'], [worker])
        except OSError as error:
            print('The model of this job was in a process that called thermocline.local(), which does not listen any '
                  'more (%s). Go on with thermocline.local(..., resume=True), or with a script: --set '
                  '"worker.command=[\'python3\', \'train.py\']".' % error, file=sys.stderr)
            return 1
        os.close(worker)
        try:
            process.recv(1)  # The other process sends nothing: this returns when it closes the connection.
        except OSError:
            pass
    return 0


if __name__ == '__main__':
    sys.exit(main())
