"""The history checker: a good history passes, and every rule finds a bad history."""

import pytest

from support.cases import each_case
from support.crash.promises.builders import (
    DONE,
    MS,
    REFUSED,
    UNKNOWN,
    Q,
    broken,
    change,
    delete,
    delivery,
    receive,
    receive_a,
    release,
    send,
)
from support.crash.promises.checker import check
from support.crash.promises.history import (
    Acknowledge,
    Clear,
    CreateQueue,
    Delete,
    DeleteQueue,
    GetAttributes,
    History,
    Operation,
    Outcome,
    Receive,
    Release,
    Send,
    SetAttributes,
)
from support.crash.promises.ledger import Rule

GOOD_LIFE = (send(0, b"a"), receive_a(100, handle=1), delete(200, 1))


def test_a_life_from_send_to_delete_is_good() -> None:
    assert broken(*GOOD_LIFE) == set()


# ---------------------------------------------------------------- sends


def test_an_acknowledged_send_that_is_never_seen_is_lost() -> None:
    assert broken(send(0, b"a")) == {Rule.SEND_KEPT}


def test_a_message_received_and_never_deleted_is_lost_when_a_drain_does_not_find_it() -> None:
    assert broken(send(0, b"a"), receive_a(100, handle=1)) == {Rule.SEND_KEPT}


def test_before_a_drain_nothing_is_called_lost() -> None:
    assert broken(send(0, b"a"), drained=False) == set()


def test_an_unanswered_send_may_be_there_or_not() -> None:
    unanswered = send(0, b"a", outcome=UNKNOWN)

    assert broken(unanswered) == set()
    assert broken(unanswered, receive_a(100, handle=1), delete(200, 1)) == set()


def test_an_unanswered_send_that_was_seen_is_not_lost_any_more() -> None:
    assert broken(send(0, b"a", outcome=UNKNOWN), receive_a(100, handle=1)) == {Rule.SEND_KEPT}


def test_an_unanswered_delete_explains_a_message_that_is_gone() -> None:
    assert broken(send(0, b"a"), receive_a(100, handle=1), delete(200, 1, outcome=UNKNOWN)) == set()


def test_an_unanswered_delete_after_which_the_message_came_back_explains_nothing() -> None:
    assert broken(
        send(0, b"a"),
        receive_a(100, handle=1),
        delete(200, 1, outcome=UNKNOWN),
        receive_a(1200, handle=2, count=2),
    ) == {Rule.SEND_KEPT}


def test_a_refused_delete_explains_nothing() -> None:
    assert broken(
        send(0, b"a"), receive_a(100, handle=1), delete(2000, 1, failed=(1,)), delete(2100, 1, outcome=REFUSED)
    ) == {Rule.SEND_KEPT}


def test_part_of_an_unanswered_batch_is_torn() -> None:
    batch = send(0, b"a", b"b", outcome=UNKNOWN)

    assert broken(batch, receive_a(100, handle=1), delete(200, 1)) == {Rule.BATCH_WHOLE}
    assert broken(batch) == set()


def test_a_message_that_was_never_sent_is_found() -> None:
    assert broken(receive(100, delivery(100, b"x", 7, handle=1))) == {Rule.SENT_ONLY}


def test_a_changed_body_is_never_sent() -> None:
    assert Rule.SENT_ONLY in broken(send(0, b"a"), receive(100, delivery(100, b"A", 0, handle=1)), delete(200, 1))


def test_a_message_of_another_queue_is_never_sent() -> None:
    elsewhere = Send(queue="other", called_ns=0, answered_ns=MS, bodies=(b"a",), message_ids=(0,))

    assert Rule.SENT_ONLY in broken(elsewhere, receive_a(100, handle=1), delete(200, 1), drained=False)


def test_a_refused_send_that_is_delivered_is_never_sent() -> None:
    assert broken(send(0, b"a", outcome=REFUSED), receive_a(100, handle=1), delete(200, 1)) == {Rule.SENT_ONLY}


def test_changed_headers_are_never_sent() -> None:
    strange = delivery(100, b"a", 0, handle=1, headers={"k": "v"})

    assert broken(send(0, b"a"), receive(100, strange), delete(200, 1)) == {Rule.SENT_ONLY}


