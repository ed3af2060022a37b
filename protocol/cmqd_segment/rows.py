"""A row of the log: the facts of one commit (or 64 KiB of facts), as bytes and back.

``meta`` is the msgpack list of the row's records. ``data`` holds the bodies of its ``MessagesSent`` and
``MessagesPublished`` records in the order of the records. ``queues`` is a summary of the positions by queue, so that a
reader finds a message without decoding ``meta``. A published message is in ``data`` once, and is found there by the
topic and by every queue with a copy; topics and queues have distinct ids, so one search serves both. ``meta_crc``
covers everything but ``data``: a reader that skips the bodies still checks the bytes it uses.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, count, repeat
from struct import Struct
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from cmqd_segment.checksums import crc32
from cmqd_segment.newer import known_tags, raise_if_newer, raw_items
from cmqd_segment.published import copy_counts, id_stretches, set_ranges, unpack_set
from cmqd_segment.records import AnyRecord, MessagesPublished, MessagesSent, StoredMessage
from cmqd_types.messages import CopyOf, Headers, Labels, Origin

QueueSummary: TypeAlias = tuple[int, int, int, int]
"""(queue or topic id, first position, stop position, bytes of bodies) of one queue or topic in a row. Positions are
dense over the log, so all positions between first and stop are in this row."""

Buffer: TypeAlias = bytes | memoryview
T = TypeVar("T")

_FIXED = Struct("<QQQ")
_records = msgspec.msgpack.Decoder(list[AnyRecord])
_RECORD_TAGS = known_tags(AnyRecord)
_queues = msgspec.msgpack.Decoder(list[QueueSummary])
_encoder = msgspec.msgpack.Encoder()

encode_records = _encoder.encode
encode_queues = _encoder.encode
NO_QUEUES: bytes = encode_queues([])


def join_records(lists: Sequence[bytes], count: int) -> bytes:
    """Join encoded lists with ``count`` records in total; the bytes equal those of a single list."""
    if count < 16:
        head = bytes((0x90 | count,))
    elif count < 0x10000:
        head = b"\xdc" + count.to_bytes(2, "big")
    else:
        head = b"\xdd" + count.to_bytes(4, "big")
    # The first byte of a list tells how long its own head is: 1 byte (fixarray), 3 (array 16) or 5 (array 32).
    return head + b"".join(
        [encoded[1:] if encoded[0] < 0xA0 else encoded[3 if encoded[0] == 0xDC else 5 :] for encoded in lists]
    )


def decode_records(meta: Buffer) -> list[AnyRecord]:
    """Decode the records of a row with a correct checksum.

    Raises:
        NewerFormatError: a record has a tag that this version does not know.
        msgspec.MsgspecError: the bytes are not records of any version.
    """
    try:
        return _records.decode(meta)
    except msgspec.ValidationError:
        raise_if_newer("row holds records", map(memoryview, raw_items(meta)), _RECORD_TAGS)
        raise


def decode_queues(queues: Buffer) -> list[QueueSummary]:
    """Decode the summary of a row: ranges of positions by queue and topic."""
    return _queues.decode(queues)


def meta_checksum(lsn: int, time_ms: int, messages: int, queues: Buffer, meta: Buffer) -> int:
    """CRC-32 over the fixed columns (three little-endian u64), ``queues`` and ``meta``."""
    return crc32(meta, crc32(queues, crc32(_FIXED.pack(lsn, time_ms, messages))))


data_checksum = crc32


ORIGIN_BYTES = 128
"""Of an origin, about: a name, three numbers and a word."""
COPY_BYTES = 24
"""Estimated bytes of a ``CopyOf`` beside names and labels: two numbers, and the encoding."""


class Source(NamedTuple):
    """The original of the copies of one publish in one queue, said once for all copies."""

    topic: str
    subscription: str
    first_message_id: int
    """Id of the original of the run's first message."""


class Run(NamedTuple):
    """Messages of one queue or topic with adjacent bodies in a row's data: the columns of one record."""

    first_position: int
    first_message_id: int
    enqueue_ms: int
    sizes: list[int]
    headers: list[Headers | None] | None
    visible_ms: int | list[int] | None
    offset: int
    """Where its first body begins in ``data``."""
    origins: list[Origin | None] | None = None
    labels: list[Labels] | None = None
    """Labels of published messages, for the topic and for copies: a single entry for all messages, or a list."""
    source: Source | None = None
    """Of copies that were made by the publish."""
    copies_of: list[CopyOf | None] | None = None
    """Of copies that came later, or that were moved."""

    @property
    def stop_position(self) -> int:
        """The position after the last."""
        return self.first_position + len(self.sizes)


