"""A broker is killed with SIGKILL half way through real input, and loses no answered message.

Every message is sent to a queue and published to a routing topic. The subscribers are queues and, where aiohttp is
installed, a URL. Producers and consumers continue while their broker is killed and restarted. At the end all queues
must be empty and the books must hold.
"""

import asyncio
import base64
import hmac
import importlib.util
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop
from rich.console import Console
from rich.table import Table

from cmqd_bench.demo.books import URL, Books, Ledger, choose_subscribers
from cmqd_bench.demo.input import Source
from cmqd_bench.demo.progress import announce, bars, watching
from cmqd_bench.demo.traffic import (
    TOPIC,
    create_topic,
    headers_of,
    longest_body,
    next_batch,
    number_of,
    original_id,
    queue_of,
)
from cmqd_bench.failures import BenchFailed
from cmqd_bench.http.receiver import ANSWER, split_requests
from cmqd_bench.machine.broker import Broker, broker_folder
from cmqd_bench.machine.conditions import scratch_root
from cmqd_client import Client, CmqError, ContentFormat, Message, Outgoing, Queue, Topic, connect
from cmqd_client.errors import OutcomeUnknown

QUEUE = "demo"
PRODUCERS = 16
CONSUMERS = 8
COPY_CONSUMERS = 2
"""Consumers of each subscriber's queue."""
SEND_BATCH = 8
"""Batch size of every second producer; the remaining producers send single messages."""
RECEIVE_BATCH = 32
VISIBILITY_SECONDS = 6.0
"""Visibility timeout: messages in flight at the kill are delivered again after this time. Longer than a restart."""
PATIENCE_SECONDS = 27.0
PAUSE_SECONDS = 0.1
OUTAGE_SECONDS = 0.5
"""Time between kill and restart, so that the clients detect the end of their connections."""
DRAIN_SECONDS = 90.0
FEWEST = 100
"""Fewest messages: a smaller load would end before the kill."""


class DemoFailed(BenchFailed):
    """The demo could not finish."""


@dataclass(slots=True)
class Kill:
    """The effects of the kill, for the closing table."""

    at_acknowledged: int = 0
    started: float = 0.0
    """Monotonic times of the kill and of the end of the restart; 0 = not yet."""
    ended: float = 0.0
    restart_seconds: float = 0.0
    first_answer_seconds: float = 0.0
    """Seconds from the kill to the next answered send."""
    errors: int = 0
    """Number of calls that failed after the client's retries and were made again."""

    def touches(self, began: float) -> bool:
        """Return True if a call that began at the given time overlaps the time without a broker."""
        return bool(self.started) and began < (self.ended or time.monotonic())


