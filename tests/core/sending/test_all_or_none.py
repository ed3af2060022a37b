"""Batches that are stored whole or were stored whole before: ``all_or_none`` of sends, half sends and publishes."""

from collections.abc import Sequence

import pytest

from cmqd.core.domain_errors import BacklogFull, DomainError, InvalidArgument, OutOfOrder
from cmqd.core.outcome import Published
from cmqd_types.messages import Labels
from support.core import alone
from support.core.builders import ACCOUNT, Rig
from support.core.facts import facts
from support.core.invariants import check_broker
from support.core.publishing import a_rig, check_recovery, request, together

LIFE_MS = 300_000


def send(
    rig: Rig, dedup: Sequence[str | None], *, kind: str = "send", session: int = 0, sequence: int = 0
) -> list[int]:
    """Send a message under each dedup id, all or none; the bodies are the ids."""
    bodies = [(name or "-").encode() for name in dedup]
    if kind == "half":
        sent = alone.send_half(
            rig.broker, ACCOUNT, "q", bodies, None, None, session, sequence, rig.now_ms, list(dedup), True
        )
    else:
        sent = alone.send(
            rig.broker, ACCOUNT, "q", bodies, None, 0, session, sequence, rig.now_ms, list(dedup), all_or_none=True
        )
    ids = list(rig.done(sent))
    check_broker(rig.broker)
    return ids