def extra_bytes(
    headers: Headers | None, origin: Origin | None, labels: Labels | None = None, copy_of: CopyOf | None = None
) -> int:
    """Return the bytes of a message beside its body: names, values and labels as UTF-8, origin, original of a copy.

    Pages are bounded by them too: headers could otherwise make a page many times as large as its bodies.
    """
    size = 0 if origin is None else ORIGIN_BYTES + len(origin.rejection.encode())
    if labels:
        size += labels_bytes(labels)
    if copy_of is not None:
        size += copy_bytes(copy_of)
    if headers:
        size += sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    return size


def labels_bytes(labels: Labels) -> int:
    """Bytes of tags or of a routing key, as UTF-8 in msgpack, at most."""
    if isinstance(labels, str):
        return 2 + len(labels.encode())
    return 1 + 2 * len(labels) + len("".join(labels).encode())


def copy_bytes(copy_of: CopyOf) -> int:
    """Return an upper bound of the bytes of a ``CopyOf``, in a page or a reply; names are ASCII."""
    size = COPY_BYTES + len(copy_of.topic) + len(copy_of.subscription)
    return size + labels_bytes(copy_of.labels) if copy_of.labels else size


def sent_runs(records: Sequence[AnyRecord], queue_id: int | None = None) -> Iterator[tuple[int, Run]]:
    """Yield ``(id, run)`` of each send among a row's records, of one queue or topic or of all, in the order of the
    records.

    A publish yields the run of its topic, then a run for every queue with copies.
    """
    offset = 0
    for record in records:
        if type(record) is MessagesSent:
            if queue_id is None or record.queue_id == queue_id:
                yield (
                    record.queue_id,
                    Run(
                        first_position=record.first_position,
                        first_message_id=record.first_message_id,
                        enqueue_ms=record.enqueue_ms,
                        sizes=record.sizes,
                        headers=record.headers,
                        visible_ms=record.visible_ms,
                        offset=offset,
                        origins=record.origins,
                        copies_of=record.copies_of,
                    ),
                )
            offset += sum(record.sizes)
        elif isinstance(record, MessagesPublished):
            published = PublishedRuns(record, offset)
            if queue_id is None or record.topic_id == queue_id:
                for run in published.topic_runs():
                    yield record.topic_id, run
            names = names_of(record)
            for place, target in enumerate(record.copies[::2]):
                if queue_id is None or target == queue_id:
                    for run in published.copy_runs(place, names[place]):
                        yield target, run
            offset += sum(record.sizes)


def names_of(record: MessagesPublished) -> list[str]:
    """Return the names of the subscriptions of a record's ``copies``; empty names if the record has none."""
    count = len(record.copies) // 2
    return record.subscriptions if len(record.subscriptions) == count else [""] * count