class Journey:
    """A run: the books, the kill, the producers and consumers."""

    def __init__(self, broker: Broker, source: Source, messages: int, say: Callable[[str], None]) -> None:
        self.books = Books(source, choose_subscribers(source.routing_keys, url=has_http()))
        self.kill = Kill()
        self.messages = messages
        self.pushes: list[tuple[str, bytes]] = []
        """Id and body of each push to the URL: a push has no header with the number."""
        self._broker = broker
        self._source = source
        self._say = say
        self._numbers: Iterator[int] = iter(range(messages))
        self._secret = ""
        self._half = asyncio.Event()
        self._empty = False

    async def run(self) -> None:
        """Send and publish, kill half way, restart, go on until all queues are empty.

        Raises DemoFailed if the queues do not become empty.
        """
        if has_http():
            self._broker.flags.append("--push-allow-loopback")
        ready = await self._broker.start()
        self._say(f"broker started (loop process {ready.pid}, storage process {ready.storage_pid})")
        async with (
            self._endpoint() as url,
            connect(ready.url, patience=PATIENCE_SECONDS) as producing,
            connect(ready.url, patience=PATIENCE_SECONDS) as consuming,
        ):
            queue, topic = await self._create(producing, url)
            async with asyncio.timeout(DRAIN_SECONDS + self.messages / 500), asyncio.TaskGroup() as tasks:
                for name, ledger, consumers in self._queues():
                    for _ in range(consumers):
                        tasks.create_task(self._consume(consuming.queue(name), ledger))
                killer = tasks.create_task(self._kill_half_way())
                async with asyncio.TaskGroup() as producers:
                    for index in range(PRODUCERS):
                        producers.create_task(self._produce(queue, topic, SEND_BATCH if index % 2 else 1))
                self._half.set()
                await killer
                await self._wait_empty(producing)
                self._empty = True
        while self.pushes:
            self.books.copies[URL].receive_unnumbered(*self.pushes.pop())

    def _queues(self) -> list[tuple[str, Ledger, int]]:
        """Return name, ledger and number of consumers of each queue."""
        copies = [(queue_of(name), ledger, COPY_CONSUMERS) for name, ledger in self.books.copies.items() if name != URL]
        return [(QUEUE, self.books.sends, CONSUMERS), *copies]

    async def _create(self, client: Client, url: str) -> tuple[Queue, Topic]:
        source, subscribers = self._source, self.books.subscribers
        queue = await client.create_queue(
            QUEUE, visibility_timeout=VISIBILITY_SECONDS, max_message_bytes=longest_body(source)
        )
        topic = await create_topic(client, source, subscribers, visibility_timeout=VISIBILITY_SECONDS)
        if URL in subscribers:
            subscription = await topic.subscribe(
                URL, url=url, binding_keys=subscribers[URL], content_format=ContentFormat.SIMPLIFIED
            )
            self._secret = subscription.secret or ""
        return queue, topic

    # ------------------------------------------------------------------ producers

    async def _produce(self, queue: Queue, topic: Topic, batch: int) -> None:
        while numbers := next_batch(self._numbers, self._source, batch):
            # Send and publish concurrently, so that the kill interrupts both.
            await asyncio.gather(self._send(queue, numbers), self._publish(topic, numbers))

    async def _send(self, queue: Queue, numbers: Sequence[int]) -> None:
        """Send until answered. The client has repeated a failed send already: a new send may store messages twice."""
        sends, kill = self.books.sends, self.kill
        sends.attempt(numbers)
        bodies = map(self._source.body, numbers)
        outgoing = [Outgoing(body, headers=own) for body, own in zip(bodies, headers_of(numbers), strict=True)]
        while True:
            try:
                if len(outgoing) == 1:
                    ids = [(await queue.send(outgoing[0].body, headers=outgoing[0].headers)).id]
                else:
                    ids = [*(await queue.send_batch(outgoing)).ids]
                break
            except CmqError as error:
                await self._pause(error)
        sends.acknowledge(numbers, ids)
        if kill.ended and not kill.first_answer_seconds:
            kill.first_answer_seconds = time.monotonic() - kill.started
        if sends.acknowledged >= self.messages // 2:
            self._half.set()

    async def _publish(self, topic: Topic, numbers: Sequence[int]) -> None:
        """Publish until answered, as for sends."""
        source = self._source
        self.books.attempt_publish(numbers)
        while True:
            try:
                published = await topic.publish_batch(
                    [source.body(number) for number in numbers],
                    routing_keys=[source.routing_key(number) for number in numbers],
                    headers=headers_of(numbers),
                )
                break
            except CmqError as error:
                await self._pause(error)
        self.books.acknowledge_publish(numbers, [(each.id, each.matched) for each in published])

    async def _pause(self, error: CmqError) -> None:
        """Wait after an error that may be tried again; raise any other."""
        if not error.retryable and not isinstance(error, OutcomeUnknown):
            raise error
        self.kill.errors += 1
        await asyncio.sleep(error.retry_after or PAUSE_SECONDS)

    # ------------------------------------------------------------------ consumers

    async def _consume(self, queue: Queue, ledger: Ledger) -> None:
        while not self._empty:
            try:
                messages = await queue.receive(RECEIVE_BATCH, wait=0.5)
                for message in messages:
                    ledger.receive(original_id(message), number_of(message), message.body)
                if messages:
                    await self._delete(queue, ledger, messages)
            except CmqError as error:
                await self._pause(error)

    async def _delete(self, queue: Queue, ledger: Ledger, messages: Sequence[Message]) -> None:
        began = time.monotonic()
        done = set((await queue.delete_batch(messages, check=False)).done)
        ids = [original_id(message) for message in messages if message.receipt_handle in done]
        ledger.delete(ids, sure=not self.kill.touches(began))

    async def _wait_empty(self, client: Client) -> None:
        """Wait until no queue has a message, and the topic no copy to deliver."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            left = (await client.topic(TOPIC).attributes()).retained
            for name, *_ in self._queues():
                info = await client.queue(name).attributes()
                left += info.active + info.in_flight + info.delayed
            if not left:
                return
            if time.monotonic() > deadline:
                raise DemoFailed(f"{left} messages and copies are still to come after {DRAIN_SECONDS:.0f} s")
            await asyncio.sleep(PAUSE_SECONDS)

    @asynccontextmanager
    async def _endpoint(self) -> AsyncGenerator[str]:
        """Run the endpoint of the URL subscriber and yield its URL."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Hook(self._on_push), "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        finally:
            # Not wait_closed(): the broker keeps its connections, and is killed after this.
            server.close()

    def _on_push(self, headers: Mapping[str, str], body: bytes) -> None:
        if is_genuine(self._secret, headers, body):
            self.pushes.append((headers["x-cmq-message-id"], body))
        else:
            self.books.copies[URL].foreign += 1

    # ------------------------------------------------------------------ the kill

    async def _kill_half_way(self) -> None:
        await self._half.wait()
        kill, pids = self.kill, ", ".join(map(str, self._broker.pids))
        kill.at_acknowledged = self.books.sends.acknowledged
        kill.started = time.monotonic()
        self._broker.kill()
        self._say(f"SIGKILL to processes {pids} after {kill.at_acknowledged:,} answered sends, under full load")
        await asyncio.sleep(OUTAGE_SECONDS)
        restarting = time.monotonic()
        ready = await self._broker.start()
        kill.ended = time.monotonic()
        kill.restart_seconds = kill.ended - restarting
        self._say(
            f"broker started again on the same folder and port (loop process {ready.pid}, storage process "
            f"{ready.storage_pid}); recovery and start took {kill.restart_seconds:.2f} s"
        )


