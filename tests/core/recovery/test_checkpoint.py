"""Checkpoints: slices taken while the broker works, and recovery from them."""

import pytest

from cmqd.core.broker import Broker
from cmqd.core.facts.sessions import Sessions
from cmqd.core.limits import Limits
from cmqd_segment.checkpoint import (
    CheckpointEnd,
    DedupSlice,
    HalvesSlice,
    HistorySlice,
    LeasesSlice,
    QueueSlice,
    SessionsSlice,
)
from cmqd_segment.records import AnyRecord, MessagesSent, StoredMessage, TransactionsEnded
from support.core import alone
from support.core.builders import ACCOUNT, KEY, Rig
from support.core.facts import check_lease_buckets, facts
from support.core.invariants import check_broker


def busy() -> Rig:
    """A queue with messages in every state, and a session."""
    rig = Rig()
    rig.create(max_delayed=2)
    rig.send(*[b"x"] * 200, session=1, sequence=1)
    rig.send(*[b"late"] * 4, delay_ms=5000)
    handles = rig.handles(most=150)
    rig.release(*handles[:100])
    rig.delete(*handles[100:110])
    return rig


def test_a_checkpoint_alone_restores_every_fact():
    rig = busy()

    recovered = rig.crash_after(rig.checkpoint())

    assert facts(recovered.broker) == facts(rig.broker)
    check_lease_buckets(recovered.queue())


def test_records_above_a_slice_are_applied_and_those_below_are_not():
    rig = busy()
    rig.create("other")
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts)]
    for part in parts:
        taken.append(part)
        rig.send(b"meanwhile", session=1, sequence=len(taken))
        rig.send(b"meanwhile", name="other")
        rig.delete(*rig.handles(most=3))

    recovered = rig.crash_after(taken)

    assert facts(recovered.broker) == facts(rig.broker)


def test_records_between_the_header_and_a_slice_are_applied_once():
    rig = Rig()
    rig.create("a", max_delayed=1)
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts)]
    rig.send(b"1", b"2", b"3", name="a", session=1, sequence=1)
    rig.delete(*rig.handles("a", most=1), name="a")
    rig.create("b")
    taken.append(next(parts))
    rig.send(b"4", name="a", session=1, sequence=2)
    taken.extend(parts)

    recovered = rig.crash_after(taken)

    assert facts(recovered.broker) == facts(rig.broker)
    assert recovered.counts("a")["active"] == 3
    sessions, before = recovered.broker.facts.promises.sessions, rig.broker.facts.promises.sessions
    assert sessions.find(ACCOUNT, 1, 1) == before.find(ACCOUNT, 1, 1)


def test_places_given_to_overflow_are_replayed():
    rig = Rig()
    rig.create(max_delayed=1)
    rig.send(b"1", b"2", delay_ms=[1000, 9000])
    rig.advance(1020)
    rig.answer_reads()

    for recovered in (rig.crash(), rig.crash_after(rig.checkpoint())):
        assert facts(recovered.broker) == facts(rig.broker)


def test_a_queue_deleted_before_its_slice_came_up_is_ignored():
    rig = Rig()
    rig.create("a")
    rig.create("b")
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts), next(parts)]
    rig.send(b"x", name="b")
    rig.delete_queue("b")

    taken.extend(parts)

    assert facts(rig.crash_after(taken).broker) == facts(rig.broker)


def test_a_queue_deleted_right_after_the_header_is_ignored():
    rig = Rig()
    rig.create("a")
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts)]
    rig.delete_queue("a")
    rig.create("a")

    taken.extend(parts)

    assert facts(rig.crash_after(taken).broker) == facts(rig.broker)


def test_the_end_names_the_highest_lsn_and_counts_the_parts():
    rig = busy()

    *parts, end = rig.checkpoint()

    assert end == CheckpointEnd(rig.log.last_lsn, len(parts))


def test_large_queues_are_cut_into_parts():
    rig = Rig()
    rig.create()
    for _ in range(20):
        rig.send(*[b"x"] * 256)
        rig.receive(most=256)
    rig.advance(40_000)
    rig.receive(most=100)
    for session in range(1, 100):
        rig.send(b"x", session=session, sequence=1)

    parts = rig.checkpoint()

    assert [type(part) for part in parts].count(QueueSlice) == 1
    assert sum(len(part.leases) for part in parts if isinstance(part, LeasesSlice)) == 100
    assert sum(len(part.entries) for part in parts if isinstance(part, HistorySlice)) == 5
    assert [len(part.sessions) for part in parts if isinstance(part, SessionsSlice)] == [64, 35]
    assert facts(rig.crash_after(parts).broker) == facts(rig.broker)


