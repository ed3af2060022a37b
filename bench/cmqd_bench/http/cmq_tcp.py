"""The load over CMQ's TCP protocol: connections that send, receive and delete in turn, as those over HTTP do.

Frames are made once as far as they are equal, and answers are decoded in the few fields that the load needs.
"""

import asyncio
import base64
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final, cast

from cmqd_bench.http.caller import HttpFailed
from cmqd_bench.http.load import Counts
from cmqd_bench.http.servers import HttpServer
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import BATCH_RECEIVED, BATCH_RECEIVED_BODY, COMMANDS, HEADER
from cmqd_gateway.cmq.tcp.frames import FrameReader, to_frame
from cmqd_gateway.cmq.tcp.proto2 import Values, encode_bytes

NO_MESSAGE: Final = 10_200
_LARGEST: Final = 64 << 20


def request(cmd: int, **body: object) -> bytes:
    """Return a request. All have the same number, because a connection of the load waits for each answer."""
    command = COMMANDS[cmd]
    content = encode_bytes(command.request.encode(body), command.body) if command.body else b""
    return to_frame(HEADER.encode({"seqno": 1, "cmd": cmd}) + content)


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpRequests:
    """The requests of a load, in batches."""

    queue: str
    secret_id: str
    secret_key: str
    body: int
    batch: int = 1

    def log_in(self) -> bytes:
        """Return the log-in."""
        client_id = "127.0.0.1@bench"
        digest = hmac.digest(self.secret_key.encode(), (client_id + self.secret_id).encode(), "sha1")
        return request(
            commands.LOG_IN,
            secretId=self.secret_id,
            signature=base64.b64encode(digest).decode(),
            clientId=client_id,
            signatureMethod="HmacSHA1",
        )

    def cycle(self, counts: Counts, on_failed: Callable[[Exception], None]) -> "TcpCycle":
        """Return a connection of the load."""
        return TcpCycle(self, counts, on_failed)


class TcpCycle(asyncio.Protocol):
    """A connection that sends, receives and deletes in turn, each in a batch."""

    def __init__(self, requests: TcpRequests, counts: Counts, on_failed: Callable[[Exception], None]) -> None:
        self._requests = requests
        self._counts = counts
        self._on_failed = on_failed
        self._frames = FrameReader(_LARGEST)
        self._transport: asyncio.Transport | None = None
        self._started = 0
        self._next: Callable[[Values, list[tuple[int, bytes]]], None] = self._logged_in
        bodies = [b"x" * requests.body] * requests.batch
        self._send = request(commands.BATCH_SEND, queueName=requests.queue, msgBody=bodies)
        if requests.batch == 1:
            self._send = request(commands.SEND, queueName=requests.queue, msgBody=bodies[0])
        asked = {"queueName": requests.queue, "numOfMsg": requests.batch, "pollingWaitSeconds": 10}
        self._receive = request(commands.BATCH_RECEIVE, **asked)

    async def start(self, server: HttpServer) -> None:
        """Connect, log in and begin."""
        await asyncio.get_running_loop().create_connection(lambda: self, server.host, server.cmq_tcp_port)

    def close(self) -> None:
        """Close the connection."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._write(self._requests.log_in(), self._logged_in)

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        payload = self._frames.next_payload()
        if payload is None or self._transport is None:
            return
        header: Values = {}
        others: list[tuple[int, bytes]] = []
        HEADER.decode_into(header, payload, others)
        if header.get("result", 0) not in (0, NO_MESSAGE):
            self.close()
            self._on_failed(HttpFailed(f"{header['result']} {header.get('error')}"))
            return
        self._next(header, others)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._transport = None
            self._on_failed(HttpFailed("the server closed the connection"))

    # ------------------------------------------------------------------ the cycle

    def _logged_in(self, header: Values, others: list[tuple[int, bytes]]) -> None:
        self._write(self._send, self._sent)

    def _sent(self, header: Values, others: list[tuple[int, bytes]]) -> None:
        self._answered()
        self._write(self._receive, self._received)

    def _received(self, header: Values, others: list[tuple[int, bytes]]) -> None:
        self._answered()
        messages = [BATCH_RECEIVED.decode(data)["msgInfo"] for number, data in others if number == BATCH_RECEIVED_BODY]
        if not messages:
            self._write(self._receive, self._received)
            return
        handles = [message["receiptHandle"] for message in messages[0]]
        if self._requests.batch == 1:
            delete = request(commands.DELETE, queueName=self._requests.queue, receiptHandle=handles[0])
        else:
            delete = request(commands.BATCH_DELETE, queueName=self._requests.queue, receiptHandle=handles)
        self._write(delete, lambda header, others: self._deleted(len(handles)))

    def _deleted(self, count: int) -> None:
        self._answered()
        self._counts.deleted += count
        self._write(self._send, self._sent)

    def _answered(self) -> None:
        self._counts.requests += 1
        self._counts.latency.record((monotonic_ns() - self._started) // 1000)

    def _write(self, frame: bytes, on_answer: Callable[[Values, list[tuple[int, bytes]]], None]) -> None:
        self._started = monotonic_ns()
        self._next = on_answer
        if self._transport is not None:
            self._transport.write(frame)


class TcpIdle(asyncio.Protocol):
    """A connection that logs in and then sends heartbeats alone."""

    HEARTBEAT: Final = request(commands.HEARTBEAT)

    def __init__(self, requests: TcpRequests) -> None:
        self._requests = requests
        self._transport: asyncio.Transport | None = None
        self.is_open = False
        """True from the answer to the log-in until the server ends the connection."""
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the answer to the log-in."""

    async def start(self, server: HttpServer) -> None:
        """Connect and log in."""
        await asyncio.get_running_loop().create_connection(lambda: self, server.host, server.cmq_tcp_port)
        await self.answered

    def beat(self) -> None:
        """Send a heartbeat."""
        if self._transport is not None:
            self._transport.write(self.HEARTBEAT)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._requests.log_in())

    def data_received(self, data: bytes) -> None:
        self.is_open = True
        if not self.answered.done():
            self.answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.answered.done():
            self.answered.set_exception(HttpFailed("the server closed the connection"))
