"""The whole server without sockets, disk and clock: real rooms over a log in memory, clients over transports in memory.

Time passes only by ``rig.clock.advance`` (and ``rig.beat``); the loop turns only while a test awaits ``rig.turn()``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from cmqd.core.broker import Broker
from cmqd.core.limits import Limits
from cmqd.memory_log import MemoryLog
from cmqd.server.access.accounts import Accounts
from cmqd.server.access.accounts_file import Key
from cmqd.server.admission.fairness import DISK_PATIENCE_SECONDS
from cmqd.server.binary.accepted_connection import AcceptedConnection
from cmqd.server.clients.transaction_checkers import TransactionCheckers
from cmqd.server.loop.clock import BrokerClock
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.server import Server
from cmqd.settings import Settings
from cmqd.testing.server_in_memory import server_in_memory
from cmqd_protocol import messages as wire
from cmqd_protocol.client_connection import ClientConnection
from cmqd_protocol.events import ConnectionEnded, Opened
from cmqd_protocol.messages import AnyReply, Cancel, Request, TransactionCheck
from cmqd_types.messages import ReceivedMessage
from support.core.invariants import check_broker
from support.server.fake_clock import FakeClock, StoppedTimer
from support.server.fake_pusher import FakePusher
from support.server.invariants import check_accounts, check_checkers, check_outbox

_R = TypeVar("_R")


class FakeTransport(asyncio.Transport):
    """Keeps written bytes; ``take`` is the number of bytes that the other side reads, as from a socket's buffer.

    While ``stuck`` the other side does not read: the buffer grows, and the protocol is paused and resumed at the marks,
    as by a real transport.
    """

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol: Any = protocol
        self._buffer = bytearray()
        self._high = 64 * 1024
        self._paused_writing = False
        self._reading = True
        self._closing = False
        self.lost = False
        self.stuck = False
        self.writes = 0
        """Number of writes."""
        self.extra: dict[str, Any] = {"peername": ("127.0.0.1", 1)}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.extra.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._pause_if_full()

    def get_write_buffer_size(self) -> int:
        # Bytes that a socket took are no longer in the transport's buffer.
        return len(self._buffer) if self.stuck else 0

    @property
    def unread(self) -> int:
        """Bytes that were written and that the other side has not read."""
        return len(self._buffer)

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        assert not self.lost
        self.writes += 1
        self._buffer += data
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        if self.stuck and len(self._buffer) > self._high and not self._paused_writing:
            self._paused_writing = True
            self._protocol.pause_writing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert not self._reading, "a loop takes the protocol when reading begins"
        self._protocol = protocol

    def bring(self, data: bytes) -> None:
        """Hand a read to the protocol: a whole one, or as much as its memory takes at a time while it reads."""
        while data and isinstance(self._protocol, asyncio.BufferedProtocol):
            space = memoryview(self._protocol.get_buffer(-1))
            count = min(len(space), len(data))
            space[:count] = data[:count]
            self._protocol.buffer_updated(count)
            data = data[count:]
            assert self._reading or not data, "the test brings more than is read"
        if data:
            self._protocol.data_received(data)

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        assert self._reading
        self._reading = False

    def resume_reading(self) -> None:
        assert not self._reading
        self._reading = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self.stuck:
                asyncio.get_running_loop().call_soon(self.lose)

    def abort(self) -> None:
        self._closing = True
        asyncio.get_running_loop().call_soon(self.lose)

    def lose(self, error: Exception | None = None) -> None:
        """Lose the connection, as the protocol sees the loss."""
        if not self.lost:
            self.lost = True
            self._closing = True
            self._protocol.connection_lost(error)

    def take(self) -> bytes:
        """The other side reads all there is."""
        data = bytes(self._buffer)
        self._buffer.clear()
        if self._paused_writing:
            self._paused_writing = False
            self._protocol.resume_writing()
        return data


@dataclass
class RigClient:
    """A client: the protocol's own client machine, joined to the server's connection by hand."""

    rig: "ServerRig"
    connection: AcceptedConnection
    transport: FakeTransport
    machine: ClientConnection
    opened: Opened | None = None
    ended: ConnectionEnded | None = None
    replies: dict[int, AnyReply] = field(default_factory=dict[int, AnyReply])
    checks: list[TransactionCheck] = field(default_factory=list[TransactionCheck])
    """The checks received, oldest first."""
    key_changes: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Id and change of each change of a key, oldest first."""
    _last_id: int = 0

    def begin(self, request: Request) -> int:
        """Hand a request to the server in the same I/O batch; returns its id."""
        self.machine.send(request)
        self.deliver()
        return request.request_id

    def feed(self, *requests: Request) -> None:
        """Hand requests of any size to the server as a single read."""
        for request in requests:
            self.machine.send(request)
        self.transport.bring(b"".join(self.machine.data_to_send(0)))

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def cancel(self, request_id: int) -> None:
        self.machine.send(Cancel(request_id))
        self.deliver()

    def deliver(self) -> None:
        """Pass the bytes of the client to the server, unless the server does not read."""
        if self.transport.is_reading() and not self.transport.lost:
            data = b"".join(self.machine.data_to_send(0))
            if data:
                self.transport.bring(data)

    def read(self) -> None:
        """Read the bytes of the server."""
        data = self.transport.take()
        if data:
            self.machine.receive_data(data, 0)
        for event in self.machine.events():
            if isinstance(event, Opened):
                self.opened = event
            elif isinstance(event, ConnectionEnded):
                self.ended = event
            elif isinstance(event, TransactionCheck):
                self.checks.append(event)
            elif isinstance(event, wire.KeyChanged):
                self.key_changes.append((event.secret_id, event.change))
            else:
                self.replies[event.request_id] = event

    async def settle(self) -> None:
        """Let all bytes in transit arrive."""
        for _ in range(4):
            self.deliver()
            await self.rig.turn()
            if not self.transport.stuck:
                self.read()

    async def ask(self, make: Callable[..., Request], *arguments: Any, **named: Any) -> AnyReply:
        """Send a request and return its reply."""
        request_id = self.begin(make(self.next_id(), *arguments, **named))
        await self.settle()
        return self.replies.pop(request_id)

    async def expect(self, kind: type[_R], make: Callable[..., Request], *arguments: Any, **named: Any) -> _R:
        """The same for a reply that must be of a kind."""
        reply = await self.ask(make, *arguments, **named)
        assert isinstance(reply, kind), reply
        return reply

    async def send(self, queue: str, *bodies: bytes) -> list[int]:
        return (await self.expect(wire.MessagesSent, wire.SendMessages, queue, list(bodies))).message_ids

    async def receive(self, queue: str, count: int = 16) -> list[ReceivedMessage]:
        return (await self.expect(wire.MessagesReceived, wire.ReceiveMessages, queue, count, 0)).messages

    async def send_half(self, queue: str, *bodies: bytes) -> list[int]:
        return (await self.expect(wire.MessagesSent, wire.SendHalfMessages, queue, list(bodies))).message_ids

    async def decide(self, queue: str, message_ids: list[int], decision: int) -> list[wire.TransactionFailure]:
        """Return the refused requests."""
        reply = await self.expect(wire.TransactionsEnded, wire.EndTransactions, queue, message_ids, [decision])
        return reply.failures

    def take_checks(self) -> list[tuple[int, int]]:
        """(message id, attempt) of the checks since the last call."""
        taken = [(check.message_id, check.attempt) for check in self.checks]
        self.checks.clear()
        return taken

    async def counts(self, queue: str) -> dict[str, int]:
        return (await self.expect(wire.QueueInfo, wire.GetQueueAttributes, queue)).counts


