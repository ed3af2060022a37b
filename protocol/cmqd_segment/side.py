"""The side file of a sealed segment: what readers would otherwise open the segment for.

    file = magic | u32 bytes of part one | u32 bytes of part two | u32 CRC-32 of all before | part one | part two
    part = u32 length of the payload | u32 CRC-32 of the payload | payload (msgpack)          all little-endian

Part one is for plans: ids of messages, names and sizes of queues and topics, the sparse index. Part two is for the life
of a message: the positions and leases that the rows name (``cmqd_reading.naming``). The head has the length of part
one, so a reader of a URL fetches the begin of the file alone.

The file repeats facts of its segment, and is made anew if it is missing or damaged. It has the SHA-256 of its segment:
a side file of another segment under the same name is found without reading the segment.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import Final, TypeAlias, TypeVar
from zlib import crc32

import msgspec

from cmqd_segment.manifest import SourceName
from cmqd_segment.newer import NewerFormatError, tag_of
from cmqd_segment.sparse import SparseQueue

MAGIC: Final = b"CMQDSID1"
_HEAD: Final = Struct("<8sII")
_CHECKSUM: Final = Struct("<I")
_FRAME: Final = Struct("<II")
HEAD_BYTES: Final = _HEAD.size + _CHECKSUM.size
LIKELY_PLAN_BYTES: Final = 64 * 1024
"""Bytes from the begin of a file that have the whole of part one, unless the segment has very many queues."""


class SideError(Exception):
    """The file is not a whole, undamaged side file of its segment."""


class SideSource(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue or topic with messages in the segment: its rows of the tables ``names`` and ``sparse``."""

    id: int
    account: str | None
    """None, as ``name`` and ``is_topic``, if the name is lost."""
    name: str | None
    is_topic: bool | None
    messages: int
    bytes: int
    """Of the bodies."""
    first_position: int
    position_steps: list[int]
    """The positions of the sparse index: the first, then the distance of each from the one before."""
    lsn_steps: list[int]
    """The rows of the sparse index, in the same form."""

    @property
    def source_name(self) -> SourceName | None:
        """Name of the queue or topic, None if it is lost."""
        if self.account is None or self.name is None or self.is_topic is None:
            return None
        return SourceName(self.id, self.account, self.name, self.is_topic)

    def sparse(self) -> SparseQueue:
        """Return the entries of the sparse index."""
        queue = SparseQueue(self.first_position)
        queue.stop_position = self.first_position + self.messages
        queue.bytes = self.bytes
        queue.positions.extend(accumulate(self.position_steps))
        queue.lsns.extend(accumulate(self.lsn_steps))
        return queue


def side_source(number: int, name: SourceName | None, queue: SparseQueue) -> SideSource:
    """Return the entry of a queue or topic."""
    account, text, is_topic = (None, None, None) if name is None else (name.account, name.name, name.is_topic)
    return SideSource(
        number,
        account,
        text,
        is_topic,
        queue.messages,
        queue.bytes,
        queue.first_position,
        _steps(queue.positions),
        _steps(queue.lsns),
    )


def _steps(numbers: Sequence[int]) -> list[int]:
    # Distances take a byte or two in msgpack, the numbers themselves five.
    return [*numbers[:1], *(after - before for before, after in pairwise(numbers))]


class SideIds(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The begin of part one, which a search for a message needs: the rest takes most of the time of a decoder."""

    segment: int
    """Number of the segment."""
    sha256: str
    """Of the segment, as in the manifest."""
    lowest_message_id: int | None
    """Of the messages that the rows store, in queues and in topics; None without messages."""
    highest_message_id: int | None

    def may_store(self, message_id: int) -> bool:
        """Return False if no row of the segment stores a message of this id."""
        low, high = self.lowest_message_id, self.highest_message_id
        return low is not None and high is not None and low <= message_id <= high


class SidePlan(SideIds, frozen=True, array_like=True, tag=1):
    """Part one."""

    sources: list[SideSource]
    """Every queue and topic with messages in the segment, ascending by id."""


class SideRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record that names a floor or a range of positions, and so every message in the range."""

    tag: int
    """Of the record."""
    lsn: int
    """Row of the record."""
    first: int
    stop: int | None
    """Position behind the range; None = without end."""


class SideNamed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue or topic that the rows name, with or without messages in the segment."""

    id: int
    first_position: int
    stop_position: int
    """All positions from the first to below stop are stored in the segment; equal = none is."""
    positions: bytes
    """Named by records: a portable 64-bit roaring bitmap, empty bytes = none. May lack positions that the segment
    stores."""
    ranges: list[SideRange]
    """In the order of the log."""


class SideHistory(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Part two."""

    leases: bytes
    """All leases that the rows name: a bitmap as ``SideNamed.positions``."""
    named: list[SideNamed]
    """Ascending by id."""


Part: TypeAlias = SidePlan | SideHistory
_AnyPart = TypeVar("_AnyPart", SideIds, SidePlan, SideHistory)
_encoder = msgspec.msgpack.Encoder()


def encode_side(plan: SidePlan, history: SideHistory) -> bytes:
    """Return the content of a side file."""
    parts = [_framed(_encoder.encode(part)) for part in (plan, history)]
    head = _HEAD.pack(MAGIC, *map(len, parts))
    return b"".join((head, _CHECKSUM.pack(crc32(head)), *parts))


def _framed(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), crc32(payload)) + payload


