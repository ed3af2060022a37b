"""cmqd as a peer: the installation under test, or a second installation for a comparison of builds."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.conditions import commit, version_of
from cmqd_bench.peers.errors import PeerFailed
from cmqd_bench.peers.log_watch import LogWatch
from cmqd_bench.peers.peer import Load, Peer, Reader, connect
from cmqd_bench.peers.works import TABLE_RATE, Work
from cmqd_load.connect import authenticate_blocking
from cmqd_load.native_job import Line
from cmqd_load.native_requests import PROTOCOL, delete_start, receive_request, send_request
from cmqd_load.wire import ERROR, decode_error, frame
from cmqd_protocol.messages import (
    CreateQueue,
    DeleteQueue,
    GetQueueAttributes,
    QueueInfo,
    Request,
)

SMALL_SEGMENT = "1MiB"
KEPT_MS = 1_000
"""Time for which small segments keep deleted messages: a segment is sealed before its drop."""
TITLES = {
    "": "cmqd",
    "inside": "cmqd, deletes inside receives",
    "rolling": f"cmqd, segments of {SMALL_SEGMENT}: sealed and dropped all the time",
}
HEADER = 4
REQUESTS_AT_ONCE = 64


class CmqdPeer(Peer):
    """``cmqd serve`` with its defaults: a send is answered after the fsync of its commit."""

    protocol = PROTOCOL

    def __init__(
        self,
        *,
        build: str = "pure",
        python: str | None = None,
        deletes_inside: bool = False,
        is_rolling: bool = False,
        syncs: bool = True,
    ) -> None:
        """Describe an installation and its use.

        Args:
            build: name of the installation.
            python: its interpreter; None = the current installation.
            deletes_inside: deletes travel inside receives.
            is_rolling: segments are so small that a segment is sealed, a checkpoint written and a segment dropped
                about once a second of an open loop.
            syncs: the broker runs with ``durability = fsync``, its default; else with ``os``.
        """
        variant = "inside" if deletes_inside else "rolling" if is_rolling else ""
        self.name = f"cmqd-{variant}" if variant else "cmqd"
        self.title = TITLES[variant]
        self._is_rolling = is_rolling
        self.build = build
        self.durability = (
            "fsync before the answer, of sends, receives and deletes" if syncs else "none: the kernel writes later"
        )
        self._syncs = syncs
        self._python = python
        self._deletes_inside = deletes_inside
        self._broker: Broker | None = None

    def missing(self) -> str:
        if self._python is not None and not os.access(self._python, os.X_OK):
            return f"{self._python} is no interpreter"
        return ""

    def version(self) -> str:
        return f"{version_of('cmqd')} {commit()}".strip() if self._python is None else f"of {self._python}"

    def refusal(self, work: Work) -> str:
        if self._is_rolling and work.rate != TABLE_RATE:
            return f"small segments are measured at {TABLE_RATE:,}/s"
        return "no receives that could carry deletes" if self._deletes_inside and not work.consumers else ""

    def start(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._broker = broker = Broker(folder, durability="fsync" if self._syncs else "os")
        broker.python = self._python
        if self._is_rolling:
            broker.flags = ["--segment-bytes", SMALL_SEGMENT]
        asyncio.run(broker.start())

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.kill()

    def roots(self) -> Sequence[int]:
        assert self._broker is not None
        return self._broker.pids[:1]

    def watch(self) -> Callable[[], str]:
        assert self._broker is not None
        return LogWatch(self._broker.data).end if self._is_rolling else str

    def create_queue(self, queue: str) -> None:
        # A segment with deleted messages alone is dropped without a seal.
        self.ask(CreateQueue(1, queue, {"rewind_ms": KEPT_MS} if self._is_rolling else {}))

    def drop_queue(self, queue: str) -> None:
        self.ask(DeleteQueue(1, queue))

    def messages_left(self, queue: str) -> int:
        info = msgspec.msgpack.decode(self.ask(GetQueueAttributes(1, queue)), type=QueueInfo)
        return sum(info.counts[state] for state in ("active", "in_flight", "delayed"))

    def open(self, queue: str, *, producers: int, consumers: int, batch: int, body: bytes, outstanding: int) -> Load:
        send = send_request(queue, [body] * batch)
        receive = receive_request(queue, batch)
        delete = delete_start(queue, batch, inside=self._deletes_inside)
        return Load(
            [Line(self.connect(), send) for _ in range(producers)],
            [Line(self.connect(), receive, delete) for _ in range(consumers)],
            {"acknowledges": self._deletes_inside and consumers > 0},
        )

    def connect(self) -> socket.socket:
        """Open an authenticated connection."""
        assert self._broker is not None
        opened = connect(self._broker.ready.port)
        authenticate_blocking(self._broker.ready.url, opened)
        return opened

    def ask(self, message: Request) -> bytes:
        """Send an administrative request; return the payload of the reply."""
        (payload,) = self.ask_all([message])
        return payload

    def ask_all(self, messages: Sequence[Request]) -> list[bytes]:
        """Send administrative requests, many at once; return the payloads of the replies in the order of arrival.

        Raises:
            PeerFailed: a reply is an error.
        """
        payloads: list[bytes] = []
        with self.connect() as connection:
            reader = Reader(connection)
            for start in range(0, len(messages), REQUESTS_AT_ONCE):
                chunk = messages[start : start + REQUESTS_AT_ONCE]
                numbered = (structs.replace(message, request_id=number) for number, message in enumerate(chunk, 1))
                connection.sendall(b"".join(map(frame, numbered)))
                payloads += [_reply(reader) for _ in chunk]
        return payloads


def _reply(reader: Reader) -> bytes:
    """Return the payload of the next reply."""
    payload = b""
    while not payload:  # an empty frame is a heartbeat
        payload = reader.exactly(int.from_bytes(reader.exactly(HEADER), "big"))
    if payload[2] == ERROR:
        error = decode_error(payload)
        raise PeerFailed(f"cmqd: {error.name}: {error.text}")
    return payload
