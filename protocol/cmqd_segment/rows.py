"""A row of the log: the facts of one commit (or 64 KiB of it), as bytes and back.

``meta`` is the msgpack list of the row's records, ``data`` the bodies of its ``MessagesSent`` records side by side in
the order of the records, ``queues`` a summary of what was sent, so that a message is found without decoding ``meta``.
``meta_crc`` covers everything but ``data``: a reader that skips the bodies still checks all that it uses.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from cmqd_segment.records import AnyRecord, Headers, MessagesSent, Origin, StoredMessage

QueueSummary: TypeAlias = tuple[int, int, int, int]
"""(queue id, first position, stop position, bytes of bodies) of one queue's sends in a row. The positions of a queue
are dense over the log, so all between first and stop are in this row."""

Buffer: TypeAlias = bytes | memoryview

_FIXED = Struct("<QQQ")
_records = msgspec.msgpack.Decoder(list[AnyRecord])
_queues = msgspec.msgpack.Decoder(list[QueueSummary])
_encoder = msgspec.msgpack.Encoder()

encode_records = _encoder.encode
encode_queues = _encoder.encode
NO_QUEUES: bytes = encode_queues([])


def decode_records(meta: Buffer) -> list[AnyRecord]:
    """The records of a row. Raises msgspec.MsgspecError for what no version of the format has written."""
    return _records.decode(meta)


def decode_queues(queues: Buffer) -> list[QueueSummary]:
    """What was sent to which queue in a row."""
    return _queues.decode(queues)


def meta_checksum(lsn: int, time_ms: int, messages: int, queues: Buffer, meta: Buffer) -> int:
    """CRC-32 over the fixed columns (three little-endian u64), ``queues`` and ``meta``."""
    return crc32(meta, crc32(queues, crc32(_FIXED.pack(lsn, time_ms, messages))))


data_checksum = crc32


ORIGIN_BYTES = 128
"""Of an origin, about: a name, three numbers and a word."""


class Run(NamedTuple):
    """Messages of one queue that stand side by side in a row's data: the columns of one ``MessagesSent``."""

    first_position: int
    first_message_id: int
    enqueue_ms: int
    sizes: list[int]
    headers: list[Headers | None] | None
    visible_ms: int | list[int] | None
    offset: int
    """Where its first body begins in ``data``."""
    origins: list[Origin | None] | None = None

    @property
    def stop_position(self) -> int:
        """The position after the last."""
        return self.first_position + len(self.sizes)


def extra_bytes(headers: Headers | None, origin: Origin | None) -> int:
    """What a message has beside its body, in a page that is bounded: names and values as UTF-8, and its origin."""
    size = 0 if origin is None else ORIGIN_BYTES
    if headers:
        size += sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    return size


def sent_runs(records: Sequence[AnyRecord], queue_id: int | None = None) -> Iterator[tuple[int, Run]]:
    """``(queue id, run)`` of each send among a row's records, of one queue or of all, in the order of the records."""
    offset = 0
    for record in records:
        if type(record) is MessagesSent:
            if queue_id is None or record.queue_id == queue_id:
                yield (
                    record.queue_id,
                    Run(
                        record.first_position,
                        record.first_message_id,
                        record.enqueue_ms,
                        record.sizes,
                        record.headers,
                        record.visible_ms,
                        offset,
                        record.origins,
                    ),
                )
            offset += sum(record.sizes)


def stored_messages(run: Run, data: bytes) -> list[StoredMessage]:
    """The messages of a run whose first body begins at ``run.offset`` of ``data``."""
    position, message_id, enqueue_ms, sizes, headers, visible_ms, offset, origins = run
    messages: list[StoredMessage] = []
    append = messages.append
    if headers is None and visible_ms is None and origins is None:
        for size in sizes:
            stop = offset + size
            append(StoredMessage(position, message_id, enqueue_ms, data[offset:stop]))
            position += 1
            message_id += 1
            offset = stop
        return messages
    for index, size in enumerate(sizes):
        stop = offset + size
        append(
            StoredMessage(
                position + index,
                message_id + index,
                enqueue_ms,
                data[offset:stop],
                None if headers is None else headers[index],
                0 if visible_ms is None else visible_ms if isinstance(visible_ms, int) else visible_ms[index],
                None if origins is None else origins[index],
            )
        )
        offset = stop
    return messages
