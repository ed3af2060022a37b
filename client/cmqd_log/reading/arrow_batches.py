"""Messages as columns: runs of neighbours go in, Arrow batches come out.

No message becomes a Python object. A value that neighbours share is repeated for the whole run, and the bodies of a run
are cut from the row's ``data`` as a single piece. Only values of Python types that differ from message to message
(headers, tags, origins) are built per message, and only in batches that have at least one.
"""

# pyspark and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cmqd_log.schema import COLUMNS
from cmqd_reading.states import State
from cmqd_segment.rows import Run
from cmqd_types.messages import CopyOf, printed_id

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TYPES: dict[str, pa.DataType] = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "timestamp": _TIMESTAMP,
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
_ORIGIN = pa.struct(
    [
        pa.field("queue", pa.string()),
        pa.field("msg_id", pa.string()),
        pa.field("enqueue_ts", _TIMESTAMP),
        pa.field("receive_count", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("rejection", pa.string()),
    ]
)
_COPY_OF = pa.struct([pa.field("msg_id", pa.string()), pa.field("publish_ts", _TIMESTAMP)])
_STRUCTS = {"origin": _ORIGIN, "copy_of": _COPY_OF}
_HEX = [f"{low:03x}" for low in range(4096)]
"""The last three digits of message ids: ids of neighbours differ in little else."""
_COUNT = array("i", range(4096))


def arrow_type(column: str, kinds: Mapping[str, str] = COLUMNS) -> pa.DataType:
    """Return the Arrow type of a column; ``kinds``: the columns of its table."""
    return _STRUCTS[column] if column in _STRUCTS else _TYPES[kinds[column]]


def schema_of(columns: Iterable[str], kinds: Mapping[str, str] = COLUMNS) -> "pa.Schema":
    """Return the Arrow schema of columns; ``kinds``: the columns of their table."""
    return pa.schema([pa.field(name, arrow_type(name, kinds)) for name in columns])


class Facts(NamedTuple):
    """Facts about a stretch of a run that the run itself does not hold."""

    lsn: int
    segment: str
    event: str
    queue: str | None
    topic: str | None
    ended_ms: int | None = None
    receive_count: int | None = None
    account: str | None = None
    as_of_lsn: int | None = None
    """The row of the log as of which ``event`` is the message's state."""
    dedup_ids: Sequence[str | None] | None = None
    """An entry for each message of the whole run."""
    sent_by: Sequence[str | None] = ()
    """The client: empty = not known, a single entry for all messages, or an entry for each message of the whole run."""
    received_by: str | None = None
    left_by: str | None = None
    queue_id: int = 0
    """Of a topic's own message: the id of the topic."""


class Batch:
    """Collects messages in the requested columns; :meth:`take` returns an Arrow batch and empties the columns."""

    def __init__(self, schema: "pa.Schema") -> None:
        self.schema = schema
        self.rows = 0
        self.bytes = 0
        """Bytes of the bodies, also if the column ``body`` is not requested."""
        names: list[str] = schema.names
        self._columns: list[_Column] = [_MAKERS[name]() for name in names]

    def append(self, facts: Facts, run: Run, data: bytes, first_index: int, start: int, stop: int) -> None:
        """Append messages ``start`` to below ``stop`` of a run; ``first_index``: the run's first ``row_index``."""
        for column in self._columns:
            column.append(facts, run, data, first_index, start, stop)
        self.rows += stop - start
        self.bytes += sum(run.sizes) if stop - start == len(run.sizes) else sum(run.sizes[start:stop])

    def take(self) -> "pa.RecordBatch":
        """Return the batch of all messages appended since the last call."""
        arrays = [column.take(self.rows) for column in self._columns]
        self.rows = self.bytes = 0
        # The requested schema, not the types of the arrays: Spark compares all of it, nullability included.
        return pa.RecordBatch.from_arrays(
            [
                each if each.type == field.type else each.cast(field.type)
                for each, field in zip(arrays, self.schema, strict=True)
            ],
            schema=self.schema,
        )


class _Column:
    """A column under construction; a subclass per kind of values."""

    def append(self, facts: Facts, run: Run, data: bytes, first_index: int, start: int, stop: int) -> None:
        raise NotImplementedError

    def take(self, rows: int) -> "pa.Array":
        raise NotImplementedError


class _Numbers(_Column):
    """Integers: equal for a whole run, or (in subclasses) ascending within the run."""

    def __init__(self, kind: str, arrow: "pa.DataType", value: Callable[[Facts, Run], int]) -> None:
        self._kind, self._arrow, self._value = kind, arrow, value
        self._values = array(kind)

    def append(self, facts: Facts, run: Run, data: bytes, first_index: int, start: int, stop: int) -> None:
        self._values += array(self._kind, (self._value(facts, run),)) * (stop - start)

    def take(self, rows: int) -> "pa.Array":
        values, self._values = self._values, array(self._kind)
        return pa.Array.from_buffers(self._arrow, rows, [None, pa.py_buffer(values)])


class _Indices(_Numbers):
    def __init__(self) -> None:
        super().__init__("i", pa.int32(), _lsn)

    def append(self, facts: Facts, run: Run, data: bytes, first_index: int, start: int, stop: int) -> None:
        low, high = first_index + start, first_index + stop
        self._values += _COUNT[low:high] if high <= len(_COUNT) else array("i", range(low, high))


class _Positions(_Numbers):
    def __init__(self) -> None:
        super().__init__("q", pa.int64(), _lsn)

    def append(self, facts: Facts, run: Run, data: bytes, first_index: int, start: int, stop: int) -> None:
        self._values += array("q", range(run.first_position + start, run.first_position + stop))


class _Texts(_Column):
    """Texts that are equal for a whole run: a dictionary of the few different texts, and an index per message."""

    def __init__(self, value: Callable[[Facts], str | None]) -> None:
        self._value = value
        self._known: dict[str | None, int] = {}
        self._indices = array("i")

    def append(self, facts: Facts, run: Run, data: bytes, first_index: int, start: int, stop: int) -> None:
        place = self._known.setdefault(self._value(facts), len(self._known))
        self._indices += array("i", (place,)) * (stop - start)

    def take(self, rows: int) -> "pa.Array":
        known, indices = self._known, self._indices
        self._known, self._indices = {}, array("i")
        if len(known) == 1:
            return pa.repeat(pa.scalar(next(iter(known)), pa.string()), rows)
        texts = pa.array(list(known), pa.string())
        return texts.take(pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(indices)]))


