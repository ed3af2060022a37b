"""Dedup ids (spec 2.3): a repeat gets the first id and stores no message, for 5 minutes, also over restarts."""

import random

import pytest

from cmqd.core.domain_errors import BacklogFull, InvalidArgument, MessageTooLarge, OutOfOrder, SequenceTooOld
from cmqd.core.facts.dedup import DedupIds
from cmqd.core.limits import Limits
from cmqd_protocol import messages as wire
from support.core import alone
from support.core.builders import ACCOUNT, Rig
from support.core.facts import facts
from support.core.invariants import check_broker

LIFE_MS = 300_000


def send(
    rig: Rig,
    *named: tuple[bytes, str | None],
    name: str = "q",
    delay_ms: int | list[int] | None = None,
    headers: list[dict[str, str] | None] | None = None,
    session: int = 0,
    sequence: int = 0,
    after: str | None = None,
) -> list[int]:
    """A send of (body, dedup id) pairs."""
    bodies, dedup_ids = [body for body, _ in named], [dedup_id for _, dedup_id in named]
    sent = alone.send(
        rig.broker, ACCOUNT, name, bodies, headers, delay_ms, session, sequence, rig.now_ms, dedup_ids, after
    )
    ids = list(rig.done(sent))
    check_broker(rig.broker)
    return ids


def send_half(rig: Rig, *named: tuple[bytes, str | None], session: int = 0, sequence: int = 0) -> list[int]:
    bodies, dedup_ids = [body for body, _ in named], [dedup_id for _, dedup_id in named]
    sent = alone.send_half(rig.broker, ACCOUNT, "q", bodies, None, None, session, sequence, rig.now_ms, dedup_ids)
    ids = list(rig.done(sent))
    check_broker(rig.broker)
    return ids


def a_queue(limits: Limits | None = None) -> Rig:
    rig = Rig(limits)
    rig.create()
    return rig


def test_a_repeat_gets_the_first_id_and_stores_nothing():
    rig = a_queue()
    first = send(rig, (b"1", "x"))
    rows = len(rig.log.rows)

    assert send(rig, (b"other", "x")) == first

    assert len(rig.log.rows) == rows
    assert rig.bodies() == [b"1"]


def test_only_new_messages_of_a_batch_are_stored_and_ids_come_in_the_order_of_the_bodies():
    rig = a_queue()
    (x,) = send(rig, (b"x", "x"))

    ids = send(rig, (b"1", None), (b"x2", "x"), (b"2", "y"), (b"y2", "y"), (b"3", None), (b"z", "z"))

    one, two, three, z = ids[0], ids[2], ids[4], ids[5]
    assert ids == [one, x, two, two, three, z]
    assert [one, two, three, z] == list(range(one, one + 4))
    assert [(one.body, one.message_id) for one in rig.receive()] == [
        (b"x", x),
        (b"1", one),
        (b"2", two),
        (b"3", three),
        (b"z", z),
    ]


def test_headers_and_delays_stay_with_their_bodies():
    rig = a_queue()
    send(rig, (b"x", "x"))
    rig.delete(*rig.handles())

    send(rig, (b"x", "x"), (b"1", "1"), (b"2", None), delay_ms=[0, 1000, 0], headers=[{"a": "x"}, {"a": "1"}, None])

    ((two),) = rig.receive()
    assert (two.body, two.headers) == (b"2", None)
    rig.advance(1020)
    ((one),) = rig.receive()
    assert (one.body, one.headers) == (b"1", {"a": "1"})


def test_another_queue_knows_nothing_of_it():
    rig = a_queue()
    rig.create("other")
    first = send(rig, (b"1", "x"))

    assert send(rig, (b"1", "x"), name="other") != first
    assert rig.counts("other")["active"] == 1


def test_it_is_remembered_for_five_minutes_from_the_first_send():
    rig = a_queue()
    first = send(rig, (b"1", "x"))
    rig.now_ms += LIFE_MS - 1
    assert send(rig, (b"1", "x")) == first
    rig.now_ms += 1

    second = send(rig, (b"1", "x"))

    assert second != first
    rig.now_ms += LIFE_MS - 1
    assert send(rig, (b"1", "x")) == second