def test_slices_of_one_queue_show_one_moment_however_late_they_are_made():
    rig = Rig(Limits(max_in_flight=10_000))
    rig.create()
    for _ in range(10):
        rig.send(*[b"x"] * 256)
    handles = [handle for _ in range(10) for handle in rig.handles(most=256)]
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts), next(parts)]
    before = facts(rig.broker)
    rig.delete(*handles[:256])

    taken.extend(parts)

    leases = {lease[0] for part in taken if isinstance(part, LeasesSlice) for lease in part.leases}
    assert leases == set(before["queues"][1]["in flight"])
    assert facts(rig.crash_after(taken).broker) == facts(rig.broker)


def test_a_session_that_ended_before_its_slice_does_not_come_back():
    rig = Rig()
    rig.create()
    rig.send(b"x", session=1, sequence=1)
    rig.send(b"x", session=2, sequence=1)
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts), next(parts)]
    rig.now_ms += 500_000
    rig.send(b"x", session=2, sequence=2)
    rig.now_ms += 100_000
    for session in (3, 4):
        rig.send(b"x", session=session, sequence=2)
    keys = rig.broker.facts.promises.sessions.keys()
    assert [number for _, number in keys] == [2, 3, 4]

    taken.extend(parts)

    assert facts(rig.crash_after(taken).broker) == facts(rig.broker)


def test_a_damaged_message_is_active_in_a_checkpoint():
    rig = Rig()
    queue = rig.create()
    rig.send(b"1", b"2")
    rig.log.damaged.add((queue.queue_id, 0))
    cold = rig.crash()
    assert cold.bodies() == [b"2"]
    assert cold.counts()["damaged"] == 1

    again = cold.crash_after(cold.checkpoint())

    assert again.counts() | {"in_flight": 1} == again.counts()
    assert again.counts()["active"] == 1
    assert facts(again.broker) == facts(cold.broker)


def test_a_record_of_an_unknown_queue_above_the_checkpoint_is_an_error():
    rig = busy()
    recovered = rig.crash_after(rig.checkpoint())

    with pytest.raises(ValueError, match="row 999 has a MessagesSent of unknown queue 77"):
        recovered.broker.replay(MessagesSent(77, 0, 1, 1, [1]), 999)


def test_packed_sessions_leave_out_ended_sessions():
    sessions = Sessions(Limits())
    sessions.note(ACCOUNT, [1, 1, 100, 1], 0)

    assert [one[1] for one in sessions.packed([(ACCOUNT, 1), (ACCOUNT, 2)])] == [1]


def test_a_delay_that_replay_saw_ending_does_not_come_back_with_the_next_checkpoint() -> None:
    # Replay leaves the positions of ended delays in their buckets; messages received since are in flight, not delayed.
    first = Broker((1, 2, 3, 4))
    records: list[AnyRecord] = [*first.create_queue("a", "q", {}, 1000).records]
    records += alone.send(first, "a", "q", [b"a"], None, 50, 0, 0, 1000).records
    records += alone.send(first, "a", "q", [b"b"], None, 50_000, 0, 0, 1000).records
    for now_ms in range(1000, 1200, 10):
        records += first.tick(now_ms).records
    for read in alone.receive(first, "a", "q", 1, 1, 0, 5000, 1200).reads:
        records += first.pages_read(read.read_id, [StoredMessage(0, 1, 1000, b"a", None, 1050)], [], 1200).records
    replayed = Broker((1, 2, 3, 4))
    for lsn, record in enumerate(records, 1):
        replayed.replay(record, lsn)
    replayed.recovered()
    assert replayed.queue_info("a", "q").counts["in_flight"] == 1

    loaded = Broker((1, 2, 3, 4))
    for part in replayed.checkpoint(lambda: len(records), 1300):
        loaded.load(part)
    loaded.recovered()

    check_broker(loaded)
    assert loaded.queue_info("a", "q").counts == replayed.queue_info("a", "q").counts


