"""Dead letters: who may be bound to whom, what is moved when, and that a move is never half done."""

from typing import Any

import pytest

from cmqd.core.errors import DeadLetterQueueInUse, DomainError, InvalidArgument, QueueDiffers, RedriveRunning
from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING, ReceivedMessage
from cmqd_segment.records import MessagesMoved, MessagesSent, Origin
from support.core_builders import ACCOUNT, START_MS, NaiveLog, Rig, counts
from support.core_facts import facts

MINUTE_MS = 60_000
AFTER_MS = 300_000
VISIBLE_MS = 1000


def by_receives(most: int = 1, limits: Limits | None = None, **attributes: Any) -> Rig:
    """``q`` with ``dlq``, policy 0; leases of a second."""
    rig = Rig(limits)
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=most, visibility_timeout_ms=VISIBLE_MS)
    if attributes:
        rig.set(**attributes)
    return rig


def by_age(limits: Limits | None = None, rewind_ms: int = 0) -> Rig:
    """``q`` with ``dlq``, policy 1."""
    rig = Rig(limits)
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_after_ms=AFTER_MS, rewind_ms=rewind_ms)
    return rig


def fail(rig: Rig, times: int = 1, most: int = 16) -> None:
    """Receive, and let the leases end."""
    for _ in range(times):
        assert rig.receive(most=most, visibility_timeout_ms=VISIBLE_MS)
        rig.settle(VISIBLE_MS + 100)


def refused(rig: Rig, error: type[DomainError], name: str = "q", **attributes: Any) -> DomainError:
    before = facts(rig.broker)
    names = [one for _, one in rig.broker.list_queues(ACCOUNT, "", 0, 100)[1]]
    call = rig.set if name in names else rig.create
    with pytest.raises(error) as raised:
        call(name, **attributes)
    assert facts(rig.broker) == before
    return raised.value


def dead(rig: Rig) -> list[bytes]:
    """Bodies of the dead letters, looked at in a broker of its own."""
    again = rig.crash()
    found: list[bytes] = []
    while bodies := again.bodies("dlq", most=256):
        found += bodies
    return found


def crashed_after(rig: Rig, rows: int) -> Rig:
    """A broker that was killed when so many rows were durable."""
    log = NaiveLog()
    log.rows = rig.log.rows[:rows]
    for _, record in log.records():
        if isinstance(record, MessagesSent):
            first = record.first_position
            keys = [(record.queue_id, position) for position in range(first, first + len(record.sizes))]
            log.stored.update((key, rig.log.stored[key]) for key in keys)
    return Rig(rig.limits, log=log).crash()


# ---------------------------------------------------------------------- bindings


def test_a_queue_may_name_one_dead_letter_queue_of_its_account():
    rig = Rig()
    rig.done(rig.broker.create_queue("other", "elsewhere", {}, rig.now_ms))
    rig.create()

    error = refused(rig, InvalidArgument, dead_letter_queue="elsewhere", dead_letter_max_receives=1)

    assert error.details["field"] == "dead_letter_queue"


@pytest.mark.parametrize("existing", [False, True])
def test_not_itself(existing: bool):
    rig = Rig()
    rig.create("q" if existing else "x")

    refused(rig, InvalidArgument, "q", dead_letter_queue="q", dead_letter_max_receives=1)


def test_not_a_transactional_one():
    rig = Rig()
    rig.create("t", transactional=True)
    rig.create()

    refused(rig, InvalidArgument, dead_letter_queue="t", dead_letter_max_receives=1)


def test_itself_without_a_dead_letter_queue():
    rig = by_receives()
    rig.create("r")

    refused(rig, InvalidArgument, "r", dead_letter_queue="q", dead_letter_max_receives=1)


def test_a_queue_that_serves_as_one_cannot_be_given_one():
    rig = by_receives()
    rig.create("r")

    error = refused(rig, InvalidArgument, "dlq", dead_letter_queue="r", dead_letter_max_receives=1)

    assert "q" in str(error)


