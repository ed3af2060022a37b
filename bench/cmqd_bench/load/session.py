"""The harness's side of one server run: connections, queues, heartbeats, and their end."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Guard, Meter, Round
from cmqd_bench.load.clients import Filler
from cmqd_bench.machine.broker import Broker
from cmqd_load.connections import Connections
from cmqd_load.consumers import Consumer
from cmqd_load.failures import RequestFailed
from cmqd_load.producers import OpenSender
from cmqd_load.tally import Tally
from cmqd_load.wire import ERROR, LoadConnection, SendTemplate, decode_error, frame
from cmqd_protocol.limits import MAX_BATCH, MAX_BATCH_BYTES
from cmqd_protocol.messages import CreateQueue, WireMessage

REPLY_SECONDS = 30.0
AHEAD = 500
"""Requests that ``request_all`` sends ahead of their replies."""


async def request(connection: LoadConnection, message: WireMessage) -> bytes:
    """Send a request on a connection without load, and return the payload of its reply.

    Raises:
        RequestFailed: the reply is an error.
    """
    reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_reply(payload: bytes, opcode: int) -> None:
        if opcode == ERROR:
            error = decode_error(payload)
            reply.set_exception(RequestFailed(f"{error.name}: {error.text}"))
        else:
            reply.set_result(payload)

    connection.on_reply = on_reply
    connection.on_lost = lambda error: reply.done() or reply.set_exception(error)
    connection.write(frame(message))
    try:
        return await asyncio.wait_for(reply, REPLY_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"no answer to {type(message).__name__} within {REPLY_SECONDS:.0f} s") from None


async def request_all(connection: LoadConnection, messages: Sequence[WireMessage]) -> None:
    """Send requests ahead of their replies, some at a time, and wait for all replies.

    Raises:
        RequestFailed: a reply is an error.
    """
    for start in range(0, len(messages), AHEAD):
        some = messages[start : start + AHEAD]
        replies: asyncio.Queue[tuple[bytes, int]] = asyncio.Queue()
        connection.on_reply = lambda payload, opcode, replies=replies: replies.put_nowait((payload, opcode))
        connection.write(b"".join(map(frame, some)))
        for _ in some:
            payload, opcode = await asyncio.wait_for(replies.get(), REPLY_SECONDS)
            if opcode == ERROR:
                error = decode_error(payload)
                raise RequestFailed(f"{error.name}: {error.text}")


class Session:
    """Connections to a running server."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.guard = Guard(broker)
        self.tally = Tally()
        self._connections = Connections(lambda _, error: self.guard.fail(error))

    async def connect(self, count: int) -> list[LoadConnection]:
        """Open ``count`` more connections; a lost connection fails the run."""
        return await self._connections.open(self.broker.ready.url, count)

    async def create_queues(self, names: Sequence[str]) -> None:
        """Create queues with default attributes."""
        (connection,) = await self.connect(1)
        await request_all(connection, [CreateQueue(number, name, {}) for number, name in enumerate(names, 1)])
        self.close(connection)

    async def create_queue(self, name: str) -> str:
        """Create a queue and return its name."""
        await self.create_queues([name])
        return name

    async def request(self, *messages: WireMessage) -> bytes:
        """Send administrative requests on a connection of their own, and return the payload of the last reply."""
        (connection,) = await self.connect(1)
        payloads = [await request(connection, message) for message in messages]
        self.close(connection)
        return payloads[-1]

    async def open_loop(self, options: Options, queue: str) -> Callable[[int], None]:
        """Return the function that sends a message to a new queue, with as many consumers as producers."""
        template = SendTemplate(await self.create_queue(queue), batch=1, size=options.body)
        sender = OpenSender(await self.connect(options.connections), self.tally)
        for each in await self.connect(options.connections):
            Consumer(each, queue, 1, self.tally, overlap=True).receive()
        return partial(sender.send, template)

    async def measured(
        self, options: Options, messages: Callable[[Tally], int], on_start: Callable[[], object] = dict
    ) -> Round:
        """Let the load run, and return its figures after the warm-up."""
        await self.guard.sleep(options.warm_up)
        meter = self.meter()
        meter.start()
        on_start()
        await self.guard.sleep(options.seconds)
        return meter.finish(messages)

    async def fill(self, queue: str, messages: int, size: int, seconds: float) -> None:
        """Send ``messages`` of ``size`` bytes into ``queue`` as fast as the server accepts sends."""
        frames: dict[int, SendTemplate] = {}

        def make_frame(request_id: int, count: int) -> bytes:
            if count not in frames:
                frames[count] = SendTemplate(queue, batch=count, size=size)
            return frames[count].at(0, request_id)

        await self.send_all(make_frame, messages, size, seconds)

    async def send_all(
        self, make_frame: Callable[[int, int], bytes], messages: int, size: int, seconds: float, connections: int = 4
    ) -> None:
        """Send messages by frames, see ``Filler``, as fast as the server accepts sends."""
        # The largest batches; a few batches on a few connections keep loop and disk busy at once.
        batch = min(MAX_BATCH, max(1, MAX_BATCH_BYTES // size), messages)
        sending = await self.connect(connections)
        filler = Filler(sending, make_frame, messages=messages, batch=batch, depth=4, tally=self.tally)
        filler.start()
        await self.guard.wait(filler.done, seconds, f"sending {messages} messages")
        self.close(*sending)

    def meter(self, helpers: Sequence[int] = ()) -> Meter:
        """Return a meter over this session's server and tally, and over other processes of the harness."""
        return Meter(self.broker, self.tally, helpers)

    def close(self, *connections: LoadConnection) -> None:
        """Drop connections without failing the run."""
        self._connections.close(*connections)

    def close_all(self) -> None:
        """Drop all connections."""
        self._connections.close_all()


@asynccontextmanager
async def running(broker: Broker) -> AsyncGenerator[Session]:
    """Start the server and open a session; at the end the connections are dropped and the server is killed."""
    await broker.start()
    session = Session(broker)
    try:
        yield session
    finally:
        session.close_all()
        broker.kill()
