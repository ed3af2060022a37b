"""The checker's rules about dead letters, redrives, rewinds and dedup ids: good histories pass, bad ones are found."""

import pytest

from support.crash.promises.builders import (
    DONE,
    MS,
    UNKNOWN,
    Q,
    broken,
    delete,
    delivery,
    queue_with,
    receive,
    receive_a,
    release,
    send,
)
from support.crash.promises.history import DeadLetter, Operation, Origin, Outcome, Receive, Rewind, StartRedrive
from support.crash.promises.ledger import Rule

DLQ = "dlq"
MORTAL = queue_with(DLQ), queue_with(Q, dead_letter_queue=DLQ, dead_letter_max_receives=1)
SENT = send(0, b"a", ids=(7,))
DIED = receive_a(100, handle=1, number=7)
"""Its lease lasts from 105 to 1105."""


def origin(
    *,
    number: int = 7,
    enqueued: int = 5,
    count: int = 1,
    queue: str = Q,
    reason: str = "receives",
    rejection: str = "",
) -> Origin:
    return Origin(
        queue=queue,
        message_id=number,
        enqueue_ms=enqueued,
        receive_count=count,
        reason=reason,
        rejection=rejection,
    )


def reject(at: int, handle: int = 1, *, outcome: Outcome = DONE, failed: bool = False) -> DeadLetter:
    return DeadLetter(
        queue=Q,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        outcome=outcome,
        handles=(handle,),
        failed=frozenset({handle}) if failed else frozenset(),
        reason="why",
    )


REJECTED = origin(reason="rejected", rejection="why")


def receive_dead(
    at: int, *, handle: int = 2, number: int = 8, came: Origin | None = None, enqueued: int = 1105, count: int = 1
) -> Receive:
    dead = delivery(at, b"a", number, handle=handle, count=count, enqueued=enqueued, origin=came or origin())
    return receive(at, dead, queue=DLQ)


def receive_redriven(at: int, *, came: Origin | None = None) -> Receive:
    back = came or origin(number=8, enqueued=1105, queue=DLQ, reason="redrive")
    return receive(at, delivery(at, b"a", 9, handle=3, enqueued=at, origin=back))


def redrive(at: int, *, target: str = "", outcome: Outcome = DONE) -> StartRedrive:
    return StartRedrive(queue=DLQ, called_ns=at * MS, answered_ns=(at + 10) * MS, outcome=outcome, target=target)


def found(*operations: Operation, drained: bool = True) -> set[Rule]:
    return broken(*MORTAL, *operations, drained=drained)


# ---------------------------------------------------------------- dead letters


def test_a_life_that_ends_in_the_dead_letter_queue_is_good() -> None:
    assert found(SENT, DIED, receive_dead(1200), delete(1300, 2)) == set()


def test_a_dead_letter_that_is_never_deleted_is_lost() -> None:
    assert found(SENT, DIED, receive_dead(1200)) == {Rule.SEND_KEPT}


def test_a_message_that_dies_unseen_is_lost() -> None:
    assert found(SENT, DIED) == {Rule.SEND_KEPT}


def test_an_unanswered_send_may_be_known_by_its_dead_letter_alone() -> None:
    lost = receive(50, outcome=UNKNOWN)

    assert found(send(0, b"a", outcome=UNKNOWN), lost, receive_dead(1200, count=1), delete(1300, 2)) == set()


def test_a_dead_letter_with_invented_receives_is_found() -> None:
    assert found(SENT, receive_dead(1200), delete(1300, 2)) == {Rule.COUNT_EXACT}


def test_a_message_that_is_received_from_its_queue_after_it_died_is_in_both() -> None:
    again = receive(1500, delivery(1500, b"a", 7, handle=3, count=2, first=105))

    assert Rule.ONE_PLACE in found(SENT, DIED, receive_dead(1200), again, delete(1300, 2))


def test_a_message_that_dies_twice_is_in_two_places() -> None:
    twin = receive_dead(1400, handle=3, number=10, enqueued=1106)

    assert Rule.ONE_PLACE in found(SENT, DIED, receive_dead(1200), twin, delete(1300, 2), delete(1500, 3))


def test_a_message_that_moves_while_it_is_held_is_found() -> None:
    early = receive_dead(700, enqueued=600)

    assert Rule.ONE_LEASE in found(SENT, DIED, early, delete(800, 2))
    assert found(SENT, DIED, release(400, 1, counted=True), early, delete(800, 2)) == set()


def test_a_message_that_dies_after_its_delete_is_found() -> None:
    assert Rule.DELETE_KEPT in found(SENT, DIED, delete(200, 1), receive_dead(1200), delete(1300, 2))
    unanswered = delete(200, 1, outcome=UNKNOWN)
    assert found(SENT, DIED, unanswered, receive_dead(1200), delete(1300, 2)) == set()


def test_a_handle_that_works_after_the_move_is_found() -> None:
    assert Rule.HANDLE_MEANING in found(SENT, DIED, receive_dead(1110), delete(1125, 1), delete(1300, 2))


