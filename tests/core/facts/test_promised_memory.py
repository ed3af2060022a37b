"""Shares of accounts in the memory of sends (SPEC 8.2, 8.4): sessions and dedup ids."""

from collections.abc import Callable, Sequence

import pytest

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import DomainError, TooManyRemembered
from cmqd.core.facts.dedup import ENTRY_BYTES
from cmqd.core.facts.promised_memory import PromisedMemory
from cmqd.core.facts.sessions import SESSION_BYTES
from cmqd.core.limits import Limits
from cmqd.core.outcome import PublishRequest
from cmqd_protocol.messages import SendMessages
from cmqd_segment.records import AnyRecord
from support.core import alone
from support.core.builders import KEY, START_MS, Rig
from support.core.facts import facts
from support.core.invariants import check_broker

ACCOUNTS = ("first", "second")
DEDUP_LIFE_MS = 300_000
SESSION_LIFE_MS = 600_000

Send = Callable[[Rig, str, int, int, list[str | None] | None], Sequence[int]]


def a_rig(**limits: int) -> Rig:
    """With a transactional queue and a topic per account."""
    rig = Rig(Limits(**limits))
    for account in ACCOUNTS:
        rig.done(rig.broker.create_queue(account, "q", {"transactional": True}, rig.now_ms))
        rig.done(rig.broker.create_topic(account, "news", {}, rig.now_ms))
        rig.done(rig.broker.subscribe(account, "news", "all", {"endpoint": "q"}, rig.now_ms))
    return rig


def one_of(replies: Sequence[Sequence[int] | DomainError]) -> Sequence[int]:
    (reply,) = replies
    if isinstance(reply, DomainError):
        raise reply
    return reply


def send(rig: Rig, account: str, session: int, sequence: int, ids: list[str | None] | None = None) -> Sequence[int]:
    return list(rig.done(alone.send(rig.broker, account, "q", [b"x"], None, None, session, sequence, rig.now_ms, ids)))


def send_half(
    rig: Rig, account: str, session: int, sequence: int, ids: list[str | None] | None = None
) -> Sequence[int]:
    return list(
        rig.done(alone.send_half(rig.broker, account, "q", [b"x"], None, None, session, sequence, rig.now_ms, ids))
    )


def send_together(
    rig: Rig, account: str, session: int, sequence: int, ids: list[str | None] | None = None
) -> Sequence[int]:
    """Beside a second send, so that two plain sends share a record."""
    requests = [
        SendMessages(1, "q", [b"plain"]),
        SendMessages(2, "q", [b"x"], session=session, sequence=sequence, dedup_ids=ids),
    ]
    _, reply = rig.done(rig.broker.send_all(account, "q", requests, rig.now_ms))
    return list(one_of([reply]))


def publish(rig: Rig, account: str, session: int, sequence: int, ids: list[str | None] | None = None) -> Sequence[int]:
    request = PublishRequest([b"x"], None, None, session, sequence, ids)
    (reply,) = rig.done(rig.broker.publish(account, "news", [request], rig.now_ms))
    if isinstance(reply, DomainError):
        raise reply
    return reply.message_ids


WAYS = (send, send_half, send_together, publish)


@pytest.mark.parametrize("way", WAYS)
def test_sessions_of_one_account_do_not_push_out_those_of_another(way: Send):
    rig = a_rig(max_sessions=2)
    first = way(rig, "first", 1, 1, None)
    way(rig, "first", 2, 1, None)

    for session in (1, 2):
        way(rig, "second", session, 1, None)

    assert way(rig, "first", 1, 1, None) == first
    assert way(rig.crash(), "first", 1, 1, None) == first


@pytest.mark.parametrize("way", WAYS)
def test_an_account_with_its_share_of_sessions_keeps_them_and_gets_no_new_one_until_the_oldest_ends(way: Send):
    rig = a_rig(max_sessions=2)
    answers = [way(rig, "first", session, 1, None) for session in (1, 2)]
    rig.now_ms += 60_000
    way(rig, "first", 1, 2, None)
    before = facts(rig.broker)

    with pytest.raises(TooManyRemembered, match="2 producer sessions") as refused:
        way(rig, "first", 3, 1, None)

    if way is not send_together:
        assert facts(rig.broker) == before
    end_ms = START_MS + SESSION_LIFE_MS
    assert refused.value.details == {"limit": 2, "oldest_ends_ms": end_ms}
    assert refused.value.retry_after_ms == end_ms - rig.now_ms
    assert [way(rig, "first", session, 1, None) for session in (1, 2)] == answers
    way(rig, "first", 1, 3, None)
    way(rig, "first", 0, 0, None)
    rig.now_ms = end_ms
    way(rig, "first", 3, 1, None)
    check_broker(rig.broker)


def test_new_sessions_of_requests_decided_together_count_too():
    rig = a_rig(max_sessions=2)
    requests = [SendMessages(1, "q", [b"x"], session=session, sequence=1) for session in (1, 2, 2, 3)]
    publishes = [PublishRequest([b"x"], None, None, session, 1, None) for session in (1, 2, 2, 3)]

    sent = rig.done(rig.broker.send_all("first", "q", requests, rig.now_ms))
    published = rig.done(rig.broker.publish("second", "news", publishes, rig.now_ms))

    for replies in (sent, published):
        assert [isinstance(reply, TooManyRemembered) for reply in replies] == [False, False, False, True]
    check_broker(rig.broker)


