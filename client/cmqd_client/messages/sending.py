"""Sends to a queue: the requests, in parts where a batch is over the limits, and their spans.

The functions take values in wire form; :class:`cmqd_client.Queue` has the forms for programs, with their guarantees.
"""

from collections.abc import Awaitable, Callable

import msgspec

from cmqd_client.errors import BatchTooLarge, CmqError, PartialFailure, SendFailure
from cmqd_client.links.channel import Channel
from cmqd_client.links.numbering import Session
from cmqd_client.messages.message_ids import MessageId, printed_id
from cmqd_client.messages.outgoing import Batch
from cmqd_client.messages.tracing import Tracing
from cmqd_client.results import SentBatch
from cmqd_protocol import messages as wire
from cmqd_protocol.limits import MAX_BATCH
from cmqd_types.messages import Headers


def send(
    channel: Channel,
    queue: str,
    bodies: list[bytes],
    headers: list[Headers | None] | None = None,
    delay_ms: int | list[int] | None = None,
    dedup_ids: list[str | None] | None = None,
    after: str | None = None,
    at_ms: int | None = None,
    all_or_none: bool = False,
) -> Awaitable[wire.MessagesSent]:
    """Send messages in a request."""
    session, sequence = channel.numbering.next()
    request = wire.SendMessages(
        channel.next_request_id(),
        queue=queue,
        bodies=bodies,
        headers=headers,
        delay_ms=delay_ms,
        session=session.number,
        sequence=sequence,
        dedup_ids=dedup_ids,
        after=after,
        at_ms=at_ms,
        all_or_none=all_or_none,
    )
    if channel.tracing is not None:
        return send_traced(channel.tracing, "send", channel, request, session, sequence)
    return channel.send_numbered(request, wire.MessagesSent, session, sequence)


async def send_traced(
    tracing: Tracing,
    operation: str,
    channel: Channel,
    request: wire.SendMessages | wire.SendHalfMessages,
    session: Session,
    sequence: int,
) -> wire.MessagesSent:
    """Send with a span, and put its context into the headers of the messages."""
    count = len(request.bodies)
    with tracing.send(request.queue, count, operation) as span:
        request = msgspec.structs.replace(request, headers=tracing.inject(request.bodies, request.headers))
        reply = await channel.send_numbered(request, wire.MessagesSent, session, sequence)
        if count == 1:
            span.set_attribute("messaging.message.id", printed_id(reply.message_ids[0]))
        return reply


async def send_in_parts(
    channel: Channel,
    queue: str,
    batch: Batch,
    own_delay: Callable[[], Awaitable[int]],
    at_ms: int | None,
    *,
    after: str | None,
    split: bool,
    all_or_none: bool,
) -> SentBatch:
    """Send a batch, with ``split`` in several requests; see :meth:`Queue.send_batch`.

    Args:
        channel: the way to the server.
        queue: name of the queue.
        batch: the messages.
        own_delay: returns the queue's own delay in milliseconds.
        at_ms: time at which the messages become active, in place of their delays.
        after: dedup id of the message before the batch.
        split: whether the batch may take several requests.
        all_or_none: refuse a request of which some dedup ids are remembered and other messages are new.
    """
    if not batch.bodies:
        return SentBatch([], 0)
    ids: list[MessageId] = []
    request_ids: list[int] = []
    for part in batch.parts() if split else [batch]:
        try:
            delays = None if at_ms is not None else await _delays(part.delays, own_delay)
            follows = None if request_ids else after
            reply = await send(
                channel, queue, part.bodies, part.headers, delays, part.dedup_ids, follows, at_ms, all_or_none
            )
        except CmqError as error:
            if not request_ids:
                if not split and (isinstance(error, BatchTooLarge) or len(batch.bodies) > MAX_BATCH):
                    error.add_note("send_batch(..., split=True) sends the batch in several steps.")
                raise
            raise _partial_failure(error, len(batch.bodies), ids, request_ids[-1]) from error
        ids += [printed_id(number) for number in reply.message_ids]
        request_ids.append(reply.request_id)
    return SentBatch(ids, request_ids[-1], tuple(request_ids))


def _partial_failure(error: CmqError, count: int, ids: list[MessageId], request_id: int) -> PartialFailure:
    """Return the error of a batch of ``count`` messages; its first messages, with these ids, are stored."""
    # In a function of its own: the traceback of ``error`` has the frame of the batch, so a list of failures there would
    # keep the bodies in memory until a garbage collection.
    failures = [SendFailure(index, error) for index in range(len(ids), count)]
    text = f"{len(failures)} of {count} failed; the first, {failures[0]}"
    return PartialFailure(text, failures, done=ids, request_id=request_id)


async def _delays(delays: list[int | None], own_delay: Callable[[], Awaitable[int]]) -> int | list[int] | None:
    """Return the delays in wire form: one for all (None = the queue's), or a list with a delay per message."""
    first = delays[0]
    if all(delay == first for delay in delays):
        return first
    named = [delay for delay in delays if delay is not None]
    if len(named) < len(delays):
        # A list on the wire has no value for "the queue's own", so the queue's delay is read first.
        own = await own_delay()
        return [own if delay is None else delay for delay in delays]
    return named
