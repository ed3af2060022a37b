"""States of messages: the fold agrees with the broker, at every row, from every checkpoint."""

import random
from collections.abc import Container, Iterable, Iterator

import pytest
from pyroaring import BitMap64

from cmqd.core.broker import Broker
from cmqd_log.message_states.shown import StateReader
from cmqd_log.options import Mode
from cmqd_reading.events import Event, stored_in
from cmqd_reading.log_fold import LogFold
from cmqd_reading.states import LIVE, Result, State
from cmqd_segment.checkpoint import AnyPart, CheckpointHeader, QueueSlice
from cmqd_segment.records import UNUSED, AnyRecord, QueueCreated, QueueDeleted, QueueRewound
from cmqd_segment.rows import Run
from support.cases import each_case
from support.core.builders import ACCOUNT, KEY, START_MS, Rig
from support.core.busy_rig import SOME_MS, busy_rig, replayed
from support.core.rewinds import consume, merged_in_replay


def folded(rows: "list[list[AnyRecord]]", *, parts: "list[AnyPart] | None" = None) -> LogFold:
    """A fold of the rows; with a checkpoint, of the rows above the checkpoint."""
    fold = loaded(parts or [])
    fold.begin_above(fold.checkpoint_lsn)
    for lsn, records in enumerate(rows, 1):
        if lsn > fold.checkpoint_lsn:
            fold.apply(lsn, records)
    return fold


def loaded(parts: "list[AnyPart]") -> LogFold:
    fold = LogFold()
    for part in parts:
        fold.load(part)
    return fold


def told(rows: "list[list[AnyRecord]]", missing: "Container[int]", parts: "list[AnyPart]") -> dict[int, Result]:
    """The results for the queues when some rows up to a checkpoint are missing."""
    fold = loaded(parts)
    for lsn, records in enumerate(rows, 1):
        if lsn not in missing:
            fold.apply(lsn, records)
    return fold.results()


def assert_as_the_broker(fold: LogFold, broker: Broker) -> None:
    for queue_id, queue in broker.queues.items():
        index = queue.index
        sets = fold.queues[queue_id].sets()
        assert sets[State.ACTIVE] == index.active
        assert sets[State.DELAYED] == index.delays.scheduled | index.delays.overflow
        assert sets[State.HALF] == index.half
        held = {one.position: one for one in index.leases.by_number.values() if one.position >= index.floor}
        assert sets[State.IN_FLIGHT] == BitMap64(held)
        counts = fold.queues[queue_id].receive_counts()
        for position in index.live:
            said = held[position].receive_count if position in held else index.history.get(position)[0]
            assert counts.get(position, 0) == said


@each_case("seed", range(12))
def test_the_fold_says_what_the_broker_says_at_every_row(seed: int):
    rig, _ = busy_rig(seed, 150)
    fold, broker = LogFold(), Broker(KEY)

    for lsn, records in enumerate(rig.log.rows, 1):
        fold.apply(lsn, records)
        for record in records:
            broker.replay(record, lsn)
        assert_as_the_broker(fold, broker)


def test_the_message_of_a_schedule_is_a_plain_send():
    rig = Rig()
    rig.create()
    for name in ("report", "lost"):
        attributes = {"queue": "q", "cron": "60000"}
        rig.done(rig.broker.create_schedule(ACCOUNT, name, attributes, b"go", {"h": "v"}, rig.now_ms))
    rig.advance(60_000)
    consume(rig, 1)
    parts = rig.checkpoint()
    rig.advance(60_000)
    rig.done(rig.broker.delete_schedule(ACCOUNT, "lost"))
    fold, broker = LogFold(), Broker(KEY)

    for lsn, records in enumerate(rig.log.rows, 1):
        fold.apply(lsn, records)
        for record in records:
            broker.replay(record, lsn)
        assert_as_the_broker(fold, broker)

    (queue,) = folded(rig.log.rows, parts=parts).queues.values()
    assert queue.sets()[State.ACTIVE] == rig.queue().index.active
    stored = [event for records in rig.log.rows for event in stored_in(records)]
    assert {event.event for event in stored} == {Event.SENT}
    assert len(stored) == 4


def test_after_a_step_of_broker_time_the_fold_prunes_by_the_new_time():
    ahead = Rig()
    ahead.now_ms += 365 * 86_400_000
    ahead.create(rewind_ms=7_200_000)
    ahead.send(b"1", b"2")
    consume(ahead, 2)
    checkpoint = ahead.checkpoint()
    rig = ahead.crash(step_to_ms=START_MS)
    rig.settle(3_600_000)

    rig.set(rewind_ms=1_800_000)

    assert not rig.queue().index.rewindable
    for parts in (None, checkpoint):
        (queue,) = folded(rig.log.rows, parts=parts).queues.values()
        assert queue.index is not None
        assert not queue.index.rewindable


