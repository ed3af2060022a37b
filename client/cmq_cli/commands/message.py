"""``cmq send``, ``receive``, ``tail``, ``peek``, ``delete``, ``release``, ``visibility``: messages."""

import asyncio
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cmq_cli.bodies import parse_headers, read_body
from cmq_cli.durations import Seconds
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.lines import send_lines
from cmq_cli.output import Output
from cmq_cli.reading import read_lines
from cmq_cli.session import Session
from cmqd_client import BatchResult, Message, Peeked, Queue

_Session = Annotated[Session, Parameter(parse=False)]
_Flag = Annotated[bool, Parameter(negative=())]

_BATCH = 256
"""Messages the server gives at most at once."""


class State(Enum):
    """States of a message, for the option --state of peek."""

    ACTIVE = "active"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"
    HALF = "half"
    REWINDABLE = "rewindable"


_SENT = ("active", "in_flight", "delayed")
"""States of what was sent for good; a half message may yet be rolled back."""


async def send(
    queue: str,
    body: str | None = None,
    /,
    *,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    stdin: _Flag = False,
    delay: Seconds | None = None,
    header: Annotated[list[str] | None, Parameter(negative=())] = None,
    dedup_id: str | None = None,
    session: _Session,
) -> ExitCode:
    """Send a message, or a stream of messages.

    A stream is sent in order, up to 256 lines at a time and without waiting for more, so it may come from a program
    that runs for a long time. Empty lines are left out.

    Parameters
    ----------
    queue
        Name of the queue.
    body
        The message.
    file
        Send the content of this file as one message; - is standard input.
    stdin
        Send each line of standard input as a message.
    delay
        Delay before the message becomes active: 0 to 1h; the queue's delay by default.
    header
        A header as name=value; can be repeated.
    dedup_id
        Your own id of the message, up to 64 bytes: a repeat within 5 minutes is not stored again.
    """
    if stdin and dedup_id is not None:
        raise CommandFailed("--dedup-id names one message; --stdin sends many", ExitCode.USAGE)
    if (body is not None) + (file is not None) + stdin != 1:
        raise CommandFailed("give one of: a body, --file, --stdin", ExitCode.USAGE)
    headers = parse_headers(header)
    async with session.client() as client:
        target = client.queue(queue)
        if stdin:
            return await send_lines(target, read_lines(sys.stdin.buffer), session.output, delay, headers)
        sent = await target.send(read_body(body, file), delay=delay, headers=headers, dedup_id=dedup_id)
    if session.output.json:
        session.output.document({"id": sent.id, "request_id": sent.request_id})
    else:
        session.output.pairs({"id": sent.id})
    return ExitCode.OK


async def receive(
    queue: str,
    /,
    *,
    max_messages: Annotated[int, Parameter(name=["--max", "-n"])] = 1,
    wait: Seconds | None = None,
    visibility_timeout: Seconds | None = None,
    delete: Annotated[bool, Parameter(name="--delete", negative="--keep")] = False,
    raw: _Flag = False,
    session: _Session,
) -> ExitCode:
    """Receive messages and print them.

    By default the messages are kept: they stay hidden from other receives until their visibility timeout ends, and are
    then delivered again. Delete or release them by the printed handles.

    Parameters
    ----------
    queue
        Name of the queue.
    max_messages
        Number of messages at most; the command ends earlier when the queue is empty.
    wait
        Wait for the first message: 0 to 30s; the queue's polling wait by default.
    visibility_timeout
        Time for which the messages stay hidden: 1s to 12h; the queue's visibility timeout by default.
    delete
        Delete each message once it is printed; --keep does not.
    raw
        Print the bodies only, unchanged, with a line break after each body.
    """
    if max_messages < 1:
        raise CommandFailed(f"--max is {max_messages}; it must be at least 1", ExitCode.USAGE)
    left = max_messages
    async with session.client() as client:
        source = client.queue(queue)
        while left > 0:
            first = left == max_messages
            messages = await source.receive(
                min(left, _BATCH), wait=wait if first else 0, visibility_timeout=visibility_timeout
            )
            if not messages:
                break
            left -= len(messages)
            await _hand_out(source, messages, session.output, raw=raw, delete=delete)
    if left == max_messages:
        session.output.remark(f"no message in {queue!r}")
    return ExitCode.OK


async def tail(
    queue: str,
    /,
    *,
    last: Annotated[int, Parameter(name=["--last", "-n"])] = 10,
    from_start: _Flag = False,
    delete: _Flag = False,
    max_messages: Annotated[int | None, Parameter(name="--max")] = None,
    duration: Annotated[Seconds | None, Parameter(name="--for")] = None,
    interval: Seconds = 1.0,
    raw: _Flag = False,
    session: _Session,
) -> ExitCode:
    """Follow a queue: print messages as they are sent, until interrupted.

    Like peek, it does not receive, hide, count or delete messages, so consumers are not disturbed. A message that is
    sent and deleted between two polls is not seen. With --delete it is a consumer: every message is received, printed
    and deleted.

    Parameters
    ----------
    queue
        Name of the queue.
    last
        Begin with about this many of the latest messages (fewer, if some in between are deleted).
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
    raw
        Print the bodies only, unchanged, with a line break after each body.
    """
    if last < 0 or (max_messages is not None and max_messages < 1):
        raise CommandFailed("--last must be at least 0 and --max at least 1", ExitCode.USAGE)
    if interval <= 0:
        raise CommandFailed("--interval must be more than 0", ExitCode.USAGE)
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
            pass  # it ran as long as it should
    return ExitCode.OK


