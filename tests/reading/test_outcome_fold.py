"""Outcomes: the entries that rounds make from rows, and a reader that has them in place of the rows."""

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from pyroaring import BitMap64

from cmqd_reading.log_fold import LogFold, Told
from cmqd_reading.outcome_fold import OutcomeFold, Stretch
from cmqd_reading.states import LIVE, Result, State
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader
from cmqd_segment.outcomes import Outcome
from cmqd_segment.records import AnyRecord
from cmqd_segment.rows import sent_runs
from support.cases import each_case
from support.core.builders import START_MS, Rig
from support.core.busy_rig import busy_rig

Rows = list[list[AnyRecord]]


class Segments:
    """Rows cut into segments, with their outcomes so far."""

    def __init__(self, rows: Rows, firsts: Sequence[int]) -> None:
        """``firsts``: first row of each segment, ascending."""
        self.rows = rows
        self.firsts = firsts
        self.entries: dict[int, list[Outcome]] = {number: [] for number in range(len(firsts))}
        self.known_from = self.upto = 0
        self.stretches: dict[int, list[Stretch]] = {}
        for number in self.entries:
            bounds: dict[int, tuple[int, int]] = {}
            for lsn in self.rows_of(number):
                for queue_id, run in sent_runs(rows[lsn - 1]):
                    first, _ = bounds.get(queue_id, (run.first_position, 0))
                    bounds[queue_id] = (first, run.stop_position)
            for queue_id, (first, stop) in bounds.items():
                self.stretches.setdefault(queue_id, []).append(Stretch(first, stop, number))

    def rows_of(self, number: int) -> range:
        stop = self.firsts[number + 1] if number + 1 < len(self.firsts) else len(self.rows) + 1
        return range(self.firsts[number], stop)

    def round(self, older: Sequence[AnyPart], newer: Sequence[AnyPart]) -> None:
        fold = OutcomeFold(self.stretches)
        for part in older:
            fold.load_older(part)
        for part in newer:
            fold.load_newer(part)
        above = header_of(older).lsn if older else 0
        for lsn in range(above + 1, end_of(newer) + 1):
            for number, entry in fold.apply(lsn, START_MS + lsn, self.rows[lsn - 1]):
                self.entries[number].append(entry)
        self.upto = header_of(newer).lsn

    def read(self, parts: Sequence[AnyPart], kept: Collection[int]) -> dict[int, Result]:
        """The results for the kept segments when the rows of the others are gone, up to the checkpoint."""
        told: Mapping[int, list[Told]] = {
            queue_id: [Told(each.first, each.stop, self.known_from, self.upto) for each in held if each.segment in kept]
            for queue_id, held in self.stretches.items()
        }
        fold = LogFold(told=told)
        for part in parts:
            fold.load(part)
        entries = sorted(
            (entry for number in kept for entry in self.entries[number]), key=lambda entry: (entry.lsn, entry.record)
        )
        there = {lsn for number in kept for lsn in self.rows_of(number)}
        there |= set(range(header_of(parts).lsn + 1, len(self.rows) + 1))
        for lsn in [*sorted(there), len(self.rows) + 1]:
            fold.skip(lsn)
            while entries and entries[0].lsn < lsn:
                fold.apply_outcome(entries.pop(0))
            if lsn <= len(self.rows):
                fold.apply(lsn, self.rows[lsn - 1], START_MS + lsn)
        return fold.results()


def header_of(parts: Sequence[AnyPart]) -> CheckpointHeader:
    header = parts[0]
    assert isinstance(header, CheckpointHeader)
    return header


def end_of(parts: Sequence[AnyPart]) -> int:
    end = parts[-1]
    assert isinstance(end, CheckpointEnd)
    return end.lsn


def whole(rows: Rows) -> dict[int, Result]:
    fold = LogFold()
    for lsn, records in enumerate(rows, 1):
        fold.apply(lsn, records, START_MS + lsn)
    return fold.results()


def told_of(result: Result, stretch: Stretch) -> list[tuple[State | None, int | None, int | None]]:
    """State, time of the end and receive count of each message; the count is None if it is unknown."""
    times = {position: time_ms for first, stop, time_ms in result.ended for position in range(first, stop)}
    told: list[tuple[State | None, int | None, int | None]] = []
    for position in range(stretch.first, stretch.stop):
        state = next((state for state, positions in result.sets.items() if position in positions), None)
        count = result.counts.get(position, int(state in (State.DELETED, State.IN_FLIGHT)))
        is_over = state is not None and state not in (*LIVE, State.GONE)
        told.append((state, times.get(position) if is_over else None, None if position in result.uncounted else count))
    return told


def assert_exact(segments: Segments, parts: Sequence[AnyPart], kept: Collection[int]) -> None:
    expected, found = whole(segments.rows), segments.read(parts, kept)
    for queue_id, held in segments.stretches.items():
        for stretch in held:
            if stretch.segment in kept and queue_id in expected:
                assert told_of(found[queue_id], stretch) == told_of(expected[queue_id], stretch), (queue_id, stretch)


@each_case("seed", range(40))
def test_with_outcomes_a_reader_tells_each_message_as_if_no_row_were_gone(seed: int):
    rig, checkpoints = busy_rig(seed, 400)
    rows = rig.log.rows
    choose = random.Random(seed)
    newest = choose.randrange(1, len(checkpoints))
    firsts = sorted({1, *choose.sample(range(2, header_of(checkpoints[newest]).lsn), 6)})
    segments = Segments(rows, firsts)
    before: Sequence[AnyPart] = ()
    for parts in checkpoints[: newest + 1]:
        segments.round(before, parts)
        before = parts

    for _ in range(4):
        kept = set(choose.sample(range(len(firsts)), 2))
        assert_exact(segments, before, kept)