def test_serving_at_most_6_source_queues():
    rig = Rig()
    rig.create("dlq")
    for number in range(6):
        rig.create(f"q{number}", dead_letter_queue="dlq", dead_letter_max_receives=1)

    assert "6" in str(refused(rig, InvalidArgument, "q6", dead_letter_queue="dlq", dead_letter_max_receives=1))
    rig.set("q3", dead_letter_max_receives=2)
    rig.set("q5", dead_letter_queue="")
    rig.create("q6", dead_letter_queue="dlq", dead_letter_max_receives=1)
    rig.delete_queue("q0")
    rig.set("q5", dead_letter_queue="dlq", dead_letter_max_receives=1)


def test_a_transactional_queue_may_have_one():
    rig = Rig()
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=1, transactional=True)
    (half,) = rig.send_half(b"1")
    rig.end(1, half)

    fail(rig)

    assert dead(rig) == [b"1"]


def test_it_lists_its_sources():
    rig = by_receives()
    rig.create("a", dead_letter_queue="dlq", dead_letter_after_ms=AFTER_MS)

    for again in (rig, rig.crash(), rig.crash_after(rig.checkpoint())):
        ids = [(again.queue(name).queue_id, name) for name in ("a", "q")]
        assert again.broker.dead_letter_sources(ACCOUNT, "dlq") == ids
        assert again.queue("dlq").facts()["dead_letter_sources"] == ["a", "q"]
        assert again.broker.dead_letter_sources(ACCOUNT, "q") == []
        assert "dead_letter_sources" not in again.queue("q").facts()


def test_one_in_use_cannot_be_deleted():
    rig = by_receives()
    for again in (rig, rig.crash()):
        with pytest.raises(DeadLetterQueueInUse) as raised:
            again.delete_queue("dlq")
        assert raised.value.details["sources"] == ["q"]
        again.delete_queue("q")
        again.delete_queue("dlq")


def test_unbinding_is_an_attribute_change_on_the_source():
    rig = by_receives()

    rig.set(dead_letter_queue="")

    for again in (rig, rig.crash()):
        attributes = again.queue().attributes()
        assert (attributes["dead_letter_queue"], attributes["dead_letter_max_receives"]) == ("", 0)
        assert again.queue("dlq").index.dead_letter_floor == -1
        again.delete_queue("dlq")
        again.send(b"1")
        fail(again, 3)
        assert again.counts()["active"] == 1


@pytest.mark.parametrize(
    "attributes",
    [
        {"dead_letter_queue": "dlq"},
        {"dead_letter_queue": "dlq", "dead_letter_max_receives": 1, "dead_letter_after_ms": AFTER_MS},
        {"dead_letter_max_receives": 1},
        {"dead_letter_after_ms": AFTER_MS},
        {"dead_letter_queue": "dlq", "dead_letter_after_ms": AFTER_MS - 1},
        {"dead_letter_queue": "dlq", "dead_letter_max_receives": 1001},
        {"dead_letter_queue": "nowhere", "dead_letter_max_receives": 1},
        {"dead_letter_queue": "DLQ", "dead_letter_max_receives": 1},
        {"dead_letter_queue": 7, "dead_letter_max_receives": 1},
    ],
)
def test_policies_that_are_none_are_refused(attributes: dict[str, Any]):
    rig = Rig()
    rig.create("dlq")
    rig.create()

    refused(rig, InvalidArgument, **attributes)
    refused(rig, InvalidArgument, "new", **attributes)


def test_contradictions_are_refused_naming_both_and_taken_when_set_together():
    rig = by_age(rewind_ms=10 * MINUTE_MS)

    for field, retention_ms in (("rewind_ms", 9 * MINUTE_MS), ("dead_letter_after_ms", 5 * MINUTE_MS)):
        rig.set(rewind_ms=10 * MINUTE_MS if field == "rewind_ms" else 0)
        text = str(refused(rig, InvalidArgument, retention_ms=retention_ms))
        assert field in text
        assert "retention_ms" in text
    rig.set(retention_ms=9 * MINUTE_MS, rewind_ms=9 * MINUTE_MS)
    refused(rig, InvalidArgument, dead_letter_after_ms=9 * MINUTE_MS)
    rig.set(dead_letter_after_ms=9 * MINUTE_MS, retention_ms=9 * MINUTE_MS + 1)


