"""The segments that a search leaves out: by side files that are read once and kept, within bounds."""

from msgspec import structs

from cmqd_reading.history_search import HolderWanted, Rows, RowsWanted
from cmqd_reading.life import Life
from cmqd_reading.named_segments import NamedSegments
from cmqd_segment.manifest import SegmentEntry, SegmentState, SideEntry
from cmqd_segment.records import MessagesSent
from cmqd_segment.side import SideHistory, SideIds, side_history

ROWS = 10
MESSAGES = 100


class Log:
    """Segments of ten rows and a hundred messages of queue 1; counts the side files that are read."""

    def __init__(self, count: int) -> None:
        self.segments = [
            SegmentEntry(
                number,
                SegmentState.SEALED,
                1 + number * ROWS,
                (number + 1) * ROWS,
                sha256=f"{number:064x}",
                side=SideEntry(100, "ab" * 32),
            )
            for number in range(count)
        ]
        self.reads: list[int] = []
        self.unreadable: set[int] = set()

    def read(self, entry: SegmentEntry) -> tuple[SideIds, SideHistory] | None:
        self.reads.append(entry.number)
        if entry.number in self.unreadable:
            return None
        first = entry.number * MESSAGES
        ids = SideIds(entry.number, entry.sha256, first, first + MESSAGES - 1)
        return ids, side_history(b"", [(1, first, first + MESSAGES)], [])


def life_at(position: int) -> Life:
    life = Life([position])
    life.feed(1, 0, [MessagesSent(1, position, position, 0, [1])])
    return life


def rows_of(number: int, life: Life, last: int = 1000) -> RowsWanted:
    return RowsWanted(1 + number * ROWS, last, False, life)


def test_side_files_are_read_once() -> None:
    log = Log(5)
    named = NamedSegments(log.read)

    without = named.without_holder(log.segments, HolderWanted(250))

    assert without == [(1, 10), (11, 20), (31, 40), (41, 50)]
    assert named.left_out(log.segments[3:], rows_of(3, life_at(250))) == Rows([], 50, are_left_out=True)
    assert named.left_out(log.segments[2:], rows_of(2, life_at(250))) is None
    assert log.reads == [0, 1, 2, 3, 4]


def test_a_segment_without_a_readable_side_file_is_opened_and_its_side_file_read_again() -> None:
    log = Log(3)
    log.segments[0] = structs.replace(log.segments[0], side=None)
    log.unreadable = {1}
    named = NamedSegments(log.read)

    assert named.without_holder(log.segments, HolderWanted(900)) == [(21, 30)]
    log.unreadable.clear()
    assert named.without_holder(log.segments, HolderWanted(900)) == [(11, 20), (21, 30)]
    assert log.reads == [1, 2, 1]


def test_no_rows_are_left_out_behind_a_gap_or_beyond_the_last_wanted_row() -> None:
    log = Log(5)
    named = NamedSegments(log.read)
    life = life_at(900)

    assert named.left_out([log.segments[0], log.segments[2]], rows_of(0, life)) == Rows([], 10, are_left_out=True)
    assert named.left_out(log.segments, rows_of(0, life, last=29)) == Rows([], 20, are_left_out=True)
    # The rows before the segment are missing.
    assert named.left_out(log.segments[1:], rows_of(0, life)) is None


def test_memory_is_bounded_and_reclaimed_segments_are_forgotten() -> None:
    log = Log(20)
    named = NamedSegments(log.read, kept_bytes=1000)
    life = life_at(5000)
    for _ in range(2):
        assert named.left_out(log.segments, rows_of(0, life)) == Rows([], 200, are_left_out=True)
    # Three fit, so all are read again.
    assert len(log.reads) == 40
    log.reads.clear()

    assert len(named.without_holder(log.segments, HolderWanted(5000))) == 20
    assert not log.reads  # ids are kept

    named.without_holder(log.segments[:10], HolderWanted(5000))
    assert len(named.without_holder(log.segments, HolderWanted(5000))) == 20
    assert log.reads == list(range(10, 20))
