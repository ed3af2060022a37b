"""RabbitMQ as a peer: AMQP 0-9-1 with confirms, manual acknowledgements, and persistent messages.

The node has its own folder, name, port mapper (epmd) and ports, and listens on the loopback interface only. The broker
pushes messages: a consumer has a prefetch of the row's batch. Acknowledgements have no answer in this protocol.
"""

import socket
import struct
from pathlib import Path
from typing import Any, Literal

from cmqd_bench.machine.servers import accepts, free_port
from cmqd_bench.peers.errors import PeerFailed
from cmqd_bench.peers.peer import Load, Reader, ServerPeer, command_of, connect
from cmqd_load.native_job import Line, Request

METHOD, HEADER, BODY, END = 1, 2, 3, b"\xce"
FRAME_MAX = 131_072
CHANNELS = 1
PERSISTENT = 2
PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""The program itself: the command on the path of Debian changes the user."""
DURABILITY = {
    "classic": "a confirm of a persistent message follows the fsync of the queue's files (seen with strace)",
    "quorum": "a confirm follows the fdatasync of the Raft log (seen with strace); one member",
}


def short(value: str) -> bytes:
    """Return a short string."""
    return bytes([len(value)]) + value.encode()


def long(value: bytes) -> bytes:
    """Return a long string."""
    return struct.pack(">I", len(value)) + value


def table(fields: dict[str, str]) -> bytes:
    """Return a table of texts."""
    return long(b"".join(short(name) + b"S" + long(value.encode()) for name, value in fields.items()))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + END


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    """Return a frame with a method."""
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def publish(queue: str, body: bytes) -> bytes:
    """Return the frames that publish a persistent message to a queue by the default exchange."""
    # Only the delivery mode of the properties is set: bit 12.
    properties = struct.pack(">HHQHB", 60, 0, len(body), 1 << 12, PERSISTENT)
    return (
        method(1, 60, 40, b"\0\0" + short("") + short(queue) + b"\0")
        + frame(HEADER, 1, properties)
        + frame(BODY, 1, body)
    )


class Channel:
    """A connection with an open channel, for set-up and administration: a request at a time."""

    def __init__(self, port: int) -> None:
        self.socket = connect(port)
        self._reader = Reader(self.socket)
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self.wait_for(10, 10)
        plain = long(b"\0guest\0guest")
        self.ask(method(0, 10, 11, table({}) + short("PLAIN") + plain + short("en_US")), 10, 30)
        self.socket.sendall(method(0, 10, 31, struct.pack(">HIH", CHANNELS, FRAME_MAX, 0)))
        self.ask(method(0, 10, 40, short("/") + b"\0\0"), 10, 41)
        self.ask(method(1, 20, 10, short("")), 20, 11)

    def ask(self, request: bytes, class_id: int, method_id: int) -> bytes:
        """Send a method; return the arguments of the expected answer."""
        self.socket.sendall(request)
        return self.wait_for(class_id, method_id)

    def wait_for(self, class_id: int, method_id: int) -> bytes:
        """Return the arguments of the next method, which must be the expected method."""
        head = self._reader.exactly(7)
        payload = self._reader.exactly(int.from_bytes(head[3:7], "big") + 1)[:-1]
        got = struct.unpack(">HH", payload[:4])
        if got != (class_id, method_id):
            self.socket.close()
            # A close names its reason: code, then a short string.
            reason = payload[7 : 7 + payload[6]].decode(errors="replace") if got in ((10, 50), (20, 40)) else str(got)
            raise PeerFailed(f"RabbitMQ: {reason}")
        return payload[4:]


class RabbitPeer(ServerPeer):
    """A node of RabbitMQ with one kind of queue."""

    protocol = "amqp"
    remark = "acknowledgements are not confirmed"

    def __init__(self, kind: Literal["classic", "quorum"]) -> None:
        super().__init__(f"rabbitmq-{kind}", f"RabbitMQ, {kind} queues", DURABILITY[kind])
        self._kind = kind

    def missing(self) -> str:
        if not Path(PROGRAM).exists():
            return f"{PROGRAM} is not installed"
        if command_of("epmd") is None:
            return "epmd (Erlang's port mapper) is not installed"
        return ""

    def version(self) -> str:
        folders = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        return folders[-1].name.rpartition("-")[2] if folders else "unknown"

    def start(self, folder: Path) -> None:
        self._port, mapper_port, distribution_port = free_port(), free_port(), free_port()
        environment = {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"cmqd-bench-{self._port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-environment"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text("loopback_users.guest = true\ndisk_free_limit.absolute = 200MB\n")
        mapper = command_of("epmd")
        assert mapper is not None
        port_mapper = self.launch([mapper], folder / "epmd", environment=environment)
        port_mapper.wait_until(lambda: accepts(mapper_port), "epmd")
        self.launch([PROGRAM], folder, environment=environment).wait_until(self._answers, self.name)

    def create_queue(self, queue: str) -> None:
        self._ask(method(1, 50, 10, self._declare(queue, 0b00010)), 50, 11)

    def drop_queue(self, queue: str) -> None:
        self._ask(method(1, 50, 40, b"\0\0" + short(queue) + b"\0"), 50, 41)

    def messages_left(self, queue: str) -> int:
        # Passive: the answer names the queue, its ready messages and its consumers.
        answer = self._ask(method(1, 50, 10, self._declare(queue, 0b00001)), 50, 11)
        return int.from_bytes(answer[1 + answer[0] :][:4], "big")

    def open(self, queue: str, *, producers: int, consumers: int, batch: int, body: bytes, outstanding: int) -> Load:
        send = Request(publish(queue, body), is_stamped=True)
        # A message is a request of its own: a batch is as many publishes without waiting.
        fields: dict[str, Any] = {"outstanding": outstanding * batch}
        return Load(
            [Line(self._producer(), send) for _ in range(producers)],
            [Line(self._consumer(queue, batch), Request(b"", batch)) for _ in range(consumers)],
            fields,
        )

    def _declare(self, queue: str, bits: int) -> bytes:
        return b"\0\0" + short(queue) + bytes([bits]) + table({"x-queue-type": self._kind})

    def _producer(self) -> socket.socket:
        channel = Channel(self._port)
        channel.ask(method(1, 85, 10, b"\0"), 85, 11)
        return channel.socket

    def _consumer(self, queue: str, prefetch: int) -> socket.socket:
        channel = Channel(self._port)
        channel.ask(method(1, 60, 10, struct.pack(">IHB", 0, prefetch, 0)), 60, 11)
        # No wait: messages may follow at once, and they belong to the generator.
        channel.socket.sendall(method(1, 60, 20, b"\0\0" + short(queue) + short("c") + b"\x08" + table({})))
        return channel.socket

    def _answers(self) -> bool:
        if not accepts(self._port):
            return False
        try:
            Channel(self._port).socket.close()
        except (PeerFailed, OSError):
            return False
        return True

    def _ask(self, request: bytes, class_id: int, method_id: int) -> bytes:
        channel = Channel(self._port)
        with channel.socket:
            return channel.ask(request, class_id, method_id)
