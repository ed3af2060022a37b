"""Plans: the rows and segments of every task."""

import pytest

from cmqd_log.data_folder.plan import (
    GATHERED_BYTES,
    TIME_SLACK_MS,
    Piece,
    Task,
    View,
    alike,
    bounds,
    describe,
    gathered,
    pieces_of,
    split,
    wanted_ids,
)
from cmqd_log.options import Options, parse_options
from cmqd_reading.events import Event, stored_in
from cmqd_reading.log_fold import LogFold
from cmqd_reading.states import State
from cmqd_segment.manifest import CheckpointEntry, SegmentEntry, SegmentState, SourceName
from cmqd_segment.records import (
    MessagesDelivered,
    MessagesPublished,
    MessagesSent,
    QueueCreated,
    TransactionsEnded,
)
from cmqd_types.attributes import QueueAttributes
from cmqd_types.messages import CopyOf

SEALED, LIVE = SegmentState.SEALED, SegmentState.ACTIVE
FIRST, SECOND, THIRD = (
    SegmentEntry(1, SEALED, 1, 100, 1000, 2000, bytes=1000),
    SegmentEntry(2, SEALED, 201, 300, 3000, 4000, bytes=3000),
    SegmentEntry(4, LIVE, 301, 310, 50_000, 60_000, bytes=10),
)
VIEW = View(310, (FIRST, SECOND, THIRD))


def chosen(**options: str) -> Options:
    return parse_options({"path": "data", **options})


@pytest.mark.parametrize(
    ("first", "last", "missing"),
    [
        (1, 310, [(101, 200)]),
        (1, 100, []),
        (150, 400, [(150, 200)]),
        (201, 310, []),
        (101, 150, [(101, 150)]),
        (320, 400, []),
    ],
)
def test_gaps(first: int, last: int, missing: list[tuple[int, int]]):
    assert VIEW.gaps(first, last) == missing


def test_gaps_of_an_empty_view():
    assert View(10, ()).gaps(1, 10) == [(1, 10)]


@pytest.mark.parametrize(
    ("starting_ms", "ending_ms", "missing"),
    [
        (None, None, True),
        (2999, None, True),
        (3000, None, True),
        (3001, None, False),
        (None, 2000 - TIME_SLACK_MS, False),
        (None, 2001 - TIME_SLACK_MS, True),
    ],
)
def test_gaps_that_may_hold_something_of_a_time(starting_ms: int | None, ending_ms: int | None, missing: bool):
    assert VIEW.gaps_between(starting_ms, ending_ms) == ([(101, 200)] if missing else [])


def test_a_gap_at_the_end_is_no_younger_than_a_checkpoint_behind_it():
    view = View(200, (FIRST,), (CheckpointEntry(1, 150, 150, 5000, 0, ""), CheckpointEntry(2, 200, 200, 7000, 0, "")))

    assert view.gaps_between(7000, None) == [(101, 200)]
    assert view.gaps_between(7001, None) == []
    assert View(200, (FIRST,)).gaps_between(7001, None) == [(101, 200)]


def test_pieces_are_cut_to_the_rows_asked_for():
    assert pieces_of(VIEW, chosen(), 50, 305) == [
        Piece(FIRST, 50, 100),
        Piece(SECOND, 200, 300),
        Piece(THIRD, 300, 305),
    ]


def test_segments_of_another_time_are_left_out():
    assert pieces_of(VIEW, chosen(startingTimestamp="000000002001"), 0, 310) == pieces_of(VIEW, chosen(), 100, 310)
    assert [piece.extent for piece in pieces_of(VIEW, chosen(endingTimestamp="000000003500"), 0, 310)] == [
        FIRST,
        SECOND,
    ]


def test_a_piece_is_split_by_its_weight():
    pieces = split(pieces_of(VIEW, chosen(), 0, 310), 8)

    assert len(pieces) >= 8
    assert sum(piece.upto - piece.above for piece in pieces) == 210
    assert [piece.above for piece in pieces[1:] if piece.extent is SECOND] == sorted(
        piece.above for piece in pieces[1:] if piece.extent is SECOND
    )
    assert sum(piece.extent is SECOND for piece in pieces) > sum(piece.extent is FIRST for piece in pieces)


def test_a_row_is_the_smallest_part():
    pieces = split([Piece(THIRD, 300, 302)], 50)

    assert [(piece.above, piece.upto) for piece in pieces] == [(300, 301), (301, 302)]


def weighing(*weights: int) -> list[Task]:
    return [Task(Piece(FIRST, place, place + 1), chosen(), (), weight=weight) for place, weight in enumerate(weights)]