def test_what_was_received_deleted_or_cleared_is_a_repeat_all_the_same():
    rig = a_queue()
    ids = send(rig, (b"1", "x"), (b"2", "y"))
    rig.delete(rig.handles(most=1)[0])
    rig.clear()

    assert send(rig, (b"1", "x"), (b"2", "y")) == ids
    assert rig.receive() == []


@pytest.mark.parametrize("dedup_id", ["", "x" * 65, "ä" * 33])
def test_ids_have_1_to_64_bytes(dedup_id: str):
    rig = a_queue()

    with pytest.raises(InvalidArgument, match="dedup id"):
        send(rig, (b"1", None), (b"2", dedup_id))

    assert rig.counts()["active"] == 0
    send(rig, (b"1", "ä" * 32), (b"2", "x" * 64))


def test_there_must_be_one_for_each_body():
    rig = a_queue()

    for dedup_ids in ([], ["a"], ["a", "b", "c"]):
        with pytest.raises(InvalidArgument, match="dedup id"):
            alone.send(rig.broker, ACCOUNT, "q", [b"1", b"2"], None, None, 0, 0, rig.now_ms, list(dedup_ids))


def test_a_batch_without_any_id_is_sent_as_ever():
    rig = a_queue()

    send(rig, (b"1", None), (b"2", None))

    assert rig.bodies() == [b"1", b"2"]
    assert len(rig.queue().dedup_ids) == 0


def test_repeats_are_checked_as_what_they_repeat():
    rig = a_queue()
    send(rig, (b"1", "x"))

    with pytest.raises(InvalidArgument, match="body 0 is empty"):
        send(rig, (b"", "x"))
    with pytest.raises(InvalidArgument, match="2 delays for 1 bodies"):
        send(rig, (b"1", "x"), delay_ms=[1, 2])
    with pytest.raises(InvalidArgument, match="delay_ms"):
        send(rig, (b"1", "x"), delay_ms=[-1])


def test_a_repeat_needs_no_room_in_the_backlog():
    rig = a_queue()
    rig.force(max_backlog=1)
    first = send(rig, (b"1", "x"))

    assert send(rig, (b"1", "x"), (b"again", "x")) == first * 2
    with pytest.raises(BacklogFull):
        send(rig, (b"1", "x"), (b"2", "y"))


def test_half_messages_and_plain_ones_share_their_ids():
    rig = Rig()
    rig.create(transactional=True)
    (half,) = send_half(rig, (b"half", "x"))
    (plain,) = send(rig, (b"plain", "y"))

    assert send(rig, (b"half", "x")) == [half]
    assert send_half(rig, (b"a", "y"), (b"b", None), (b"c", "x"), (b"d", "z"))[::2] == [plain, half]
    assert rig.counts()["half"] == 3
    assert send_half(rig, (b"a", "y")) == [plain]

    assert rig.end(1, half) == []
    assert send_half(rig, (b"half", "x")) == [half]
    assert facts(rig.crash().broker) == facts(rig.broker)


# ---------------------------------------------------------------- with numbered sends


def test_a_numbered_repeat_comes_before_dedup_ids():
    rig = a_queue()
    ids = send(rig, (b"1", "x"), (b"2", None), session=7, sequence=1)

    assert send(rig, (b"1", "x"), (b"2", None), session=7, sequence=1) == ids
    rig.now_ms += LIFE_MS
    assert send(rig, (b"1", "x"), (b"2", None), session=7, sequence=1) == ids


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("crashed", [False, True])
def test_a_numbered_send_with_repeats_in_it_is_answered_the_same_again(half: bool, crashed: bool):
    rig = Rig()
    rig.create(transactional=True)
    batch = [(b"1", None), (b"x2", "x"), (b"2", "y"), (b"y2", "y"), (b"3", None)]
    one = send_half if half else send
    send(rig, (b"x", "x"))
    ids = one(rig, *batch, session=7, sequence=1)
    rig = rig.crash() if crashed else rig
    rows = len(rig.log.rows)

    assert one(rig, *batch, session=7, sequence=1) == ids

    assert len(rig.log.rows) == rows
    rig.now_ms += LIFE_MS
    with pytest.raises(SequenceTooOld):
        one(rig, *batch, session=7, sequence=1)


