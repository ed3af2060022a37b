"""All limits of the service in a single table, with their reasons, and the checks that depend on limits alone."""

import msgspec

from cmqd.core.domain_errors import BatchTooLarge, InvalidArgument, MessageTooLarge, shown
from cmqd_segment.records import StoredMessage
from cmqd_types.attributes import QUEUE
from cmqd_types.messages import CopyOf, Headers
from cmqd_types.sentences import field_name, quantity, sentence, size

MIB = 1024 * 1024

CMQ_MAX_DELAY_MS = QUEUE["delay_ms"].high
"""Longest delay in CMQ, and of sends unless the operator raises it."""
ORIGIN_BYTES = 128
"""Bound of the bytes that an origin adds to a message of a reply: a name of 64 bytes, three numbers and a word."""
COPY_BYTES = 32
"""Upper bound of the bytes that a copy's link adds to a message in a reply, beside names and labels."""


class Limits(msgspec.Struct, frozen=True):
    """Limits of the broker; the limits of a queue are its attributes."""

    max_queues_per_account: int = 10_000
    """CMQ's largest quota; a queue costs about 2 KiB of memory."""
    max_batch: int = 256
    """Messages in a send or receive, handles in a delete: keeps a request shorter than a slice of the loop."""
    max_batch_bytes: int = MIB
    """Bodies and headers of a batch or reply: a single frame, a single row of the log."""
    max_headers: int = 32
    max_headers_bytes: int = 16 * 1024
    max_delay_ms: int = CMQ_MAX_DELAY_MS
    """Of a send; the retention of the queue is a second limit. A far delay costs 16 bytes of memory."""
    max_wait_ms: int = 30_000
    """Longest wait of a receive; the value of CMQ, and shorter than common idle time-outs of middleboxes."""
    min_visibility_timeout_ms: int = 1000
    max_visibility_timeout_ms: int = 43_200_000
    max_in_flight: int = 1_000_000
    """Leases of one queue: a lease costs about 240 bytes of memory."""
    max_list: int = 1000
    window_bytes: int = 24 * MIB
    """Bodies kept in memory near the heads of all queues together."""
    page_messages: int = 1024
    """Messages of one page-in: about five rows of 64 KiB at 256 bytes."""
    page_bytes: int = 512 * 1024
    max_reads: int = 64
    """Page-ins under way at once, which bounds the memory of their answers to 32 MiB."""
    max_schedules_per_account: int = 1000
    """A schedule costs about 1.5 KiB of memory, and its body. Their memory also counts as promised memory."""
    max_sessions: int = 100_000
    """Per account."""
    budget_bytes: int = 1024 * MIB
    """Memory of sessions, dedup ids, schedules and connection buffers; all but the last are in
    ``core.facts.promised_memory``."""
    session_answers: int = 1024
    session_life_ms: int = 600_000
    max_dedup_id_bytes: int = 64
    max_dedup_ids: int = 1_000_000
    """Per queue or topic; a dedup id costs about 140 bytes of memory and its text."""
    dedup_life_ms: int = 300_000
    max_audit_entries: int = 100_000
    """Of all accounts; an entry costs about 400 bytes of memory."""
    audit_ms: int = 90 * 86_400_000
    """Time for which the audit trail has an entry."""
    max_actors: int = 100_000
    """Clients that changed messages and are named by rows outside of sealed segments; each costs about 400 bytes of
    memory, at most 1,200."""
    max_actors_per_key: int = 1000
    """Share of a key: names are the word of the client, and a client that invents names must not use up all."""
    max_actors_per_account: int = 20_000
    """Share of an account, which may have many keys."""
    max_rejection_bytes: int = 256
    """Of the reason that a consumer gives for a move to the dead-letter queue: a sentence, kept in the origin."""
    max_dead_letter_sources: int = 6
    """Queues that may share a dead-letter queue, as in CMQ."""
    max_check_interval_ms: int = 300_000
    """Checks of half messages come at doubling intervals up to this."""
    max_topics_per_account: int = 10_000
    """As many as queues; a topic without subscriptions costs about as much."""
    max_subscriptions: int = 500
    """Per topic, as in CMQ."""
    max_tags: int = 10
    """Per message."""
    topic_life_ms: int = 86_400_000
    """Time for which a topic keeps undelivered messages, counted from the publish."""
    max_pushes_per_endpoint: int = 16
    """Requests to one URL at once: enough for 2,000 a second at 8 ms each, and little for a small server."""
    max_pushes: int = 4096
    """Requests to all URLs at once: sockets of this process."""
    max_retries_known: int = 100_000
    """Messages in retry of one subscription, about 250 bytes of memory each. At the limit no new message is tried."""
    max_retries_in_all: int = 1_000_000
    """Messages in retry of all subscriptions together."""
    topic_bodies_bytes: int = 16 * MIB
    """Bodies kept in memory for deliveries that are about to be made, of all topics together."""
    tick_items: int = 2000
    """Leases or delays handled by one tick: about 2 ms, which bounds the pause of the loop."""