def test_a_delivery_before_the_send_was_called_is_never_sent() -> None:
    assert Rule.SENT_ONLY in broken(send(1000, b"a", ids=(0,)), receive_a(100, handle=1), delete(200, 1))


def test_an_enqueue_time_that_changes_is_found() -> None:
    again = receive(1200, delivery(1200, b"a", 0, handle=2, count=2, first=105, enqueued=6))

    assert broken(send(0, b"a"), receive_a(100, handle=1), again, delete(1300, 2)) == {Rule.SENT_ONLY}


def test_a_delayed_message_that_comes_early_is_found() -> None:
    assert broken(send(0, b"a", delay_ms=500), *GOOD_LIFE[1:]) == {Rule.DELAY_KEPT}
    assert broken(send(0, b"a", delay_ms=100), *GOOD_LIFE[1:]) == set()


# ---------------------------------------------------------------- ids


def test_a_repeated_numbered_send_with_the_same_id_is_good() -> None:
    attempts = send(0, b"a", outcome=UNKNOWN, number=1), send(50, b"a", ids=(0,), number=1)

    assert broken(*attempts, *GOOD_LIFE[1:]) == set()


def test_a_repeated_numbered_send_with_another_id_was_stored_twice() -> None:
    attempts = send(0, b"a", ids=(0,), number=1), send(50, b"a", ids=(1,), number=1)

    assert broken(*attempts, *GOOD_LIFE[1:]) == {Rule.STORED_ONCE}


def test_a_body_delivered_under_two_ids_was_stored_twice() -> None:
    attempts = send(0, b"a", outcome=UNKNOWN, number=1), send(50, b"a", ids=(1,), number=1)
    twin = receive(1500, delivery(1500, b"a", 1, handle=2))

    assert Rule.STORED_ONCE in broken(*attempts, *GOOD_LIFE[1:], twin, delete(1600, 2))


def test_an_id_given_to_two_acknowledged_sends_is_reused() -> None:
    assert Rule.ID_UNIQUE in broken(send(0, b"a", ids=(7,)), send(50, b"b", ids=(7,)), drained=False)


def test_an_id_of_a_deleted_message_given_again_is_reused() -> None:
    later = receive(2000, delivery(2000, b"b", 0, handle=2))

    assert broken(*GOOD_LIFE, send(1900, b"b", outcome=UNKNOWN), later, delete(2100, 2)) == {Rule.ID_UNIQUE}


def test_a_handle_given_twice_is_found() -> None:
    other = send(0, b"b", ids=(1,)), receive(100, delivery(100, b"b", 1, handle=1))

    assert Rule.HANDLE_UNIQUE in broken(*GOOD_LIFE, *other)


def test_one_body_in_two_sends_makes_the_history_unusable() -> None:
    with pytest.raises(ValueError, match="sent twice"):
        broken(send(0, b"a"), send(50, b"a"))


# ---------------------------------------------------------------- deletes and clears


def test_a_message_that_comes_back_after_its_delete_is_found() -> None:
    assert Rule.DELETE_KEPT in broken(*GOOD_LIFE, receive_a(1500, handle=2, count=2))


def test_a_message_that_comes_back_after_its_delete_in_a_receive_is_found() -> None:
    acknowledged = Acknowledge(queue=Q, called_ns=200 * MS, answered_ns=210 * MS, handles=(1,))
    life = (*GOOD_LIFE[:2], acknowledged)

    assert broken(*life) == set()
    assert Rule.DELETE_KEPT in broken(*life, receive_a(1500, handle=2, count=2))


def test_a_later_lease_shows_an_undone_delete_even_when_it_was_called_before() -> None:
    slow = receive(150, delivery(1200, b"a", 0, handle=2, count=2, first=105), lost_after=2000)

    assert Rule.DELETE_KEPT in broken(*GOOD_LIFE, slow)


def cleared(at: int, outcome: Outcome = DONE) -> Clear:
    return Clear(queue=Q, called_ns=at * MS, answered_ns=(at + 10) * MS, outcome=outcome)


def test_a_clear_explains_what_is_gone() -> None:
    assert broken(send(0, b"a"), cleared(50)) == set()
    assert broken(send(0, b"a"), cleared(50, UNKNOWN)) == set()


def test_a_refused_clear_and_one_before_the_send_explain_nothing() -> None:
    assert broken(send(0, b"a"), cleared(50, REFUSED)) == {Rule.SEND_KEPT}
    assert broken(cleared(0), send(50, b"a")) == {Rule.SEND_KEPT}