@pytest.fixture(params=["send", "half"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def a_queue() -> Rig:
    rig = Rig()
    rig.create(transactional=True)
    return rig


def test_a_batch_that_is_new_as_a_whole_is_stored_and_its_repeat_gets_its_ids(kind: str):
    rig = a_queue()

    first = send(rig, "xyz", kind=kind)
    rows = rig.log.last_lsn

    assert send(rig, "xyz", kind=kind) == first
    assert send(rig, "zx", kind=kind) == [first[2], first[0]]
    assert rig.log.last_lsn == rows


@pytest.mark.parametrize("dedup", ["xa", "ax", "axy", "xya"])
def test_a_batch_of_which_some_ids_are_remembered_is_refused_whole(kind: str, dedup: str):
    rig = a_queue()
    send(rig, "xy", kind=kind)
    before = facts(rig.broker)

    with pytest.raises(InvalidArgument, match=rf"of the {len(dedup)} messages of this batch .* no message was stored"):
        send(rig, dedup, kind=kind)

    assert facts(rig.broker) == before
    assert facts(rig.crash().broker) == before


def test_a_message_without_an_id_is_a_new_message(kind: str):
    rig = a_queue()
    send(rig, ["x"], kind=kind)

    with pytest.raises(InvalidArgument) as refused:
        send(rig, ["x", None], kind=kind)

    assert refused.value.details["field"] == "all_or_none"
    assert len(send(rig, [None, None], kind=kind)) == 2


def test_two_equal_ids_of_a_batch_are_no_reason_to_refuse(kind: str):
    rig = a_queue()

    first = send(rig, "xxy", kind=kind)

    assert first[0] == first[1]
    assert send(rig, "xxy", kind=kind) == first


def test_a_batch_whose_ids_are_forgotten_is_new(kind: str):
    rig = a_queue()
    first = send(rig, "x", kind=kind)
    rig.advance(LIFE_MS)

    assert send(rig, "xa", kind=kind)[0] != first[0]


def test_a_repeat_of_a_numbered_send_is_answered_whatever_the_ids_are(kind: str):
    rig = a_queue()
    first = send(rig, "xy", kind=kind, session=7, sequence=1)

    assert send(rig, "xy", kind=kind, session=7, sequence=1) == first


def test_without_the_field_the_new_messages_are_stored():
    rig = a_queue()
    send(rig, "x")

    sent = alone.send(rig.broker, ACCOUNT, "q", [b"x", b"a"], None, 0, 0, 0, rig.now_ms, ["x", "a"])

    assert len(list(rig.done(sent))) == 2
    assert rig.bodies() == [b"x", b"a"]


def test_a_refused_batch_takes_no_room_and_leaves_its_ids_free():
    rig = a_queue()
    send(rig, "x")
    with pytest.raises(InvalidArgument):
        send(rig, "xa", session=7, sequence=1)

    assert len(send(rig, "a", session=7, sequence=1)) == 1


def test_sends_of_a_call_are_decided_one_after_the_other():
    rig = a_queue()
    requests = [
        alone.Send([b"1"], dedup_ids=["x"], all_or_none=True),
        alone.Send([b"1", b"2"], dedup_ids=["x", "y"], all_or_none=True),
        alone.Send([b"3"]),
    ]

    first, refused, plain = rig.done(rig.broker.send_all(ACCOUNT, "q", requests, rig.now_ms))

    assert isinstance(refused, InvalidArgument)
    assert not isinstance(first, DomainError)
    assert not isinstance(plain, DomainError)
    assert rig.bodies() == [b"1", b"3"]


def test_the_predecessor_and_the_room_are_checked_as_ever():
    rig = Rig()
    rig.create()
    rig.force(max_backlog=1)
    with pytest.raises(OutOfOrder):
        alone.send(
            rig.broker, ACCOUNT, "q", [b"1"], None, 0, 0, 0, rig.now_ms, ["x"], after="missing", all_or_none=True
        )
    send(rig, "x")

    assert len(send(rig, "x")) == 1, "repeats need no room"
    with pytest.raises(InvalidArgument):
        send(rig, "xa")
    with pytest.raises(BacklogFull):
        send(rig, "ab")


# ---------------------------------------------------------------------- publishes


def test_a_publish_is_stored_whole_or_was_stored_whole():
    rig = a_rig()
    rig.subscribe("q")
    first = rig.publish(b"1", b"2", dedup_ids=["x", "y"], all_or_none=True)

    again = rig.publish(b"1", b"2", dedup_ids=["x", "y"], all_or_none=True)
    before = facts(rig.broker)
    for ids in (["x", "a"], ["a", "x"], ["y", None]):
        with pytest.raises(InvalidArgument, match=r"1 of the 2 messages of this batch .* no message was stored"):
            rig.publish(b"1", b"2", dedup_ids=list(ids), all_or_none=True)

    assert list(again.message_ids) == list(first.message_ids)
    assert facts(rig.broker) == before
    assert rig.counts()["active"] == 2
    check_recovery(rig)


def test_a_publish_without_the_field_stores_its_new_messages():
    rig = a_rig()
    rig.subscribe("q")
    rig.publish(b"1", dedup_ids=["x"])

    rig.publish(b"1", b"2", dedup_ids=["x", "a"])

    assert rig.counts()["active"] == 2


def test_earlier_publishes_of_the_same_call_count_as_remembered():
    rig = a_rig()
    rig.subscribe("q")

    first, refused, other, repeat = together(
        rig,
        request(b"1", dedup="x", all_or_none=True),
        request(b"1", b"2", dedup="xa", all_or_none=True),
        request(b"3", b"4", dedup="ab", all_or_none=True),
        request(b"1", dedup="x", all_or_none=True),
    )

    assert isinstance(refused, InvalidArgument)
    assert isinstance(first, Published)
    assert isinstance(other, Published)
    assert isinstance(repeat, Published)
    assert list(repeat.message_ids) == list(first.message_ids)
    assert rig.bodies() == [b"1", b"3", b"4"]
    check_recovery(rig)


def test_messages_without_a_subscription_are_not_remembered_and_their_publish_can_come_again():
    rig = a_rig()
    rig.subscribe("q", filter_tags=["red"])
    blue: Labels = ["blue"]

    for _ in range(2):
        published = rig.publish(b"1", b"2", labels=blue, dedup_ids=["x", "y"], all_or_none=True)
        assert list(published.matched) == [0, 0]

    published = rig.publish(b"1", b"2", labels=["red"], dedup_ids=["x", "y"], all_or_none=True)
    assert list(published.matched) == [1, 1]
