"""A storage process that is forked from a process with the modules loaded, in place of a new interpreter.

The tests of storage start hundreds. ``tests/storage/writing/test_processes.py`` starts the product's own process.
"""

import os
import socket

from support.processes.forked_program import ForkedProgram, the_fork_server


class ForkedProcess(ForkedProgram):
    """A running storage process, with the calls that ``StorageProcessLog`` makes on it."""

    def __init__(self, control: socket.socket, pages: socket.socket, commits: socket.socket) -> None:
        descriptors = (control.fileno(), pages.fileno(), commits.fileno())
        # The parent of this process is the process that forks, and it lives as long as the tests.
        arguments = [*map(str, descriptors), str(the_fork_server().pid)]
        super().__init__("cmqd.storage", arguments, output=2, environment=os.environ, pass_fds=descriptors)
