"""Producers and a consumer that work while copies of the log are made, and what they were answered."""

import asyncio
import contextlib
import random
import threading
from types import TracebackType
from typing import Any, Self

from cmqd_client import connect

QUEUE = "load"
BODY_BYTES = 2_000
BATCH = 20
MOST_STORED = 5_000
"""Messages that the broker has at a time: a copy of many copies takes no longer than the first."""


class Load:
    """Clients in a thread of their own, until the end of the context. The clients outlive kills of the broker."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._random = random.Random(seed)
        self._next = 0
        self.sent: set[int] = set()
        """Messages with an answered send."""
        self.tried: set[int] = set()
        """Messages with a send that was begun."""
        self.deleting: set[int] = set()
        """Messages with a delete that was begun."""
        self.deleted: set[int] = set()
        """Messages with an answered delete."""
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)
        if kind is None and self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as failure:
            self._failure = failure

    async def _work(self) -> None:
        async with connect(self._url, patience=None) as client:
            queue = await client.ensure_queue(QUEUE)
            tasks = [asyncio.create_task(task) for task in (self._send(queue), self._send(queue), self._consume(queue))]
            stopped = asyncio.create_task(asyncio.to_thread(self._stop.wait))
            await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    raise result

    async def _send(self, queue: Any) -> None:
        while True:
            await asyncio.sleep(0.02)
            if len(self.sent) - len(self.deleting) > MOST_STORED:
                continue
            numbers = range(self._next, self._next + BATCH)
            self._next += BATCH
            self.tried.update(numbers)
            await queue.send_batch([message_body(number) for number in numbers])
            self.sent.update(numbers)

    async def _consume(self, queue: Any) -> None:
        while True:
            for message in await queue.receive(BATCH, wait=0.1, visibility_timeout=300):
                # A part of the messages stays, in flight for the rest of the test.
                if self._random.random() < 0.5 or len(self.sent) - len(self.deleting) > MOST_STORED / 2:
                    number = number_of(message.body)
                    self.deleting.add(number)
                    with contextlib.suppress(Exception):
                        await message.delete()
                        self.deleted.add(number)


def message_body(number: int) -> bytes:
    """Return the body of a message."""
    return f"{number} ".encode().ljust(BODY_BYTES, b".")


def number_of(body: bytes) -> int:
    """Return the number of a message."""
    return int(body.partition(b" ")[0])


class Answered:
    """The messages that a copy from now on must have, and those that it must not have."""

    def __init__(self, load: Load) -> None:
        # Before the sends: a message that is deleted in between is in neither set.
        self.deleted = set(load.deleted)
        sent = set(load.sent)
        self.stored = sent - load.deleting

    def faults(self, found: list[int], load: Load) -> list[str]:
        """Return a sentence for each broken promise of a copy with these messages, made before now."""
        faults: list[str] = []
        numbers = set(found)
        # Messages with a delete that began since may be gone.
        if missing := self.stored - load.deleting - numbers:
            faults.append(f"{len(missing)} acknowledged messages are missing: {sorted(missing)[:5]}")
        if back := self.deleted & numbers:
            faults.append(f"{len(back)} deleted messages are back: {sorted(back)[:5]}")
        if strange := numbers - load.tried:
            faults.append(f"messages were never sent: {sorted(strange)[:5]}")
        if len(numbers) != len(found):
            faults.append("messages are there twice")
        return faults


async def numbers_in(url: str) -> list[int]:
    """Return the numbers of all messages of a broker, those in flight too."""
    async with connect(url) as client:
        queue = client.queue(QUEUE)
        found: list[int] = []
        start: int | None = 0
        while start is not None:
            page = await queue.peek(256, start=start)
            found += [number_of(message.body) for message in page]
            start = page.next_start
        return found
