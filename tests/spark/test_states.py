"""What became of messages: the fold says what the broker itself says, at every row, from every checkpoint."""

import random
from contextlib import suppress

import pytest
from pyroaring import BitMap64

from cmqd.core.broker import Broker
from cmqd.core.errors import DomainError, SubscriptionNotFound
from cmqd_segment.checkpoint import AnyPart, CheckpointHeader, QueueSlice
from cmqd_segment.records import AnyRecord
from cmqd_segment.rows import Run
from pyspark_cmqd.options import Mode
from pyspark_cmqd.states import Fold, QueueFold, State, StateReader, result_of
from support.core_builders import ACCOUNT, KEY, Rig

SOME_MS = 1500
URL = "http://127.0.0.1/hook"


def busy_rig(seed: int, steps: int) -> "tuple[Rig, list[list[AnyPart]]]":
    """A broker with a queue of every kind, after some steps; checkpoints taken while it went on."""
    choose = random.Random(seed)
    rig = Rig()
    rig.create("dead", rewind_ms=60_000, retention_ms=3_600_000)
    rig.create(
        "q", dead_letter_queue="dead", dead_letter_max_receives=2, rewind_ms=60_000, max_delayed=3, transactional=True
    )
    rig.create("plain", max_backlog=1_000_000)
    rig.create_topic()
    rig.subscribe("plain")
    rig.subscribe(URL, name="web")
    halves: list[int] = []
    checkpoints: list[list[AnyPart]] = []
    under_way = None

    def end_pushes() -> None:
        for push in list(rig.pushes):
            rig.end_push(push, choose.choice([None, "it is not there"]))

    def made_again(name: str) -> None:
        """A queue, or the topic, is deleted, and another one made under its name."""
        if name == "news":
            for subscription in ("plain", "web"):
                with suppress(SubscriptionNotFound):
                    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", subscription, rig.now_ms))
            rig.done(rig.broker.delete_topic(ACCOUNT, "news"))
            rig.create_topic()
        else:
            rig.delete_queue(name)
            rig.create(name, rewind_ms=choose.choice([0, 60_000]))
            if name == "q":
                rig.set("q", dead_letter_queue="dead", dead_letter_max_receives=2)
        rig.subscribe("plain")
        rig.subscribe(URL, name="web")

    def step() -> None:
        name = choose.choice(["q", "q", "plain", "dead"])
        match choose.randrange(18):
            case 0 | 1:
                rig.send(*[b"x"] * choose.randrange(1, 6), name=choose.choice(["q", "plain"]))
            case 2:
                rig.send(b"d", b"e", name="plain", delay_ms=choose.choice([0, 500, 3000]))
            case 3:
                halves.extend(rig.send_half(b"h", b"i", name="q"))
            case 4 if halves:
                rig.end(choose.choice([1, 2, 3]), halves.pop(choose.randrange(len(halves))), name="q")
            case 5 | 6 | 7:
                got = rig.receive(name, most=choose.randrange(1, 5), visibility_timeout_ms=SOME_MS)
                handles = [message.receipt_handle for message in got]
                if handles and choose.random() < 0.6:
                    rig.delete(*handles[: choose.randrange(1, len(handles) + 1)], name=name)
                elif handles and choose.random() < 0.5:
                    rig.release(handles[0], name=name, counted=choose.random() < 0.5)
            case 8:
                rig.publish(b"p", b"q", labels=["a"])
            case 9:
                rig.rewind(rig.now_ms - choose.randrange(30_000), name=choose.choice(["q", "dead"]))
            case 10 if choose.random() < 0.2:
                rig.clear(choose.choice(["plain", "dead"]))
            case 11 if choose.random() < 0.3:
                rig.set("q", rewind_ms=choose.choice([0, 5_000, 60_000]))
            case 12 if choose.random() < 0.3:
                rig.redrive("dead")
            case 13 if choose.random() < 0.05:
                rig.settle(3_600_000)
            case 14:
                # A full queue takes no copies: they wait for it, and come late.
                rig.force("plain", max_backlog=choose.choice([1, 1_000_000]))
            case 15:
                end_pushes()
            case 16 if choose.random() < 0.3:
                rig.done(rig.broker.drop_deliveries(ACCOUNT, "news", choose.choice(["web", "plain"]), rig.now_ms))
            case 17 if choose.random() < 0.3:
                made_again(choose.choice(["plain", "plain", "news", "q"]))
            case _:
                rig.settle(choose.choice([10, 400, 1100, 4000]))

    for _ in range(steps):
        if under_way is None and choose.random() < 0.05:
            under_way = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
            checkpoints.append([])
        if under_way is not None:
            part = next(under_way, None)
            if part is None:
                under_way = None
            else:
                checkpoints[-1].append(part)
        try:
            step()
        except DomainError:
            pass  # it was not the moment for that
        rig.settle()
    if under_way is not None:
        checkpoints[-1].extend(under_way)
    return rig, checkpoints