def test_a_cleared_message_that_is_delivered_is_found() -> None:
    assert broken(send(0, b"a"), cleared(50), *GOOD_LIFE[1:]) == {Rule.CLEAR_KEPT, Rule.HANDLE_MEANING}
    assert broken(send(0, b"a"), cleared(50, UNKNOWN), *GOOD_LIFE[1:]) == set()


# ---------------------------------------------------------------- leases


def test_two_live_leases_are_found() -> None:
    history = send(0, b"a"), receive_a(100, handle=1), receive_a(600, handle=2, count=2)

    assert broken(*history, drained=False) == {Rule.ONE_LEASE}


def test_a_lease_that_ran_out_may_be_followed_by_another() -> None:
    assert broken(send(0, b"a"), receive_a(100, handle=1), receive_a(1100, handle=2, count=2), delete(1200, 2)) == set()


@pytest.mark.parametrize("outcome", [DONE, UNKNOWN])
@pytest.mark.parametrize("counted", [True, False])
def test_a_lease_that_was_handed_back_may_be_followed_by_another(outcome: Outcome, counted: bool) -> None:
    back = release(200, 1, counted=counted, outcome=outcome)
    again = receive_a(300, handle=2, count=2 if counted else 1)

    assert broken(send(0, b"a"), receive_a(100, handle=1), back, again, delete(400, 2)) == set()


def test_a_hand_back_that_was_called_later_or_failed_excuses_no_second_lease() -> None:
    taken_twice = send(0, b"a"), receive_a(100, handle=1), receive_a(300, handle=2, count=2)

    assert Rule.ONE_LEASE in broken(*taken_twice, release(500, 1, counted=True), drained=False)
    assert Rule.ONE_LEASE in broken(*taken_twice, release(200, 1, counted=True, failed=True), drained=False)


def test_an_unanswered_delete_excuses_no_second_lease() -> None:
    history = send(0, b"a"), receive_a(100, handle=1), delete(200, 1, outcome=UNKNOWN)

    assert broken(*history, receive_a(300, handle=2, count=2), drained=False) == {Rule.ONE_LEASE}


def test_a_lease_lasts_as_long_as_its_visibility_was_changed_to() -> None:
    longer = send(0, b"a"), receive_a(100, handle=1), change(200, 1, 5000)
    shorter = send(0, b"a"), receive_a(100, handle=1), change(200, 1, 300)

    assert broken(*longer, receive_a(1200, handle=2, count=2), drained=False) == {Rule.ONE_LEASE}
    assert broken(*longer, receive_a(5300, handle=2, count=2), drained=False) == set()
    assert broken(*shorter, receive_a(600, handle=2, count=2), drained=False) == set()
    assert broken(*shorter, receive_a(450, handle=2, count=2), drained=False) == {Rule.ONE_LEASE}


def test_an_unanswered_change_may_have_made_the_lease_shorter_but_not_too_short() -> None:
    history = send(0, b"a"), receive_a(100, handle=1), change(800, 1, 500, outcome=UNKNOWN)

    assert broken(*history, receive_a(1060, handle=2, count=2), drained=False) == set()
    assert broken(*history, receive_a(900, handle=2, count=2), drained=False) == {Rule.ONE_LEASE}


# ---------------------------------------------------------------- counts


def test_a_count_that_stands_still_or_goes_back_is_found() -> None:
    history = send(0, b"a"), receive_a(100, handle=1, count=1), receive_a(1200, handle=2, count=1)

    assert broken(*history, drained=False) == {Rule.COUNT_EXACT}


def test_a_count_that_jumps_is_found() -> None:
    assert broken(send(0, b"a"), receive_a(100, handle=1, count=2), drained=False) == {Rule.COUNT_EXACT}
    history = send(0, b"a"), receive_a(100, handle=1), receive_a(2500, handle=2, count=3)
    assert broken(*history, drained=False) == {Rule.COUNT_EXACT}


def test_an_unanswered_receive_explains_one_more_count() -> None:
    lost = receive(1200, outcome=UNKNOWN)
    history = send(0, b"a"), receive_a(100, handle=1), lost

    assert broken(*history, receive_a(2500, handle=2, count=3), drained=False) == set()
    assert broken(*history, receive_a(2500, handle=2, count=2), drained=False) == set()
    assert broken(*history, receive_a(3500, handle=2, count=4), drained=False) == {Rule.COUNT_EXACT}