class Hook(asyncio.Protocol):
    """A connection to the endpoint: every push is recorded, then answered."""

    def __init__(self, on_push: Callable[[Mapping[str, str], bytes], None]) -> None:
        self._on_push = on_push
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's in all but inheritance.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        requests, self._buffer = split_requests(self._buffer + data)
        for head, body in requests:
            fields = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
            self._on_push({name.lower(): value.strip() for name, _, value in fields}, body)
            self._transport.write(ANSWER)


def has_http() -> bool:
    """Return True if the broker can push: aiohttp (the extra ``http``) is installed."""
    return importlib.util.find_spec("aiohttp") is not None


def is_genuine(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Verify the signature of a push according to Standard Webhooks."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    return any(hmac.compare_digest(expected, each) for each in headers["webhook-signature"].split())


def _received(ledger: Ledger) -> int:
    return ledger.received


def closing_table(journey: Journey, seconds: float) -> Table:
    """Return the results of the proof."""
    books, kill, balance = journey.books, journey.kill, journey.books.balance()
    sends = books.sends.balance()
    table = Table("what", title="Nothing lost" if books.hold else "BROKEN PROMISES", title_justify="left")
    table.add_column("count", justify="right")
    table.add_column("meaning")
    lease = f"the answer went down with the broker, so the lease ran out ({VISIBILITY_SECONDS:.0f} s)"
    for name, count, meaning in (
        ("sends answered", sends.acknowledged, "each one fsynced before its answer"),
        ("of them received", sends.acknowledged - sends.lost, "with exactly the body that was sent"),
        ("deletes answered", sends.deleted, "the queue is empty at the end"),
        ("published", books.published, "to a routing topic as well; its subscribers are below"),
        ("LOST", balance.lost, "answered, and never received"),
        ("FOREIGN", balance.foreign, "received, but not sent to this queue, or with another body"),
        ("UNDONE", balance.undone, "received again after its delete was answered"),
        ("MISCOUNTED", books.miscounted, "publishes answered with a wrong number of subscribers"),
        ("received again", balance.redelivered, lease),
        ("stored twice", balance.stored_twice, "the answer was lost for good and the producer sent it anew"),
        ("stored, unanswered", balance.unanswered, "stored by the kill's last commit, answer never seen"),
        ("calls made anew", kill.errors, "failed during the outage although the client repeated them"),
    ):
        table.add_row(name, f"{count:,}", meaning, style="bold red" if name.isupper() and count else None)
    table.add_section()
    for name, binding_keys in books.subscribers.items():
        share = books.copies[name].balance()
        meaning = f"{' or '.join(binding_keys)}: {share.acknowledged:,} expected"
        flaws = (("came again", share.redelivered), ("LOST", share.lost), ("FOREIGN", share.foreign))
        meaning += "".join(f", {count:,} {flaw}" for flaw, count in flaws if count)
        table.add_row(f"  {name}", f"{share.received:,}", meaning, style=None if share.holds else "bold red")
    table.add_section()
    table.add_row("killed after", f"{kill.at_acknowledged:,}", "answered sends, with SIGKILL to all processes")
    table.add_row("start after kill", f"{kill.restart_seconds:.2f} s", "from exec to ready, recovery included")
    table.add_row("sends stood still", f"{kill.first_answer_seconds:.2f} s", "from the kill to the next answered send")
    rate = f"{sends.acknowledged / seconds:,.0f} messages/s, outage included"
    table.add_row("all in all", f"{seconds:.1f} s", rate)
    return table


def run_demo(source: Source, messages: int, console: Console, scratch: Path | None) -> bool:
    """Run the whole demo; return True if the books hold."""
    root = scratch_root(scratch)
    announce("cmqd demo", source, messages, root, console)

    async def run(broker: Broker) -> Journey:
        journey = Journey(broker, source, messages, console.print)
        books = journey.books
        copies = sum(len(books.wanting(number)) for number in range(messages))
        figures: list[tuple[str, int, Callable[[], int]]] = [
            ("sends answered", messages, lambda: books.sends.acknowledged),
            ("received", messages, lambda: books.sends.received),
            ("deletes answered", messages, lambda: books.sends.deleted),
            ("published", messages, lambda: books.published),
            ("copies of them", copies, lambda: len(journey.pushes) + sum(map(_received, books.copies.values()))),
        ]
        with bars(console) as progress:
            async with watching(progress, figures):
                await journey.run()
        return journey

    started = time.monotonic()
    with broker_folder(root) as broker:
        journey = uvloop.run(run(broker))
    console.print(closing_table(journey, time.monotonic() - started))
    console.print("Look inside a broker at work, in a browser: [bold]make demo-console[/bold]")
    console.print("Or run one for yourself: [bold]make serve[/bold], and in a second terminal: cmq console --open")
    return journey.books.hold
