"""``cmq send``, ``receive``, ``peek``, ``delete``, ``release``, ``visibility`` and ``reject``: messages of a queue."""

from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.lines import Line, LineFormat
from cmq_cli.message_bodies import opened, parse_headers, read_body
from cmq_cli.nouns import report_batch
from cmq_cli.options import CurrentSession, DedupId, Flag, Header, MaxMessages, QueueName, Raw, ReceiptHandle
from cmq_cli.output import Output
from cmq_cli.reading import read_lines
from cmq_cli.session import Seconds
from cmq_cli.streams import LineStream
from cmqd_client import BatchResult, Message, Queue
from cmqd_types.sentences import counted

MAX_BATCH = 256
"""Maximum number of messages in a reply of the server."""


class State(Enum):
    """States of a message, for the option --state of peek."""

    ACTIVE = "active"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"
    HALF = "half"
    REWINDABLE = "rewindable"


async def send(
    queue: QueueName,
    body: Annotated[str | None, Parameter(help="The message.")] = None,
    /,
    *,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    stdin: Flag = False,
    delay: Seconds | None = None,
    at: str | None = None,
    header: Header = None,
    dedup_id: DedupId = None,
    session: CurrentSession,
) -> ExitCode:
    """Send a message, or a stream of messages.

    A stream is sent in order, up to 256 lines at a time. Lines are sent at once, so the stream can come from a program
    that runs for a long time. Empty lines are skipped.

    Parameters
    ----------
    file
        Send the content of this file as one message; - is standard input.
    stdin
        Send each line of standard input as a message.
    delay
        Delay before the message becomes active: 0 to 1h, or more if the server allows it, and shorter than the
        retention of the queue; the delay of the queue by default.
    at
        Time at which the message becomes active, in place of --delay: local unless it names a zone (2026-01-31T12:00,
        ...Z, ...+02:00).
    """
    moment = None if at is None else _parse_at(at)
    if moment is not None and delay is not None:
        raise CommandFailed("give --delay or --at, not both", ExitCode.USAGE)
    if stdin and dedup_id is not None:
        raise CommandFailed("--dedup-id identifies a single message, and --stdin sends many", ExitCode.USAGE)
    if (body is not None) + (file is not None) + stdin != 1:
        raise CommandFailed("give one of: a body, --file, --stdin", ExitCode.USAGE)
    headers = parse_headers(header)
    output = session.output
    async with session.client() as client:
        target = client.queue(queue)
        if stdin:
            return await _send_lines(target, output, delay, moment, headers)
        sent = await target.send(read_body(body, file), delay=delay, at=moment, headers=headers, dedup_id=dedup_id)
    output.facts({"id": sent.id, "request_id": sent.request_id}, {"id": sent.id})
    return ExitCode.OK


