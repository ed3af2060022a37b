"""The choice of the connection that is asked for a half message: registrations, order, memory of log-ins, limits."""

import pytest

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp import ended_clients, transaction_checks
from support.gateway.checks_rig import KEY, ChecksRig, Program

HOUR = 3_600


@pytest.fixture
def rig() -> ChecksRig:
    return ChecksRig()


# ---------------------------------------------------------------- registrations


def test_a_half_message_makes_its_connection_a_checker_until_the_connection_ends(rig: ChecksRig) -> None:
    program = rig.log_in("a")
    assert rig.registrations == []

    for _ in range(3):
        rig.checks.half_sent(program, "tx")
    rig.checks.half_sent(program, "other")

    assert [(registered.queue, registered.half_sends) for registered in rig.registrations] == [("tx", 3), ("other", 1)]
    rig.end(program)
    assert rig.registrations == []
    assert rig.checks.queues == 0


def test_a_queue_has_a_registration_for_all_connections_of_a_key_until_the_last_one_ends(rig: ChecksRig) -> None:
    first, second = rig.producer("a"), rig.producer("b")
    assert len(rig.registrations) == 1

    rig.end(first)
    assert len(rig.registrations) == 1
    rig.end(second)
    assert rig.registrations == []


def test_keys_and_secrets_have_registrations_of_their_own(rig: ChecksRig) -> None:
    rig.producer("a")
    rig.producer("b", key=KeySecret("id", "changed"))
    rig.producer("c", key=KeySecret("another", "secret"))

    assert len({registered.key for registered in rig.registrations}) == 3


def test_a_connection_that_ended_is_no_checker(rig: ChecksRig) -> None:
    program = rig.log_in("a")
    rig.end(program)
    rig.end(program)

    assert not rig.checks.half_sent(program, "tx")
    rig.checks.decided(program, "tx", [1])
    assert rig.registrations == []


# ---------------------------------------------------------------- the order of asking


def test_further_checks_of_a_message_go_to_connections_that_were_not_asked_the_newest_first(rig: ChecksRig) -> None:
    first, second, third = (rig.producer(name) for name in "abc")
    rig.checks.half_sent(first, "tx")

    asked: list[Program] = []
    for _ in range(5):
        before = {program: len(program.asked) for program in (first, second, third)}
        rig.check()
        asked += [program for program, count in before.items() if len(program.asked) > count]

    # All were asked after three checks: the turn begins anew.
    assert asked == [first, third, second, first, third]
    assert rig.counts == (5, 0, 4)


def test_each_message_has_a_turn_of_its_own(rig: ChecksRig) -> None:
    first, second = rig.producer("a"), rig.producer("b")
    rig.check(1)
    rig.check(2)
    rig.check(1)

    assert second.asked == [("tx", 1), ("tx", 2)]
    assert first.asked == [("tx", 1)]


def test_a_connection_that_cannot_be_asked_now_is_left_out(rig: ChecksRig) -> None:
    first, second = rig.producer("a"), rig.producer("b")
    second.is_slow = True

    rig.check()
    assert first.asked == [("tx", 7)]
    first.is_slow = True
    rig.check()
    assert rig.counts == (1, 0, 1)
    second.is_slow = False
    rig.check()
    assert second.asked == [("tx", 7)]


def test_a_check_passes_over_so_many_connections_and_the_next_one_begins_behind_them(
    rig: ChecksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checks, "MAX_TRIES", 2)
    reader = rig.producer("reader")
    for name in "abc":
        rig.producer(name).is_slow = True

    rig.check()
    assert rig.counts == (0, 0, 0)
    rig.check()

    assert reader.asked == [("tx", 7)]


def test_the_checks_of_a_connection_that_ends_go_to_the_next_one_at_once(rig: ChecksRig) -> None:
    first, second, third = (rig.producer(name) for name in "abc")
    rig.check(1)
    rig.check(2)
    assert third.asked == [("tx", 1), ("tx", 2)]

    rig.end(third)
    assert second.asked == [("tx", 1), ("tx", 2)]
    rig.checks.decided(second, "tx", [1])
    rig.end(second)

    assert first.asked == [("tx", 2)]
    assert rig.counts == (5, 1, 3)


