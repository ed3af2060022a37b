"""All limits of the service in a single table, with their reasons, and the checks that depend on limits alone."""

from collections.abc import Mapping

import msgspec

from cmqd.core.errors import BatchTooLarge, InvalidArgument, MessageTooLarge, shown
from cmqd.core.names import check_name
from cmqd_segment.attributes import QueueAttributes
from cmqd_segment.records import StoredMessage
from cmqd_types.messages import CopyOf, Headers
from cmqd_types.sentences import duration, field_name, field_names, quantity, sentence, size

MIB = 1024 * 1024

CMQ_MAX_DELAY_MS = 3_600_000
"""Longest delay in CMQ: the limit of the attribute ``delay_ms``, and of sends unless the operator raises it."""


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


ATTRIBUTE_RANGES: Mapping[str, tuple[int, int]] = {
    "polling_wait_ms": (0, 30_000),
    "visibility_timeout_ms": (1000, 43_200_000),
    "max_message_bytes": (1024, 1_048_576),
    "retention_ms": (60_000, 1_296_000_000),
    "delay_ms": (0, CMQ_MAX_DELAY_MS),
    "max_backlog": (1_000_000, 100_000_000),
    "max_delayed": (1, 1_000_000),
    "rewind_ms": (0, 1_296_000_000),
    "dead_letter_max_receives": (0, 1000),
    "dead_letter_after_ms": (0, 43_200_000),
    "first_check_ms": (1000, 3_600_000),
    "max_checks": (1, 100),
    "auto_delete_after_ms": (0, 1_296_000_000),
}
"""Smallest and largest value of each numeric attribute that a queue's owner can set (CMQ's ranges)."""

MIN_DEAD_LETTER_AFTER_MS = 300_000
MIN_AUTO_DELETE_AFTER_MS = 60_000
"""Twice the longest wait of a receive: a client that reconnects for its next receive keeps its queue."""
SHORTEST_MS: Mapping[str, int] = {
    "dead_letter_after_ms": MIN_DEAD_LETTER_AFTER_MS,
    "auto_delete_after_ms": MIN_AUTO_DELETE_AFTER_MS,
}
"""Smallest value other than 0 of the times for which 0 means never."""
MAX_TOPIC_MESSAGE_BYTES = (1024, 1_048_576)
MAX_FILTER_TAGS = 5
FILTER_TYPES = ("tag", "routing")
STRATEGIES = ("exponential_decay", "backoff")
CONTENT_FORMATS = ("json", "simplified")
ONLY_AT_CREATION = ("transactional",)
"""Attributes that are fixed when the queue is created."""
SWITCHES = (*ONLY_AT_CREATION, "auto_delete_only_empty")
"""Attributes that are true or false."""


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


def checked_attributes(
    base: QueueAttributes, changes: Mapping[str, object], *, creating: bool = False
) -> QueueAttributes:
    """Return ``base`` with ``changes`` applied. The existence of the dead-letter queue is not checked here.

    Raises:
        InvalidArgument: an attribute is unknown, out of its range, or contradicts a second attribute.
    """
    check_each(base, changes, creating=creating)
    chosen = dict(changes)
    if base.dead_letter_queue and changes.get("dead_letter_queue") == "":
        # Unbound: the policy goes too, unless ``changes`` names a policy, which then fails as a contradiction.
        chosen = {"dead_letter_max_receives": 0, "dead_letter_after_ms": 0} | chosen
    attributes = msgspec.structs.replace(base, **chosen)
    _check_together(attributes)
    return attributes


