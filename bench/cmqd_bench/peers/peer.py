"""The contract of a peer, and the parts that peers share: server processes and blocking sockets."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cmqd_bench.machine.processes import cpu_seconds, family, read_stat, rss_kib
from cmqd_bench.peers.errors import PeerFailed
from cmqd_bench.peers.job import Line
from cmqd_bench.peers.works import Work

START_SECONDS = 60.0
STOP_SECONDS = 20.0
CONNECT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """The connections of a run and the peer's part of the job."""

    producers: Sequence[Line]
    consumers: Sequence[Line]
    fields: Mapping[str, Any]
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
    build: str
    """Of cmqd: the name of the installation; ``-`` of others."""
    remark: str
    """A fact that a reader of the rows needs; usually empty."""
    protocol: str
    """The generator's name of the protocol."""
    fastest: int
    """Messages a second that the peer surely does not exceed when they go one at a time; bounds what is filled."""

    def missing(self) -> str:
        """Return the reason why this peer cannot run here; empty if it can."""
        ...

    def version(self) -> str:
        """Return the version of the server."""
        ...

    def refusal(self, work: Work) -> str:
        """Return the reason why the peer takes no part in a row; empty if the peer takes part."""
        ...

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
        ...

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


class Server:
    """A process of a peer, with its log. The harness signals only this process and its descendants."""

    def __init__(self, command: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "server.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=None if environment is None else {**os.environ, **environment},
                start_new_session=True,
            )

    def wait_until(self, is_ready: Callable[[], bool], name: str) -> None:
        """Wait until the server answers.

        Raises:
            PeerFailed: the server ended, or does not answer in time.
        """
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            if (code := self.process.poll()) is not None:
                raise PeerFailed(f"{name} ended with exit code {code}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise PeerFailed(f"{name} was not ready within {START_SECONDS:.0f} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def log_tail(self) -> str:
        """Return the end of the server's output."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the server to end; kill the server and its descendants after a timeout."""
        members = [member.pid for member in family(self.process.pid)]
        resume(members)
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Also if the wait was interrupted: the server must not outlive the run.
            for pid in members:
                if (stat := read_stat(pid)) is not None and stat.running:
                    _signal(pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)


class ServerPeer:
    """The parts that most peers share: names, server processes, a port."""

    build = "-"
    remark = ""
    fastest = 16_000
    stop_signal = signal.SIGTERM

    def __init__(self, name: str, title: str, durability: str) -> None:
        self.name = name
        self.title = title
        self.durability = durability
        self._servers: list[Server] = []
        self._port = 0

    def refusal(self, work: Work) -> str:
        """Take part in every row."""
        return ""

    def launch(self, command: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None) -> Server:
        """Start a process of the peer."""
        server = Server(command, folder, environment=environment)
        self._servers.append(server)
        return server

    def stop(self) -> None:
        """End all processes, the newest first."""
        while self._servers:
            self._servers.pop().stop(self.stop_signal)

    def roots(self) -> Sequence[int]:
        """Return the started processes."""
        return [server.process.pid for server in self._servers]

    def watch(self) -> Callable[[], str]:
        """Watch for nothing."""
        return str


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def pids_of(peer: Peer) -> list[int]:
    """Return all processes of a running peer."""
    return [member.pid for root in peer.roots() for member in family(root)]


def halt(pids: Sequence[int]) -> None:
    """Let processes stand still (SIGSTOP)."""
    for pid in pids:
        _signal(pid, signal.SIGSTOP)


def resume(pids: Sequence[int]) -> None:
    """Let processes run again (SIGCONT)."""
    for pid in pids:
        _signal(pid, signal.SIGCONT)


def cpu_of(peer: Peer) -> float:
    """Return the CPU seconds of all processes of a peer so far, ended children included."""
    return cpu_seconds(pids_of(peer))


def rss_mib_of(peer: Peer) -> float:
    """Return the resident memory of all processes of a peer."""
    return rss_kib(pids_of(peer)) / 1024


def command_of(*names: str) -> str | None:
    """Return the first of the commands that this machine has."""
    return next((path for name in names if (path := shutil.which(name))), None)


def first_line(*command: str) -> str:
    """Return the first line that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout or done.stderr).partition("\n")[0].strip()


def free_port() -> int:
    """Return a port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def connect(port: int) -> socket.socket:
    """Open a connection to a server on the loopback interface, without Nagle's delay."""
    opened = socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def accepts(port: int) -> bool:
    """Return True if a server listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


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