@pytest.mark.parametrize("way", WAYS)
def test_an_account_with_its_share_of_memory_gets_no_new_dedup_ids_until_the_oldest_ends(way: Send):
    rig = a_rig(budget_bytes=8 * (ENTRY_BYTES + 1))
    answers = [way(rig, "first", 0, 0, [name]) for name in "abcd"]
    rig.now_ms += 1000
    before = facts(rig.broker)

    with pytest.raises(TooManyRemembered, match="sessions, dedup ids and schedules of") as refused:
        way(rig, "first", 0, 0, ["g"])

    if way is not send_together:
        assert facts(rig.broker) == before
    end_ms = START_MS + DEDUP_LIFE_MS
    assert refused.value.details == {"limit": 2 * (ENTRY_BYTES + 1), "oldest_ends_ms": end_ms}
    assert refused.value.retry_after_ms == end_ms - rig.now_ms
    assert [way(rig, "first", 0, 0, [name]) for name in "abcd"] == answers
    way(rig, "first", 0, 0, [None])
    rig.advance(DEDUP_LIFE_MS - 1000)
    assert [way(rig, "first", 0, 0, [name]) for name in "abcd"] != answers
    check_broker(rig.broker)


@pytest.mark.parametrize("way", WAYS)
def test_what_an_account_borrows_leaves_another_one_its_share(way: Send):
    rig = a_rig(budget_bytes=8 * (ENTRY_BYTES + 1))
    for name in "abcd":
        way(rig, "first", 0, 0, [name])

    for name in "ab":
        way(rig, "second", 0, 0, [name])

    for account in ACCOUNTS:
        with pytest.raises(TooManyRemembered):
            way(rig, account, 0, 0, ["g"])


def test_sessions_and_dedup_ids_share_the_memory_of_their_account():
    rig = a_rig(budget_bytes=8 * SESSION_BYTES)
    memory = rig.broker.facts.promises.memory
    send(rig, "first", 1, 1)
    session = 2
    while memory.has_room("first"):
        send(rig, "first", session, 1)
        session += 1

    assert memory.bytes_of("first") >= 3 * SESSION_BYTES
    with pytest.raises(TooManyRemembered):
        send(rig, "first", session, 1)
    with pytest.raises(TooManyRemembered):
        send(rig, "first", 0, 0, ["a"])
    for sequence in range(2, 100):
        send(rig, "first", 1, sequence)
    check_broker(rig.broker)


def test_memory_comes_back_with_the_queue_the_topic_and_time():
    rig = a_rig()
    for account in ACCOUNTS:
        send(rig, account, 1, 1, ["a"])
        publish(rig, account, 1, 2, ["a"])
    memory = rig.broker.facts.promises.memory
    full = memory.total_bytes

    rig.done(rig.broker.unsubscribe("first", "news", "all", rig.now_ms))
    rig.done(rig.broker.delete_topic("first", "news"))
    rig.done(rig.broker.delete_queue("first", "q", rig.now_ms))
    check_broker(rig.broker)
    assert memory.total_bytes == full - 2 * (ENTRY_BYTES + 1)

    rig.advance(SESSION_LIFE_MS)
    check_broker(rig.broker)
    assert memory.total_bytes == 0


def test_a_start_with_a_smaller_budget_has_the_same_index_and_only_refuses_what_is_new():
    rig = a_rig()
    for number in range(1, 6):
        send(rig, "first", number, 1, [str(number)])
        publish(rig, "first", number, 2, [str(number)])
    parts = rig.checkpoint()
    send(rig, "first", 6, 1, ["6"])

    small = Limits(max_sessions=1, budget_bytes=1)
    for from_parts in (False, True):
        broker = Broker(KEY, small)
        header_lsn = 0
        if from_parts:
            for part in parts:
                broker.load(part)
            header_lsn = rig.log.last_lsn - 1
        records: list[tuple[int, AnyRecord]] = [entry for entry in rig.log.records() if entry[0] > header_lsn]
        for lsn, record in records:
            broker.replay(record, lsn)
        assert facts(broker) == facts(rig.broker)
        broker.recovered()
        check_broker(broker)
        assert broker.facts.promises.memory.total_bytes == rig.broker.facts.promises.memory.total_bytes
        with pytest.raises(TooManyRemembered):
            alone.send(broker, "first", "q", [b"x"], None, None, 7, 1, rig.now_ms)
        assert not alone.send(broker, "first", "q", [b"x"], None, None, 6, 1, rig.now_ms).records


def test_dedup_ids_whose_time_is_over_go_with_new_ones_so_that_a_replay_stays_small():
    rig = a_rig()
    for number in range(100):
        send(rig, "first", 0, 0, [str(number)])
        rig.now_ms += DEDUP_LIFE_MS // 10

    cold = rig.crash()

    assert len(cold.broker.facts.queues.find("first", "q").dedup_ids) == 10


def test_the_share_is_a_quarter_and_what_is_borrowed_leaves_a_quarter_for_others_and_one_for_frames():
    memory = PromisedMemory(400)

    assert memory.has_room("a")
    memory.change("a", 100)
    assert memory.has_room("a")
    memory.change("a", 100)
    assert not memory.has_room("a")
    assert memory.has_room("b")
    memory.change("b", 99)
    assert memory.has_room("b")
    memory.change("b", 1)
    assert not memory.has_room("b")
    assert not memory.has_room("c")
    memory.change("a", -200)
    assert memory.has_room("b")
    assert memory.bytes_of("a") == 0
