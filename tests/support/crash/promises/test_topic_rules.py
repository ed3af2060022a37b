"""The checker's rules about topics: good histories pass, bad histories are found."""

import pytest

from support.crash.promises.builders import (
    DONE,
    MS,
    REFUSED,
    UNKNOWN,
    Q,
    broken,
    delete,
    delivery,
    queue_with,
    receive,
    send,
)
from support.crash.promises.checker import check
from support.crash.promises.history import (
    DeleteQueue,
    DropDelivery,
    GetSubscription,
    GetTopic,
    History,
    Operation,
    Outcome,
    PeekDeliveries,
    Publish,
    Pushed,
    RetryDelivery,
    RetryNow,
    SingleDelivery,
    Subscribe,
)
from support.crash.promises.ledger import Rule

T = "t"
RED, BLUE = frozenset({"red"}), frozenset({"blue"})


def subscribe(name: str, endpoint: str, *tags: str) -> Subscribe:
    return Subscribe(
        queue=T,
        called_ns=-15 * MS,
        answered_ns=-10 * MS,
        subscription=name,
        endpoint=endpoint,
        filter_tags=frozenset(tags),
    )


SUBSCRIBED = (queue_with(Q), subscribe("to-queue", Q), subscribe("to-url", "http://localhost/", "red"))


def publish(
    at: int,
    *bodies: bytes,
    ids: tuple[int, ...] = (70, 71, 72, 73),
    tags: frozenset[str] = RED,
    outcome: Outcome = DONE,
    number: int = 0,
    dedup_ids: tuple[str, ...] = (),
    matched: int | None = 2,
) -> Publish:
    is_done = outcome is DONE
    return Publish(
        queue=T,
        called_ns=at * MS,
        answered_ns=(at + 10) * MS,
        outcome=outcome,
        bodies=bodies,
        tags=(tags,) * len(bodies),
        session=9 if number else 0,
        sequence=number,
        dedup_ids=dedup_ids,
        message_ids=ids[: len(bodies)] if is_done else (),
        matched=(matched,) * len(bodies) if is_done else (),
    )


def pushed(
    at: int, body: bytes = b"a", *, number: int = 70, status: int = 200, tags: frozenset[str] = RED, signed: bool = True
) -> Pushed:
    return Pushed(
        queue=T,
        called_ns=at * MS,
        answered_ns=(at + 5) * MS,
        subscription="to-url",
        message_id=number,
        body=body,
        tags=tags,
        status=status,
        is_signed=signed,
        started_s=(at - 5) // 1_000,
    )


def copied(
    at: int, body: bytes = b"a", *, handle: int = 1, number: int = 90, enqueued: int = 5
) -> tuple[Operation, ...]:
    """Received and deleted."""
    first = at + 5
    return (
        receive(at, delivery(at, body, number, handle=handle, enqueued=enqueued, first=first)),
        delete(at + 20, handle),
    )


def told(at: int, *, in_retry: int = 0, waiting: int = 0, dropped: int = 0) -> GetSubscription:
    counts = {"in_retry": in_retry, "waiting": waiting, "dropped": dropped}
    return GetSubscription(queue=T, called_ns=at * MS, answered_ns=(at + 2) * MS, subscription="to-url", counts=counts)


def single(
    kind: type[SingleDelivery], at: int, body: bytes = b"a", *, number: int = 70, outcome: Outcome = DONE
) -> SingleDelivery:
    return kind(
        queue=T,
        called_ns=at * MS,
        answered_ns=(at + 5) * MS,
        outcome=outcome,
        error="message_not_waiting" if outcome is REFUSED else "",
        subscription="to-url",
        message_id=number,
        body=body,
    )


def dropped(at: int, *, outcome: Outcome = DONE) -> SingleDelivery:
    return single(DropDelivery, at, outcome=outcome)


def retried(at: int, *, outcome: Outcome = DONE) -> SingleDelivery:
    return single(RetryDelivery, at, outcome=outcome)