def test_the_fold_lets_go_of_what_the_broker_lets_go_with_finer_time_steps(monkeypatch: pytest.MonkeyPatch):
    rig = merged_in_replay(monkeypatch)

    (queue,) = folded(rig.log.rows).queues.values()

    assert queue.index is not None
    assert queue.index.rewindable == rig.queue().index.rewindable


def last_receive_counts(rows: "list[list[AnyRecord]]") -> dict[tuple[int, int], int]:
    """By queue id and position: the receive count of every message in the broker while the message was in its queue."""
    broker = Broker(KEY)
    counts: dict[tuple[int, int], int] = {}
    for lsn, records in enumerate(rows, 1):
        for record in records:
            broker.replay(record, lsn)
            for queue_id, queue in broker.queues.items():
                held = {lease.position: lease.receive_count for lease in queue.index.leases.by_number.values()}
                for position in queue.index.live:
                    counts[queue_id, position] = held.get(position) or queue.index.history.get(position)[0]
    return counts


@each_case("seed", range(12))
def test_a_message_that_left_its_queue_keeps_its_receive_count(seed: int):
    rig, _ = busy_rig(seed, 150)
    expected = last_receive_counts(rig.log.rows)

    for queue_id, queue in folded(rig.log.rows).queues.items():
        sets, counts = queue.sets(), queue.receive_counts()
        for state in (State.DELETED, State.DEAD_LETTERED, State.CLEARED, State.EXPIRED, State.QUEUE_DELETED):
            for position in sets.get(state, BitMap64()):
                assert counts.get(position, int(state is State.DELETED)) == expected[queue_id, position], state


@each_case("seed", range(12))
def test_a_fold_from_a_checkpoint_comes_to_the_same(seed: int):
    rig, checkpoints = busy_rig(seed, 300)
    assert checkpoints

    broker = replayed(rig.log.rows)
    for parts in checkpoints:
        fold = folded(rig.log.rows, parts=parts)
        assert_as_the_broker(fold, broker)


@each_case("seed", range(12))
def test_each_message_has_one_state(seed: int):
    rig, _ = busy_rig(seed, 300)
    fold = folded(rig.log.rows)

    for queue in fold.queues.values():
        sets = queue.sets()
        index = queue.index
        assert index is not None
        together = BitMap64()
        for positions in sets.values():
            assert not positions & together
            together |= positions
        every = BitMap64()
        every.add_range(0, index.next_position)
        assert together == every