def test_transactional_is_chosen_at_creation_only():
    rig = Rig()
    rig.create()

    refused(rig, InvalidArgument, transactional=True)
    rig.set(transactional=False)


def test_ensure_shows_the_difference_of_the_new_attributes():
    rig = by_receives(3)
    wanted = {"dead_letter_queue": "", "dead_letter_max_receives": 4, "rewind_ms": 1000, "transactional": True}

    with pytest.raises(QueueDiffers) as raised:
        rig.broker.ensure_queue(ACCOUNT, "q", wanted, rig.now_ms)

    assert raised.value.details["difference"] == {
        "dead_letter_queue": {"is": "dlq", "wanted": ""},
        "dead_letter_max_receives": {"is": 3, "wanted": 4},
        "rewind_ms": {"is": 0, "wanted": 1000},
        "transactional": {"is": False, "wanted": True},
    }
    for agreed in ({"dead_letter_max_receives": 3}, {"dead_letter_queue": "dlq"}, {"transactional": False}):
        assert not rig.done(rig.broker.ensure_queue(ACCOUNT, "q", agreed, rig.now_ms)).created


def test_ensure_does_not_mind_what_only_contradicts_a_default():
    rig = Rig()
    rig.create(retention_ms=1_296_000_000, rewind_ms=1_000_000_000)

    assert rig.done(rig.broker.ensure_queue(ACCOUNT, "q", {"rewind_ms": 1_000_000_000}, rig.now_ms))


# ---------------------------------------------------------------------- policy 0


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("crashed", [False, True])
def test_moved_when_the_last_allowed_lease_ends_without_deletion(most: int, crashed: bool):
    rig = by_receives(most)
    rig.send(b"1")
    fail(rig, most - 1)
    assert rig.counts()["active"] == 1

    rig.receive()
    rig = rig.crash() if crashed else rig
    rig.settle(VISIBLE_MS - 1)
    assert rig.counts("dlq")["active"] == 0
    rig.settle(101)

    assert rig.counts() == counts()
    assert rig.bodies("dlq") == [b"1"]


def test_one_deleted_in_its_last_lease_is_not_moved():
    rig = by_receives()
    rig.send(b"1")
    rig.delete(*rig.handles())
    rig.settle(10_000)

    assert rig.counts("dlq") == counts()


@pytest.mark.parametrize("counted", [True, False])
def test_a_hand_back_ends_the_lease_and_one_uncounted_does_not_count(counted: bool):
    rig = by_receives(2)
    rig.send(b"1")
    fail(rig)
    (handle,) = rig.handles()

    rig.release(handle, counted=counted)
    rig.settle()

    assert rig.counts("dlq")["active"] == int(counted)
    assert rig.counts()["active"] == int(not counted)
    if not counted:
        fail(rig)
        assert rig.counts("dlq")["active"] == 1


def test_change_of_visibility_to_0_is_the_end_of_a_lease():
    rig = by_receives()
    rig.send(b"1")
    rig.hide(*rig.handles(), timeout_ms=0)
    rig.settle()

    assert rig.counts("dlq")["active"] == 1


def test_a_longer_visibility_keeps_it():
    rig = by_receives()
    rig.send(b"1")
    (handle,) = rig.handles()
    rig.hide(handle, timeout_ms=20_000)
    rig.settle(19_000)

    assert rig.counts("dlq")["active"] == 0
    assert rig.delete(handle) == []


def test_a_waiting_receive_does_not_get_a_dead_letter_and_one_at_the_dead_letter_queue_does():
    rig = by_receives()
    rig.send(b"1")
    rig.receive()
    waiter, _ = rig.wait(wait_ms=20_000)
    at_dlq, _ = rig.wait("dlq", wait_ms=20_000)

    rig.settle(VISIBLE_MS)

    assert rig.replies(waiter) == []
    assert [message.body for message in rig.replies(at_dlq)[0]] == [b"1"]