class _Senders(_Texts):
    """Texts of clients: a record joins the sends of several."""

    def __init__(self) -> None:
        super().__init__(lambda facts: facts.sent_by[0] if facts.sent_by else None)

    def append(self, facts: Facts, run: Run, data: bytes, first_index: int, start: int, stop: int) -> None:
        if len(facts.sent_by) < 2:
            super().append(facts, run, data, first_index, start, stop)
            return
        known = self._known
        self._indices.extend(known.setdefault(text, len(known)) for text in facts.sent_by[start:stop])


class _TextsOfCopies(_Texts):
    """Texts about the published message of a copy. Late or moved copies can have different ones within a run."""

    def __init__(self, common: Callable[[Facts, Run], str | None], of_copy: Callable[[CopyOf], str]) -> None:
        super().__init__(lambda facts: None)
        self._common, self._of_copy = common, of_copy

    def append(self, facts: Facts, run: Run, data: bytes, first_index: int, start: int, stop: int) -> None:
        known = self._known
        common = self._common(facts, run)
        if run.copies_of is None:
            self._indices += array("i", (known.setdefault(common, len(known)),)) * (stop - start)
            return
        for copy_of in run.copies_of[start:stop]:
            text = common if copy_of is None else self._of_copy(copy_of)
            self._indices.append(known.setdefault(text, len(known)))


