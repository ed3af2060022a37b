"""The share of a process in the state of all gateway processes of a setting, and the ways between the processes.

first process   is asked by the others; has the console, /metrics, CMQ's TCP protocol, the ready file
further ones    serve the HTTP APIs; forward the console's requests, and ask about repeated deletes
"""

import socket
from collections.abc import Sequence
from pathlib import Path

from cmqd_gateway.callers.rates import Rates
from cmqd_gateway.processes.shared_memory import Column, SharedAmount, SharedKeyRates, SharedMemory


class Shares:
    """All that processes of a setting share; to be made before the processes are forked."""

    def __init__(self, processes: int, requests_per_second: int, folder: Path) -> None:
        """Make the shared state.

        Args:
            processes: number of the processes.
            requests_per_second: limit of the requests of a key; 0 = unlimited.
            folder: a folder that the owner of the processes alone can use.
        """
        self.processes: int = processes
        self.memory = SharedMemory(processes)
        self.rates = SharedKeyRates(requests_per_second, self.memory.lock)
        self.forwarded_to: Path = folder / "first.sock"
        """The Unix socket on which the first process takes forwarded requests."""
        # Messages keep their bounds, and messages of a process that was killed do not end in the middle.
        self._pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(processes - 1)]

    def of(self, process: int) -> "Share":
        """Return the share of a process."""
        ends = [first for first, _ in self._pairs] if process == 0 else [self._pairs[process - 1][1]]
        return Share(self, process, ends)

    def close_others(self, kept: "Share") -> None:
        """Close the sockets of the other processes, in a forked process."""
        for end in (end for pair in self._pairs for end in pair):
            if end not in kept.channels:
                end.close()

    def close(self) -> None:
        """Close all sockets, and the file of the lock."""
        self.memory.lock.close()
        for end in (end for pair in self._pairs for end in pair):
            end.close()


class Share:
    """The share of a process."""

    def __init__(self, all_shares: Shares, process: int, channels: Sequence[socket.socket]) -> None:
        """Take the share of a process from all shares."""
        self.processes: int = all_shares.processes
        self.process: int = process
        self.is_first: bool = process == 0
        self.channels: Sequence[socket.socket] = channels
        """Of the first process: a socket to each further process, in their order. Of the others: a socket to the first
        process."""
        self.forwarded_to: Path = all_shares.forwarded_to
        self.connections, self.heads, self.bodies = (
            SharedAmount(all_shares.memory, process, column) for column in Column
        )
        self.rates: Rates = all_shares.rates

    def part_of(self, limit: int) -> int:
        """Return the part of this process in a limit that is divided and not shared, at least 1."""
        return max(1, limit // self.processes)