class PublishedRuns:
    """Runs of a ``MessagesPublished``: of its topic, and of each queue on request.

    A queue that takes scattered messages has a run for each stretch of neighbours, because the bodies of a run are
    adjacent.
    """

    __slots__ = (
        "_enqueue_ms",
        "_first_copy_ids",
        "_first_position",
        "_firsts",
        "_headers",
        "_labels",
        "_offset",
        "_sets",
        "_sizes",
        "_stretches",
        "_taken",
        "_topic",
    )

    def __init__(self, record: MessagesPublished, offset: int) -> None:
        """``offset``: where the first body stands in the row's data."""
        self._first_position = record.first_position
        self._enqueue_ms = record.enqueue_ms
        self._sizes = record.sizes
        self._headers = record.headers
        self._labels = record.labels
        self._topic = record.topic
        self._offset = offset
        self._stretches = id_stretches(record)
        self._firsts = array("Q", record.copies[1::2])
        # The record's other lists are not kept: a decoded row with 500 queues would be several times as large.
        self._sets = record.message_sets
        self._taken = array("H", record.taken)
        self._first_copy_ids: Sequence[int]
        if record.taken:
            self._first_copy_ids = array("Q", accumulate(copy_counts(record), initial=record.first_copy_id))
        else:
            count = len(record.sizes)
            self._first_copy_ids = range(record.first_copy_id, record.first_copy_id + count * len(self._firsts), count)

    @property
    def memory_bytes(self) -> int:
        """Memory beside the messages' own, about."""
        return 8 * len(self._firsts) + (10 * len(self._taken) + 72 * len(self._sets) if self._taken else 0)

    def topic_runs(self) -> list[Run]:
        """Return the messages as messages of their topic."""
        first = self._first_position
        return list(
            self._runs([(start, stop, first + start, first_id, None) for start, stop, first_id in self._stretches])
        )

    def copy_runs(self, place: int, subscription: str) -> list[Run]:
        """Return the copies in the queue at ``place`` of ``copies``, with the name of the subscription."""
        position, copy_id = self._firsts[place], self._first_copy_ids[place]
        pieces: list[tuple[int, int, int, int, Source | None]] = []
        messages = unpack_set(self._sets[self._taken[place]]) if self._taken else None
        for start, stop, first_id in self._stretches:
            if messages is None:
                ranges_taken = [(start, stop)]
            else:
                taken = messages >> start & (1 << stop - start) - 1
                ranges_taken = [(start + first, start + end) for first, end in set_ranges(taken)]
            for first, end in ranges_taken:
                source = Source(self._topic, subscription, first_id + first - start)
                pieces.append((first, end, position, copy_id, source))
                position += end - first
                copy_id += end - first
        return list(self._runs(pieces))

    def _runs(self, pieces: list[tuple[int, int, int, int, Source | None]]) -> Iterator[Run]:
        """Yield a run for each (first message, stop, position, id, source), ascending."""
        sizes, headers, labels = self._sizes, self._headers, self._labels
        offset, reached = self._offset, 0
        for start, stop, position, message_id, source in pieces:
            offset += sum(sizes[reached:start])
            run_sizes = sizes if stop - start == len(sizes) else sizes[start:stop]
            yield Run(
                first_position=position,
                first_message_id=message_id,
                enqueue_ms=self._enqueue_ms,
                sizes=run_sizes,
                headers=part_of(headers, start, stop),
                visible_ms=None,
                offset=offset,
                origins=None,
                labels=part_of(labels, start, stop),
                source=source,
            )
            offset += sum(run_sizes)
            reached = stop


def bodies_of(run: Run, data: bytes) -> list[bytes]:
    """Cut out the bodies of a run, which begin at ``run.offset`` of ``data``."""
    bodies: list[bytes] = []
    offset = run.offset
    for size in run.sizes:
        stop = offset + size
        bodies.append(data[offset:stop])
        offset = stop
    return bodies


def stored_messages(run: Run, data: bytes, bodies: Sequence[bytes] | None = None) -> list[StoredMessage]:
    """Make the messages of a run; the bodies begin at ``run.offset`` of ``data``.

    ``bodies``, if known, are not cut out again: copies in several queues share the bodies.
    """
    position, message_id, enqueue_ms, _, headers, visible_ms, _, origins, labels, source, copies_of = run
    if bodies is None:
        bodies = bodies_of(run, data)
    # Two short ways for runs of a message or two, of which a page of scattered messages has hundreds.
    if source is not None:
        topic, subscription, original_id = source
        labels_of = [None] * len(bodies) if labels is None else labels * len(bodies) if len(labels) == 1 else labels
        return [
            StoredMessage(
                position + index,
                message_id + index,
                enqueue_ms,
                body,
                None if headers is None else headers[index],
                0,
                None,
                None,
                CopyOf(topic, subscription, original_id + index, enqueue_ms, labels_of[index]),
            )
            for index, body in enumerate(bodies)
        ]
    if headers is None and visible_ms is None and origins is None and labels is None and copies_of is None:
        return [
            StoredMessage(position + index, message_id + index, enqueue_ms, body) for index, body in enumerate(bodies)
        ]
    return list(
        map(
            StoredMessage,
            count(position),
            count(message_id),
            repeat(enqueue_ms),
            bodies,
            _of_each(headers, None),
            repeat(visible_ms) if isinstance(visible_ms, int) else _of_each(visible_ms, 0),
            _of_each(origins, None),
            _of_each(labels, None),
            _of_each(copies_of, None),
        )
    )


def _of_each(values: Sequence[T] | None, absent: T) -> Iterable[T]:
    """Return a value for each message: of its own, the single value of all, or ``absent``."""
    if values is None:
        return repeat(absent)
    return repeat(values[0]) if len(values) == 1 else values


def part_of(values: list[T] | None, start: int, stop: int) -> list[T] | None:
    """Return the values of the messages from ``start`` to below ``stop`` of a run; a single value is that of all."""
    return values if values is None or len(values) in (1, stop - start) else values[start:stop]