@pytest.mark.parametrize(
    ("weights", "least", "sizes"),
    [
        ([1] * 20, 1, [20]),
        ([1] * 20, 4, [5, 5, 5, 5]),
        ([1, GATHERED_BYTES, 1, 1, 9 * GATHERED_BYTES, 1], 1, [1, 1, 2, 1, 1]),
        ([GATHERED_BYTES // 2] * 5, 1, [2, 2, 1]),
        ([7], 1, [1]),
        ([], 1, []),
        ([1, 1, 1], 50, [1, 1, 1]),
    ],
)
def test_small_parts_share_a_partition(weights: list[int], least: int, sizes: list[int]):
    tasks = weighing(*weights)

    partitions = gathered(tasks, least)

    assert [len(each) for each in partitions] == sizes
    assert [task for each in partitions for task in each] == tasks


def test_what_is_alike_does_not_change_when_it_is_sealed():
    live = Piece(SegmentEntry(4, LIVE, 301, 310, bytes=10), 305, 308)
    later = Piece(SegmentEntry(4, SEALED, 301, 390, bytes=9_999_999), 305, 308)

    assert live.weight != later.weight
    assert alike(live).weight == alike(later).weight


def test_bounds():
    assert bounds(VIEW, chosen()) == (0, 310)
    assert bounds(VIEW, chosen(startingLsn="7", endingLsn="9")) == (6, 9)
    assert bounds(VIEW, chosen(startingLsn="latest")) == (310, 310)
    assert bounds(VIEW, chosen(endingLsn="999")) == (0, 310)


def test_the_wanted_ids_of_queues_and_topics():
    named = (SourceName(1, "x", "a"), SourceName(2, "y", "ab"), SourceName(3, "x", "a", True), SourceName(4, "y", "a"))
    sources = {source.id: source for source in named}

    assert wanted_ids(sources, chosen()) is None
    assert wanted_ids(sources, chosen(queue="a")) == {1, 4}
    assert wanted_ids(sources, chosen(queue="a", account="x")) == {1}
    assert wanted_ids(sources, chosen(queuePattern="a.?")) == {1, 2, 4}
    assert wanted_ids(sources, chosen(topic="a")) == {3}
    assert wanted_ids(sources, chosen(account="x")) == {1, 3}


def test_ranges_as_text():
    assert describe([(4, 4)]) == "row 4"
    assert describe([(1, 1), (3, 5)]) == "rows 1, 3 to 5"
    assert describe([(1, 1)] * 5) == "rows 1, 1, 1 and 2 more ranges"


# ---------------------------------------------------------------------- events


def test_messages_are_numbered_within_their_row():
    row = [
        MessagesSent(1, 0, 10, 5, [1, 2]),
        MessagesPublished(9, 0, 20, 5, [3], [1, 2, 2, 0], 30, labels=[["red"]]),
        MessagesSent(2, 1, 40, 5, [4], half=True),
    ]

    stored = stored_in(row)

    assert [(one.source_id, one.topic_id, one.event, one.first_index) for one in stored] == [
        (1, 0, Event.SENT, 0),
        (9, 9, Event.PUBLISHED, 2),
        (1, 9, Event.COPIED, 3),
        (2, 9, Event.COPIED, 4),
        (2, 0, Event.HALF, 5),
    ]
    assert [one.run.offset for one in stored] == [0, 3, 3, 3, 6]
    assert [one.run.first_message_id for one in stored] == [10, 20, 30, 31, 40]
    assert stored[2].run.labels == [["red"]]


def test_queues_that_take_a_part_of_a_publish_have_their_messages_in_order():
    row = [
        MessagesPublished(
            *(9, 4, 20, 5, [1, 2, 3], [1, 7, 2, 0], 30),
            labels=[["a"], ["b"], ["c"]],
            dedup_ids=["x", None, "z"],
            subscriptions=["one", "two"],
            message_sets=[b"\x05", b"\x06"],
            taken=[0, 1],
            message_ids=[0, 2, 1, 1],
        )
    ]

    stored = stored_in(row)

    assert [(one.source_id, one.run.first_position, one.first_index, one.run.sizes) for one in stored] == [
        (9, 4, 0, [1, 2]),
        (9, 6, 2, [3]),
        (1, 7, 3, [1]),
        (1, 8, 4, [3]),
        (2, 0, 5, [2]),
        (2, 1, 6, [3]),
    ]
    assert [one.run.first_message_id for one in stored] == [20, 23, 30, 31, 32, 33]
    assert [one.run.offset for one in stored] == [0, 3, 0, 3, 1, 3]
    assert [one.dedup_ids for one in stored[:3]] == [["x", None], ["z"], None]
    assert [one.run.source and one.run.source.first_message_id for one in stored[2:]] == [20, 23, 21, 23]
    fold = LogFold()
    fold.apply(1, [QueueCreated(queue_id, "owner", f"q{queue_id}", QueueAttributes(), 1) for queue_id in (1, 2)])
    fold.apply(2, row)
    active = {queue_id: list(queue.sets()[State.ACTIVE]) for queue_id, queue in fold.queues.items()}
    assert active == {1: [7, 8], 2: [0, 1]}


def test_what_was_committed_is_told_from_what_was_sent_in_the_same_row():
    row = [
        MessagesSent(1, 5, 50, 5, [1]),
        TransactionsEnded(1, [2, 2], True, 5),
        MessagesSent(1, 6, 10, 5, [1]),
        MessagesSent(1, 7, 12, 5, [1]),
        MessagesSent(1, 8, 51, 5, [1]),
    ]

    assert [one.event for one in stored_in(row)] == ["sent", "committed", "committed", "sent"]


def test_late_copies_say_so_themselves():
    copy = CopyOf("events", "to-q", 20, 4, ["red"])
    delivered = MessagesDelivered(9, 7, [0, 2], 5)
    sent = [MessagesSent(1, at, 45 + at, 5, [1], copies_of=[copy]) for at in (5, 6)]
    row = [*sent, delivered]

    late = stored_in(row)

    assert [(one.event, one.topic_id, one.run.labels) for one in late] == [("copied", 9, [["red"]])] * 2
    assert [(one.event, one.topic_id) for one in stored_in([MessagesSent(1, 5, 50, 5, [1])])] == [("sent", 0)]
