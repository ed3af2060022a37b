"""Messages of a queue: send, receive and peek; delete, release and reject received messages."""

import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

from msgspec import structs

from cmqd_client import BatchResult, Message, Outgoing
from cmqd_client.errors import InvalidArgument
from cmqd_gateway.rest import values
from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.problems import ProblemError, invalid, problem_of
from cmqd_gateway.rest.replies import (
    CopyOf,
    FoundMessages,
    HandleResult,
    HandleResults,
    MessageHistory,
    Origin,
    PeekedMessage,
    PeekedMessages,
    ReceivedMessage,
    ReceivedMessages,
    Sent,
    SentBatch,
    VisibilityChanged,
)
from cmqd_gateway.rest.types import (
    ChangeVisibilities,
    ChangeVisibility,
    HandleRequest,
    HandlesRequest,
    MessageQuery,
    NewHalfMessage,
    NewMessage,
    Nothing,
    PeekQuery,
    ReceiveMessages,
    Reject,
    Rejects,
    Release,
    Releases,
    SendMessage,
    SendMessages,
)

MESSAGE_ID = re.compile("Msg-[0-9a-f]{16}")

MAX_FOUND = 1_000
"""Messages of the answer of a search."""


async def send_message(call: Call[Nothing, SendMessage]) -> Sent:
    """Send a message. When the reply comes, the message is on disk.

    With an `Idempotency-Key`, or a `dedup_id`, a repeat within 5 minutes stores nothing and returns the id of the first
    message, also for another body: send the same key for the same message only.
    """
    body = call.body
    sent = await call.client.queue(call.names["queue"]).send(
        body_of(body.body, body.encoding, "body"),
        delay=body.delay,
        at=_moment(body.at, [body.delay]),
        headers=body.headers or None,
        dedup_id=call.dedup_id(body.dedup_id),
    )
    return Sent(id=sent.id)


async def send_messages(call: Call[Nothing, SendMessages]) -> SentBatch:
    """Send up to 256 messages in one step: all are stored, contiguous and in this order, or no message is.

    With an `Idempotency-Key` KEY, the dedup ids of the messages are `KEY:0`, `KEY:1` and so on.
    """
    body = call.body
    batch = await call.client.queue(call.names["queue"]).send_batch(
        [
            Outgoing(
                body_of(message.body, message.encoding, f"messages[{index}].body"),
                message.headers or None,
                message.delay,
            )
            for index, message in enumerate(body.messages)
        ],
        at=_moment(body.at, [message.delay for message in body.messages]),
        dedup_ids=call.dedup_ids([message.dedup_id for message in body.messages]),
        after=body.after,
    )
    return SentBatch(results=[Sent(id=message_id) for message_id in batch.ids])


async def receive_messages(call: Call[Nothing, ReceiveMessages]) -> ReceivedMessages:
    """Receive messages; wait for the first message if the queue has no active message.

    The wait ends with the HTTP connection. Messages of a reply that cannot be written are active again at once, and the
    receive is not counted. Delete each message after processing, or the broker delivers the message again when its
    visibility timeout ends.
    """
    body, name = call.body, call.names["queue"]
    received = await call.client.queue(name).receive(
        body.max_messages, wait=body.wait, visibility_timeout=body.visibility_timeout
    )
    handles = [message.receipt_handle for message in received]
    if handles:
        call.received(lambda client: client.queue(name).release_batch(handles, count_receive=False, check=False))
    return ReceivedMessages(messages=[_received(message) for message in received])


def may_wait(body: ReceiveMessages) -> bool:
    """Return True for a receive that may wait; with the wait of the queue, which only the broker knows, too."""
    return body.wait != 0


async def peek_messages(call: Call[PeekQuery, Nothing]) -> PeekedMessages:
    """Return messages in the order of sending, without receiving them: counts, order and visibility stay."""
    query = call.query
    page = await call.client.queue(call.names["queue"]).peek(
        query.max_messages, start=page_start(query.start), states=query.states
    )
    return PeekedMessages(
        messages=[PeekedMessage.of(message) for message in page], next_start=page_end(page.next_start)
    )