def test_the_end_of_the_last_connection_ends_the_registration_with_the_checks_open(rig: ChecksRig) -> None:
    program = rig.producer("a")
    rig.check()
    (registered,) = rig.registrations

    rig.end(program)

    assert registered.is_ended
    assert rig.counts == (1, 0, 1)
    # A check that crossed the end: the broker asks another producer by itself.
    registered.take(7)
    assert rig.counts == (1, 0, 1)


def test_the_last_connection_is_asked_again_when_all_others_have_ended(rig: ChecksRig) -> None:
    first, second = rig.producer("a"), rig.producer("b")
    rig.check()
    rig.check()
    assert first.asked == second.asked == [("tx", 7)]

    rig.end(first)

    assert second.asked == [("tx", 7)] * 2


# ---------------------------------------------------------------- decisions


def test_a_decision_of_any_connection_ends_the_check(rig: ChecksRig) -> None:
    first, second = rig.producer("a"), rig.producer("b")
    other = rig.log_in("c", "elsewhere@DEFAULT")
    rig.check(1)
    rig.check(2)

    rig.checks.decided(other, "tx", [1])
    rig.checks.decided(second, "tx", [2, 3])
    rig.end(second)

    assert rig.counts == (2, 2, 0)
    assert first.asked == []


def test_a_decision_of_another_queue_ends_no_check(rig: ChecksRig) -> None:
    program = rig.producer("a", "tx", "other")
    rig.check(1)

    rig.checks.decided(program, "other", [1])
    rig.checks.decided(program, "nowhere", [1])

    assert rig.counts == (1, 0, 0)


# ---------------------------------------------------------------- remembered log-ins


def test_a_client_that_logs_in_again_is_a_checker_for_an_hour(rig: ChecksRig) -> None:
    rig.end(rig.producer("a", "tx", "other"))
    rig.time = HOUR - 1

    again = rig.log_in("again")
    assert [registered.queue for registered in rig.registrations] == ["tx", "other"]
    rig.check()
    assert again.asked == [("tx", 7)]

    rig.end(again)
    assert rig.registrations == []
    rig.time = HOUR
    rig.log_in("late")
    assert rig.registrations == []


@pytest.mark.parametrize(
    ("client_id", "key"),
    [
        ("elsewhere@DEFAULT", KEY),
        ("host@DEFAULT", KeySecret("another", "secret")),
    ],
)
def test_another_client_or_key_is_not_remembered(rig: ChecksRig, client_id: str, key: KeySecret) -> None:
    rig.end(rig.producer("a"))

    rig.log_in("b", client_id, key)

    assert rig.registrations == []


def test_a_changed_secret_is_the_same_key(rig: ChecksRig) -> None:
    rig.end(rig.producer("a"))

    rig.log_in("b", key=KeySecret("id", "changed"))

    assert [registered.key.secret_key for registered in rig.registrations] == ["changed"]


def test_a_consumer_of_the_producers_host_that_logs_in_after_it_costs_a_check(rig: ChecksRig) -> None:
    rig.end(rig.producer("producer"))
    producer = rig.log_in("producer again")
    consumer = rig.log_in("consumer")

    rig.check()
    assert consumer.asked == [("tx", 7)]
    rig.check()
    assert producer.asked == [("tx", 7)]

    rig.checks.decided(producer, "tx", [7])
    # The producer answered, so it is asked first from now on.
    rig.check(8)
    assert producer.asked == [("tx", 7), ("tx", 8)]
    assert rig.counts == (3, 1, 1)


def test_remembered_connections_are_asked_after_those_that_sent(rig: ChecksRig) -> None:
    rig.end(rig.producer("a"))
    sender = rig.producer("b", client_id="elsewhere@DEFAULT")
    remembered = rig.log_in("a again")

    rig.check()
    rig.check()

    assert sender.asked == remembered.asked == [("tx", 7)]
    assert rig.checks.half_sent(remembered, "tx")
    rig.check(8)
    assert remembered.asked[-1] == ("tx", 8)


def test_a_client_that_connected_before_its_lost_connection_was_noticed_is_remembered(rig: ChecksRig) -> None:
    lost = rig.producer("lost")
    again = rig.log_in("again")
    rig.check()
    assert (lost.asked, again.asked) == ([("tx", 7)], [])

    rig.end(lost)

    assert again.asked == [("tx", 7)]
    assert len(rig.registrations) == 1