def test_several_consumers_count_together():
    rig = by_receives(2)
    rig.send(b"1", b"2")
    rig.receive(most=1)
    rig.receive(most=1)
    rig.settle(VISIBLE_MS)
    rig.receive(most=1)
    rig.settle(VISIBLE_MS)

    assert dead(rig) == [b"1"]
    assert rig.bodies() == [b"2"]


def test_a_lower_maximum_takes_what_was_received_as_often():
    rig = by_receives(5)
    rig.send(*[b"%d" % number for number in range(100)])
    fail(rig, 2, most=80)

    rig.set(dead_letter_max_receives=2)
    rig.settle()

    assert rig.counts("dlq")["active"] == 80
    assert rig.counts()["active"] == 20


# ---------------------------------------------------------------------- policy 1


@pytest.mark.parametrize("received", [False, True])
def test_moved_when_not_deleted_so_long_after_the_send_whether_or_not_anybody_receives(received: bool):
    rig = by_age()
    rig.send(b"1")
    if received:
        rig.receive(visibility_timeout_ms=1000)
    rig.settle(AFTER_MS - 1)
    assert rig.counts()["active"] == 1
    rig.settle(1001)

    assert rig.counts() == counts()
    assert rig.bodies("dlq") == [b"1"]


def test_its_clock_starts_at_the_end_of_the_delay():
    rig = by_age()
    rig.send(b"1", delay_ms=1_800_000)
    rig.settle(1_800_020)
    rig.settle(AFTER_MS - 1000)
    assert rig.counts()["active"] == 1
    rig.settle(3000)

    assert dead(rig) == [b"1"]


def test_its_clock_starts_at_the_commit():
    rig = Rig()
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_after_ms=AFTER_MS, transactional=True)
    (half,) = rig.send_half(b"1")
    rig.settle(2 * AFTER_MS)
    rig.end(1, half)
    rig.settle(AFTER_MS - 1)
    assert rig.counts()["active"] == 1
    rig.settle(1001)

    assert dead(rig) == [b"1"]


@pytest.mark.parametrize("crashed", [False, True])
def test_its_clock_is_restarted_by_a_rewind(crashed: bool):
    rig = by_age(rewind_ms=60 * MINUTE_MS)
    rig.send(b"1", b"2")
    rig.delete(*rig.handles(most=1))
    rig.settle(AFTER_MS + 1000)
    assert dead(rig) == [b"2"]

    rig.rewind(START_MS)
    rig = rig.crash() if crashed else rig
    rig.settle(AFTER_MS - 1)
    assert rig.counts()["active"] == 1
    rig.settle(3000)

    assert dead(rig) == [b"2", b"1"]


def test_its_clock_is_restarted_by_a_redrive():
    rig = by_age()
    rig.send(b"1")
    rig.settle(AFTER_MS + 1000)
    rig.redrive()
    rig.settle()
    assert rig.counts()["active"] == 1

    rig.settle(AFTER_MS - 1)
    assert rig.counts()["active"] == 1
    rig.settle(1001)
    assert rig.counts("dlq")["active"] == 1


@pytest.mark.parametrize("how", ["end", "counted", "uncounted"])
def test_one_in_flight_moves_when_its_lease_ends(how: str):
    rig = by_age()
    rig.send(b"1")
    (handle,) = rig.handles(visibility_timeout_ms=AFTER_MS + 60_000)
    rig.settle(AFTER_MS + 30_000)
    assert rig.counts()["in_flight"] == 1

    if how == "end":
        rig.settle(30_100)
    else:
        rig.release(handle, counted=how == "counted")
        rig.settle()

    assert dead(rig) == [b"1"]


def test_a_send_into_a_step_that_began_before_is_found_in_time():
    rig = by_age(rewind_ms=60 * MINUTE_MS)
    rig.send(b"1")
    rig.delete(*rig.handles())
    rig.now_ms += 10
    rig.send(b"2")

    rig.settle(AFTER_MS + 1000)

    assert dead(rig) == [b"2"]