# ---------------------------------------------------------------- received messages


async def delete_message(call: Call[Nothing, HandleRequest]) -> None:
    """Delete a received message after processing; the broker never delivers the message again."""
    await call.client.queue(call.names["queue"]).delete(_handle(call.body.receipt_handle))


async def delete_messages(call: Call[Nothing, HandlesRequest]) -> HandleResults:
    """Delete received messages, each independently: a failed entry does not affect the other entries."""
    handles = _handles(call.body.receipt_handles)
    return _results(handles, await call.client.queue(call.names["queue"]).delete_batch(handles, check=False))


async def change_visibility(call: Call[Nothing, ChangeVisibility]) -> VisibilityChanged:
    """Set how long, from now, a received message stays hidden. With 0 the message is active at once."""
    body = call.body
    queue = call.client.queue(call.names["queue"])
    handle = _handle(body.receipt_handle)
    with _refusals_of_timeout():
        changed = await queue.change_visibility(handle, body.timeout)
    return VisibilityChanged(next_visible_time=changed.next_visible_time)


async def change_visibilities(call: Call[Nothing, ChangeVisibilities]) -> HandleResults:
    """Set how long, from now, received messages stay hidden, each independently."""
    body = call.body
    handles = _handles(body.receipt_handles)
    queue = call.client.queue(call.names["queue"])
    with _refusals_of_timeout():
        result = await queue.change_visibility_batch(handles, body.timeout, check=False)
    return _results(handles, result)


async def release_message(call: Call[Nothing, Release]) -> None:
    """Make a received message active again at once, in its old position by send time."""
    body = call.body
    queue = call.client.queue(call.names["queue"])
    await queue.release(_handle(body.receipt_handle), count_receive=body.count_receive)


async def release_messages(call: Call[Nothing, Releases]) -> HandleResults:
    """Make received messages active again at once, each independently."""
    body = call.body
    handles = _handles(body.receipt_handles)
    queue = call.client.queue(call.names["queue"])
    return _results(handles, await queue.release_batch(handles, count_receive=body.count_receive, check=False))


async def reject_message(call: Call[Nothing, Reject]) -> None:
    """Move a received message to the dead-letter queue of its queue, with a reason."""
    body = call.body
    await call.client.queue(call.names["queue"]).reject(_handle(body.receipt_handle), body.reason)


async def reject_messages(call: Call[Nothing, Rejects]) -> HandleResults:
    """Move received messages to the dead-letter queue of their queue, each independently."""
    body = call.body
    handles = _handles(body.receipt_handles)
    queue = call.client.queue(call.names["queue"])
    return _results(handles, await queue.reject_batch(handles, body.reason, check=False))


# ---------------------------------------------------------------- conversions


def body_of(text: str, encoding: Literal["utf-8", "base64"], field: str) -> bytes:
    """Return the bytes of a body.

    Raises:
        ProblemError: the text is not base64, although the request says so.
    """
    try:
        return values.body_bytes(text, encoding)
    except values.BodyError as problem:
        raise invalid(field, f"{field}: {problem}") from None


def outgoing(messages: Sequence[NewMessage | NewHalfMessage]) -> list[Outgoing[bytes]]:
    """Return the messages of a batch, without delays and dedup ids."""
    return [
        Outgoing(body_of(message.body, message.encoding, f"messages[{index}].body"), message.headers or None)
        for index, message in enumerate(messages)
    ]


def page_start(start: str) -> int:
    """Return the number of a ``start``.

    Raises:
        ProblemError: the number has more than 64 bits.
    """
    return _number(start, "start")


def page_end(next_start: int | None) -> str | None:
    """Return a ``next_start``."""
    return None if next_start is None else str(next_start)


def _number(text: str, field: str) -> int:
    number = int(text)
    if number > values.MAX_HANDLE:
        raise invalid(field, f"{field} must be at most {values.MAX_HANDLE}, not {text}", value=text)
    return number