def consume(rig: Rig, count: int) -> None:
    assert rig.delete(*rig.handles(most=count)) == []


def stuck(count: int = 100, **attributes: Any) -> Rig:
    """A queue with messages, the first of which is left there."""
    rig = Rig()
    rig.create("dead")
    rig.create(**attributes)
    rig.send(*[b"x"] * count)
    return rig


def read_without(rig: Rig, first_gone: int, before: Sequence[AnyPart], after: Sequence[AnyPart]) -> Result:
    """The result for the first segment, when the second segment is gone."""
    segments = Segments(rig.log.rows, [1, first_gone, header_of(after).lsn + 1])
    segments.round((), before)
    segments.round(before, after)
    return segments.read(after, {0, 2})[rig.queue("q").queue_id]


def test_of_100_messages_99_were_deleted_in_rows_that_are_gone():
    rig = stuck()
    gone = rig.log.last_lsn + 1
    before = rig.checkpoint()
    handles = rig.handles(most=16, visibility_timeout_ms=60_000)
    rig.delete(*handles[1:])
    for _ in range(6):
        rig.delete(*rig.handles(most=14))
    deleted_ms = rig.now_ms

    result = read_without(rig, gone, before, rig.checkpoint())

    assert result.sets[State.DELETED] == BitMap64(range(1, 100))
    assert result.sets[State.IN_FLIGHT] == BitMap64([0])
    assert result.ended == [(position, stop, deleted_ms) for position, stop, _ in result.ended]
    assert not result.uncounted
    assert not any(position for position in result.counts if position)


def test_the_receives_before_a_checkpoint_count_in_the_outcome_after_it():
    rig = stuck(2)
    gone = rig.log.last_lsn + 1
    for _ in range(9):
        rig.receive(most=2, visibility_timeout_ms=1000)
        rig.settle(1100)
    before = rig.checkpoint()
    rig.delete(rig.handles(most=2)[1])

    result = read_without(rig, gone, before, rig.checkpoint())

    assert result.sets[State.DELETED] == BitMap64([1])
    assert result.counts[1] == 10
    assert not result.uncounted


@pytest.mark.parametrize("deletes", [1, 2])
def test_a_delete_and_a_rewind_in_one_row_are_two_entries(deletes: int):
    rig = stuck(3, rewind_ms=3_600_000)
    gone = rig.log.last_lsn + 1
    before = rig.checkpoint()
    sent_ms = rig.now_ms
    rig.now_ms += 10
    begun = rig.log.last_lsn
    consume(rig, 2)
    rig.rewind(sent_ms)
    if deletes == 2:
        rig.receive(most=1, visibility_timeout_ms=1000)
        rig.settle(1100)
        consume(rig, 2)
    # Operations that are pipelined on a connection share a row.
    rig.log.rows[begun:] = [[record for row in rig.log.rows[begun:] for record in row]]

    result = read_without(rig, gone, before, rig.checkpoint())

    if deletes == 1:
        assert not result.sets.get(State.DELETED)
        assert result.sets[State.ACTIVE] == BitMap64([0, 1, 2])
    else:
        assert result.sets[State.DELETED] == BitMap64([0, 1])
        assert result.counts == {0: 2}
        assert [time_ms for _, _, time_ms in result.ended] == [rig.now_ms] * len(result.ended)


def test_without_the_outcomes_nothing_is_invented():
    rig = stuck(4)
    gone = rig.log.last_lsn + 1
    before = rig.checkpoint()
    rig.receive(most=2, visibility_timeout_ms=1000)
    rig.settle(1100)
    consume(rig, 1)
    kept = rig.log.last_lsn
    consume(rig, 1)
    after = rig.checkpoint()
    segments = Segments(rig.log.rows, [1, gone, kept + 1, header_of(after).lsn + 1])
    segments.round((), before)
    segments.round(before, after)
    segments.entries = {number: [] for number in segments.entries}

    result = segments.read(after, {0, 2, 3})[rig.queue("q").queue_id]

    # The first message left in a row that is gone; of the second the receives are unknown, one more than are there.
    assert told_of(result, Stretch(0, 4, 0)) == [
        (None, None, 0),
        (State.DELETED, rig.now_ms, None),
        (State.ACTIVE, None, 0),
        (State.ACTIVE, None, 0),
    ]


@pytest.mark.parametrize("is_told", [False, True])
def test_a_delete_before_a_rewind_in_a_missing_row_is_told_by_outcomes_alone(is_told: bool):
    rig = stuck(3, rewind_ms=3_600_000)
    sent_ms = rig.now_ms
    rig.now_ms += 10
    consume(rig, 1)
    gone = rig.log.last_lsn + 1
    rig.rewind(sent_ms)
    consume(rig, 2)
    rig.set(rewind_ms=0)
    after = rig.checkpoint()
    segments = Segments(rig.log.rows, [1, gone, header_of(after).lsn + 1])
    segments.round((), after)
    if not is_told:
        # The rows of the outcomes begin above the first missing row.
        segments.entries, segments.known_from = {number: [] for number in segments.entries}, gone

    result = segments.read(after, {0, 2})[rig.queue("q").queue_id]

    stretch = Stretch(0, 3, 0)
    if is_told:
        deleted = (State.DELETED, rig.now_ms, 1)
        assert told_of(result, stretch) == [deleted, deleted, (State.ACTIVE, None, 0)]
    else:
        assert [state for state, _, _ in told_of(result, stretch)] == [State.GONE, None, State.ACTIVE]
        assert not result.ended
