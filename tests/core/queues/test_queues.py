"""Queues from the view of their owners (spec 1 and 2.1)."""

import pytest

from cmqd.core.domain_errors import InvalidArgument, QueueDeleted, QueueDiffers, QueueExists, QueueNotFound
from cmqd.core.outcome import WAITING
from support.core.builders import ACCOUNT, START_MS, Rig, counts
from support.core.facts import facts


def test_create_of_an_existing_name_is_an_error():
    rig = Rig()
    rig.create()

    with pytest.raises(QueueExists) as refused:
        rig.create()

    assert refused.value.details == {"queue": "q", "existing": "q"}


def test_names_that_differ_only_in_case_cannot_coexist_but_are_not_the_same():
    rig = Rig()
    rig.create("Orders")

    with pytest.raises(QueueExists, match="differs only in case from 'Orders'"):
        rig.create("orders")
    with pytest.raises(QueueExists):
        rig.broker.ensure_queue(ACCOUNT, "orders", {}, rig.now_ms)
    with pytest.raises(QueueNotFound):
        rig.queue("orders")


def test_the_same_name_may_exist_in_another_account():
    rig = Rig()
    mine = rig.create()

    theirs = rig.done(rig.broker.create_queue("other", "q", {}, rig.now_ms))

    assert theirs.queue_id != mine.queue_id


def test_a_list_of_all_accounts_examines_a_bounded_number_of_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd.core.operations.queues.administration.NAMES_EXAMINED", 4)
    rig = Rig()
    for account in ("a", "b", "c", "d"):
        for name in ("x", "y", "z"):
            rig.done(rig.broker.create_queue(account, name, {}, rig.now_ms))

    pages: list[object] = []
    after: tuple[str, str] | None = ("", "")
    while after is not None:
        page, after = rig.broker.list_all_queues("nowhere", after, 10)
        pages.append((page, after))

    assert pages == [([], ("b", "x")), ([], ("c", "y")), ([], ("d", "z")), ([], None)]
    found, after = rig.broker.list_all_queues("y", ("a", "y"), 10)
    assert ([(account, name) for account, _, name in found], after) == ([("b", "y")], ("b", "z"))


def test_ensure_makes_a_queue_or_confirms_it():
    rig = Rig()

    made = rig.done(rig.broker.ensure_queue(ACCOUNT, "q", {"delay_ms": 5}, rig.now_ms))
    there = rig.done(rig.broker.ensure_queue(ACCOUNT, "q", {"delay_ms": 5}, rig.now_ms))

    assert (made.created, there.created) == (True, False)
    assert made.queue_id == there.queue_id


def test_ensure_shows_the_difference():
    rig = Rig()
    rig.create(delay_ms=5)

    with pytest.raises(QueueDiffers) as refused:
        rig.broker.ensure_queue(ACCOUNT, "q", {"delay_ms": 6, "max_delayed": 1_000_000}, rig.now_ms)

    assert refused.value.details["difference"] == {"delay_ms": {"is": 5, "wanted": 6}}
    assert "delay_ms is 5 ms, wanted 6 ms" in str(refused.value)


def test_an_attribute_not_named_stays():
    rig = Rig()
    queue = rig.create(delay_ms=5, max_delayed=7)

    rig.now_ms += 10
    rig.set(delay_ms=6)

    assert queue.attributes()["max_delayed"] == 7
    assert queue.facts()["created_ms"] == START_MS
    assert queue.facts()["modified_ms"] == START_MS + 10


def test_a_queue_is_shown_with_attributes_counts_and_facts():
    rig = Rig()
    queue = rig.create()
    rig.send(b"1", b"2")
    rig.send(b"3", delay_ms=1000)
    rig.receive(most=1)
    rig.wait(wait_ms=0)

    info = rig.broker.queue_info(ACCOUNT, "q")

    assert info.queue == "q"
    assert info.queue_id == queue.queue_id
    assert info.counts == counts(in_flight=2, delayed=1)
    assert info.facts["oldest_message_ms"] == START_MS
    assert "q" in repr(queue)


def test_an_empty_queue_has_no_oldest_message():
    assert Rig().create().facts()["oldest_message_ms"] is None


def test_queues_are_listed_by_name_with_search_word_offset_and_limit():
    rig = Rig()
    for name in ("b-1", "a-1", "c-2", "d-1"):
        rig.create(name)

    count, page = rig.broker.list_queues(ACCOUNT, "-1", 1, 1)

    assert count == 3
    assert page == [(rig.queue("b-1").queue_id, "b-1")]
    assert rig.broker.list_queues("nobody", "", 0, 10) == (0, [])
    for offset, limit in ((-1, 1), (0, 0), (0, 1001)):
        with pytest.raises(InvalidArgument):
            rig.broker.list_queues(ACCOUNT, "", offset, limit)


def test_a_queue_deleted_and_created_again_is_another_queue():
    rig = Rig()
    old = rig.create()
    rig.send(b"1")
    handles = rig.handles()
    rig.delete_queue()

    new = rig.create()

    assert new.queue_id != old.queue_id
    assert rig.delete(*handles) == handles
    assert rig.receive() == []
    assert rig.broker.live_in(old.queue_id, 0, 10) == 0


def test_receives_and_peeks_waiting_at_a_deleted_queue_end_saying_so():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    cold = rig.crash()
    receive, _ = cold.wait(wait_ms=1000)
    cold.done(cold.broker.peek(ACCOUNT, "q", 99, 0, 1, cold.now_ms))

    cold.delete_queue()

    assert isinstance(cold.replies(receive)[0], QueueDeleted)
    assert isinstance(cold.replies(99)[0], QueueDeleted)
    cold.answer_reads()
    cold.advance(1000)
    assert len(cold.woken) == 2


def test_deadlines_of_a_deleted_queue_are_dropped():
    rig = Rig()
    rig.create(retention_ms=60_000)
    rig.send(b"1")
    rig.send(b"2", delay_ms=1000)
    rig.receive()
    rig.wait(wait_ms=1000)
    rig.delete_queue()

    rig.advance(100_000)

    assert rig.broker.next_deadline_ms() is None


def test_clear_drops_everything_in_every_state_and_its_handles():
    rig = Rig()
    rig.create(max_delayed=1)
    rig.send(b"1", b"2")
    rig.send(b"3", b"4", delay_ms=1000)
    (handle,) = rig.handles(most=1)

    rig.clear()

    assert set(rig.counts().values()) == {0}
    assert rig.delete(handle) == [handle]
    rig.send(b"5")
    rig.advance(40_000)
    assert rig.bodies() == [b"5"]


def test_clear_answers_receives_that_only_waited_for_a_page():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    cold = rig.crash()
    without_wait, _ = cold.wait(wait_ms=0)
    with_wait, reply = cold.wait(wait_ms=1000)
    assert reply is WAITING

    cold.clear()

    assert cold.replies(without_wait) == [[]]
    assert not cold.replies(with_wait)


@pytest.mark.parametrize("again", [False, True])
def test_every_change_of_a_queue_survives_a_crash(again: bool):
    rig = Rig()
    rig.create(delay_ms=5)
    rig.set(retention_ms=60_000)
    rig.create("gone")
    rig.delete_queue("gone")
    if again:
        rig.create("gone")
    rig.send(b"x", delay_ms=0)
    rig.clear()

    assert facts(rig.crash().broker) == facts(rig.broker)