class ServerRig:
    """A server without sockets; made by ``ServerRig.make``."""

    def __init__(
        self,
        server: Server,
        clock: FakeClock,
        broker_clock: BrokerClock,
        broker: Broker,
        log: MemoryLog,
        accounts: Accounts,
    ) -> None:
        self.server = server
        self.clock = clock
        self.broker_clock = broker_clock
        self.broker = broker
        self.log = log
        self.accounts = accounts
        self.failures: list[Exception] = []
        self.timer = StoppedTimer()
        self.pushers: list[FakePusher] = []
        """The pusher of the server, unless the server cannot post."""

    @property
    def pusher(self) -> FakePusher:
        return self.pushers[0]

    @classmethod
    async def make(
        cls,
        folder: Path,
        *,
        can_push: bool = True,
        limits: Limits | None = None,
        clock: FakeClock | None = None,
        timer: Callable[[], float] | None = None,
        **settings: Any,
    ) -> "ServerRig":
        """Make a server with these settings and its accounts in ``folder``; pushes go to ``rig.pushers`` alone.

        ``timer`` measures I/O batches, in place of ``rig.timer``.
        """
        clock = clock or FakeClock()
        pushers: list[FakePusher] = []

        def make_pusher(**named: Any) -> FakePusher:
            pushers.append(FakePusher(**named))
            return pushers[-1]

        stopped = StoppedTimer()
        parts = await server_in_memory(
            Settings(data=folder, **settings),
            wall_ms=clock.wall,
            monotonic_ns=clock.monotonic_ns,
            limits=limits,
            timer=timer or stopped,
            cpu_ns=lambda: int(stopped.seconds * 1e9),
            make_pusher=make_pusher,
            can_push=can_push,
        )
        rig = cls(parts.server, clock, parts.clock, parts.broker, parts.log, parts.accounts)
        rig.failures = parts.failures
        rig.pushers = pushers
        rig.timer = stopped
        return rig

    def connect(self, key: Key | None = None, **named: Any) -> RigClient:
        """Make a client that has just connected and is silent so far, with the admin's key by default."""
        key = key or self.accounts.first_key("admin")
        connection = self.server.listener.make_connection()
        transport = FakeTransport(connection)
        connection.connection_made(transport)
        arguments: dict[str, Any] = {
            "nonce": bytes(32),
            "secret_id": key.secret_id,
            "secret_key": key.secret_key,
            "now_ms": 0,
        }
        return RigClient(self, connection, transport, ClientConnection(**(arguments | named)))

    async def client(self, key: Key | None = None, **named: Any) -> RigClient:
        """A client that has authenticated."""
        client = self.connect(key, **named)
        await client.settle()
        assert client.opened is not None, client.ended
        return client

    def give_turns(self) -> None:
        """Take up deferred input, in the same I/O batch."""
        self.server.turns.serve(lambda: True)

    async def wait_for_disk(self) -> None:
        """Let time pass until input is taken up without the end of a commit."""
        await self.turn()
        self.timer.seconds += DISK_PATIENCE_SECONDS
        self.server.io_batch.schedule()
        await self.turn()

    async def turn(self, times: int = 6) -> None:
        """Let the loop turn, so that the work at the end of the I/O batch is done, commits included."""
        for _ in range(times):
            await asyncio.sleep(0)
        if len(self.server.tasks):
            # Changes of accounts are written in a thread.
            await self.server.tasks.wait(10)
            await asyncio.sleep(0)

    async def tick(self) -> None:
        """Let the core do its due work."""
        now_ms = self.broker_clock.now_ms()
        while (due_ms := self.broker.next_deadline_ms()) is not None and due_ms <= now_ms:
            self.server.broker_events.tick(now_ms)
        await self.turn()

    def close(self) -> None:
        self.server.agenda_timer.stop()
        self.server.checkpoints.stop()
        self.server.reclaim.stop()

    def check(self) -> None:
        """The invariants of every room."""
        check_broker(self.broker)
        self.server.replies.check_invariants()
        check_outbox(self.server.outbox)
        self.server.part(WaitingRequests).check_invariants()
        self.server.turns.check_invariants()
        self.server.io_batch.rests.check_invariants()
        check_checkers(self.server.part(TransactionCheckers))
        check_accounts(self.accounts)


async def a_queue(client: RigClient, name: str = "jobs", **attributes: Any) -> None:
    await client.expect(wire.QueueInfo, wire.CreateQueue, name, attributes)


def beat(rig: ServerRig, ms: int) -> None:
    """Let local time pass, as the listener's timer would."""
    listener: Any = rig.server.listener
    for _ in range(ms // 100):
        listener.pass_time(listener._shared.time_ms + 100)


def code_of(reply: object) -> str:
    """The name of an error reply."""
    return cast("wire.Error", reply).name
