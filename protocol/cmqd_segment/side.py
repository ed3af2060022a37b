"""The side file of a sealed segment: what readers would otherwise open the segment for.

    file = magic | u32 bytes of part one | u32 bytes of part two | u32 CRC-32 of all before | part one | part two
    part = u32 length of the payload | u32 CRC-32 of the payload | payload (msgpack)          all little-endian

Part one is for plans: ids of messages, names and sizes of queues and topics, the sparse index. Part two is for the life
of a message: the positions and leases that the rows name (``cmqd_reading.naming``). The head has the length of part
one, so a reader of a URL fetches the begin of the file alone.

The file repeats facts of its segment, and is made anew if it is missing or damaged. It has the SHA-256 of its segment:
a side file of another segment under the same name is found without reading the segment.

Facts of queues and topics are columns, a list for each kind of fact. An entry for each of thousands of queues would
have heads of its own, and would be an object for every reader that asks for a single queue. Files of the first form
(``CMQDSID1``) have such entries, and are read.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby, repeat
from operator import sub
from struct import Struct
from typing import Any, Final, TypeVar

import msgspec

from cmqd_segment.checksums import crc32
from cmqd_segment.manifest import SourceName
from cmqd_segment.newer import NewerFormatError, tag_of
from cmqd_segment.sparse import SparseQueue

MAGIC: Final = b"CMQDSID2"
_FIRST_MAGIC: Final = b"CMQDSID1"
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


def _steps(numbers: Sequence[int]) -> list[int]:
    # Distances take a byte or two in msgpack, the numbers themselves five.
    return [*numbers[:1], *map(sub, numbers[1:], numbers)]


class SideEntries(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Entries behind the first in the sparse index of a queue or topic, as distances from the entry before."""

    index: int
    """Of the queue or topic in the columns."""
    position_steps: list[int]
    lsn_steps: list[int]


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
    """Part one. Lists without other text have a number for each queue and topic with messages in the segment."""

    base_lsn: int
    """Row from which ``lsns`` count."""
    ids: list[int]
    """The first id, then the distance of each from the one before."""
    names: list[str | None]
    """None = the name is lost."""
    accounts: list[str]
    """Different accounts."""
    account_runs: list[int]
    """For neighbours with the same account: their number, and the index of their account in ``accounts``."""
    topics: list[int]
    """Indexes of the topics."""
    messages: list[int]
    bytes: list[int]
    """Of the bodies."""
    first_positions: list[int]
    """Each is also the position of the first entry of the sparse index."""
    lsns: list[int]
    """Row of the first entry of the sparse index."""
    further: list[SideEntries]
    """Further entries of the sparse index, of queues and topics with more than a single entry."""

    @property
    def sources(self) -> list[SideSource]:
        """The queues and topics with messages in the segment, ascending by id, made at each call."""
        topics = set(self.topics)
        counts = iter(self.account_runs)
        accounts = chain.from_iterable(repeat(self.accounts[next(counts)], count) for count in counts)
        further = {each.index: each for each in self.further}
        return [
            SideSource(
                number,
                None if name is None else account,
                name,
                None if name is None else index in topics,
                messages,
                bytes_,
                first,
                [first, *further[index].position_steps] if index in further else [first],
                [self.base_lsn + lsn, *further[index].lsn_steps] if index in further else [self.base_lsn + lsn],
            )
            for index, (number, account, name, messages, bytes_, first, lsn) in enumerate(
                zip(
                    accumulate(self.ids),
                    accounts,
                    self.names,
                    self.messages,
                    self.bytes,
                    self.first_positions,
                    self.lsns,
                    strict=True,
                )
            )
        ]


def side_plan(
    segment: int,
    sha256: str,
    message_ids: tuple[int | None, int | None],
    queues: Sequence[tuple[int, SparseQueue]],
    names: Mapping[int, SourceName],
) -> SidePlan:
    """Return part one of a segment.

    Args:
        segment: number of the segment.
        sha256: of the segment.
        message_ids: lowest and highest id of the stored messages.
        queues: the sparse index, ascending by id.
        names: the known names, by id.
    """
    each = [names.get(number) for number, _ in queues]
    owners = ["" if name is None else name.account for name in each]
    accounts = list(dict.fromkeys(owners))
    index_of = {account: index for index, account in enumerate(accounts)}
    lsns = [queue.lsns[0] for _, queue in queues]
    base_lsn = min(lsns, default=0)
    return SidePlan(
        segment,
        sha256,
        *message_ids,
        base_lsn,
        _steps([number for number, _ in queues]),
        [None if name is None else name.name for name in each],
        accounts,
        [value for account, run in groupby(owners) for value in (len(list(run)), index_of[account])],
        [index for index, name in enumerate(each) if name is not None and name.is_topic],
        [queue.stop_position - queue.first_position for _, queue in queues],
        [queue.bytes for _, queue in queues],
        [queue.first_position for _, queue in queues],
        [lsn - base_lsn for lsn in lsns],
        [
            SideEntries(index, _steps(queue.positions)[1:], _steps(queue.lsns)[1:])
            for index, (_, queue) in enumerate(queues)
            if len(queue.lsns) > 1
        ],
    )


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
    """A queue or topic of which records name positions that the segment does not store, or ranges."""

    id: int
    positions: bytes
    """A portable 64-bit roaring bitmap, empty bytes = none."""
    ranges: list[SideRange]
    """In the order of the log."""