def test_an_unanswered_receive_of_another_time_explains_nothing() -> None:
    history = send(0, b"a"), receive_a(100, handle=1), receive_a(2500, handle=2, count=3)

    assert broken(receive(5000, outcome=UNKNOWN), *history, drained=False) == {Rule.COUNT_EXACT}
    early = receive(0, outcome=UNKNOWN)
    assert broken(early, *history, drained=False) == {Rule.COUNT_EXACT}


def test_an_unanswered_receive_keeps_the_message_for_its_visibility_timeout() -> None:
    lost = receive(1110, outcome=UNKNOWN)
    history = send(0, b"a"), receive_a(100, handle=1), lost

    assert broken(*history, receive_a(1900, handle=2, count=3), drained=False) == {Rule.COUNT_EXACT}


def test_an_unanswered_receive_explains_no_more_messages_than_it_asked_for() -> None:
    def both(most: int) -> set[Rule]:
        return broken(
            send(0, b"a", b"b", ids=(0, 1)),
            receive(100, outcome=UNKNOWN, most=most),
            receive(1500, delivery(1500, b"a", 0, handle=1, count=2, first=105)),
            receive(1500, delivery(1500, b"b", 1, handle=2, count=2, first=105)),
            drained=False,
        )

    assert both(2) == set()
    assert both(1) == {Rule.COUNT_EXACT}


def test_uncounted_hand_backs_are_not_counted_and_counted_ones_are() -> None:
    def after(back: Release, count: int) -> set[Rule]:
        history = send(0, b"a"), receive_a(100, handle=1), back
        return broken(*history, receive_a(300, handle=2, count=count), drained=False)

    assert after(release(200, 1, counted=False), 1) == set()
    assert after(release(200, 1, counted=False), 2) == {Rule.COUNT_EXACT}
    assert after(release(200, 1, counted=True), 2) == set()
    assert after(release(200, 1, counted=True), 1) == {Rule.COUNT_EXACT}
    assert after(release(200, 1, counted=False, outcome=UNKNOWN), 1) == set()


def test_a_first_receive_time_that_changes_is_found() -> None:
    history = send(0, b"a"), receive_a(100, handle=1), receive_a(1200, handle=2, count=2, first=1205)

    assert broken(*history, drained=False) == {Rule.COUNT_EXACT}


# ---------------------------------------------------------------- handles


def test_a_live_handle_that_is_refused_is_found() -> None:
    history = send(0, b"a"), receive_a(100, handle=1), delete(200, 1, failed=(1,))

    assert broken(*history, drained=False) == {Rule.HANDLE_MEANING}


@pytest.mark.parametrize(
    "reason",
    [
        delete(150, 1, outcome=UNKNOWN),
        release(150, 1, counted=True, outcome=UNKNOWN),
        change(120, 1, 50, outcome=UNKNOWN),
        cleared(150, UNKNOWN),
    ],
)
def test_a_refusal_that_something_may_explain_is_good(reason: Operation) -> None:
    history = send(0, b"a"), receive_a(100, handle=1), reason, delete(600, 1, failed=(1,))

    assert broken(*history, drained=False) == set()


def test_a_refusal_after_the_lease_is_good() -> None:
    assert broken(send(0, b"a"), receive_a(100, handle=1), delete(1200, 1, failed=(1,)), drained=False) == set()


def test_a_handle_that_works_long_after_its_lease_is_found() -> None:
    assert broken(send(0, b"a"), receive_a(100, handle=1), delete(2000, 1)) == {Rule.HANDLE_MEANING}


def test_a_handle_whose_lease_was_made_longer_works() -> None:
    assert broken(send(0, b"a"), receive_a(100, handle=1), change(200, 1, 5000), delete(2000, 1)) == set()


def test_a_stale_handle_that_works_is_found() -> None:
    history = send(0, b"a"), receive_a(100, handle=1), change(200, 1, 100), receive_a(400, handle=2, count=2)

    assert Rule.HANDLE_MEANING in broken(*history, delete(450, 1))


def test_a_handle_that_works_twice_is_found() -> None:
    assert broken(*GOOD_LIFE, delete(300, 1)) == {Rule.HANDLE_MEANING}
    history = send(0, b"a"), receive_a(100, handle=1), release(200, 1, counted=True), delete(300, 1)
    assert broken(*history) == {Rule.HANDLE_MEANING}