def test_one_sent_while_the_next_look_is_far_off_is_found_in_time():
    rig = by_age(rewind_ms=60 * MINUTE_MS)
    rig.send(b"1")
    rig.delete(*rig.handles())
    rig.settle(AFTER_MS + 5000)
    rig.send(b"2")

    rig.settle(AFTER_MS + 1000)

    assert dead(rig) == [b"2"]


def test_overdue_ones_are_not_in_the_way_of_fresh_ones():
    rig = by_age(Limits(page_messages=4))
    rig.send(*[b"old %d" % number for number in range(200)])
    rig.now_ms += AFTER_MS + 1000
    rig.tick()
    while rig.due():
        rig.tick()
    assert rig.reads, "the move has only begun"
    rig.send(b"fresh")

    assert rig.bodies() == [b"fresh"]
    assert rig.counts() == counts(active=200, in_flight=1)
    rig.settle()
    assert rig.counts("dlq")["active"] == 200
    assert dead(rig) == [b"old %d" % number for number in range(200)]


# ---------------------------------------------------------------------- the move


def test_the_dead_letter_keeps_body_headers_and_origin_with_a_new_id_time_and_count():
    rig = by_receives(2)
    (message_id,) = rig.send(b"body", headers=[{"a": "b"}])
    rig.now_ms += 5
    fail(rig, 2)
    moved_ms = rig.now_ms

    for again in (rig.crash(), rig):
        (message,) = again.receive("dlq")

        assert isinstance(message, ReceivedMessage)
        assert (message.body, message.headers) == (b"body", {"a": "b"})
        assert message.message_id != message_id
        assert message.enqueue_ms == moved_ms
        assert message.receive_count == 1
        assert message.origin == Origin("q", message_id, START_MS, 2, "receives")


def test_the_origin_of_one_that_was_too_old_says_so():
    rig = by_age()
    (message_id,) = rig.send(b"1")
    rig.settle(AFTER_MS + 1000)

    (message,) = rig.receive("dlq")

    assert message.origin == Origin("q", message_id, START_MS, 0, "age")


def test_its_retention_counts_from_the_move():
    rig = Rig()
    rig.create("dlq", retention_ms=60_000)
    rig.create(dead_letter_queue="dlq", dead_letter_after_ms=AFTER_MS)
    rig.send(b"1")
    rig.settle(AFTER_MS)
    moved_ms = rig.now_ms

    rig.settle(59_000)
    assert rig.counts("dlq")["active"] == 1
    rig.settle(moved_ms + 60_100 - rig.now_ms)
    assert rig.counts("dlq") == counts()


def test_the_move_is_one_row_so_never_lost_and_never_in_both():
    rig = by_receives(limits=Limits(page_messages=3))
    rig.send(*[b"%d" % number for number in range(10)])
    fail(rig)
    moves = [row for row in rig.log.rows if any(isinstance(record, MessagesMoved) for record in row)]
    assert len(moves) == 4
    for row in moves:
        assert isinstance(row[0], MessagesMoved)
        assert any(isinstance(record, MessagesSent) for record in row)

    rows = rig.log.rows
    for last in range(len(rows) + 1):
        again = crashed_after(rig, last)
        again.now_ms = START_MS
        if "q" not in again.broker._names.get(ACCOUNT, {}):  # pyright: ignore[reportPrivateUsage]
            continue
        held = sum(sum(again.counts(name).values()) for name in ("q", "dlq"))
        assert held in (0, 10)
        again.settle(VISIBLE_MS + 100)
        held = sum(sum(again.counts(name).values()) for name in ("q", "dlq"))
        assert held in (0, 10)
        if any(isinstance(record, MessagesMoved) for row in rows[:last] for record in row):
            assert sorted(dead(again)) == sorted(b"%d" % number for number in range(10))