class _Ids(_Column):
    """Message ids as text of a fixed length, so that the offsets are known."""

    WIDTH = len(printed_id(0))

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._offsets = array("i", (0,))

    def append(self, facts: Facts, run: Run, data: bytes, first_index: int, start: int, stop: int) -> None:
        number, end = run.first_message_id + start, run.first_message_id + stop
        while number < end:
            low = number & 0xFFF
            high = min(0x1000, low + end - number)
            head = printed_id(number)[:-3]
            # A join per 4,096 ids: the head goes between the tails and before the first tail.
            self._texts.append(head + head.join(_HEX[low:high]))
            number += high - low

    def take(self, rows: int) -> "pa.Array":
        texts, self._texts = self._texts, []
        if len(self._offsets) <= rows:
            # Kept between batches: the ids have a fixed length, so a smaller batch uses the beginning of the offsets.
            self._offsets = array("i", range(0, rows * self.WIDTH + 1, self.WIDTH))
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer("".join(texts).encode("ascii"))]
        return pa.Array.from_buffers(pa.string(), rows, buffers)


class _Bodies(_Column):
    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []
        self._sizes = array("i", (0,))
        """Sizes of the bodies after a leading 0, so that the running sums are Arrow's offsets."""

    def append(self, facts: Facts, run: Run, data: bytes, first_index: int, start: int, stop: int) -> None:
        sizes = run.sizes
        begin = run.offset
        if stop - start < len(sizes):
            begin += sum(sizes[:start])
            sizes = sizes[start:stop]
        end = begin + sum(sizes)
        self._sizes += array("i", sizes)
        self._pieces.append(data if begin == 0 and end == len(data) else memoryview(data)[begin:end])

    def take(self, rows: int) -> "pa.Array":
        pieces, sizes = self._pieces, self._sizes
        self._pieces, self._sizes = [], array("i", (0,))
        counted = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(sizes)])
        offsets = pc.cumulative_sum_checked(counted).buffers()[1]  # pyright: ignore[reportAttributeAccessIssue]
        return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(b"".join(pieces))])


class _Objects(_Column):
    """Values that are Python objects and mostly missing; a batch without a value builds no list."""

    def __init__(self, arrow: "pa.DataType", values: "Callable[[Facts, Run, int, int], Iterable[Any] | None]") -> None:
        self._arrow, self._of = arrow, values
        self._values: list[Any] | None = None
        self._rows = 0

    def append(self, facts: Facts, run: Run, data: bytes, first_index: int, start: int, stop: int) -> None:
        values = self._of(facts, run, start, stop)
        if values is not None:
            if self._values is None:
                self._values = [None] * self._rows
            self._values.extend(values)
        elif self._values is not None:
            self._values.extend([None] * (stop - start))
        self._rows += stop - start

    def take(self, rows: int) -> "pa.Array":
        values, self._values, self._rows = self._values, None, 0
        return pa.nulls(rows, self._arrow) if values is None else pa.array(values, self._arrow)


def _lsn(facts: Facts, run: Run) -> int:
    return facts.lsn


def _queue_id(facts: Facts, run: Run) -> int:
    return facts.queue_id


def _enqueued(facts: Facts, run: Run) -> int:
    return run.enqueue_ms * 1000


def _tags(facts: Facts, run: Run, start: int, stop: int) -> Iterable[Any] | None:
    return _labels(run, start, stop, list)


def _routing_keys(facts: Facts, run: Run, start: int, stop: int) -> Iterable[Any] | None:
    return _labels(run, start, stop, str)


def _labels(run: Run, start: int, stop: int, kind: type) -> Iterable[Any] | None:
    labels: Sequence[Any] | None = run.labels
    if not labels:
        return None
    if len(labels) == 1:
        return [labels[0]] * (stop - start) if isinstance(labels[0], kind) else None
    return [label if isinstance(label, kind) else None for label in labels[start:stop]]


def _headers(facts: Facts, run: Run, start: int, stop: int) -> Iterable[Any] | None:
    if run.headers is None:
        return None
    return [None if headers is None else list(headers.items()) for headers in run.headers[start:stop]]


def _visible(facts: Facts, run: Run, start: int, stop: int) -> Iterable[Any] | None:
    visible_ms = run.visible_ms
    if visible_ms is None:
        return None
    if isinstance(visible_ms, int):
        return [visible_ms * 1000] * (stop - start) if visible_ms > run.enqueue_ms else None
    return [at_ms * 1000 if at_ms > run.enqueue_ms else None for at_ms in visible_ms[start:stop]]


def _deleted(facts: Facts, run: Run, start: int, stop: int) -> Iterable[Any] | None:
    return _ended(facts, run, start, stop) if facts.event == State.DELETED else None


