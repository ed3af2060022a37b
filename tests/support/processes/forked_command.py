"""A command of the product in a shell of a test, forked: ``python forked_command.py DESCRIPTOR MODULE ARGUMENT ...``.

``DESCRIPTOR`` is the socket of the fork server. The command has the standard streams, folder and environment of this
process, which waits for the end and has the same exit code.
"""

import os
import signal
import socket
import sys
from types import FrameType

# The folder of this file is the first of the path.
from fork_requests import STATUS, request_text  # pyright: ignore[reportMissingImports, reportUnknownVariableType]


def main() -> int:
    number, module, *arguments = sys.argv[1:]
    status, its = os.pipe()
    with socket.socket(fileno=int(number)) as requests:
        text: bytes = request_text(module, arguments, os.environ, [0, 1, 2], searches_folder=False)
        socket.send_fds(requests, [text], [0, 1, 2, its])
    os.close(its)
    (pid,) = STATUS.unpack(os.read(status, STATUS.size))

    def forward(number: int, frame: FrameType | None) -> None:
        os.kill(pid, number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, forward)
    # The streams are those of the command: a reader of its output must see their end.
    for stream in (0, 1, 2):
        os.close(stream)
    (code,) = STATUS.unpack(os.read(status, STATUS.size))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main())