def test_only_a_connection_that_sent_or_answered_is_remembered_further(rig: ChecksRig) -> None:
    rig.end(rig.producer("a"))
    rig.time = HOUR - 1
    silent, answering = rig.log_in("silent"), rig.log_in("answering")
    rig.check()
    rig.checks.decided(answering, "tx", [7])
    rig.end(silent)
    rig.time = HOUR + 1
    rig.end(answering)

    rig.time = 2 * HOUR
    rig.log_in("again")
    assert len(rig.registrations) == 1


def test_a_silent_remembered_connection_does_not_lengthen_the_hour(rig: ChecksRig) -> None:
    rig.end(rig.producer("a"))
    rig.time = HOUR - 1
    rig.end(rig.log_in("silent"))

    rig.time = HOUR
    rig.log_in("again")

    assert rig.registrations == []


# ---------------------------------------------------------------- limits


def test_a_connection_is_a_checker_of_so_many_queues(rig: ChecksRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "MAX_QUEUES", 2)
    program = rig.producer("a", "q1", "q2")

    assert not rig.checks.half_sent(program, "q3")
    assert rig.checks.half_sent(program, "q1")
    assert rig.checks.queues == 2


def test_a_gateway_has_so_many_checkers(rig: ChecksRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "MAX_CHECKERS", 2)
    first = rig.producer("a")
    rig.producer("b")
    third = rig.log_in("c")

    assert not rig.checks.half_sent(third, "tx")
    rig.end(first)
    assert rig.checks.half_sent(third, "tx")
    assert not rig.checks.half_sent(third, "other")


def test_the_end_of_a_connection_makes_the_newest_of_its_client_remembered(
    rig: ChecksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checks, "PAIRS_AT_END", 2)
    lost = rig.producer("lost")
    others = [rig.log_in(f"{number}") for number in range(3)]

    rig.end(lost)
    for _ in range(3):
        rig.check()

    assert [len(other.asked) for other in others] == [0, 1, 2]


def test_the_oldest_remembered_client_is_forgotten_beyond_a_limit(
    rig: ChecksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_clients, "MAX_REMEMBERED", 3)
    monkeypatch.setattr(ended_clients, "MAX_QUEUES", 2)
    for client in ("a", "b"):
        rig.end(rig.producer(client, "q1", "q2", "q3", client_id=client))

    rig.log_in("a again", "a")
    assert rig.registrations == []
    rig.log_in("b again", "b")
    assert [registered.queue for registered in rig.registrations] == ["q2", "q3"]


def test_the_remembered_checks_are_bounded_in_number_and_time(rig: ChecksRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "MAX_CHECKS", 3)
    first, second = rig.producer("a"), rig.producer("b")
    for number in range(5):
        rig.check(number)
    assert rig.counts == (5, 0, 2)

    # The first message is forgotten: the newest connection is asked again.
    rig.check(0)
    assert second.asked[-1] == ("tx", 0)
    rig.time += transaction_checks.CHECK_SECONDS
    rig.check(9)
    assert rig.counts == (7, 0, 6)
    rig.end(second)
    assert first.asked == [("tx", 9)]


def test_checks_that_ended_make_room_for_others(rig: ChecksRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "MAX_CHECKS", 2)
    program = rig.producer("ended")
    (registered,) = rig.registrations
    rig.check(1)
    rig.check(2)
    rig.checks.decided(program, "tx", [1])
    rig.check(3)
    rig.end(program)
    for number in (4, 5):
        registered.take(number)
    first, second = rig.producer("a"), rig.producer("b")

    for number in (6, 7, 6, 7):
        rig.check(number)

    assert first.asked == second.asked == [("tx", 6), ("tx", 7)]


def test_a_check_that_could_not_be_asked_anew_is_decided_all_the_same(rig: ChecksRig) -> None:
    slow, ended = rig.producer("a"), rig.producer("b")
    slow.is_slow = True
    rig.check()
    rig.end(ended)

    rig.checks.decided(slow, "tx", [7])

    assert rig.counts == (1, 0, 1)
