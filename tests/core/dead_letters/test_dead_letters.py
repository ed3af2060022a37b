"""Dead-letter queues: the conditions for a dead-letter queue, and the policies of its sources."""

from typing import Any

import pytest

from cmqd.core.domain_errors import DeadLetterQueueInUse, InvalidArgument, QueueDiffers
from cmqd.core.limits import Limits
from cmqd_fold.queue_index import SERVED_BEFORE
from support.core.builders import ACCOUNT, START_MS, Rig, counts
from support.core.dead_letters import (
    AFTER_MS,
    MINUTE_MS,
    VISIBLE_MS,
    by_age,
    by_receives,
    dead,
    fail,
    refused,
)

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
        assert again.queue("dlq").index.dead_letter_floor == SERVED_BEFORE
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
def test_moved_when_not_deleted_so_long_after_the_send_received_or_not(received: bool):
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