def replayed(rows: "list[list[AnyRecord]]") -> Broker:
    broker = Broker(KEY)
    for lsn, records in enumerate(rows, 1):
        for record in records:
            broker.replay(record, lsn)
    return broker


def folded(rows: "list[list[AnyRecord]]", *, parts: "list[AnyPart] | None" = None, lenient: bool = False) -> Fold:
    fold = Fold(lenient=lenient)
    above = 0
    for part in parts or ():
        if isinstance(part, CheckpointHeader):
            above = part.lsn
        fold.load(part)
    for lsn, records in enumerate(rows, 1):
        if lsn > above:
            fold.apply(lsn, records)
    return fold


def assert_as_the_broker(fold: Fold, broker: Broker) -> None:
    for queue_id, queue in broker.queues.items():
        index = queue.index
        sets = fold.queues[queue_id].sets()
        assert sets[State.ACTIVE] == index.active
        assert sets[State.DELAYED] == index.delayed | index.overflow
        assert sets[State.HALF] == index.half
        held = {one.position: one for one in index.in_flight.values() if one.position >= index.floor}
        assert sets[State.IN_FLIGHT] == BitMap64(held)
        counts = fold.queues[queue_id].receive_counts()
        for position in index.live:
            said = held[position].receive_count if position in held else index.history.get(position)[0]
            assert counts.get(position, 0) == said


@pytest.mark.parametrize("seed", range(12))
def test_the_fold_says_what_the_broker_says_at_every_row(seed: int):
    rig, _ = busy_rig(seed, 150)
    fold, broker = Fold(), Broker(KEY)

    for lsn, records in enumerate(rig.log.rows, 1):
        fold.apply(lsn, records)
        for record in records:
            broker.replay(record, lsn)
        assert_as_the_broker(fold, broker)


@pytest.mark.parametrize("seed", range(12))
def test_a_fold_from_a_checkpoint_comes_to_the_same(seed: int):
    rig, checkpoints = busy_rig(seed, 300)
    assert checkpoints

    broker = replayed(rig.log.rows)
    for parts in checkpoints:
        fold = folded(rig.log.rows, parts=parts)
        assert_as_the_broker(fold, broker)


@pytest.mark.parametrize("seed", range(12))
def test_each_message_has_one_state(seed: int):
    rig, _ = busy_rig(seed, 300)
    fold = folded(rig.log.rows)

    for queue in fold.queues.values():
        sets = queue.sets()
        together = BitMap64()
        for positions in sets.values():
            assert not positions & together
            together |= positions
        every = BitMap64()
        every.add_range(0, queue.next_position)
        assert together == every


@pytest.mark.parametrize("seed", range(12))
def test_missing_rows_cost_reasons_and_not_states(seed: int):
    rig, checkpoints = busy_rig(seed, 300)
    rows, parts = rig.log.rows, checkpoints[-1]
    header = parts[0]
    assert isinstance(header, CheckpointHeader)
    missing = range(header.lsn // 4, header.lsn // 2)
    left = [[] if lsn in missing else records for lsn, records in enumerate(rows, 1)]

    whole = folded(rows)
    exact, causes = folded(left, parts=parts), folded(left, lenient=True)

    for queue_id, queue in exact.queues.items():
        result = result_of(queue, causes.queues.get(queue_id))
        said = {state: BitMap64(positions) for state, positions in whole.queues[queue_id].sets().items()}
        for state in (State.ACTIVE, State.DELAYED, State.IN_FLIGHT, State.HALF):
            assert result.sets.get(state, BitMap64()) == said[state]
        for state in (State.DEAD_LETTERED, State.REDRIVEN, State.ROLLED_BACK):
            assert result.sets.get(state, BitMap64()) <= said.get(state, BitMap64())


def test_a_slice_newer_than_the_row_is_told_by_its_lsn():
    rig, checkpoints = busy_rig(3, 300)

    slices = [part for part in checkpoints[-1] if isinstance(part, QueueSlice)]

    assert [QueueFold.of_slice(part).lsn for part in slices] == [part.lsn for part in slices]
    assert len({part.lsn for part in slices}) > 1
    assert rig.log.last_lsn >= max(part.lsn for part in slices)


def stretches(rig: Rig, name: str, mode: Mode, count: int) -> list[tuple[int, int, str, int | None, int]]:
    queue = folded(rig.log.rows).queues[rig.queue(name).queue_id]
    run = Run(0, 0, 0, [1] * count, None, None, 0)
    return list(StateReader(result_of(queue).cut(0, count), mode).stretches(run))


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