def check_each(base: QueueAttributes, changes: Mapping[str, object], *, creating: bool = False) -> None:
    """Check each of ``changes`` to ``base`` by itself.

    Raises:
        InvalidArgument: an attribute is unknown or out of its range.
    """
    for name, value in changes.items():
        limits = ATTRIBUTE_RANGES.get(name)
        if limits is not None:
            check_range(name, value, *limits)
        elif name == "dead_letter_queue":
            if not isinstance(value, str):
                raise InvalidArgument(
                    sentence("{} must be the name of a queue, or empty, not {}", field_name(name), shown(value)),
                    field=name,
                    value=value,
                    limit="the name of a queue, or empty",
                )
            if value:
                # Before any comparison: an error must not repeat a text of any length.
                check_name(name, value)
        elif name in SWITCHES:
            if type(value) is not bool:
                raise InvalidArgument(
                    sentence("{} must be true or false, not {}", field_name(name), shown(value)),
                    field=name,
                    value=value,
                    limit="true or false",
                )
            if name in ONLY_AT_CREATION and not creating and value != getattr(base, name):
                raise InvalidArgument(
                    sentence(
                        "{} is fixed when a queue is created; this queue has {}",
                        field_name(name),
                        quantity(name, getattr(base, name)),
                    ),
                    field=name,
                    value=value,
                    limit=str(getattr(base, name)),
                )
        else:
            known = (*ATTRIBUTE_RANGES, "dead_letter_queue", *SWITCHES)
            raise InvalidArgument(
                sentence("a queue has no attribute {}; its attributes are {}", shown(name), field_names(known)),
                field=name,
                value=value,
                limit=f"one of {', '.join(known)}",
            )
    for name, shortest_ms in SHORTEST_MS.items():
        after_ms = changes.get(name)
        if isinstance(after_ms, int) and 0 < after_ms < shortest_ms:
            raise InvalidArgument(
                sentence(
                    "{} is {}; it must be 0, or at least {}",
                    field_name(name),
                    duration(after_ms),
                    duration(shortest_ms),
                ),
                field=name,
                value=after_ms,
                limit=f"0, or at least {shortest_ms}",
                range=(shortest_ms, ATTRIBUTE_RANGES[name][1]),
            )


def _check_together(attributes: QueueAttributes) -> None:
    retention_ms = attributes.retention_ms
    if attributes.rewind_ms > retention_ms:
        raise InvalidArgument(
            sentence(
                "{rewind_ms} ({}) is longer than {retention_ms} ({})",
                duration(attributes.rewind_ms),
                duration(retention_ms),
            ),
            field="rewind_ms",
            value=attributes.rewind_ms,
            limit=f"at most retention_ms ({retention_ms})",
            range=(0, retention_ms),
        )
    if attributes.auto_delete_after_ms and (attributes.transactional or attributes.dead_letter_queue):
        # The messages of such a queue are still to be decided or moved, by clients and queues that do not know that the
        # queue may go.
        reason = "is transactional" if attributes.transactional else "has a dead-letter queue"
        raise InvalidArgument(
            sentence(
                "{auto_delete_after_ms} ({}) must be 0 for a queue that {}",
                duration(attributes.auto_delete_after_ms),
                reason,
            ),
            field="auto_delete_after_ms",
            value=attributes.auto_delete_after_ms,
            limit=f"0 for a queue that {reason}",
            range=(0, 0),
        )
    if attributes.delay_ms >= retention_ms:
        raise InvalidArgument(
            sentence(
                "{delay_ms} ({}) must be less than {retention_ms} ({}): messages would expire before they become"
                " active",
                duration(attributes.delay_ms),
                duration(retention_ms),
            ),
            field="delay_ms",
            value=attributes.delay_ms,
            limit=f"less than retention_ms ({retention_ms})",
            range=(0, retention_ms - 1),
        )
    receives, after_ms = attributes.dead_letter_max_receives, attributes.dead_letter_after_ms
    if after_ms and after_ms >= retention_ms:
        raise InvalidArgument(
            sentence(
                "{dead_letter_after_ms} ({}) must be less than {retention_ms} ({})",
                duration(after_ms),
                duration(retention_ms),
            ),
            field="dead_letter_after_ms",
            value=after_ms,
            limit=f"less than retention_ms ({retention_ms})",
            range=(0, retention_ms - 1),
        )
    if not attributes.dead_letter_queue:
        if receives or after_ms:
            field = "dead_letter_max_receives" if receives else "dead_letter_after_ms"
            raise InvalidArgument(
                sentence(
                    "{} needs a {dead_letter_queue}; set both, or leave {} at 0", field_name(field), field_name(field)
                ),
                field=field,
                value=receives or after_ms,
                limit="0 without a dead_letter_queue",
                range=(0, 0),
            )
    elif bool(receives) == bool(after_ms):
        raise InvalidArgument(
            sentence(
                "with a {dead_letter_queue}, exactly one of {dead_letter_max_receives} and {dead_letter_after_ms} must"
                " be set; they are {} and {}",
                receives,
                duration(after_ms),
            ),
            field="dead_letter_max_receives",
            value=receives,
            limit="one of the two set, the other 0",
        )


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
    sizes = [len(body) for body in bodies]
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