def test_a_handle_that_was_never_given_and_works_is_found() -> None:
    assert broken(*GOOD_LIFE, delete(300, 99)) == {Rule.HANDLE_MEANING}
    assert broken(*GOOD_LIFE, delete(300, 99, failed=(99,))) == set()


# ---------------------------------------------------------------- queues


def created(at: int, outcome: Outcome = DONE, *, error: str = "", queue_id: int = 1) -> CreateQueue:
    return CreateQueue(
        queue=Q,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        outcome=outcome,
        error=error,
        attributes={"delay_ms": 0},
        queue_id=queue_id,
    )


def deleted(at: int, outcome: Outcome = DONE) -> DeleteQueue:
    return DeleteQueue(queue=Q, called_ns=at * MS, answered_ns=(at + 10) * MS, outcome=outcome)


def changed(at: int, delay: int, outcome: Outcome = DONE) -> SetAttributes:
    return SetAttributes(
        queue=Q, called_ns=at * MS, answered_ns=(at + 10) * MS, outcome=outcome, attributes={"delay_ms": delay}
    )


def told(
    at: int, delay: int = 0, outcome: Outcome = DONE, *, error: str = "", queue_id: int = 1, active: int = 0
) -> GetAttributes:
    return GetAttributes(
        queue=Q,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        outcome=outcome,
        error=error,
        attributes={"delay_ms": delay, "retention_ms": 5},
        queue_id=queue_id,
        counts={"active": active} if outcome is DONE else {},
    )


@each_case(
    "operations",
    [
        (created(0), told(50), changed(100, 7), told(150, 7), deleted(200), created(250, queue_id=2)),
        (created(0), changed(100, 7, UNKNOWN), told(150, 0), told(200, 0)),
        (created(0), changed(100, 7, UNKNOWN), told(150, 7), told(200, 7)),
        (created(0, UNKNOWN), told(50, queue_id=9)),
        (created(0, UNKNOWN), created(50)),
        (created(0, UNKNOWN), created(50, REFUSED, error="queue_exists")),
        (created(0), deleted(50, UNKNOWN), told(100, outcome=REFUSED, error="queue_not_found")),
        (created(0), deleted(50, UNKNOWN), told(100)),
        (created(0), changed(50, 7, REFUSED), told(100)),
        (created(0), told(50, outcome=UNKNOWN), told(100)),
        (created(0), told(50, active=1), told(100)),
        (created(0), told(50, active=1), deleted(100), told(150, outcome=REFUSED, error="queue_not_found")),
    ],
)
def test_queues_that_are_as_acknowledged_are_good(operations: tuple[Operation, ...]) -> None:
    assert broken(*operations) == set()


@pytest.mark.parametrize(
    "operations",
    [
        (created(0), told(50, outcome=REFUSED, error="queue_not_found")),
        (created(0), created(50, queue_id=2)),
        (created(0), changed(50, 7), told(100, 0)),
        (created(0), changed(50, 7, UNKNOWN), told(100, 7), told(150, 0)),
        (created(0), deleted(50), told(100)),
        (created(0), deleted(50), created(100, REFUSED, error="queue_exists")),
        (created(0), deleted(50), created(100, queue_id=1)),
        (created(0), told(50, queue_id=2)),
        (created(0), deleted(50, UNKNOWN), told(100, outcome=REFUSED, error="queue_not_found"), told(150)),
        (created(0), told(50, active=1)),
    ],
)
def test_queues_that_are_not_as_acknowledged_are_found(operations: tuple[Operation, ...]) -> None:
    assert broken(*operations) == {Rule.QUEUE_STATE}


# ---------------------------------------------------------------- cuts


def test_a_history_cut_at_a_moment_forgets_later_answers() -> None:
    whole = History(0.0, [*GOOD_LIFE, send(210, b"late"), told(300)])

    cut = whole.until(205 * MS)

    assert [(type(one), one.outcome) for one in cut.operations] == [(Send, DONE), (Receive, DONE), (Delete, UNKNOWN)]
    assert check(cut, drained=True) == []
    assert {violation.rule for violation in check(whole.until(150 * MS), drained=True)} == {Rule.SEND_KEPT}
