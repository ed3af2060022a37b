"""Numbered sends: the last answers of every producer session (spec 2.3)."""

import pytest

from cmqd.core.domain_errors import SequenceTooOld
from cmqd.core.facts.sessions import Sessions
from cmqd.core.limits import Limits
from cmqd_protocol.messages import SendMessages
from support.core import alone
from support.core.builders import ACCOUNT, Rig


def sessions_of(*sequences: int, limits: Limits | None = None) -> Sessions:
    sessions = Sessions(limits or Limits())
    for sequence in sequences:
        sessions.note(ACCOUNT, [1, sequence, 100 * sequence, 2], 0)
    return sessions


def test_a_repeat_gets_the_first_answer():
    sessions = sessions_of(1, 2, 3)

    assert sessions.find(ACCOUNT, 1, 2) == range(200, 202)


def test_new_sequences_sessions_and_accounts_are_not_known():
    sessions = sessions_of(1)

    assert sessions.find(ACCOUNT, 1, 2) is None
    assert sessions.find(ACCOUNT, 2, 1) is None
    assert sessions.find("other", 1, 1) is None


def test_the_last_1024_answers_are_remembered_and_older_ones_are_too_old():
    sessions = sessions_of(*range(1, 1026))

    assert sessions.find(ACCOUNT, 1, 2) == range(200, 202)
    with pytest.raises(SequenceTooOld) as refused:
        sessions.find(ACCOUNT, 1, 1)
    assert refused.value.details == {"value": 1, "limit": 1024}


def test_sequences_may_have_gaps_and_come_late():
    sessions = sessions_of(10, 1000, 5)

    assert sessions.find(ACCOUNT, 1, 5) == range(500, 502)
    assert sessions.find(ACCOUNT, 1, 6) is None


def test_an_answer_that_comes_too_late_takes_the_place_of_no_later_answer() -> None:
    sessions = sessions_of(*range(2, 1026), 1)

    assert sessions.find(ACCOUNT, 1, 1025) == range(102_500, 102_502)
    with pytest.raises(SequenceTooOld):
        sessions.find(ACCOUNT, 1, 1)


def test_a_short_session_is_small():
    (one,) = sessions_of(1, 2, 3).packed([(ACCOUNT, 1)])

    assert len(one[4]) <= 48 * 8


def test_a_long_session_is_bounded():
    (one,) = sessions_of(*range(1, 5000)).packed([(ACCOUNT, 1)])

    assert len(one[4]) == 1024 * 24


def test_no_session_is_forgotten_before_its_time_however_many_there_are():
    sessions = Sessions(Limits(max_sessions=2))
    for session in (1, 2, 1, 3):
        sessions.note(ACCOUNT, [session, 1, 1, 1], 0)

    assert sessions.keys() == [(ACCOUNT, 2), (ACCOUNT, 1), (ACCOUNT, 3)]


def test_a_new_session_takes_ended_ones_with_it():
    sessions = Sessions(Limits())
    for session in (1, 2, 3):
        sessions.note(ACCOUNT, [session, 1, 1, 1], 0)
    sessions.note("other", [1, 1, 1, 1], 0)

    sessions.note(ACCOUNT, [4, 1, 1, 1], 600_000)

    assert sessions.keys() == [(ACCOUNT, 3), (ACCOUNT, 4), ("other", 1)]
    assert len(sessions) == 3


def test_a_session_ends_ten_minutes_after_its_last_use():
    sessions = sessions_of(1)
    sessions.note(ACCOUNT, [2, 1, 1, 1], 1)

    assert not sessions.expire(599_999, 10)
    assert len(sessions) == 2
    assert not sessions.expire(600_000, 10)
    assert sessions.keys() == [(ACCOUNT, 2)]


def test_sessions_end_in_slices():
    sessions = Sessions(Limits())
    for session in range(5):
        sessions.note(ACCOUNT, [session, 1, 1, 1], 0)

    assert sessions.expire(600_000, 3)
    assert len(sessions) == 2
    assert not sessions.expire(600_000, 3)


def test_a_session_used_after_its_life_begins_anew_whether_it_was_swept_or_not():
    sessions = sessions_of(5)

    sessions.note(ACCOUNT, [1, 1, 7, 1], 600_000)

    assert sessions.find(ACCOUNT, 1, 1) == range(7, 8)
    assert sessions.find(ACCOUNT, 1, 5) is None


def test_recovery_notes_only_records_above_the_slice():
    sessions = Sessions(Limits())
    sessions.load(10, sessions_of(3, 4).packed([(ACCOUNT, 1)]))

    sessions.note(ACCOUNT, [1, 3, 1, 1], 0, 10)
    sessions.note(ACCOUNT, [1, 5, 500, 2], 0, 11)
    sessions.note(ACCOUNT, [2, 1, 1, 1], 0, 10)
    sessions.note(ACCOUNT, [3, 1, 1, 1], 0, 11)

    assert sessions.find(ACCOUNT, 1, 3) == range(300, 302)
    assert sessions.find(ACCOUNT, 1, 5) == range(500, 502)
    assert sessions.keys() == [(ACCOUNT, 1), (ACCOUNT, 3)]


def test_a_repeated_send_stores_nothing_and_gets_the_same_ids_even_after_a_crash():
    rig = Rig()
    rig.create()
    ids = rig.send(b"1", b"2", session=7, sequence=1)

    recovered = rig.crash()

    assert recovered.send(b"1", b"2", session=7, sequence=1) == ids
    assert rig.send(b"1", b"2", session=7, sequence=1) == ids
    assert recovered.counts()["active"] == rig.counts()["active"] == 2


def test_a_repeat_is_answered_whatever_the_limits_are_by_now():
    rig = Rig()
    rig.create(max_message_bytes=2000)
    ids = rig.send(bytes(2000), session=7, sequence=1)
    rig.set(max_message_bytes=1024)
    rig.force(max_backlog=1)

    assert rig.send(bytes(2000), session=7, sequence=1) == ids


@pytest.mark.parametrize(("session", "sequence"), [(7, 0), (0, 7)])
def test_a_session_without_a_sequence_protects_nothing_nor_the_other_way_round(session: int, sequence: int):
    rig = Rig()
    rig.create(transactional=True)
    rig.create_topic()
    rig.subscribe("to")
    bodies = [b"x"]

    for _ in range(2):
        rig.send(b"x", session=session, sequence=sequence)
        rig.done(alone.send_half(rig.broker, ACCOUNT, "q", bodies, None, None, session, sequence, rig.now_ms))
        rig.publish(b"x", session=session, sequence=sequence)
        requests = [SendMessages(1, "q", bodies, None, None, session, sequence) for _ in range(2)]
        rig.done(rig.broker.send_all(ACCOUNT, "q", requests, rig.now_ms))

    assert (rig.counts()["active"], rig.counts()["half"], rig.counts("to")["active"]) == (6, 2, 2)
    assert len(rig.broker.facts.promises.sessions) == len(rig.crash().broker.facts.promises.sessions) == 0


def test_the_ticker_forgets_sessions_and_then_has_nothing_to_do():
    rig = Rig(Limits(tick_items=2))
    rig.create()
    for session in range(1, 6):
        rig.send(b"1", session=session, sequence=1)
    rig.clear()

    rig.advance(620_000)

    assert len(rig.broker.facts.promises.sessions) == 0
    rig.advance(400_000_000)
    assert rig.broker.next_deadline_ms() is None