async def peek(
    queue: str,
    /,
    *,
    max_messages: Annotated[int, Parameter(name=["--max", "-n"])] = 10,
    start: int = 0,
    state: Annotated[list[State] | None, Parameter(negative=())] = None,
    raw: _Flag = False,
    session: _Session,
) -> None:
    """Show messages, in the order of sending, without receiving them.

    Parameters
    ----------
    queue
        Name of the queue.
    max_messages
        Number of messages at most.
    start
        Position to begin at: 0, or the position that an earlier peek printed.
    state
        Only messages in this state; can be repeated. By default all but rewindable ones, which are deleted.
    raw
        Print the bodies only, unchanged, with a line break after each body.
    """
    if max_messages < 1:
        raise CommandFailed(f"--max is {max_messages}; it must be at least 1", ExitCode.USAGE)
    states = None if state is None else [one.value for one in state]
    shown = 0
    following: int | None = start
    async with session.client() as client:
        source = client.queue(queue)
        while following is not None and shown < max_messages:
            page = await source.peek(min(max_messages - shown, _BATCH), start=following, states=states)
            shown += len(page)
            following = page.next_start
            for message in page:
                _print(session.output, message, raw)
    if not shown:
        session.output.remark(f"no message in {queue!r}")
    elif following is not None:
        session.output.remark(f"there is more: --start {following}")


async def delete(queue: str, /, *handles: int, session: _Session) -> ExitCode:
    """Delete received messages by their receipt handles."""
    async with session.client() as client:
        return _report(session.output, "deleted", await client.queue(queue).delete_batch(_some(handles)))


async def release(
    queue: str, /, *handles: int, count: Annotated[bool, Parameter(negative="--no-count")] = True, session: _Session
) -> ExitCode:
    """Release received messages by their receipt handles, so that they can be received again at once.

    Parameters
    ----------
    queue
        Name of the queue.
    handles
        Receipt handles, as receive prints them.
    count
        Keep the receive in the receive count.
    """
    async with session.client() as client:
        result = await client.queue(queue).release_batch(_some(handles), count_receive=count)
    return _report(session.output, "released", result)


async def visibility(queue: str, timeout: Seconds, /, *handles: int, session: _Session) -> ExitCode:
    """Change the visibility timeout of received messages, by their receipt handles.

    Parameters
    ----------
    queue
        Name of the queue.
    timeout
        From now on: 0 to 12h, and never beyond the retention. 0 makes them active at once, with the receive counted.
    handles
        Receipt handles, as receive prints them.
    """
    async with session.client() as client:
        result = await client.queue(queue).change_visibility_batch(_some(handles), timeout)
    return _report(session.output, "changed", result)


# ---------------------------------------------------------------------- shared helpers


def _some(handles: tuple[int, ...]) -> tuple[int, ...]:
    if not handles:
        raise CommandFailed("name at least one receipt handle", ExitCode.USAGE)
    return handles


def _report(output: Output, verb: str, result: BatchResult) -> ExitCode:
    """Tell what became of a batch."""
    if output.json:
        failed = {str(one.receipt_handle): one.error.name for one in result.failures}
        output.document({verb: [str(handle) for handle in result.done], "failed": failed})
    for one in result.failures:
        output.client_error(one.error, str(one.receipt_handle))
    if result.done:
        output.remark(f"{len(result.done):,} {verb}")
    if result.ok:
        return ExitCode.OK
    return ExitCode.PARTIAL if result.done else ExitCode.FAILED


def _print(output: Output, message: Message | Peeked, raw: bool) -> None:
    if raw:
        output.raw(message.body)
    else:
        output.message(message)


async def _hand_out(queue: Queue, messages: list[Message], output: Output, *, raw: bool, delete: bool) -> None:
    """Print messages, then delete them if requested: a message that was not printed is not deleted."""
    for message in messages:
        _print(output, message, raw)
    if delete:
        (await queue.delete_batch(messages)).raise_for_failures()


async def _consume(queue: Queue, output: Output, raw: bool, max_messages: int | None) -> None:
    left = max_messages
    while left is None or left > 0:
        messages = await queue.receive(_BATCH if left is None else min(left, _BATCH), wait=20)
        await _hand_out(queue, messages, output, raw=raw, delete=True)
        left = None if left is None else left - len(messages)


async def _watch(
    queue: Queue, output: Output, raw: bool, max_messages: int | None, start: int, interval: float
) -> None:
    left = max_messages
    # Of the page that is looked at again and again because it is the last one.
    seen: set[str] = set()
    while True:
        page = await queue.peek(_BATCH, start=start, states=_SENT)
        for message in page:
            if message.id in seen:
                continue
            _print(output, message, raw)
            if left is not None:
                left -= 1
                if not left:
                    return
        if page.next_start is None:
            seen = {message.id for message in page}
            await asyncio.sleep(interval)
        else:
            seen = set()
            start = page.next_start


async def _end_of(queue: Queue) -> int:
    """The place behind the last message: looked for in about twice as many steps as its number has binary digits."""

    async def is_beyond(place: int) -> bool:
        page = await queue.peek(1, start=place, states=_SENT)
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