def test_a_message_that_its_holder_rejected_is_good_while_the_lease_lasts() -> None:
    early = receive_dead(700, enqueued=605, came=REJECTED)

    assert found(SENT, DIED, reject(600), early, delete(800, 2)) == set()
    assert found(SENT, DIED, reject(600, outcome=UNKNOWN), early, delete(800, 2)) == set()


@pytest.mark.parametrize(
    "came",
    [
        origin(reason="rejected", rejection="other words"),
        origin(reason="rejected", rejection="why", count=2),
        origin(reason="receives"),
    ],
)
def test_a_false_origin_of_a_rejected_message_is_found(came: Origin) -> None:
    early = receive_dead(700, enqueued=605, came=came)

    assert found(SENT, DIED, reject(600), early, delete(800, 2)) & {Rule.ORIGIN, Rule.COUNT_EXACT}


def test_an_invented_or_refused_rejection_is_found() -> None:
    early = receive_dead(700, enqueued=605, came=REJECTED)

    assert Rule.ORIGIN in found(SENT, DIED, early, delete(800, 2))
    assert Rule.ORIGIN in found(SENT, DIED, reject(600, failed=True), early, delete(800, 2))


def test_a_rejected_message_that_is_nowhere_is_lost_and_one_that_comes_back_is_found() -> None:
    assert found(SENT, DIED, reject(600)) == {Rule.SEND_KEPT}
    again = receive(1500, delivery(1500, b"a", 7, handle=3, count=2, first=105))
    assert Rule.ONE_PLACE in found(SENT, DIED, reject(600), again, delete(1600, 3))


def test_a_handle_that_works_after_the_rejection_is_found() -> None:
    early = receive_dead(700, enqueued=605, came=REJECTED)

    assert Rule.HANDLE_MEANING in found(SENT, DIED, reject(600), delete(650, 1), early, delete(800, 2))


@pytest.mark.parametrize(
    "came",
    [
        origin(enqueued=6),
        origin(count=2),
        origin(reason="age"),
        origin(reason="redrive"),
        origin(queue="elsewhere"),
        origin(number=12),
    ],
)
def test_a_false_origin_is_found(came: Origin) -> None:
    assert found(SENT, DIED, receive_dead(1200, came=came), delete(1300, 2)) & {
        Rule.ORIGIN,
        Rule.ONE_PLACE,
        Rule.STORED_ONCE,
    }


def test_an_origin_that_names_another_message_is_found() -> None:
    other = send(0, b"b", ids=(12,)), receive(100, delivery(100, b"b", 12, handle=9)), delete(150, 9)

    assert Rule.ORIGIN in found(SENT, DIED, *other, receive_dead(1200, came=origin(number=12)), delete(1300, 2))


def test_a_body_in_the_dead_letter_queue_without_an_origin_was_never_sent_there() -> None:
    stray = receive(1200, delivery(1200, b"a", 8, handle=2), queue=DLQ)

    assert Rule.SENT_ONLY in found(SENT, DIED, stray)


def test_a_message_that_is_received_more_often_than_it_may_is_found() -> None:
    again = receive(1200, delivery(1200, b"a", 7, handle=2, count=2, first=105))

    assert found(SENT, DIED, again, delete(1300, 2)) == {Rule.ORIGIN}


# ---------------------------------------------------------------- redrives

DEAD = SENT, DIED, receive_dead(1200), release(1250, 2, counted=True)


def test_a_dead_letter_that_is_redriven_and_deleted_is_good() -> None:
    assert found(*DEAD, redrive(1300), receive_redriven(1400), delete(1500, 3)) == set()
    assert found(*DEAD, redrive(1300, outcome=UNKNOWN), receive_redriven(1400), delete(1500, 3)) == set()


def test_a_dead_letter_that_is_redriven_unseen_is_good() -> None:
    back = receive_redriven(1400, came=origin(number=8, enqueued=1105, count=0, queue=DLQ, reason="redrive"))

    assert found(SENT, DIED, redrive(1300), back, delete(1500, 3)) == set()


def test_a_dead_letter_that_is_redriven_unasked_is_found() -> None:
    assert found(*DEAD, receive_redriven(1400), delete(1500, 3)) == {Rule.ORIGIN}
    assert found(*DEAD, redrive(1300, target="other"), receive_redriven(1400), delete(1500, 3)) == {Rule.ORIGIN}
    assert found(*DEAD, receive_redriven(1400), delete(1500, 3), redrive(1600)) == {Rule.ORIGIN}


def test_a_message_that_stays_in_the_dead_letter_queue_when_it_is_redriven_is_in_both() -> None:
    still = receive_dead(1500, handle=4, count=2)

    assert Rule.ONE_PLACE in found(
        *DEAD, redrive(1300), receive_redriven(1400), still, delete(1500, 3), delete(1600, 4)
    )


# ---------------------------------------------------------------- rewinds