def shown(at: int, body: bytes = b"a", *, number: int = 70) -> PeekDeliveries:
    return PeekDeliveries(
        queue=T, called_ns=at * MS, answered_ns=(at + 5) * MS, subscription="to-url", messages=((number, body),)
    )


def found(*operations: Operation, drained: bool = True) -> set[Rule]:
    return broken(*SUBSCRIBED, *operations, drained=drained)


GOOD = (publish(0, b"a"), pushed(20), *copied(100))


def test_a_publish_that_comes_to_its_queue_and_its_url_is_good() -> None:
    assert found(*GOOD) == set()


def test_a_failure_before_the_success_and_a_repeat_after_it_are_good() -> None:
    assert found(publish(0, b"a"), pushed(20, status=503), pushed(1_100), pushed(1_200), *copied(100)) == set()


def test_a_subscriber_that_does_not_match_need_not_get_the_message() -> None:
    assert found(publish(0, b"a", tags=BLUE, matched=1), *copied(100)) == set()


# ---------------------------------------------------------------- kept


def test_an_acknowledged_publish_that_does_not_come_to_a_queue_is_lost() -> None:
    assert found(publish(0, b"a"), pushed(20)) == {Rule.PUBLISH_KEPT, Rule.SEND_KEPT}


@pytest.mark.parametrize("status", [0, 302, 503])
def test_an_acknowledged_publish_that_only_failed_at_a_url_is_lost(status: int) -> None:
    assert found(publish(0, b"a"), pushed(20, status=status), *copied(100)) == {Rule.PUBLISH_KEPT}


def test_before_a_drain_nothing_is_called_lost() -> None:
    assert found(publish(0, b"a"), drained=False) == set()


def test_an_unanswered_publish_may_be_there_or_not_but_whole() -> None:
    unanswered = publish(0, b"a", outcome=UNKNOWN)

    assert found(unanswered) == set()
    assert found(unanswered, pushed(20), *copied(100)) == set()
    assert found(unanswered, pushed(20)) == {Rule.PUBLISH_WHOLE}
    assert found(unanswered, *copied(100)) == {Rule.PUBLISH_WHOLE}


def test_a_batch_is_published_whole() -> None:
    unanswered = publish(0, b"a", b"b", outcome=UNKNOWN)

    assert found(unanswered, pushed(20), *copied(100)) == {Rule.BATCH_WHOLE}


def test_a_copy_that_went_with_its_queue_is_not_lost_and_a_later_one_is() -> None:
    deleted = DeleteQueue(queue=Q, called_ns=100 * MS, answered_ns=110 * MS)

    assert found(publish(0, b"a"), pushed(20), deleted) == set()
    assert found(publish(200, b"a"), pushed(220), deleted) == {Rule.PUBLISH_KEPT, Rule.SEND_KEPT}


def test_a_late_copy_in_a_new_queue_is_good_and_an_old_one_is_not() -> None:
    deleted = DeleteQueue(queue=Q, called_ns=1_000 * MS, answered_ns=1_010 * MS)

    assert found(publish(0, b"a"), pushed(20), deleted, *copied(2_000, enqueued=1_900)) == set()
    assert found(publish(0, b"a"), pushed(20), deleted, *copied(2_000, enqueued=5)) >= {Rule.CLEAR_KEPT}


# ---------------------------------------------------------------- once


def test_a_repeat_with_the_same_number_or_dedup_id_stores_nothing() -> None:
    lost = publish(0, b"a", outcome=UNKNOWN, number=3)

    assert found(lost, publish(50, b"a", number=3, matched=None), pushed(20), *copied(100)) == set()
    lost = publish(0, b"a", outcome=UNKNOWN, dedup_ids=("x",))
    assert found(lost, publish(50, b"a", dedup_ids=("x",), matched=None), pushed(20), *copied(100)) == set()


def test_a_second_copy_in_a_queue_is_found() -> None:
    assert found(*GOOD, *copied(200, handle=2, number=91)) == {Rule.STORED_ONCE, Rule.ONE_PLACE}