def test_a_numbered_send_whose_id_was_used_again_since_is_not_mistaken():
    rig = a_queue()
    send(rig, (b"x", "x"))
    send(rig, (b"x", "x"), (b"1", None), session=7, sequence=1)
    rig.now_ms += LIFE_MS
    send(rig, (b"x", "x"))

    with pytest.raises(SequenceTooOld):
        send(rig, (b"x", "x"), (b"1", None), session=7, sequence=1)


def test_a_numbered_send_of_repeats_alone_is_not_stored():
    rig = a_queue()
    first = send(rig, (b"x", "x"))

    assert send(rig, (b"x", "x"), session=7, sequence=1) == first
    assert send(rig, (b"x", "x"), session=7, sequence=1) == first
    assert rig.counts()["active"] == 1


# ---------------------------------------------------------------- restart, limits, sweep


def test_ids_survive_a_restart_from_the_log_at_any_row_and_from_any_checkpoint():
    rig = a_queue()
    known: dict[str, int] = {}
    taken = [rig.checkpoint()]
    for number in range(5):
        rig.now_ms += 1000
        ids = send(rig, (b"a", f"a{number}"), (b"b", None), (b"c", f"c{number}"))
        known |= {f"a{number}": ids[0], f"c{number}": ids[2]}
        taken.append(rig.checkpoint())
        for again in (rig.crash(), *(rig.crash_after(parts) for parts in taken)):
            assert facts(again.broker)["queues"] == facts(rig.broker)["queues"]
            assert send(again, *[(b"again", one) for one in known]) == list(known.values())


def test_the_oldest_are_forgotten_when_there_are_too_many():
    rig = a_queue(Limits(max_dedup_ids=3))
    first = send(rig, *[(b"1", f"{number}") for number in range(4)])

    assert send(rig, (b"1", "3")) == first[3:]
    assert rig.counts()["active"] == 4
    assert send(rig, (b"1", "0")) != first[:1]
    assert facts(rig.crash().broker) == facts(rig.broker)


@pytest.mark.parametrize("crashed", [False, True])
def test_old_ids_are_swept_in_slices(crashed: bool):
    rig = a_queue(Limits(tick_items=10))
    rig.create("other")
    for number in range(5):
        send(rig, *[(b"1", f"{number}-{one}") for one in range(10)])
        rig.now_ms += 1000
    send(rig, (b"1", "x"), name="other")
    rig = rig.crash() if crashed else rig

    rig.advance(LIFE_MS - 2001)
    assert len(rig.queue().dedup_ids) in (20, 30, 50)
    rig.advance(20_000)

    assert len(rig.queue().dedup_ids) == 0
    assert len(rig.queue("other").dedup_ids) == 0
    rig.receive(most=256)
    send(rig, (b"1", "x"))
    rig.advance(LIFE_MS + 10_000)
    assert len(rig.queue().dedup_ids) == 0


def test_a_queue_that_is_gone_needs_no_sweep():
    rig = a_queue()
    send(rig, (b"1", "x"))
    rig.delete_queue()

    rig.advance(LIFE_MS)

    assert not rig.due()


def test_the_table_by_itself():
    ids = DedupIds(Limits(dedup_life_ms=100))
    ids.note("a", 1, 0)
    ids.note("b", 2, 50)

    assert (ids.find("a", 99), ids.find("a", 100), ids.find("c", 0)) == (1, None, None)
    assert ids.expire(100, 1)
    assert not ids.expire(100, 1)
    assert ids.entries() == [("b", 2, 50)]


# ---------------------------------------------------------------------- behind a named message


def test_a_send_after_a_message_that_is_not_stored_is_refused_and_stores_nothing():
    rig = a_queue()
    rows = len(rig.log.rows)

    with pytest.raises(OutOfOrder, match="dedup id 'a'"):
        send(rig, (b"2", "b"), after="a")
    assert len(rig.log.rows) == rows
    with pytest.raises(OutOfOrder):
        send(rig, (b"3", "c"), after="b")

    send(rig, (b"1", "a"))
    send(rig, (b"2", "b"), after="a")
    send(rig, (b"3", None), after="b")
    assert rig.bodies() == [b"1", b"2", b"3"]


def test_a_message_that_was_consumed_stands_before_as_long_as_its_id_is_remembered():
    rig = a_queue()
    send(rig, (b"1", "a"))
    rig.delete(*rig.handles())
    send(rig, (b"2", "b"), after="a")

    rig.settle(LIFE_MS)

    with pytest.raises(OutOfOrder):
        send(rig, (b"3", "c"), after="b")