def _parse_at(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except ValueError as error:
        raise CommandFailed(
            f"--at: {text!r} is not a time; write 2026-01-31T12:00, ...Z or ...+02:00 (a time from now is --delay)",
            ExitCode.USAGE,
        ) from error


async def _send_lines(
    queue: Queue, output: Output, delay: float | None, at: datetime | None, headers: dict[str, str] | None
) -> ExitCode:
    async def store(batch: list[Line]) -> None:
        await queue.send_batch([line.body for line in batch], delay=delay, at=at, headers=headers)

    stream = LineStream(output, "sending", store, line_format=LineFormat(), headers=headers)
    with opened(None) as stdin:
        await stream.run(read_lines(stdin))
    skipped = f", {counted(stream.empty, 'empty line')} left out" if stream.empty else ""
    return stream.report({"sent": stream.stored}, f"{stream.stored:,} sent{skipped}", "lines")


async def receive(
    queue: QueueName,
    /,
    *,
    max_messages: MaxMessages = 1,
    wait: Seconds | None = None,
    visibility_timeout: Seconds | None = None,
    delete: Annotated[bool, Parameter(name="--delete", negative="--keep")] = False,
    raw: Raw = False,
    session: CurrentSession,
) -> ExitCode:
    """Receive messages and print them.

    By default received messages stay in the queue: hidden from other receives until their visibility timeout ends, then
    receivable again. The printed handles delete or release them. The command ends when the queue is empty.

    Parameters
    ----------
    wait
        Wait for the first message: 0 to 30s; the polling wait of the queue by default.
    visibility_timeout
        Time for which the messages are hidden: 1s to 12h; the visibility timeout of the queue by default.
    delete
        Delete each message after printing; --keep does not.
    """
    remaining = max_messages
    async with session.client() as client:
        source = client.queue(queue)
        while remaining > 0:
            messages = await source.receive(
                min(remaining, MAX_BATCH),
                wait=wait if remaining == max_messages else 0,
                visibility_timeout=visibility_timeout,
            )
            if not messages:
                break
            remaining -= len(messages)
            await print_received(source, messages, session.output, raw=raw, delete=delete)
    if remaining == max_messages:
        session.output.remark(f"no message in {queue!r}")
    return ExitCode.OK


async def print_received(queue: Queue, messages: list[Message], output: Output, *, raw: bool, delete: bool) -> None:
    """Print messages, then delete them if requested. In the other order a failure to print would lose messages."""
    for message in messages:
        output.message(message, raw=raw)
    if delete:
        await queue.delete_batch(messages)


async def peek(
    queue: QueueName,
    /,
    *,
    max_messages: MaxMessages = 10,
    start: int = 0,
    state: Annotated[list[State] | None, Parameter(negative=())] = None,
    raw: Raw = False,
    session: CurrentSession,
) -> None:
    """Show messages, in the order of sending, without receiving them.

    Parameters
    ----------
    start
        Position to begin at: 0, or the position that an earlier peek printed.
    state
        Only messages in this state; can be repeated. By default all states except rewindable (deleted messages).
    """
    states = None if state is None else [each.value for each in state]
    shown = 0
    next_start: int | None = start
    async with session.client() as client:
        source = client.queue(queue)
        while next_start is not None and shown < max_messages:
            page = await source.peek(min(max_messages - shown, MAX_BATCH), start=next_start, states=states)
            shown += len(page)
            next_start = page.next_start
            for message in page:
                session.output.message(message, raw=raw)
    if not shown:
        session.output.remark(f"no message in {queue!r}")
    elif next_start is not None:
        session.output.remark(f"more messages follow; list them with --start {next_start}")


async def delete(queue: QueueName, /, *handles: ReceiptHandle, session: CurrentSession) -> ExitCode:
    """Delete received messages by their receipt handles."""
    _check_given(handles)
    async with session.client() as client:
        return _report(session.output, "deleted", await client.queue(queue).delete_batch(handles, check=False))


async def release(
    queue: QueueName,
    /,
    *handles: ReceiptHandle,
    count: Annotated[
        bool, Parameter(negative="--no-count", help="Count the receive in the receive count of the message.")
    ] = True,
    session: CurrentSession,
) -> ExitCode:
    """Release received messages by their receipt handles, for other receives at once."""
    _check_given(handles)
    async with session.client() as client:
        result = await client.queue(queue).release_batch(handles, count_receive=count, check=False)
    return _report(session.output, "released", result)


async def visibility(
    queue: QueueName, timeout: Seconds, /, *handles: ReceiptHandle, session: CurrentSession
) -> ExitCode:
    """Change the visibility timeout of received messages, by their receipt handles.

    Parameters
    ----------
    timeout
        New timeout, from now on: 0 to 12h, at most to the end of the retention. 0 makes the messages active at once;
        the receive counts.
    """
    _check_given(handles)
    async with session.client() as client:
        result = await client.queue(queue).change_visibility_batch(handles, timeout, check=False)
    return _report(session.output, "changed", result)


async def reject(queue: QueueName, /, *handles: ReceiptHandle, reason: str = "", session: CurrentSession) -> ExitCode:
    """Move received messages to the dead-letter queue of the queue, by their receipt handles.

    Parameters
    ----------
    reason
        Text for readers of the dead letters, up to 256 bytes; kept in the origin of the dead letter.
    """
    _check_given(handles)
    async with session.client() as client:
        result = await client.queue(queue).reject_batch(handles, reason, check=False)
    return _report(session.output, "rejected", result)


def _check_given(handles: tuple[int, ...]) -> None:
    if not handles:
        raise CommandFailed("name at least one receipt handle", ExitCode.USAGE)


def _report(output: Output, verb: str, result: BatchResult) -> ExitCode:
    failed = {str(failure.receipt_handle): failure.error for failure in result.failures}
    return report_batch(output, verb, [str(handle) for handle in result.done], failed)
