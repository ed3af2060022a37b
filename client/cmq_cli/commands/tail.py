"""``cmq tail``: follow the messages of a queue."""

import asyncio
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from cmq_cli.commands.message import MAX_BATCH, print_received
from cmq_cli.exitcodes import ExitCode
from cmq_cli.options import CurrentSession, Flag, QueueName, Raw
from cmq_cli.output import Output
from cmq_cli.session import Seconds
from cmqd_client import Queue

_SENT = ("active", "in_flight", "delayed")
"""States of messages that are sent for good; a half message may be rolled back."""


async def tail(
    queue: QueueName,
    /,
    *,
    last: Annotated[int, Parameter(name=["--last", "-n"], validator=Number(gte=0))] = 10,
    from_start: Flag = False,
    delete: Flag = False,
    max_messages: Annotated[int | None, Parameter(name="--max", validator=Number(gte=1))] = None,
    duration: Annotated[Seconds | None, Parameter(name="--for")] = None,
    interval: Annotated[Seconds, Parameter(validator=Number(gt=0))] = 1.0,
    raw: Raw = False,
    session: CurrentSession,
) -> ExitCode:
    """Follow a queue: print messages as they are sent, until interrupted.

    Like peek, tail does not receive, hide, count or delete messages, so consumers are not disturbed. A message that is
    sent and deleted between two polls is not seen. With --delete tail is a consumer: every message is received, printed
    and deleted.

    Parameters
    ----------
    last
        Begin with about this many of the latest messages (fewer if some of them are deleted).
    from_start
        Begin with the first message of the queue.
    delete
        Receive and delete messages, from the first message of the queue.
    max_messages
        End after this many messages.
    duration
        End after this time.
    interval
        Time between two polls.
    """
    async with session.client() as client:
        source = client.queue(queue)
        try:
            async with asyncio.timeout(duration):
                if delete:
                    await _consume(source, session.output, raw, max_messages)
                else:
                    start = 0 if from_start else max(await _end_of(source) - last, 0)
                    await _watch(source, session.output, raw, max_messages, start, interval)
        except TimeoutError:
            pass  # The end of --for.
    return ExitCode.OK


async def _consume(queue: Queue, output: Output, raw: bool, max_messages: int | None) -> None:
    remaining = max_messages
    while remaining is None or remaining > 0:
        messages = await queue.receive(MAX_BATCH if remaining is None else min(remaining, MAX_BATCH), wait=20)
        await print_received(queue, messages, output, raw=raw, delete=True)
        remaining = None if remaining is None else remaining - len(messages)


async def _watch(
    queue: Queue, output: Output, raw: bool, max_messages: int | None, start: int, interval: float
) -> None:
    remaining = max_messages
    # Ids of the printed messages of the last page: the page is polled until it is full, and must not be printed twice.
    printed: set[str] = set()
    while True:
        page = await queue.peek(MAX_BATCH, start=start, states=_SENT)
        for message in page:
            if message.id in printed:
                continue
            output.message(message, raw=raw)
            if remaining is not None:
                remaining -= 1
                if not remaining:
                    return
        if page.next_start is None:
            printed = {message.id for message in page}
            await asyncio.sleep(interval)
        else:
            printed = set()
            start = page.next_start


async def _end_of(queue: Queue) -> int:
    """Return the position after the last message, by doubling and bisection: about two peeks per binary digit."""

    async def is_beyond(position: int) -> bool:
        page = await queue.peek(1, start=position, states=_SENT)
        return not page.messages and page.next_start is None

    high = 1
    while not await is_beyond(high):
        high *= 2
    low = high // 2
    if high == 1 and await is_beyond(0):
        return 0
    while low + 1 < high:
        middle = (low + high) // 2
        if await is_beyond(middle):
            high = middle
        else:
            low = middle
    return high
