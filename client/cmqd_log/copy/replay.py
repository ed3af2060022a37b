"""Replay: the remaining slices of a run are read, and sent over one connection.

The next messages are read while requests are under way, also those of the next slice. The requests of a slice are not
sent before the journal names the slice: a run that was killed names every message that may be stored twice.

With a master each slice is a job of Spark, and its tasks call :func:`send_part`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from cmqd_client.address import parse_address
from cmqd_log.copy.journal import Doubt, Journal, Slice, write_journal
from cmqd_log.copy.sending import IN_FLIGHT, Sender, Target, sender_to
from cmqd_log.copy.slices import Chunk, SliceReader, chunks_of
from cmqd_log.data_folder.plan import Task

POLL_SECONDS = 0.1
"""Interval at which progress is told, and a request to stop is checked."""
MOST_IN_FLIGHT = 64
"""Limit of the requests under way; each has up to 1 MiB."""

PRODUCT, NAME = "cmq", "replay"
"""The program, and the program's part of the name of its client."""

Tell = Callable[[Slice | None, Doubt | None], object]
"""Called with every sent slice and its doubts, and with None while a slice is in progress."""


def replay(journal: Journal, file: Path, url: str, *, stopped: Callable[[], bool], tell: Tell) -> bool:
    """Send the remaining slices; return True if all are sent, False after a stop.

    Args:
        journal: brought up to date, in memory and in its file.
        file: of the journal.
        url: of the server, with the key.
        stopped: polled; True cancels the requests under way and ends the replay.
        tell: see :data:`Tell`.

    Raises:
        SendError: the server refused messages, or could not be reached; the run can be resumed.
        CmqdSourceError: the log cannot be read, or the journal cannot be written.
    """
    return asyncio.run(_watched(journal, file, url, stopped, tell))


def target_of(journal: Journal, url: str) -> Target:
    """Return the target of a run, with the order and the rate of its requests."""
    return Target(
        address=parse_address(url),
        queue=journal.queue,
        topic=journal.topic,
        # A request that is refused or lost, and then repeated, must not fall behind later requests.
        ordered=journal.parallel == 1,
        in_flight=min(IN_FLIGHT * journal.parallel, MOST_IN_FLIGHT),
        max_rate=float(journal.rate or 0),
    )


def send_part(tasks: Sequence[Task], *, journal: Journal, target: Target) -> int:
    """Send the messages of a range of rows in order; return their number when the broker has answered all requests.

    Args:
        tasks: a part of a slice, as of :meth:`SliceReader.parts`.
        journal: the run; its slices are not needed.
        target: as of :func:`target_of`.

    Raises:
        SendError: the server refused messages, or could not be reached.
        CmqdSourceError: the log cannot be read.
    """

    async def send() -> int:
        async with sender_to(target, product=PRODUCT, name=NAME) as sender:
            async with _reading_ahead(chunks_of(tasks, journal, sender.most)) as ahead:
                await _send_slice(sender, ahead)
            return sender.total.messages

    return asyncio.run(send())


async def _watched(journal: Journal, file: Path, url: str, stopped: Callable[[], bool], tell: Tell) -> bool:
    """Run the copy, and cancel it after a stop."""
    copying = asyncio.ensure_future(_copy(journal, file, url, stopped, tell))
    try:
        while not (await asyncio.wait([copying], timeout=POLL_SECONDS))[0]:
            tell(None, None)
            if stopped():
                copying.cancel()
    finally:
        copying.cancel()
    if not copying.cancelled():
        copying.result()
    return journal.is_done


async def _copy(journal: Journal, file: Path, url: str, stopped: Callable[[], bool], tell: Tell) -> None:
    async with sender_to(target_of(journal, url), product=PRODUCT, name=NAME) as sender:
        # In a thread: a piece of a URL takes minutes, in which the connection needs its heartbeats.
        reader = await asyncio.to_thread(SliceReader, journal, file)
        async with _reading_ahead(reader.chunks(journal.slices[journal.done :], sender.most)) as ahead:
            is_begun = False
            while not journal.is_done:
                if stopped():
                    if is_begun:
                        # No message of the slice was sent.
                        journal.attempts -= 1
                        write_journal(journal, file)
                    return
                await ahead.read()
                if not is_begun:
                    journal.begin(time.time())
                    write_journal(journal, file)
                one, begun, before = journal.next_slice, time.monotonic(), sender.total.messages
                await _send_slice(sender, ahead)
                doubt = journal.end(sender.total.messages - before, time.monotonic() - begun, time.time())
                # The end of a slice and the beginning of the next one are one write, unless its rows are not read yet.
                is_begun = not journal.is_done and not stopped() and ahead.is_read
                if is_begun:
                    journal.begin(time.time())
                # Before anything else: an end of the run before this line sends the slice again, after this line never.
                write_journal(journal, file)
                tell(one, doubt)


async def _send_slice(sender: Sender, ahead: "_ReadAhead") -> None:
    is_last = False
    while not is_last:
        chunk = await ahead.take()
        for request in chunk.requests:
            await sender.add(request)
        is_last = chunk.is_last
    await sender.drain()


class _ReadAhead:
    """The next chunk, read in a thread while the chunk before is sent."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self.reading = self._begin()

    def _begin(self) -> "asyncio.Future[Chunk | None]":
        return asyncio.ensure_future(asyncio.to_thread(next, self._chunks, None))

    @property
    def is_read(self) -> bool:
        """True if the next chunk is there."""
        return self.reading.done() and self.reading.exception() is None

    async def read(self) -> None:
        """Wait for the next chunk. Raises the failure of the read."""
        await asyncio.wait([self.reading])
        self.reading.result()

    async def take(self) -> Chunk:
        """Return the next chunk, and begin to read the chunk behind."""
        chunk = await self.reading
        assert chunk is not None, "each slice has a last chunk"
        self.reading = self._begin()
        return chunk


@asynccontextmanager
async def _reading_ahead(chunks: Iterator[Chunk]) -> AsyncGenerator[_ReadAhead]:
    ahead = _ReadAhead(chunks)
    try:
        yield ahead
    finally:
        # A thread is not stopped, and its result is not needed.
        await asyncio.gather(ahead.reading, return_exceptions=True)