@each_case("seed", range(24))
@each_case("first", ["beginning", "middle"])
def test_missing_rows_cost_reasons_and_not_states(seed: int, first: str):
    rig, checkpoints = busy_rig(seed, 300)
    rows, parts = rig.log.rows, checkpoints[-1]
    header = parts[0]
    assert isinstance(header, CheckpointHeader)
    missing = range(1 if first == "beginning" else header.lsn // 4, header.lsn // 2)
    # Messages that this row brought back count as deleted, unless a later row mentions them.
    brought_back: dict[int, BitMap64] = {}
    for record in (record for lsn in missing for record in rows[lsn - 1]):
        if isinstance(record, QueueRewound):
            of_queue = brought_back.setdefault(record.queue_id, BitMap64())
            of_queue.add_range(record.from_position, record.stop_position)

    whole = folded(rows)
    for queue_id, result in told(rows, missing, parts).items():
        if queue_id not in whole.queues:
            continue
        said = whole.queues[queue_id].sets()
        for state in LIVE:
            assert result.sets.get(state, BitMap64()) == said[state]
        for state in set(State) - {*LIVE, State.GONE}:
            right = said.get(state, BitMap64())
            if state is State.DELETED:
                right = right | brought_back.get(queue_id, BitMap64())
            assert result.sets.get(state, BitMap64()) <= right, state
        apart = BitMap64()
        for positions in result.sets.values():
            assert not positions & apart
            apart |= positions


@each_case("seed", range(12))
def test_without_missing_rows_a_checkpoint_changes_nothing(seed: int):
    rig, checkpoints = busy_rig(seed, 300)
    whole = {number: queue.result() for number, queue in folded(rig.log.rows).queues.items()}

    for parts in checkpoints:
        results = told(rig.log.rows, (), parts)
        assert results.keys() == whole.keys()
        for number, result in results.items():
            assert {state: some for state, some in result.sets.items() if some} == {
                state: some for state, some in whole[number].sets.items() if some
            }
            assert result.counts == whole[number].counts


def first_row_of(rig: Rig, name: str) -> int:
    """The row that created a queue."""
    return next(
        lsn
        for lsn, records in enumerate(rig.log.rows, 1)
        if any(isinstance(one, QueueCreated) and one.name == name for one in records)
    )


def states_without_its_creation(rig: Rig) -> dict[State, BitMap64]:
    return told(rig.log.rows, {first_row_of(rig, "q")}, rig.checkpoint())[rig.queue("q").queue_id].sets


def test_a_dead_letter_that_was_rewound_before_is_a_dead_letter_although_nothing_tells_of_the_window():
    rig = Rig()
    rig.create("dead")
    rig.create("q", rewind_ms=60_000, dead_letter_queue="dead", dead_letter_max_receives=1)
    rig.send(*[b"x"] * 4)
    rig.delete(*rig.handles(most=4))
    rig.rewind(rig.now_ms - 30_000)
    rig.receive(most=2, visibility_timeout_ms=1000)
    rig.settle(1100)
    rig.delete(*rig.handles(most=1))

    sets = states_without_its_creation(rig)

    assert sets[State.DEAD_LETTERED] == BitMap64([0, 1])
    assert sets[State.DELETED] == BitMap64([2])
    assert sets[State.ACTIVE] == BitMap64([3])


def test_a_rejected_message_is_a_dead_letter_with_its_receives_whether_or_not_rows_are_missing():
    rig = Rig()
    rig.create("dead")
    rig.create("q", rewind_ms=60_000, dead_letter_queue="dead", dead_letter_max_receives=9)
    rig.send(*[b"x"] * 4)
    rig.receive(most=1, visibility_timeout_ms=1000)
    rig.settle(1100)
    first, second, third = rig.handles(most=3)
    rig.reject(first, second)
    rig.delete(third)

    whole = told(rig.log.rows, (), rig.checkpoint())[rig.queue("q").queue_id]
    part = told(rig.log.rows, {first_row_of(rig, "q")}, rig.checkpoint())[rig.queue("q").queue_id]

    for result in (whole, part):
        assert result.sets[State.DEAD_LETTERED] == BitMap64([0, 1])
        assert result.sets[State.DELETED] == BitMap64([2])
        assert result.sets[State.ACTIVE] == BitMap64([3])
        assert (result.counts[0], result.counts[1]) == (2, 1)


def test_what_expired_after_it_was_rewound_is_not_told_as_deleted():
    rig = Rig()
    rig.create("q", rewind_ms=60_000, retention_ms=60_000)
    rig.send(*[b"x"] * 4)
    rig.delete(*rig.handles(most=4))
    rig.rewind(rig.now_ms - 30_000)
    rig.receive(most=1, visibility_timeout_ms=1000)
    rig.settle(120_000)

    sets = states_without_its_creation(rig)

    assert not sets.get(State.DELETED)
    # A receive proves that a message was back; for the remaining messages a rewind alone does not.
    assert sets[State.EXPIRED] == BitMap64([0])


def test_what_may_have_been_deleted_in_a_missing_row_is_not_told_as_expired():
    rig = Rig()
    rig.create("q", retention_ms=60_000)
    rig.send(*[b"x"] * 4)
    rig.delete(*rig.handles(most=2))
    deleted = rig.log.last_lsn
    rig.settle(120_000)

    (result,) = told(rig.log.rows, {deleted}, rig.checkpoint()).values()

    assert not any(result.sets.values())


def test_a_slice_newer_than_the_row_is_told_by_its_lsn():
    rig, checkpoints = busy_rig(3, 300)

    slices = [part for part in checkpoints[-1] if isinstance(part, QueueSlice)]

    assert [loaded([part]).queues[part.queue_id].slice_lsn for part in slices] == [part.lsn for part in slices]
    assert len({part.lsn for part in slices}) > 1
    assert rig.log.last_lsn >= max(part.lsn for part in slices)


def stretches(rig: Rig, name: str, mode: Mode, count: int) -> list[tuple[int, int, State, int | None, int | None]]:
    queue = folded(rig.log.rows).queues[rig.queue(name).queue_id]
    run = Run(0, 0, 0, [1] * count, None, None, 0)
    found = StateReader(queue.result().cut(0, count), mode).stretches(run)
    return [(start, stop, said.state, said.ended_ms, said.receive_count) for start, stop, said in found]


def test_stretches_of_a_run():
    rig = Rig()
    rig.create("q")
    rig.send(*[b"x"] * 10)
    rig.delete(*rig.handles(most=3))
    deleted_ms = rig.now_ms
    rig.receive(most=2)
    again = rig.handles(most=1, visibility_timeout_ms=SOME_MS)
    rig.settle(SOME_MS + 100)

    assert len(again) == 1
    assert stretches(rig, "q", Mode.ALL, 10) == [
        (0, 3, "deleted", deleted_ms, 1),
        (3, 5, "in_flight", None, 1),
        (5, 6, "active", None, 1),
        (6, 10, "active", None, 0),
    ]
    assert stretches(rig, "q", Mode.CONSUMED, 10) == [(0, 3, "deleted", deleted_ms, 1)]
    assert [one[:2] for one in stretches(rig, "q", Mode.BACKLOG, 10)] == [(3, 5), (5, 6), (6, 10)]


@pytest.mark.parametrize(
    ("way", "state"),
    [("clear", "cleared"), ("expire", "expired"), ("delete", "queue_deleted"), ("unused", "queue_unused")],
)
def test_messages_in_flight_are_counted_when_their_queue_lets_them_go(way: str, state: str):
    rig = Rig()
    rig.create("q", retention_ms=60_000)
    rig.send(*[b"x"] * 4)
    rig.receive(most=2, visibility_timeout_ms=SOME_MS)
    rig.settle(SOME_MS + 100)
    rig.receive(most=3, visibility_timeout_ms=3_600_000)
    queue_id = rig.queue("q").queue_id
    if way == "clear":
        rig.clear("q")
    elif way == "expire":
        rig.settle(61_000)
    elif way == "delete":
        rig.delete_queue("q")
    else:
        # The broker deletes no queue with messages in flight, but the record may stand behind a gap of the log.
        rig.log.append([QueueDeleted(queue_id, UNUSED)])

    result = folded(rig.log.rows).queues[queue_id].result()
    told = StateReader(result.cut(0, 4), Mode.ALL).stretches(Run(0, 0, 0, [1] * 4, None, None, 0))

    assert [(start, stop, said.state, said.receive_count) for start, stop, said in told] == [
        (0, 2, state, 2),
        (2, 3, state, 1),
        (3, 4, state, 0),
    ]


def test_a_message_that_was_rewound_and_deleted_again_has_the_last_time():
    rig = Rig()
    rig.create("q", rewind_ms=60_000)
    rig.send(*[b"x"] * 4)
    rig.delete(*rig.handles(most=4))
    rig.settle(1000)
    rig.rewind(rig.now_ms - 30_000)
    rig.delete(*rig.handles(most=2))

    assert stretches(rig, "q", Mode.ALL, 4) == [
        (0, 2, "deleted", rig.now_ms, 1),
        (2, 4, "active", None, 0),
    ]


def test_messages_dropped_by_a_shorter_window_do_not_come_back():
    rig = Rig()
    rig.create("q", rewind_ms=60_000)
    for _ in range(4):
        rig.send(*[b"x"] * 2)
        rig.delete(*rig.handles(most=2))
        rig.settle(5_000)
    rig.set("q", rewind_ms=8_000)
    rig.set("q", rewind_ms=60_000)
    rig.rewind(rig.now_ms - 50_000)

    fold = folded(rig.log.rows)
    assert_as_the_broker(fold, rig.broker)
    assert fold.queues[rig.queue("q").queue_id].sets()[State.ACTIVE] == BitMap64([6, 7])


# ---------------------------------------------------------------------- cut for a segment


class Watched(list[tuple[int, int, int]]):
    """Counts accesses."""

    def __init__(self, items: "Iterable[tuple[int, int, int]]") -> None:
        super().__init__(items)
        self.looks = 0

    def __getitem__(self, place: int) -> tuple[int, int, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.looks += 1
        return super().__getitem__(place)

    def __iter__(self) -> "Iterator[tuple[int, int, int]]":
        self.looks += len(self)
        return super().__iter__()


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_is_what_is_said_of_its_positions(seed: int):
    choose = random.Random(seed)
    ends = sorted(choose.sample(range(1000), 100))
    deleted = [(first, stop, choose.randrange(10**6)) for first, stop in zip(ends[::2], ends[1::2], strict=True)]
    counts = {position: choose.randrange(2, 9) for position in choose.sample(range(1000), 100)}
    result = Result({State.ACTIVE: BitMap64(choose.sample(range(1000), 400))}, deleted, counts)

    for _ in range(50):
        start, stop = sorted(choose.sample(range(1001), 2))
        states = result.cut(start, stop)
        active = BitMap64.deserialize(states.sets[State.ACTIVE]) if states.sets else BitMap64()
        assert active == BitMap64(one for one in result.sets[State.ACTIVE] if start <= one < stop)
        assert states.ended == [one for one in deleted if one[1] > start and one[0] < stop]
        assert states.counts == {position: count for position, count in counts.items() if start <= position < stop}


def test_a_cut_looks_at_little_more_than_it_takes():
    deleted = Watched((2 * place, 2 * place + 1, place) for place in range(100_000))
    result = Result({}, deleted, {})
    deleted.looks = 0

    states = result.cut(100_000, 100_020)

    assert len(states.ended) == 10
    assert deleted.looks < 100