def test_repeats_are_answered_whatever_they_stand_after():
    rig = a_queue()
    send(rig, (b"1", "a"))
    first = send(rig, (b"2", "b"), session=7, sequence=1, after="a")
    rig.settle(1000)

    assert send(rig, (b"2", "b"), session=7, sequence=1, after="never sent") == first
    assert send(rig, (b"2", "b"), after="a") == first


def test_sends_that_are_decided_together_follow_each_other():
    rig = a_queue()
    requests = [
        wire.SendMessages(1, "q", [b"1"], dedup_ids=["a"]),
        wire.SendMessages(2, "q", [bytes(100_000)], dedup_ids=["b"], after="a"),
        wire.SendMessages(3, "q", [b"3"], dedup_ids=["c"], after="b"),
        wire.SendMessages(4, "q", [b"4"], after="c", delay_ms=0),
    ]

    replies = rig.done(rig.broker.send_all(ACCOUNT, "q", requests, rig.now_ms))

    assert [type(reply) for reply in replies[1:]] == [MessageTooLarge, OutOfOrder, OutOfOrder]
    assert rig.bodies() == [b"1"]


def test_what_a_send_may_follow_survives_a_restart():
    rig = a_queue()
    send(rig, (b"1", "a"))
    rig = rig.crash()

    send(rig, (b"2", "b"), after="a")
    with pytest.raises(OutOfOrder):
        send(rig, (b"4", "d"), after="c")

    assert rig.bodies() == [b"1", b"2"]


def test_an_id_that_was_sent_anew_outlives_the_entry_of_its_first_message() -> None:
    limits = Limits()
    ids = DedupIds(limits)
    for number, dedup_id in enumerate("abc", 1):
        ids.note(dedup_id, number, 1_000)
    again_ms = 1_000 + limits.dedup_life_ms
    # Two ended entries go with the new entry; the stale entry of the same id goes with the sweep.
    ids.note("c", 4, again_ms)

    ids.expire(again_ms, 100)

    assert ids.find("c", again_ms) == 4
    assert ids.entries() == [("c", 4, again_ms)]


def test_the_table_agrees_with_a_list_of_all_entries() -> None:
    """Ids that come again within a block and chunks apart, forgotten for their age and for their number."""
    limits = Limits(dedup_life_ms=3_000, max_dedup_ids=9_000)
    draw = random.Random(15)
    for ids, step_ms, number in ((3, 900, 500), (40, 100, 3_000), (12_000, 0, 40_000), (12_000, 1, 40_000)):
        table, entries, now_ms = DedupIds(limits), list[tuple[str, int, int]](), 0
        for message_id in range(1, number):
            now_ms += draw.randint(0, 2 * step_ms)
            dedup_id = str(draw.randrange(ids))
            if ids < 100:
                known = next((entry for entry in reversed(entries) if entry[0] == dedup_id), None)
                expected = known[1] if known is not None and known[2] + 3_000 > now_ms else None
                assert table.find(dedup_id, now_ms) == expected
            if table.find(dedup_id, now_ms) is None:
                table.note(dedup_id, message_id, now_ms)
                entries.append((dedup_id, message_id, now_ms))
                assert table.find(dedup_id, now_ms) == message_id
            if draw.random() < 0.01:
                table.expire(now_ms, 3)
        remembered = table.entries()
        assert remembered == [entry for entry in entries if table.find(entry[0], entry[2]) == entry[1]]
        assert len(remembered) == len(table) <= 9_000
        for dedup_id, message_id, sent_ms in remembered:
            assert table.find(dedup_id, sent_ms) == message_id
        again = DedupIds(limits)
        for part in table.parts():
            for entry in part:
                again.note(*entry)
        # A table that is loaded forgets ended entries on the way, a few with each new entry.
        again.expire(now_ms, number)
        table.expire(now_ms, number)
        assert again.entries() == table.entries()
        assert not table.expire(now_ms + 3_000, number)
        assert (len(table), table.size_bytes, table.oldest_ms) == (0, 0, None)
        table.note("new", number, now_ms + 3_000)
        assert table.find("new", now_ms + 3_000) == number