def test_a_push_under_another_id_is_found() -> None:
    assert found(*GOOD, pushed(40, number=71)) == {Rule.STORED_ONCE}


def test_an_id_that_a_copy_has_too_is_found() -> None:
    assert found(publish(0, b"a"), pushed(20), *copied(100, number=70)) == {Rule.ID_UNIQUE}


def test_one_body_in_two_publishes_is_no_history() -> None:
    with pytest.raises(ValueError, match="twice"):
        found(publish(0, b"a"), publish(50, b"a"))


# ---------------------------------------------------------------- only that


def test_a_push_of_what_was_never_published_or_is_not_wanted_is_found() -> None:
    assert found(pushed(20)) == {Rule.PUSHED_ONLY}
    unwanted = publish(0, b"a", tags=BLUE, matched=1)
    assert found(unwanted, pushed(20, tags=BLUE), *copied(100)) == {Rule.PUSHED_ONLY}
    assert found(publish(0, b"a", outcome=REFUSED), pushed(20), drained=False) == {Rule.PUSHED_ONLY}


def test_a_copy_in_the_queue_of_another_subscriber_is_found() -> None:
    history = (*SUBSCRIBED, queue_with("other"), subscribe("blue", "other", "blue"), *GOOD)
    stray = receive(300, delivery(300, b"a", 95, handle=7), queue="other")

    assert broken(*history, stray) == {Rule.SENT_ONLY}


def test_a_push_before_the_publish_with_other_tags_or_a_wrong_signature_is_found() -> None:
    assert found(*GOOD, pushed(-50)) == {Rule.PUSHED_ONLY}
    assert found(*GOOD, pushed(40, tags=BLUE)) == {Rule.PUSHED_ONLY}
    assert found(*GOOD, pushed(40, signed=False)) == {Rule.PUSH_SIGNED}


def test_a_wrong_number_of_matches_is_found() -> None:
    assert found(publish(0, b"a", matched=1), pushed(20), *copied(100)) == {Rule.TOPIC_STATE}


# ---------------------------------------------------------------- failures


FAILING = (publish(0, b"a"), *copied(100))
HEARD = send(1_000, b"x", ids=(50,)), send(2_500, b"y", ids=(51,)), send(5_000, b"z", ids=(52,))
"""The broker answers: the failures of a while before are noted."""


def failures(*times: int) -> list[Pushed]:
    return [pushed(at, status=503) for at in times]


def test_pauses_that_double_are_good() -> None:
    assert found(*FAILING, *failures(20, 1_100, 3_200, 7_300), *HEARD, drained=False) == set()


def test_a_pause_that_begins_anew_is_found() -> None:
    assert found(*FAILING, *failures(20, 1_100, 3_200, 5_700), *HEARD, drained=False) == {Rule.FAILURE_KEPT}


def test_a_failure_that_a_crash_cut_off_may_be_repeated_at_once() -> None:
    operations = [*SUBSCRIBED, *FAILING, *failures(20, 1_100, 3_200, 5_400), *HEARD]

    assert check(History(0.0, operations, [3_210 * MS]), drained=False) == []
    assert check(History(0.0, operations, [5_300 * MS]), drained=False)


def test_retry_now_hurries() -> None:
    hurried = RetryNow(queue=T, called_ns=5_500 * MS, answered_ns=5_600 * MS, subscription="to-url")

    assert found(*FAILING, *failures(20, 1_100, 3_200, 5_700), hurried, *HEARD, drained=False) == set()


def test_a_message_in_retry_that_is_forgotten_is_found() -> None:
    assert found(*FAILING, *failures(20), told(50, in_retry=1), told(60), drained=False) == {Rule.FAILURE_KEPT}


def test_a_message_in_retry_may_be_delivered() -> None:
    delivered = (*FAILING, *failures(20), pushed(1_100))

    assert found(*delivered, told(50, in_retry=1), told(1_200), drained=False) == set()


