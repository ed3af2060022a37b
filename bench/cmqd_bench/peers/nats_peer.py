"""NATS JetStream as a peer: a stream in files with one replica, publishes with answers, pulls of single messages, and
acknowledgements with answers.
"""

import json
import socket
from pathlib import Path
from typing import Any

from cmqd_bench.machine.servers import accepts, free_port
from cmqd_bench.peers.errors import PeerFailed
from cmqd_bench.peers.peer import Load, Reader, ServerPeer, connect, first_line
from cmqd_bench.peers.works import Work
from cmqd_load.native_job import Line, Request

CONSUMER = "bench"
WAIT_NS = 20_000_000_000
NUMBER_DIGITS = 4
PUBLISHED, MESSAGES, SETTLED = 1, 2, 3
"""Subscriptions of a connection, as in ``load.c``."""
SYNC_ALWAYS_SINCE = (2, 10)
CONNECT = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "bench", "version": "1"}

ALWAYS = (
    "nats-always",
    "NATS JetStream, sync_interval always",
    "fsync before the answer (sync_interval: always)",
)
DEFAULTS = (
    "nats",
    "NATS JetStream, defaults",
    "fsync every two minutes (default sync_interval): a power failure loses the messages since",
)
"""Name, title and durability."""


def publish(subject: str, reply: str, payload: bytes) -> bytes:
    """Return a publish."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(payload), payload)


class NatsPeer(ServerPeer):
    """``nats-server`` with JetStream; ``syncs`` = every write is synced before the answer."""

    protocol = "nats"
    command = "nats-server"

    def __init__(self, *, syncs: bool) -> None:
        super().__init__(*(ALWAYS if syncs else DEFAULTS))
        self._syncs = syncs

    def missing(self) -> str:
        if reason := super().missing():
            return reason
        numbers = tuple(int(part) for part in self.version().split(".")[:2])
        if self._syncs and numbers < SYNC_ALWAYS_SINCE:
            return f"nats-server {self.version()} has no sync_interval; 2.10 has"
        return ""

    def version(self) -> str:
        return first_line(self.program, "-v").rpartition("v")[2]

    def refusal(self, work: Work) -> str:
        if work.consumers == 0 or work.batch == 1:
            return ""
        return "a pull of several messages is answered message by message, which the generator does not put together"

    def start(self, folder: Path) -> None:
        self._port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        sync = "  sync_interval: always\n" if self._syncs else ""
        store = json.dumps(str(folder / "jetstream"))
        (folder / "nats.conf").write_text(
            f'host: "127.0.0.1"\nport: {self._port}\njetstream {{\n  store_dir: {store}\n'
            f"  max_memory_store: 64MB\n  max_file_store: 16GB\n{sync}}}\n"
        )
        server = self.launch([self.program, "-c", str(folder / "nats.conf")], folder)
        server.wait_until(lambda: accepts(self._port), self.name)

    def create_queue(self, queue: str) -> None:
        self._ask(
            f"STREAM.CREATE.{queue}",
            {
                "name": queue,
                "subjects": [queue],
                "storage": "file",
                "retention": "workqueue",
                "num_replicas": 1,
                "max_consumers": -1,
                "max_msgs": -1,
                "max_bytes": -1,
                "max_age": 0,
            },
        )
        self._ask(
            f"CONSUMER.DURABLE.CREATE.{queue}.{CONSUMER}",
            {
                "stream_name": queue,
                "config": {
                    "durable_name": CONSUMER,
                    "ack_policy": "explicit",
                    "deliver_policy": "all",
                    "replay_policy": "instant",
                    "ack_wait": 30_000_000_000,
                    "max_ack_pending": 20_000,
                    "max_waiting": 1_024,
                },
            },
        )

    def drop_queue(self, queue: str) -> None:
        self._ask(f"STREAM.DELETE.{queue}", None)

    def messages_left(self, queue: str) -> int:
        return int(self._ask(f"STREAM.INFO.{queue}", None)["state"]["messages"])

    def open(self, queue: str, *, producers: int, consumers: int, batch: int, body: bytes, outstanding: int) -> Load:
        return Load(
            [self._producer(queue, f"_INBOX.p{number}", body) for number in range(producers)],
            [self._consumer(queue, f"_INBOX.c{number}") for number in range(consumers)],
            # A message is a request of its own: a batch is as many publishes without waiting.
            {"outstanding": outstanding * batch},
        )

    def _producer(self, queue: str, inbox: str, body: bytes) -> Line:
        data = publish(queue, f"{inbox}.{'0' * NUMBER_DIGITS}", body)
        number_at = data.index(inbox.encode()) + len(inbox) + 1
        return Line(
            self._connect({PUBLISHED: f"{inbox}.*"}),
            Request(data, number_at=number_at, is_stamped=True),
        )

    def _consumer(self, queue: str, inbox: str) -> Line:
        content = json.dumps({"batch": 1, "expires": WAIT_NS}).encode()
        pull = publish(f"$JS.API.CONSUMER.MSG.NEXT.{queue}.{CONSUMER}", f"{inbox}.pull", content)
        opened = self._connect({MESSAGES: f"{inbox}.pull", SETTLED: f"{inbox}.ack"})
        return Line(opened, Request(pull), f" {inbox}.ack 4\r\n+ACK\r\n".encode())

    def _connect(self, subscriptions: dict[int, str] | None = None) -> socket.socket:
        """Open a connection with subscriptions, and wait until the server knows them."""
        opened = connect(self._port)
        reader = Reader(opened)
        reader.line()
        subscribed = "".join(f"SUB {subject} {sid}\r\n" for sid, subject in (subscriptions or {}).items())
        opened.sendall(f"CONNECT {json.dumps(CONNECT)}\r\n{subscribed}PING\r\n".encode())
        while (line := reader.line()) != b"PONG":
            if line.startswith(b"-ERR"):
                raise PeerFailed(f"NATS: {line.decode()}")
        return opened

    def _ask(self, subject: str, content: dict[str, Any] | None) -> dict[str, Any]:
        """Send a request of the JetStream API; return its answer."""
        with self._connect({PUBLISHED: "_INBOX.admin"}) as connection:
            payload = b"" if content is None else json.dumps(content).encode()
            connection.sendall(publish(f"$JS.API.{subject}", "_INBOX.admin", payload))
            reader = Reader(connection)
            while not (line := reader.line()).startswith((b"MSG", b"HMSG")):
                if line == b"PING":
                    connection.sendall(b"PONG\r\n")
                elif line.startswith(b"-ERR"):
                    raise PeerFailed(f"NATS: {line.decode()}")
            answer = reader.exactly(int(line.split()[-1]))
        try:
            fields: dict[str, Any] = json.loads(answer)
        except ValueError:
            raise PeerFailed(f"NATS: {answer!r}") from None
        if "error" in fields:
            raise PeerFailed(f"NATS: {fields['error']['description']}")
        return fields