def check_range(field: str, value: object, low: int, high: int) -> int:
    """Return ``value`` if it is an integer within ``low .. high``.

    Raises:
        InvalidArgument: the value is not an integer, or out of range.
    """
    if type(value) is not int or not low <= value <= high:
        given = (quantity(field, value), "") if type(value) is int else (shown(value), ", which is no integer")
        raise InvalidArgument(
            sentence(
                "{} is {}{}; the range is {} to {}",
                field_name(field),
                *given,
                quantity(field, low),
                quantity(field, high),
            ),
            field=field,
            value=value,
            limit=f"an integer from {low} to {high}",
            range=(low, high),
        )
    return value


def checked_sizes(
    queue: str,
    bodies: list[bytes],
    headers: list[Headers | None] | None,
    max_message_bytes: int,
    limits: Limits,
) -> list[int]:
    """Return the sizes of the bodies of a send.

    Raises:
        InvalidArgument: no body, too many bodies, an empty body, or headers that do not fit.
        MessageTooLarge: a body is over the queue's limit.
        BatchTooLarge: a batch of several bodies is over ``max_batch_bytes`` (a single large message is allowed).
    """
    count = len(bodies)
    if not 1 <= count <= limits.max_batch:
        raise InvalidArgument(
            f"a batch has 1 to {limits.max_batch} messages; this one has {count}",
            field="bodies",
            value=count,
            limit=f"1 to {limits.max_batch} messages",
        )
    sizes = list(map(len, bodies))
    if max(sizes) > max_message_bytes or min(sizes) < 1:
        index = next(index for index, size in enumerate(sizes) if not 1 <= size <= max_message_bytes)
        if not sizes[index]:
            raise InvalidArgument(
                sentence(
                    "body {} is empty; {} takes bodies of {} to {}",
                    index,
                    repr(queue),
                    size(1),
                    size(max_message_bytes),
                ),
                field="bodies",
                value=0,
                limit=f"1 to {max_message_bytes} bytes",
                index=index,
            )
        raise MessageTooLarge(queue, index, sizes[index], max_message_bytes)
    total = sum(sizes)
    if headers is not None:
        total += _checked_headers(headers, count, limits)
    if total > limits.max_batch_bytes and count > 1:
        raise BatchTooLarge(total, limits.max_batch_bytes)
    return sizes


def _checked_headers(headers: list[Headers | None], count: int, limits: Limits) -> int:
    if len(headers) != count:
        raise InvalidArgument(
            f"there are {len(headers)} entries of headers for {count} bodies; give one entry for each body, or null",
            field="headers",
            value=len(headers),
            limit=f"null, or {count} entries",
        )
    total = 0
    for entry in headers:
        if not entry:
            continue
        if len(entry) > limits.max_headers:
            raise InvalidArgument(
                f"a message has at most {limits.max_headers} headers; this one has {len(entry)}",
                field="headers",
                value=len(entry),
                limit=f"at most {limits.max_headers} headers",
            )
        entry_bytes = headers_bytes(entry)
        if entry_bytes > limits.max_headers_bytes:
            raise InvalidArgument(
                f"the headers of a message have at most {limits.max_headers_bytes} bytes of names and values;"
                f" these have {entry_bytes}",
                field="headers",
                value=entry_bytes,
                limit=f"at most {limits.max_headers_bytes} bytes",
            )
        total += entry_bytes
    return total


def headers_bytes(headers: Headers) -> int:
    """Return the bytes of names and values, as UTF-8."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())


def copy_bytes(copy_of: CopyOf) -> int:
    """Return the upper bound of the bytes that a copy's link adds to a message in a reply. Names are ASCII."""
    size = COPY_BYTES + len(copy_of.topic) + len(copy_of.subscription)
    labels = copy_of.labels
    if labels:
        size += len(labels.encode()) if isinstance(labels, str) else 2 * len(labels) + len("".join(labels).encode())
    return size


def reply_bytes(message: StoredMessage) -> int:
    """Return the upper bound of the bytes that a message takes in a reply, beside a few numbers."""
    size = len(message.body)
    if message.headers:
        size += headers_bytes(message.headers)
    if message.origin is not None:
        size += ORIGIN_BYTES + len(message.origin.rejection.encode())
    if message.copy_of is not None:
        size += copy_bytes(message.copy_of)
    return size
