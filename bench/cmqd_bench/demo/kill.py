"""A broker is killed with SIGKILL half way through real input, and loses no answered message.

Producers and consumers continue while their broker is killed and restarted. At the end the queue must be empty and the
books must hold.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from cmqd_bench.demo.books import Ledger
from cmqd_bench.demo.input import Source
from cmqd_bench.demo.progress import announce, bars, watching
from cmqd_bench.demo.traffic import headers_of, longest_body, next_batch, number_of
from cmqd_bench.failures import BenchFailed
from cmqd_bench.machine.broker import Broker, broker_folder
from cmqd_bench.machine.conditions import scratch_root
from cmqd_client import CmqError, Message, Outgoing, Queue, connect
from cmqd_client.errors import OutcomeUnknown

QUEUE = "demo"
PRODUCERS = 16
CONSUMERS = 8
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
        self.books = Ledger(source.body)
        self.kill = Kill()
        self.messages = messages
        self._broker = broker
        self._source = source
        self._say = say
        self._numbers: Iterator[int] = iter(range(messages))
        self._half = asyncio.Event()
        self._empty = False

    async def run(self) -> None:
        """Send, kill half way, restart, go on until the queue is empty.

        Raises DemoFailed if the queue does not become empty.
        """
        ready = await self._broker.start()
        self._say(f"broker started (loop process {ready.pid}, storage process {ready.storage_pid})")
        async with (
            connect(ready.url, patience=PATIENCE_SECONDS) as producing,
            connect(ready.url, patience=PATIENCE_SECONDS) as consuming,
        ):
            queue = await producing.create_queue(
                QUEUE, visibility_timeout=VISIBILITY_SECONDS, max_message_bytes=longest_body(self._source)
            )
            async with asyncio.timeout(DRAIN_SECONDS + self.messages / 500), asyncio.TaskGroup() as tasks:
                for _ in range(CONSUMERS):
                    tasks.create_task(self._consume(consuming.queue(QUEUE)))
                killer = tasks.create_task(self._kill_half_way())
                async with asyncio.TaskGroup() as producers:
                    for index in range(PRODUCERS):
                        producers.create_task(self._produce(queue, SEND_BATCH if index % 2 else 1))
                self._half.set()
                await killer
                await self._wait_empty(queue)
                self._empty = True

    # ------------------------------------------------------------------ producers

    async def _produce(self, queue: Queue, batch: int) -> None:
        while numbers := next_batch(self._numbers, self._source, batch):
            await self._send(queue, numbers)

    async def _send(self, queue: Queue, numbers: Sequence[int]) -> None:
        """Send until answered. The client has repeated a failed send already: a new send may store messages twice."""
        sends, kill = self.books, self.kill
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

    async def _pause(self, error: CmqError) -> None:
        """Wait after an error that may be tried again; raise any other."""
        if not error.retryable and not isinstance(error, OutcomeUnknown):
            raise error
        self.kill.errors += 1
        await asyncio.sleep(error.retry_after or PAUSE_SECONDS)

    # ------------------------------------------------------------------ consumers

    async def _consume(self, queue: Queue) -> None:
        while not self._empty:
            try:
                messages = await queue.receive(RECEIVE_BATCH, wait=0.5)
                for message in messages:
                    self.books.receive(message.id, number_of(message), message.body)
                if messages:
                    await self._delete(queue, messages)
            except CmqError as error:
                await self._pause(error)

    async def _delete(self, queue: Queue, messages: Sequence[Message]) -> None:
        began = time.monotonic()
        done = set((await queue.delete_batch(messages, check=False)).done)
        ids = [message.id for message in messages if message.receipt_handle in done]
        self.books.delete(ids, sure=not self.kill.touches(began))

    async def _wait_empty(self, queue: Queue) -> None:
        """Wait until the queue has no message."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            info = await queue.attributes()
            left = info.active + info.in_flight
            if not left:
                return
            if time.monotonic() > deadline:
                raise DemoFailed(f"{left} messages are still to come after {DRAIN_SECONDS:.0f} s")
            await asyncio.sleep(PAUSE_SECONDS)

    # ------------------------------------------------------------------ the kill

    async def _kill_half_way(self) -> None:
        await self._half.wait()
        kill, pids = self.kill, ", ".join(map(str, self._broker.pids))
        kill.at_acknowledged = self.books.acknowledged
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


def closing_table(journey: Journey, seconds: float) -> Table:
    """Return the results of the proof."""
    kill, balance = journey.kill, journey.books.balance()
    table = Table("what", title="Nothing lost" if balance.holds else "BROKEN PROMISES", title_justify="left")
    table.add_column("count", justify="right")
    table.add_column("meaning")
    lease = f"the answer went down with the broker, so the lease ran out ({VISIBILITY_SECONDS:.0f} s)"
    for name, count, meaning in (
        ("sends answered", balance.acknowledged, "each one fsynced before its answer"),
        ("of them received", balance.acknowledged - balance.lost, "with exactly the body that was sent"),
        ("deletes answered", balance.deleted, "the queue is empty at the end"),
        ("LOST", balance.lost, "answered, and never received"),
        ("FOREIGN", balance.foreign, "received, but not sent, or with another body"),
        ("UNDONE", balance.undone, "received again after its delete was answered"),
        ("received again", balance.redelivered, lease),
        ("stored twice", balance.stored_twice, "the answer was lost for good and the producer sent it anew"),
        ("stored, unanswered", balance.unanswered, "stored by the kill's last commit, answer never seen"),
        ("calls made anew", kill.errors, "failed during the outage although the client repeated them"),
    ):
        table.add_row(name, f"{count:,}", meaning, style="bold red" if name.isupper() and count else None)
    table.add_section()
    table.add_row("killed after", f"{kill.at_acknowledged:,}", "answered sends, with SIGKILL to all processes")
    table.add_row("start after kill", f"{kill.restart_seconds:.2f} s", "from exec to ready, recovery included")
    table.add_row("sends stood still", f"{kill.first_answer_seconds:.2f} s", "from the kill to the next answered send")
    rate = f"{balance.acknowledged / seconds:,.0f} messages/s, outage included"
    table.add_row("all in all", f"{seconds:.1f} s", rate)
    return table


def run_demo(source: Source, messages: int, console: Console, scratch: Path | None) -> bool:
    """Run the whole demo; return True if the books hold."""
    root = scratch_root(scratch)
    announce("cmqd demo", source, messages, root, console)

    async def run(broker: Broker) -> Journey:
        journey = Journey(broker, source, messages, console.print)
        books = journey.books
        figures: list[tuple[str, int, Callable[[], int]]] = [
            ("sends answered", messages, lambda: books.acknowledged),
            ("received", messages, lambda: books.received),
            ("deletes answered", messages, lambda: books.deleted),
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
    return journey.books.balance().holds