def plan_stop(data: bytes | memoryview) -> int:
    """Return the number of bytes up to the end of part one, by the first ``HEAD_BYTES`` of a file.

    Raises:
        SideError: the bytes are not the begin of a side file.
        NewerFormatError: a newer version wrote the file.
    """
    return HEAD_BYTES + _lengths(data)[0]


def decode_plan(data: bytes | memoryview) -> SidePlan:
    """Return part one of a file, which may end behind it. Raises as ``decode_side``."""
    stop = plan_stop(data)
    return _part(memoryview(data)[HEAD_BYTES:stop], SidePlan, stop - HEAD_BYTES)


def decode_side(data: bytes | memoryview) -> tuple[SidePlan, SideHistory]:
    """Return both parts of a file.

    Raises:
        SideError: the file is not whole, or damaged.
        NewerFormatError: a newer version wrote the file.
    """
    return _both(data, SidePlan)


def decode_named(data: bytes | memoryview) -> tuple[SideIds, SideHistory]:
    """Return the parts of a file that a search for a message needs. Raises as ``decode_side``."""
    return _both(data, SideIds)


def _both(data: bytes | memoryview, kind: type[_AnyPart]) -> tuple[_AnyPart, SideHistory]:
    plan_bytes, history_bytes = _lengths(data)
    view = memoryview(data)[HEAD_BYTES:]
    if len(view) != plan_bytes + history_bytes:
        raise SideError(f"the side file has {len(data)} bytes instead of {HEAD_BYTES + plan_bytes + history_bytes}")
    first = _part(view[:plan_bytes], kind, plan_bytes)
    return first, _part(view[plan_bytes:], SideHistory, history_bytes)


def _lengths(data: bytes | memoryview) -> tuple[int, int]:
    if len(data) < HEAD_BYTES:
        raise SideError("the side file ends inside its head")
    magic, plan_bytes, history_bytes = _HEAD.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _HEAD.size)
    if crc32(memoryview(data)[: _HEAD.size]) != checksum:
        raise SideError("the head of the side file does not match its checksum")
    if magic != MAGIC:
        if magic[:-1] == MAGIC[:-1] and magic > MAGIC:
            raise NewerFormatError("the side file has a format that this version does not know")
        raise SideError("the file does not begin as a side file")
    return plan_bytes, history_bytes


def _part(frame: memoryview, kind: type[_AnyPart], size: int) -> _AnyPart:
    payload = frame[_FRAME.size :]
    if len(frame) != size or size < _FRAME.size or _FRAME.unpack_from(frame) != (len(payload), crc32(payload)):
        raise SideError(f"part {kind.__struct_config__.tag} of the side file does not match its checksum")
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.MsgspecError as error:
        if len(payload) > 1 and tag_of(payload) != kind.__struct_config__.tag:
            raise NewerFormatError("the side file holds a part that this version does not know") from None
        raise SideError(f"a part of the side file cannot be decoded: {error}") from error


def check_segment(plan: SideIds, number: int, sha256: str) -> None:
    """Check that a side file is of this segment. Raises SideError."""
    if (plan.segment, plan.sha256) != (number, sha256):
        raise SideError(f"the side file belongs to another file than the sealed segment {number}")


def names_in(plans: Iterable[SidePlan]) -> list[SourceName]:
    """Return all names in side files."""
    return [name for plan in plans for source in plan.sources if (name := source.source_name) is not None]