class SideHistory(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Part two."""

    leases: bytes
    """All leases that the rows name: a bitmap as ``SideNamed.positions``."""
    ids: list[int]
    """Queues and topics with messages in the segment, as ``SidePlan.ids``. The next two lists match it."""
    first_positions: list[int]
    messages: list[int]
    """All positions from the first on, as many, are stored in the segment."""
    named: list[SideNamed]
    """Ascending by id."""

    def stores(self, number: int, position: int) -> bool:
        """Return whether the segment stores a message of a queue or topic."""
        ids = list(accumulate(self.ids))
        index = bisect_left(ids, number)
        if index == len(ids) or ids[index] != number:
            return False
        return 0 <= position - self.first_positions[index] < self.messages[index]

    def stored(self) -> Iterator[tuple[int, int, int]]:
        """Yield id, first position and stop position of each queue and topic with messages in the segment."""
        for number, first, messages in zip(accumulate(self.ids), self.first_positions, self.messages, strict=True):
            yield number, first, first + messages


def side_history(leases: bytes, stored: Iterable[tuple[int, int, int]], named: Iterable[SideNamed]) -> SideHistory:
    """Return part two; ``stored``: id, first position and stop position of each queue and topic with messages."""
    ordered = sorted(stored)
    return SideHistory(
        leases,
        _steps([number for number, _, _ in ordered]),
        [first for _, first, _ in ordered],
        [stop - first for _, first, stop in ordered],
        sorted(named, key=lambda each: each.id),
    )


class _FirstPlan(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Part one of a file of the first form."""

    segment: int
    sha256: str
    lowest_message_id: int | None
    highest_message_id: int | None
    sources: list[SideSource]

    def current(self) -> SidePlan:
        """Return the part in the present form."""
        names = {each.id: name for each in self.sources if (name := each.source_name) is not None}
        ids = self.lowest_message_id, self.highest_message_id
        return side_plan(self.segment, self.sha256, ids, [(each.id, each.sparse()) for each in self.sources], names)


class _FirstNamed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of ``_FirstHistory``: of a queue or topic, with or without messages in the segment."""

    id: int
    first_position: int
    stop_position: int
    positions: bytes
    ranges: list[SideRange]


class _FirstHistory(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Part two of a file of the first form."""

    leases: bytes
    named: list[_FirstNamed]

    def current(self) -> SideHistory:
        """Return the part in the present form."""
        return side_history(
            self.leases,
            [
                (each.id, each.first_position, each.stop_position)
                for each in self.named
                if each.first_position < each.stop_position
            ],
            [SideNamed(each.id, each.positions, each.ranges) for each in self.named if each.positions or each.ranges],
        )


_AnyPart = TypeVar("_AnyPart", bound=msgspec.Struct)
_AnyIds = TypeVar("_AnyIds", SideIds, SidePlan)
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
    return HEAD_BYTES + _head(data)[1]


def decode_plan(data: bytes | memoryview) -> SidePlan:
    """Return part one of a file, which may end behind it. Raises as ``decode_side``."""
    is_first, plan_bytes, _ = _head(data)
    return _plan(memoryview(data)[HEAD_BYTES : HEAD_BYTES + plan_bytes], plan_bytes, is_first)


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


def _both(data: bytes | memoryview, kind: type[_AnyIds]) -> tuple[_AnyIds, SideHistory]:
    is_first, plan_bytes, history_bytes = _head(data)
    view = memoryview(data)[HEAD_BYTES:]
    if len(view) != plan_bytes + history_bytes:
        raise SideError(f"the side file has {len(data)} bytes instead of {HEAD_BYTES + plan_bytes + history_bytes}")
    # The begin of part one is the same in both forms.
    ids: Any = (_plan if kind is SidePlan else _ids)(view[:plan_bytes], plan_bytes, is_first)
    frame = view[plan_bytes:]
    if is_first:
        return ids, _part(frame, _FirstHistory, history_bytes).current()
    history = _part(frame, SideHistory, history_bytes)
    if not len(history.ids) == len(history.first_positions) == len(history.messages):
        raise SideError("the columns of part 2 of the side file have different lengths")
    return ids, history


def _ids(frame: memoryview, size: int, _is_first: bool) -> SideIds:
    return _part(frame, SideIds, size)


def _plan(frame: memoryview, size: int, is_first: bool) -> SidePlan:
    if is_first:
        try:
            return _part(frame, _FirstPlan, size).current()
        except (IndexError, OverflowError) as error:
            raise SideError(f"a part of the side file cannot be decoded: {error}") from error
    plan = _part(frame, SidePlan, size)
    columns: list[list[Any]] = [plan.names, plan.messages, plan.bytes, plan.first_positions, plan.lsns]
    places = plan.account_runs[1::2]
    if (
        any(len(column) != len(plan.ids) for column in columns)
        or sum(plan.account_runs[::2]) != len(plan.ids)
        or len(plan.account_runs) % 2
        or min(plan.account_runs, default=0) < 0
        or max(places, default=-1) >= len(plan.accounts)
    ):
        raise SideError("the columns of part 1 of the side file have different lengths")
    return plan


def _head(data: bytes | memoryview) -> tuple[bool, int, int]:
    """Return whether the file has the first form, and the bytes of both parts."""
    if len(data) < HEAD_BYTES:
        raise SideError("the side file ends inside its head")
    magic, plan_bytes, history_bytes = _HEAD.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _HEAD.size)
    if crc32(memoryview(data)[: _HEAD.size]) != checksum:
        raise SideError("the head of the side file does not match its checksum")
    if magic not in (_FIRST_MAGIC, MAGIC):
        if magic[:-1] == MAGIC[:-1] and magic > MAGIC:
            raise NewerFormatError("the side file has a format that this version does not know")
        raise SideError("the file does not begin as a side file")
    return magic == _FIRST_MAGIC, plan_bytes, history_bytes


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