WITH_WINDOW = queue_with(Q, rewind_ms=2_000)
GOOD_LIFE = SENT, DIED, delete(200, 1)


def rewind(at: int, to_ms: int = 0, *, outcome: Outcome = DONE, messages: int = 0) -> Rewind:
    return Rewind(
        queue=Q,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        outcome=outcome,
        time_ms=to_ms,
        messages=messages,
    )


def back(at: int, *, handle: int = 2, count: int = 1) -> Receive:
    return receive(at, delivery(at, b"a", 7, handle=handle, count=count))


def rewound(*operations: Operation) -> set[Rule]:
    return broken(WITH_WINDOW, *GOOD_LIFE, *operations)


@pytest.mark.parametrize("outcome", [DONE, UNKNOWN])
def test_a_message_that_a_rewind_brings_back_begins_a_new_life(outcome: Outcome) -> None:
    assert rewound(rewind(300, outcome=outcome), back(400), delete(500, 2)) == set()
    assert rewound(rewind(300, outcome=outcome), back(400)) == {Rule.SEND_KEPT}


def test_a_message_that_an_acknowledged_rewind_does_not_bring_back_is_found() -> None:
    assert rewound(rewind(300)) == {Rule.REWIND_KEPT}
    assert rewound(rewind(300, outcome=UNKNOWN)) == set()
    assert rewound(rewind(300, to_ms=6)) == set()
    assert rewound(rewind(1_900)) == set()  # about to leave the window


def test_a_rewind_brings_back_only_what_was_sent_after_its_time() -> None:
    assert Rule.DELETE_KEPT in rewound(rewind(300, to_ms=6), back(400), delete(500, 2))


def test_a_rewind_before_the_delete_brings_nothing_back() -> None:
    assert Rule.DELETE_KEPT in rewound(rewind(150), back(400), delete(500, 2))


def test_a_rewind_brings_back_once() -> None:
    twice = back(400), delete(500, 2), back(600, handle=3), delete(700, 3)

    assert Rule.DELETE_KEPT in rewound(rewind(300), *twice)
    assert rewound(rewind(300), *twice[:2], rewind(550), *twice[2:]) == set()


def test_a_rewind_that_brings_back_what_another_had_brought_back_is_found() -> None:
    life = back(400), delete(500, 2)

    assert rewound(rewind(300, messages=1), rewind(350, messages=0), *life) == set()
    assert rewound(rewind(300, messages=1), rewind(350, messages=1), *life) == {Rule.REWIND_KEPT}
    assert rewound(rewind(300, outcome=UNKNOWN), rewind(350, messages=1), *life) == set()
    again = back(600, handle=3), delete(700, 3)
    assert rewound(rewind(300, messages=1), *life, rewind(550, messages=1), *again) == set()


def test_a_rewind_does_not_reach_beyond_its_window() -> None:
    assert rewound(rewind(2_300, outcome=UNKNOWN), back(2_400), delete(2_500, 2)) == {Rule.DELETE_KEPT}


def test_a_rewound_message_is_counted_anew() -> None:
    again = receive(400, delivery(400, b"a", 7, handle=2, count=2, first=105))

    assert rewound(rewind(300), again, delete(500, 2)) != set()
    assert rewound(rewind(300), back(400, count=2), delete(500, 2)) == {Rule.COUNT_EXACT}


def test_a_rewound_message_may_die() -> None:
    mortal = queue_with(DLQ), queue_with(Q, dead_letter_queue=DLQ, dead_letter_max_receives=1, rewind_ms=2_000)
    died = rewind(300), back(400), receive_dead(1500, handle=3, enqueued=1405), delete(1600, 3)

    assert broken(*mortal, *GOOD_LIFE, *died) == set()


# ---------------------------------------------------------------- dedup ids


def test_a_repeat_with_a_dedup_id_that_gets_the_first_id_is_good() -> None:
    attempts = send(0, b"a", outcome=UNKNOWN, dedup_ids=("x",)), send(50, b"a", ids=(7,), dedup_ids=("x",))

    assert broken(*attempts, DIED, delete(200, 1)) == set()


def test_a_repeat_with_a_dedup_id_that_is_stored_again_is_found() -> None:
    attempts = send(0, b"a", ids=(7,), dedup_ids=("x",)), send(50, b"a", ids=(8,), dedup_ids=("x",))

    assert Rule.STORED_ONCE in broken(*attempts, DIED, delete(200, 1))


def test_one_body_with_two_dedup_ids_makes_the_history_unusable() -> None:
    with pytest.raises(ValueError, match="sent twice"):
        broken(send(0, b"a", dedup_ids=("x",)), send(50, b"a", dedup_ids=("y",)))


def test_a_batch_may_hold_what_an_earlier_one_stored() -> None:
    first, both = send(0, b"a", ids=(7,), dedup_ids=("x",)), send(50, b"a", b"b", outcome=UNKNOWN, dedup_ids=("x", "y"))

    assert broken(first, both, DIED, delete(200, 1)) == set()