def send_under(rig: Rig, *dedup_ids: str) -> None:
    rig.done(
        alone.send(rig.broker, ACCOUNT, "q", [b"x"] * len(dedup_ids), None, None, 0, 0, rig.now_ms, list(dedup_ids))
    )


def test_half_messages_and_dedup_ids_are_cut_into_parts_that_show_one_moment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd.core.recovery.checkpoint.HALVES_A_PART", 3)
    monkeypatch.setattr("cmqd.core.facts.dedup.CHUNK", 3)
    monkeypatch.setattr("cmqd.core.facts.dedup.BLOCK", 3)
    rig = Rig(Limits(max_dedup_ids=10))
    rig.create(transactional=True)
    halves: list[int] = []
    for number in range(10):
        halves += rig.send_half(b"a", b"b")
        send_under(rig, f"{number}")
    rig.broker.set_has_checkers(ACCOUNT, "q", True)
    rig.settle(5000)
    rig.end(1, *halves[:3])
    rig.end(2, halves[4])
    rig.broker.set_has_checkers(ACCOUNT, "q", False)
    rig.settle(10_000)
    halves += rig.send_half(b"c", b"d")
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts), next(parts)]
    before = facts(rig.broker)
    at_once = facts(rig.crash_after(rig.checkpoint()).broker)
    for above, part in enumerate(parts, 1):
        taken.append(part)
        rig.now_ms += 40_000
        rig.end(above % 2 + 1, halves.pop(), halves.pop(0))
        halves += rig.send_half(b"e", b"f")
        send_under(rig, f"new {above}", f"{above}")
        rig.broker.set_has_checkers(ACCOUNT, "q", above % 3 == 0)
        rig.settle()

    tables = [part for part in taken if isinstance(part, HalvesSlice)]
    assert sum(bool(part.runs) for part in tables) == 4
    assert max(len(part.runs) + len(part.checked) for part in tables) == 3
    assert max(sum(len(packed) // 8 for _, packed in part.due) for part in tables) <= 5
    assert [bool(part.committed) for part in tables] == [True] + [False] * (len(tables) - 1)
    assert {len(part.entries) for part in taken if isinstance(part, DedupSlice)} <= {1, 2, 3}
    assert at_once == before
    alone = Broker(KEY, rig.limits)
    for part in taken:
        alone.load(part)
    assert facts(alone)["queues"] == before["queues"]
    recovered = rig.crash_after(taken)
    assert facts(recovered.broker) == facts(rig.broker)
    for one in (rig, recovered):
        one.broker.set_has_checkers(ACCOUNT, "q", True)
        one.checks.clear()
        one.settle(1_000_000)
    again = [sorted((check.message.message_id, check.attempt) for check in one.checks) for one in (rig, recovered)]
    assert again[0] == again[1]
    assert again[0]


def test_a_large_table_of_half_messages_is_made_in_cheap_parts():
    rig = Rig()
    queue = rig.create(transactional=True)
    for number in range(30_000):
        queue.index.halves.note(number * 3, number * 3, 1)
        queue.dedup_ids.note(f"{number}", number, rig.now_ms)
    queue.index.next_position = 90_000

    parts = rig.checkpoint()

    runs = [len(part.runs) for part in parts if isinstance(part, HalvesSlice)]
    assert runs == [0, 8192, 8192, 8192, 30_000 - 3 * 8192]
    entries = [len(part.entries) for part in parts if isinstance(part, DedupSlice)]
    assert entries == [8192, 8192, 8192, 30_000 - 3 * 8192]


def test_a_half_message_that_went_in_a_gap_while_its_checkpoint_was_taken_is_gone():
    rig = Rig()
    rig.create(transactional=True)
    rig.send_half(b"1", b"2")
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts), next(parts)]
    rig.clear()
    taken += parts
    (message_id,) = rig.send_half(b"3")
    broker = Broker(KEY, rig.limits)
    for part in taken:
        broker.load(part)
    broker.begin_salvage()
    lsn = rig.log.last_lsn
    for record in rig.log.rows[-1]:
        broker.replay(record, lsn)

    records = list(broker.recovered())

    check_broker(broker)
    assert [one.message_id for one in broker.list_half_messages(ACCOUNT, "q", 0, 10).messages] == [message_id]
    for record in records:
        assert not isinstance(record, TransactionsEnded) or record.positions == [0, 2]
    assert any(isinstance(record, TransactionsEnded) for record in records)
