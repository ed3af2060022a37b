"""The origin of a copy of a published message, by every way to read the copy."""

import pytest

from cmqd.core.limits import Limits, copy_bytes
from cmqd.core.outcome import Waiting
from cmqd_types.messages import CopyOf, Labels, PeekedMessage
from support.core.builders import ACCOUNT, START_MS, Rig

PEEKER = 9999


def peek(rig: Rig, queue: str = "q") -> list[PeekedMessage]:
    """Page-ins included."""
    reply = rig.done(rig.broker.peek(ACCOUNT, queue, PEEKER, 0, 16, rig.now_ms))
    if isinstance(reply, Waiting):
        rig.answer_reads()
        *_, reply = rig.replies(PEEKER)
    return reply.messages


def a_rig(filter_type: str = "tag", limits: Limits | None = None) -> Rig:
    """A topic with a subscription of the queue ``q`` to all messages."""
    rig = Rig(limits)
    rig.create_topic("news", filter_type=filter_type)
    rig.subscribe("q", name="for-q", binding_keys=["#"] if filter_type == "routing" else [])
    return rig


@pytest.mark.parametrize(
    ("filter_type", "labels", "known"),
    [("tag", ["red", "big"], ["red", "big"]), ("tag", None, None), ("routing", "a.b", "a.b")],
)
@pytest.mark.parametrize("from_log", [False, True])
def test_a_copy_tells_topic_subscription_id_time_and_labels(
    filter_type: str, labels: Labels | None, known: Labels | None, from_log: bool
):
    rig = a_rig(filter_type)
    ids = list(rig.publish(b"1", b"2", labels=labels).message_ids)
    if from_log:
        rig = rig.crash()

    messages = rig.receive()

    assert [message.copy_of for message in messages] == [
        CopyOf("news", "for-q", message_id, START_MS, known) for message_id in ids
    ]
    assert not {message.message_id for message in messages} & set(ids)


def test_peek_tells_it_too_and_what_was_sent_is_no_copy():
    rig = a_rig()
    (published,) = rig.publish(b"1").message_ids
    rig.send(b"2")

    for one in (rig, rig.crash()):
        first, second = peek(one)
        assert first.copy_of == CopyOf("news", "for-q", published, START_MS)
        assert second.copy_of is None


def test_two_subscriptions_to_one_queue_make_copies_that_can_be_told_apart():
    rig = a_rig()
    rig.subscribe("q", name="again")
    rig.publish(b"1")

    for one in (rig.crash(), rig):
        assert [message.copy_of and message.copy_of.subscription for message in one.receive()] == ["for-q", "again"]


@pytest.mark.parametrize("from_log", [False, True])
def test_a_late_copy_has_the_time_of_its_publish(from_log: bool):
    rig = a_rig()
    rig.done(rig.broker.set_subscription_attributes(ACCOUNT, "news", "for-q", {"paused": True}, rig.now_ms))
    (published,) = rig.publish(b"1", labels=["red"]).message_ids
    rig.settle(5000)
    rig.done(rig.broker.set_subscription_attributes(ACCOUNT, "news", "for-q", {"paused": False}, rig.now_ms))
    rig.settle()
    if from_log:
        rig = rig.crash()

    (message,) = rig.receive()

    assert message.copy_of == CopyOf("news", "for-q", published, START_MS, ["red"])
    assert message.enqueue_ms >= START_MS + 5000


def test_a_copy_that_dies_and_is_redriven_keeps_it():
    rig = a_rig()
    rig.create("dlq")
    rig.set(dead_letter_queue="dlq", dead_letter_max_receives=1, visibility_timeout_ms=1000)
    (published,) = rig.publish(b"1", labels=["red"]).message_ids
    rig.receive()
    rig.settle(2000)
    copy_of = CopyOf("news", "for-q", published, START_MS, ["red"])

    for one in (rig.crash(), rig):
        (dead,) = peek(one, "dlq")
        assert dead.origin is not None
        assert dead.copy_of == copy_of
    rig.redrive()
    rig.settle(1000)
    for one in (rig.crash(), rig):
        (back,) = one.receive()
        assert back.copy_of == copy_of


def test_copies_take_no_delay():
    rig = a_rig()
    rig.set(delay_ms=60_000)
    rig.publish(b"1")

    assert rig.crash().bodies() == rig.bodies() == [b"1"]


def test_what_a_message_is_a_copy_of_counts_in_the_bytes_of_a_reply():
    copy_of = CopyOf("news", "for-q", 1 << 62, START_MS, ["red"])
    most = 3 * (100 + copy_bytes(copy_of)) + 10
    rig = a_rig(limits=Limits(max_batch_bytes=most))
    for _ in range(5):
        rig.publish(b"x" * 100, labels=["red"])

    assert len(peek(rig.crash())) == len(peek(rig)) == 3
    assert len(rig.crash().receive()) == len(rig.receive()) == 3


def test_names_stay_as_they_were_when_the_subscription_is_gone():
    rig = a_rig()
    (published,) = rig.publish(b"1").message_ids
    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", "for-q", rig.now_ms))
    rig.done(rig.broker.delete_topic(ACCOUNT, "news"))

    for one in (rig.crash(), rig.crash_after(rig.checkpoint()), rig):
        (message,) = peek(one)
        assert message.copy_of == CopyOf("news", "for-q", published, START_MS)
