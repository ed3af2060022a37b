"""The contract of a peer, and the parts that peers share: server processes and blocking sockets."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cmqd_bench.machine.processes import family, rss_kib
from cmqd_bench.machine.servers import Server, signal_all
from cmqd_bench.peers.errors import PeerFailed
from cmqd_bench.peers.works import Work
from cmqd_load.native_job import Line

CONNECT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """The connections of a run and the peer's part of the job."""

    producers: Sequence[Line]
    consumers: Sequence[Line]
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of ``Job`` that the protocol needs."""

    def close(self) -> None:
        """Close all connections."""
        for line in (*self.producers, *self.consumers):
            line.socket.close()


class Peer(Protocol):
    """A broker that can be measured. A queue is made for every run and dropped after the run."""

    name: str
    title: str
    durability: str
    build: str = "-"
    """Of cmqd: the name of the installation; ``-`` of others."""
    remark: str = ""
    """A fact that a reader of the rows needs; usually empty."""
    protocol: str
    """The generator's name of the protocol."""
    fastest: int = 16_000
    """Messages a second that the peer surely does not exceed when they go one at a time; bounds what is filled."""

    def missing(self) -> str:
        """Return the reason why this peer cannot run here; empty if it can."""
        ...

    def version(self) -> str:
        """Return the version of the server."""
        ...

    def refusal(self, work: Work) -> str:
        """Return the reason why the peer takes no part in a row; empty if the peer takes part."""
        return ""

    def start(self, folder: Path) -> None:
        """Start the server with its data in ``folder``, and wait until it answers."""
        ...

    def stop(self) -> None:
        """End all processes of the server."""
        ...

    def roots(self) -> Sequence[int]:
        """Return the processes that the harness started; their children belong to the server, too."""
        ...

    def watch(self) -> Callable[[], str]:
        """Begin to watch the server's own work during the measured time.

        Returns a function that ends the watch and returns a remark for the row; empty if there is no fact to tell.
        """
        return str

    def create_queue(self, queue: str) -> None:
        """Create an empty queue."""
        ...

    def drop_queue(self, queue: str) -> None:
        """Remove a queue with its messages."""
        ...

    def messages_left(self, queue: str) -> int:
        """Return the number of messages in a queue, received or not, that were not deleted."""
        ...

    def open(self, queue: str, *, producers: int, consumers: int, batch: int, body: bytes, outstanding: int) -> Load:
        """Open the connections of a run, ready for requests."""
        ...


class ServerPeer(Peer):
    """The parts that most peers share: names, server processes, a port."""

    command = ""
    """The command of the server."""
    stop_signal = signal.SIGTERM

    def __init__(self, name: str, title: str, durability: str) -> None:
        self.name = name
        self.title = title
        self.durability = durability
        self._servers: list[Server] = []
        self._port = 0

    @property
    def program(self) -> str:
        """Return the path of the command; its name if it is not installed."""
        return command_of(self.command) or self.command

    def missing(self) -> str:
        return "" if command_of(self.command) else f"{self.command} is not installed"

    def launch(self, command: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None) -> Server:
        """Start a process of the peer."""
        folder.mkdir(parents=True, exist_ok=True)
        variables = None if environment is None else {**os.environ, **environment}
        server = Server(command, folder / "server.log", folder=folder, environment=variables)
        self._servers.append(server)
        return server

    def stop(self) -> None:
        # The newest first.
        while self._servers:
            self._servers.pop().stop(self.stop_signal)

    def roots(self) -> Sequence[int]:
        return [server.process.pid for server in self._servers]


def pids_of(peer: Peer) -> list[int]:
    """Return all processes of a running peer."""
    return [member.pid for root in peer.roots() for member in family(root)]


def halt(pids: Sequence[int]) -> None:
    """Let processes stand still (SIGSTOP)."""
    signal_all(pids, signal.SIGSTOP)


def resume(pids: Sequence[int]) -> None:
    """Let processes run again (SIGCONT)."""
    signal_all(pids, signal.SIGCONT)


def rss_mib_of(peer: Peer) -> float:
    """Return the resident memory of all processes of a peer."""
    return rss_kib(pids_of(peer)) / 1024


def command_of(*names: str) -> str | None:
    """Return the first of the commands that this machine has; a package can bring a server into the folder of the
    interpreter.
    """
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    return next((path for name in names if (path := shutil.which(name, path=folders))), None)


def first_line(*command: str) -> str:
    """Return the first line that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout or done.stderr).partition("\n")[0].strip()


def connect(port: int) -> socket.socket:
    """Open a connection to a server on the loopback interface, without Nagle's delay."""
    opened = socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


class Reader:
    """Blocking reads of exact sizes and of lines, for handshakes and administration.

    Invariant: at the end of a handshake ``is_empty`` holds, because the generator starts with an empty buffer.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = b""

    @property
    def is_empty(self) -> bool:
        """True if no byte was read that was not taken."""
        return not self._data

    def exactly(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        while len(self._data) < count:
            self._fill()
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def line(self) -> bytes:
        """Return the next line, without its end (CR LF)."""
        while b"\r\n" not in self._data:
            self._fill()
        taken, _, self._data = self._data.partition(b"\r\n")
        return taken

    def _fill(self) -> None:
        received = self._connection.recv(65536)
        if not received:
            raise PeerFailed("the server closed a connection")
        self._data += received