def test_slices_of_a_checkpoint_taken_around_a_move_come_to_the_same():
    rig = by_receives(limits=Limits(page_messages=2))
    rig.send(*[b"%d" % number for number in range(9)])
    rig.receive()
    rig.advance(VISIBLE_MS)
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts)]
    for part in parts:
        taken.append(part)
        if rig.reads:
            rig.answer(rig.reads[0])
    rig.answer_reads()
    assert rig.counts("dlq")["active"] == 9

    assert facts(rig.crash_after(taken).broker)["queues"] == facts(rig.broker)["queues"]
    assert facts(rig.crash().broker)["queues"] == facts(rig.broker)["queues"]


@pytest.mark.parametrize("policy", ["receives", "age"])
def test_if_the_dead_letter_queue_is_full_it_stays_active_and_is_tried_again_while_receives_go_on(policy: str):
    rig = by_receives() if policy == "receives" else by_age()
    rig.force("dlq", max_backlog=2)
    rig.send(*[b"%d" % number for number in range(5)])
    if policy == "receives":
        fail(rig)
    else:
        rig.settle(AFTER_MS)
    assert rig.counts("dlq")["active"] == 2
    assert rig.counts() == counts(active=3)

    handles = rig.handles(visibility_timeout_ms=1000)
    assert len(handles) == 3
    rig.delete(handles[0])
    rig.settle(2000)
    assert rig.counts() == counts(active=2)
    rig.delete(*rig.handles("dlq", most=1), name="dlq")
    rig.settle(2000)

    assert rig.counts() == counts(active=1)
    assert sum(rig.counts("dlq").values()) == 2
    rig.delete(*rig.handles("dlq"), name="dlq")
    rig.settle(60_000)
    assert rig.counts() == counts()


def test_one_handed_back_uncounted_after_it_was_overdue_is_still_a_dead_letter():
    rig = by_receives()
    rig.force("dlq", max_backlog=0)
    rig.send(b"1")
    fail(rig)
    (handle,) = rig.handles()
    rig.settle(500)
    rig.force("dlq", max_backlog=5)
    rig.release(handle, counted=False)
    rig.settle()

    assert dead(rig) == [b"1"]


def test_one_too_large_for_it_stays_receivable_and_does_not_hold_up_others():
    rig = by_receives()
    rig.set("dlq", max_message_bytes=1024)
    rig.send(b"x" * 1025, b"2")
    fail(rig)
    assert dead(rig) == [b"2"]
    assert rig.counts() == counts(active=1)
    fail(rig)
    assert rig.counts() == counts(active=1)

    rig.set("dlq", max_message_bytes=2048)
    rig.settle()

    assert rig.counts() == counts()
    assert rig.counts("dlq")["active"] == 2