def _handle(text: str) -> int:
    return _number(text, "receipt_handle")


def _handles(texts: Sequence[str]) -> list[int]:
    return [_number(text, f"receipt_handles[{index}]") for index, text in enumerate(texts)]


def _moment(at: datetime | None, delays: Iterable[float | None]) -> datetime | None:
    """Return the time at which messages become active.

    Raises:
        ProblemError: a delay stands beside the time.
    """
    if at is None:
        return None
    if any(delay is not None for delay in delays):
        raise invalid("at", "a message has at or delay, not both")
    return at


@contextmanager
def _refusals_of_timeout() -> Generator[None]:
    """Name the field ``timeout`` in refusals of the broker, whose field has another name.

    Raises:
        ProblemError: the broker refused the value of ``timeout``.
    """
    try:
        yield
    except InvalidArgument as refusal:
        problem = problem_of(refusal)
        if problem.field != "visibility_timeout":
            raise
        detail = problem.detail.replace("visibility_timeout", "timeout")
        raise ProblemError(structs.replace(problem, field="timeout", detail=detail)) from None


async def get_message_history(call: Call[Nothing, Nothing]) -> MessageHistory:
    """Read the life of a message: sent, received, deleted, dead-lettered, redriven, expired and so on.

    The broker reads its log, in steps beside its other work. Any id that the message had in a queue or topic leads to
    the same life. Names that the key may not see are hidden. Rows of the log that were reclaimed are named where they
    are missing.
    """
    return MessageHistory.of(await call.client.message_history(message_id_of(call)))


async def find_messages(call: Call[MessageQuery, Nothing]) -> FoundMessages:
    """Search the log for messages by dedup id or header, oldest first. A key with name patterns names a queue or topic.

    Nothing indexes headers: the broker reads the rows of the range of time, in steps beside its other work. A message
    is found under the id of its send or publish; its history has the later ids. Rows of the range of time that were
    reclaimed are named.
    """
    query = call.query
    name, is_pair, value = (query.header or "").partition("=")
    if query.header is not None and not is_pair:
        raise invalid("header", "header has no `=`; give name and value, as order=4711")
    if not 1 <= query.limit <= MAX_FOUND:
        raise invalid("limit", f"limit is {query.limit}; the range is 1 to {MAX_FOUND:,}")
    found = await call.client.find_messages(
        query.source,
        dedup_id=query.dedup_id,
        header=(name, value) if query.header is not None else None,
        since=query.since,
        until=query.until,
        limit=query.limit,
    )
    return FoundMessages.of(found)


def message_id_of(call: Call[Any, Any]) -> str:
    """Return the id of a message in the path of a request. Raises ProblemError."""
    text = call.names["message"]
    if not MESSAGE_ID.fullmatch(text):
        shown = text[:100]
        raise invalid("message", f"{shown!r} is no message id; an id looks like Msg-0000000000000001", value=shown)
    return text


def _results(handles: list[int], result: BatchResult) -> HandleResults:
    """Return a result per entry. A handle that is named twice has the same result twice."""
    problems = {failure.receipt_handle: problem_of(failure.error) for failure in result.failures}
    results = [HandleResult(receipt_handle=str(handle), problem=problems.get(handle)) for handle in handles]
    return HandleResults(
        results=results,
        failed=sum(entry.problem is not None for entry in results),
        next_visible_time=result.next_visible_time,
    )


def _received(message: Message) -> ReceivedMessage:
    text, encoding = values.json_body(message.raw_body)
    return ReceivedMessage(
        id=message.id,
        receipt_handle=str(message.receipt_handle),
        body=text,
        encoding=encoding,
        headers=message.headers,
        receive_count=message.receive_count,
        enqueue_time=message.enqueue_time,
        first_receive_time=message.first_receive_time,
        next_visible_time=message.next_visible_time,
        origin=None if message.origin is None else Origin.of(message.origin),
        copy_of=None if message.copy_of is None else CopyOf.of(message.copy_of),
    )