@pytest.mark.parametrize("last", [told(500, in_retry=1), told(500, waiting=1), told(500, dropped=1)])
def test_after_a_drain_nothing_is_pending_or_given_up(last: GetSubscription) -> None:
    assert found(*GOOD, last) == {Rule.TOPIC_STATE}


def test_after_a_drain_a_topic_retains_nothing() -> None:
    assert found(*GOOD, GetTopic(queue=T, called_ns=500 * MS, answered_ns=510 * MS, retained=1)) == {Rule.TOPIC_STATE}


# ---------------------------------------------------------------- single messages


UNDELIVERED = (publish(0, b"a"), *copied(100))


def test_a_dropped_message_need_not_be_delivered() -> None:
    assert found(*UNDELIVERED, shown(150), dropped(200), told(500, dropped=1)) == set()
    assert found(*UNDELIVERED, dropped(200, outcome=UNKNOWN), told(500, dropped=1)) == set()


def test_a_drop_without_an_answer_may_not_have_happened() -> None:
    lost = dropped(200, outcome=UNKNOWN)

    assert found(*UNDELIVERED, lost, pushed(10_000), told(20_000)) == set()
    assert found(*UNDELIVERED, lost, dropped(500), told(20_000, dropped=1)) == set()
    assert found(*UNDELIVERED, lost, dropped(500, outcome=REFUSED), told(20_000, dropped=1)) == set()


def test_a_dropped_message_that_comes_back_is_found() -> None:
    dropped_once = (*UNDELIVERED, dropped(200))

    assert found(*dropped_once, pushed(10_000)) == {Rule.DROP_KEPT}
    assert found(*dropped_once, pushed(10_000, status=503)) == {Rule.DROP_KEPT}
    assert found(*dropped_once, shown(300)) == {Rule.DROP_KEPT}
    assert found(*dropped_once, retried(300)) == {Rule.DROP_KEPT}
    assert found(*dropped_once, dropped(300)) == {Rule.DROP_KEPT}


def test_a_push_that_was_under_way_at_the_drop_is_good() -> None:
    assert found(*UNDELIVERED, dropped(200), pushed(1_500)) == set()


def test_a_drop_that_was_refused_drops_nothing() -> None:
    refused = dropped(200, outcome=REFUSED)

    assert found(*UNDELIVERED, pushed(150), refused) == set()
    assert found(*UNDELIVERED, refused) == {Rule.PUBLISH_KEPT, Rule.TOPIC_STATE}


def test_a_waiting_message_that_a_retry_does_not_find_is_found() -> None:
    assert found(*UNDELIVERED, retried(200, outcome=REFUSED), pushed(300)) == {Rule.TOPIC_STATE}
    assert found(*UNDELIVERED, pushed(150), retried(200, outcome=REFUSED)) == set()
    assert found(publish(250, b"a"), *copied(600), retried(200, outcome=REFUSED), pushed(300)) == set()


@pytest.mark.parametrize("count", [0, 2])
def test_a_wrong_number_of_dropped_messages_is_found(count: int) -> None:
    assert found(*UNDELIVERED, dropped(200), told(500, dropped=count)) == {Rule.TOPIC_STATE}


def test_a_message_of_another_subscriber_that_is_shown_is_found() -> None:
    assert found(publish(0, b"a", tags=BLUE, matched=1), *copied(100), shown(200)) == {Rule.PUSHED_ONLY}
    assert found(*GOOD, shown(10, b"never published", number=99)) == {Rule.PUSHED_ONLY}


def test_a_retry_of_the_message_hurries_it() -> None:
    hurried = (*FAILING, *failures(20, 1_100, 3_200, 5_700), *HEARD)

    assert found(*hurried, retried(5_500), drained=False) == set()
    assert found(*hurried, single(RetryDelivery, 5_500, b"other", number=71), drained=False) == {Rule.FAILURE_KEPT}


def test_a_drop_takes_a_message_out_of_retry() -> None:
    failed = (*FAILING, *failures(20), told(50, in_retry=1))

    assert found(*failed, dropped(60), told(80), drained=False) == set()
