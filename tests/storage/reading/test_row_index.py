"""The sparse index of a segment, and the summaries of its rows."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd.storage.reading.decoded_row import Audiences
from cmqd.storage.reading.row_summaries import Summaries, Summary, summary_of
from cmqd.storage.reading.segment_reader import is_damage
from cmqd_segment.rows import (
    encode_queues,
)
from cmqd_segment.schema import SegmentFormatError
from cmqd_segment.sparse import (
    BYTES_PER_ENTRY,
    MESSAGES_PER_ENTRY,
    LsnRange,
    SparseIndex,
    pack_u64,
    sparse_queue,
    unpack_u64,
)


class Rows:
    """Rows of a queue, and the requested rows."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.audiences = Audiences()
        self.whole = True

    async def fetch(self, span: LsnRange) -> tuple[list[Summary], bool]:
        self.asked.append(span)
        summaries = [
            summary_of(lsn, encode_queues([[7, lsn, lsn + 1, 5]]), 5, self.audiences)
            for lsn in range(span.first, span.last + 1)
        ]
        return summaries, self.whole


async def test_a_block_is_read_once_and_then_only_what_came_behind_it() -> None:
    rows = Rows()
    summaries = Summaries()

    span, found = await summaries.block(1, 70, 80, rows.fetch)
    assert span == (64, 80)
    assert [summary.of(7) for summary in found] == [(lsn, lsn + 1) for lsn in range(64, 81)]
    assert found[0].of(8) is None
    await summaries.block(1, 64, 80, rows.fetch)
    _, found = await summaries.block(1, 64, 500, rows.fetch)
    assert [summary.lsn for summary in found] == list(range(64, 128))
    await summaries.block(2, 100, 500, rows.fetch)

    assert rows.asked == [(64, 80), (81, 127), (64, 127)], "another segment has other rows"


async def test_a_block_that_cannot_be_read_whole_is_read_again() -> None:
    rows = Rows()
    summaries = Summaries()
    rows.whole = False
    await summaries.block(1, 1, 500, rows.fetch)
    rows.whole = True
    await summaries.block(1, 1, 500, rows.fetch)
    await summaries.block(1, 1, 500, rows.fetch)

    assert rows.asked == [(0, 63), (0, 63)]


async def test_the_blocks_used_least_recently_are_forgotten() -> None:
    rows = Rows()
    summaries = Summaries(3 * 65 * 280)
    for lsn in (0, 64, 128, 0, 192):
        await summaries.block(1, lsn, 1000, rows.fetch)
    rows.asked.clear()

    for lsn in (0, 128, 192, 64):
        await summaries.block(1, lsn, 1000, rows.fetch)

    assert rows.asked == [(64, 127)]


def test_entries_come_every_256_messages() -> None:
    index = SparseIndex()
    for lsn in range(1, 1001):
        index.add_row(lsn, [(1, lsn - 1, lsn, 10)], 10)

    entries = index.queues[1]

    assert list(entries.positions) == list(range(0, 1000, MESSAGES_PER_ENTRY))
    assert (entries.first_position, entries.stop_position, entries.bytes) == (0, 1000, 10_000)


def test_entries_come_every_256_kib_of_log() -> None:
    index = SparseIndex()
    for lsn in range(1, 41):
        index.add_row(lsn, [(1, lsn - 1, lsn, 9)], BYTES_PER_ENTRY // 4)

    assert list(index.queues[1].lsns) == list(range(1, 41, 4))


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_every_message_is_among_the_rows_that_the_index_names(seed: int, rows: int) -> None:
    chance = random.Random(seed)
    index = SparseIndex()
    where: dict[tuple[int, int], int] = {}
    nexts = {1: 0, 2: 1 << 33, 3: 5}
    for lsn in range(100, 100 + rows):
        queues: list[tuple[int, int, int, int]] = []
        for queue_id in chance.sample(list(nexts), chance.randint(0, 3)):
            first = nexts[queue_id]
            stop = nexts[queue_id] = first + chance.choice([1, 16, 300])
            queues.append((queue_id, first, stop, stop - first))
            where |= {(queue_id, position): lsn for position in (first, stop - 1)}
        index.add_row(lsn, queues, chance.choice([100, 70_000]))
    stored = {row[0]: sparse_queue(*row[1:3], *row[4:]) for row in index.to_rows()}

    for (queue_id, position), lsn in where.items():
        for entries in (index.queues[queue_id], stored[queue_id]):
            span = entries.rows_of(position, position + 1, 99 + rows)
            assert span.first <= lsn <= span.last


@pytest.mark.parametrize(
    ("positions", "lsns"),
    [(b"", b""), (bytes(7), bytes(7)), (bytes(16), bytes(8)), (bytes(8), bytes(9)), (bytes(8), b"")],
)
def test_columns_of_a_wrong_length_are_damage(positions: bytes, lsns: bytes) -> None:
    with pytest.raises(SegmentFormatError, match="sparse index") as damaged:
        sparse_queue(0, 5, 100, positions, lsns)

    assert is_damage(damaged.value)


def test_numbers_are_stored_little_endian() -> None:
    assert pack_u64(unpack_u64(struct.pack("<2Q", 1, 1 << 40))) == struct.pack("<2Q", 1, 1 << 40)
