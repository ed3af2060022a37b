"""Redis Streams as a peer: XADD, XREADGROUP with a consumer group, then XACK and XDEL in a single write."""

import socket
from pathlib import Path
from typing import Literal

from cmqd_bench.machine.servers import accepts, free_port
from cmqd_bench.peers.errors import PeerFailed
from cmqd_bench.peers.peer import Load, Reader, ServerPeer, connect, first_line
from cmqd_load.native_job import Line, Request

GROUP = "bench"
WAIT_MS = 20_000
DURABILITY = {
    "always": "fsync before the answer (appendfsync always)",
    "everysec": "fsync once a second (appendfsync everysec): a power failure loses up to two seconds",
}


def command(*parts: bytes | str | int) -> bytes:
    """Return a command as an array of strings."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in encoded)


class RedisPeer(ServerPeer):
    """``redis-server`` with an append-only file and no snapshots."""

    protocol = "redis"
    command = "redis-server"

    def __init__(self, policy: Literal["always", "everysec"]) -> None:
        super().__init__(f"redis-{policy}", f"Redis Streams, appendfsync {policy}", DURABILITY[policy])
        self._policy = policy

    def version(self) -> str:
        words = first_line(self.program, "--version").split()
        return next((word[2:] for word in words if word.startswith("v=")), "unknown")

    def start(self, folder: Path) -> None:
        self._port = free_port()
        options = {
            "port": self._port,
            "bind": "127.0.0.1",
            "dir": folder,
            "save": "",
            "appendonly": "yes",
            "appendfsync": self._policy,
        }
        folder.mkdir(parents=True, exist_ok=True)
        flags = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        self.launch([self.program, *flags], folder).wait_until(lambda: accepts(self._port), self.name)

    def create_queue(self, queue: str) -> None:
        self._ask("XGROUP", "CREATE", queue, GROUP, "0", "MKSTREAM")

    def drop_queue(self, queue: str) -> None:
        self._ask("UNLINK", queue)

    def messages_left(self, queue: str) -> int:
        return int(self._ask("XLEN", queue))

    def open(self, queue: str, *, producers: int, consumers: int, batch: int, body: bytes, outstanding: int) -> Load:
        send = Request(command("XADD", queue, "*", "b", body) * batch, batch, replies=batch, is_stamped=True)
        receiving: list[Line] = []
        for number in range(consumers):
            name = f"c{number}"
            parts = ("XREADGROUP", "GROUP", GROUP, name, "COUNT", batch, "BLOCK", WAIT_MS, "STREAMS", queue, ">")
            receiving.append(Line(connect(self._port), Request(command(*parts), batch)))
        return Load([Line(connect(self._port), send) for _ in range(producers)], receiving, {"group": GROUP})

    def _ask(self, *parts: bytes | str | int) -> bytes:
        """Return the line of a reply that is a line."""
        with connect(self._port) as connection:
            return ask(connection, *parts)


def ask(connection: socket.socket, *parts: bytes | str | int) -> bytes:
    """Send a command whose reply is a line; return the line after its first byte."""
    connection.sendall(command(*parts))
    line = Reader(connection).line()
    if line.startswith(b"-"):
        raise PeerFailed(f"Redis: {line[1:].decode()}")
    return line[1:]