def test_one_that_held_messages_takes_dead_letters_only_after_those_are_consumed():
    rig = Rig()
    rig.create("dlq")
    rig.send(b"before", name="dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=1, visibility_timeout_ms=VISIBLE_MS)
    rig.send(b"after", name="dlq")
    rig.send(b"1")
    fail(rig)
    for again in (rig.crash(), rig):
        assert again.counts("dlq")["active"] == 2
        fail(again)

        again.delete(*again.handles("dlq", most=1), name="dlq")
        again.settle(2000)
        assert again.counts() == counts()
        assert again.bodies("dlq") == [b"after", b"1"]


# ---------------------------------------------------------------------- while a page of it is read


def moving(count: int = 3, **attributes: Any) -> Rig:
    """Messages whose page is asked for."""
    rig = by_receives(**attributes)
    rig.send(*[b"%d" % number for number in range(count)])
    rig.receive()
    rig.advance(VISIBLE_MS)
    assert len(rig.reads) == 1
    assert rig.wait()[1] == []
    return rig


def test_they_count_as_active_while_they_wait_to_be_moved():
    assert moving().counts() == counts(active=3)


def test_unbound_meanwhile_they_stay_active():
    rig = moving()
    rig.set(dead_letter_queue="")
    rig.settle()

    assert rig.counts("dlq") == counts()
    assert rig.bodies() == [b"0", b"1", b"2"]


def test_bound_elsewhere_meanwhile_they_go_there():
    rig = moving()
    rig.create("dlq2")
    rig.set(dead_letter_queue="dlq2")
    rig.settle()

    assert rig.counts("dlq") == counts()
    assert rig.bodies("dlq2") == [b"0", b"1", b"2"]


def test_cleared_meanwhile_they_are_gone():
    rig = moving()
    rig.clear()
    rig.settle()

    assert rig.counts("dlq") == rig.counts() == counts()


def test_expired_meanwhile_they_are_gone():
    rig = moving(retention_ms=60_000)
    rig.advance(70_000)
    rig.settle()

    assert rig.counts("dlq") == rig.counts() == counts()


def test_deleted_meanwhile_with_their_queue_they_are_gone():
    rig = moving()
    rig.delete_queue()
    rig.settle()

    assert rig.counts("dlq") == counts()


def test_full_meanwhile_they_stay_active():
    rig = moving()
    rig.force("dlq", max_backlog=1)
    rig.send(b"there", name="dlq")
    rig.answer_reads()

    assert rig.bodies() == [b"0", b"1", b"2"]


def test_what_cannot_be_read_is_damaged_and_does_not_hold_up_others():
    rig = moving()
    rig.log.damaged.add((rig.queue().queue_id, 1))
    rig.settle()

    assert rig.counts() == counts(damaged=1)
    assert dead(rig) == [b"0", b"2"]
    assert facts(rig.crash().broker)["queues"] == facts(rig.broker)["queues"]


def test_pages_that_hold_only_a_part_are_followed_by_the_rest():
    rig = moving(9)
    while rig.reads:
        rig.answer(rig.reads[0], at_most=2)

    assert dead(rig) == [b"%d" % number for number in range(9)]


def test_a_page_that_comes_after_a_receive_waits_does_not_serve_it():
    rig = moving()
    waiter, reply = rig.wait(wait_ms=20_000)
    assert reply is WAITING
    rig.send(b"fresh")
    rig.answer_reads()

    assert [message.body for message in rig.replies(waiter)[0]] == [b"fresh"]


def test_ten_million_overdue_are_reserved_and_released_as_sets():
    rig = by_age()
    rig.force("dlq", max_backlog=10)
    index = rig.queue().index
    count = 10_000_000
    index.next_position = index.live_count = index.active_count = count
    index.live.add_range(0, count)
    index.active.add_range(0, count)
    index.steps.note(0, START_MS)
    index.last_enqueue_ms = START_MS
    rig.now_ms += AFTER_MS + 1000
    rig.set(polling_wait_ms=100)
    assert index.moving_count == count

    (fresh,) = rig.send(b"fresh")
    assert [message.message_id for message in rig.receive()] == [fresh]
    (read,) = rig.reads
    rig.send(*[b"x"] * 10, name="dlq")
    stored = [(rig.queue().queue_id, position) for position in range(1024)]
    (kept,) = [message for (queue_id, _), message in rig.log.stored.items() if queue_id == stored[0][0]]
    for key in stored:
        rig.log.stored[key] = type(kept)(key[1], key[1], START_MS, b"old")
    rig.answer(read)

    assert (index.moving_count, index.active_count) == (0, count)


def test_a_redriven_queue_cannot_be_given_a_dead_letter_queue():
    rig = Rig()
    rig.create("dlq")
    rig.create()
    rig.send(b"1")
    rig.redrive("q", target="dlq")

    refused(rig, RedriveRunning, dead_letter_queue="dlq", dead_letter_max_receives=1)


def test_one_that_expired_in_a_time_step_with_younger_ones_is_neither_moved_nor_in_their_way():
    rig = by_receives(retention_ms=60_000)
    rig.send(b"older")
    rig.now_ms += 90
    rig.send(b"younger")
    rig.receive()
    rig.now_ms = START_MS + 60_000
    rig.settle()

    assert dead(rig) == [b"younger"]
    rig.settle(100)
    assert rig.counts() == counts()


@pytest.mark.parametrize("value", [1, "yes", None])
def test_transactional_is_true_or_false(value: object):
    rig = Rig()

    with pytest.raises(InvalidArgument):
        rig.broker.create_queue(ACCOUNT, "q", {"transactional": value}, rig.now_ms)