def _ended(facts: Facts, run: Run, start: int, stop: int) -> Iterable[Any] | None:
    return None if facts.ended_ms is None else [facts.ended_ms * 1000] * (stop - start)


def _receive_counts(facts: Facts, run: Run, start: int, stop: int) -> Iterable[Any] | None:
    return None if facts.receive_count is None else [facts.receive_count] * (stop - start)


def _origins(facts: Facts, run: Run, start: int, stop: int) -> Iterable[Any] | None:
    if run.origins is None:
        return None
    return [
        None
        if origin is None
        else {
            "queue": origin.queue,
            "msg_id": printed_id(origin.message_id),
            "enqueue_ts": origin.enqueue_ms * 1000,
            "receive_count": origin.receive_count,
            "reason": origin.reason,
            "rejection": origin.rejection or None,
        }
        for origin in run.origins[start:stop]
    ]


def _copies_of(facts: Facts, run: Run, start: int, stop: int) -> Iterable[Any] | None:
    source = run.source
    if source is not None:
        first_id, publish_us = source.first_message_id, run.enqueue_ms * 1000
        return [{"msg_id": printed_id(first_id + place), "publish_ts": publish_us} for place in range(start, stop)]
    if run.copies_of is None:
        return None
    return [
        None if copy_of is None else {"msg_id": printed_id(copy_of.message_id), "publish_ts": copy_of.publish_ms * 1000}
        for copy_of in run.copies_of[start:stop]
    ]


def _topic(facts: Facts, run: Run) -> str | None:
    # The record of a publish names its topic, also when all other records with the name were reclaimed.
    return facts.topic or (run.source.topic or None if run.source is not None else None)


def _subscription(facts: Facts, run: Run) -> str | None:
    return run.source.subscription or None if run.source is not None else None


def _dedup_ids(facts: Facts, run: Run, start: int, stop: int) -> Iterable[Any] | None:
    return None if facts.dedup_ids is None else facts.dedup_ids[start:stop]


def _as_of_lsns(facts: Facts, run: Run, start: int, stop: int) -> Iterable[Any] | None:
    return None if facts.as_of_lsn is None else [facts.as_of_lsn] * (stop - start)


_MAKERS: dict[str, Callable[[], _Column]] = {
    "lsn": lambda: _Numbers("q", pa.int64(), _lsn),
    "row_index": _Indices,
    "segment": lambda: _Texts(lambda facts: facts.segment),
    "event": lambda: _Texts(lambda facts: facts.event),
    "queue": lambda: _Texts(lambda facts: facts.queue),
    "topic": lambda: _TextsOfCopies(_topic, lambda copy_of: copy_of.topic),
    "msg_id": _Ids,
    "body": _Bodies,
    "tags": lambda: _Objects(arrow_type("tags"), _tags),
    "routing_key": lambda: _Objects(arrow_type("routing_key"), _routing_keys),
    "headers": lambda: _Objects(arrow_type("headers"), _headers),
    "enqueue_ts": lambda: _Numbers("q", _TIMESTAMP, _enqueued),
    "visible_ts": lambda: _Objects(_TIMESTAMP, _visible),
    "deleted_ts": lambda: _Objects(_TIMESTAMP, _deleted),
    "receive_count": lambda: _Objects(pa.int32(), _receive_counts),
    "origin": lambda: _Objects(_ORIGIN, _origins),
    "account": lambda: _Texts(lambda facts: facts.account),
    "subscription": lambda: _TextsOfCopies(_subscription, lambda copy_of: copy_of.subscription),
    "copy_of": lambda: _Objects(_COPY_OF, _copies_of),
    "dedup_id": lambda: _Objects(pa.string(), _dedup_ids),
    "position": _Positions,
    "as_of_lsn": lambda: _Objects(pa.int64(), _as_of_lsns),
    "sent_by": _Senders,
    "received_by": lambda: _Texts(lambda facts: facts.received_by),
    "left_by": lambda: _Texts(lambda facts: facts.left_by),
    "queue_id": lambda: _Numbers("q", pa.int64(), _queue_id),
    "ended_ts": lambda: _Objects(_TIMESTAMP, _ended),
}
