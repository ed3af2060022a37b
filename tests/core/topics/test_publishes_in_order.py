"""``after`` of a publish: a publish is stored only behind the message that the publish names."""

import pytest
from msgspec import structs

from cmqd.core.domain_errors import DomainError, OutOfOrder
from cmqd.core.limits import Limits
from cmqd.core.outcome import Published, PublishRequest
from support.core.builders import ACCOUNT, Rig
from support.core.publishing import a_rig, request, together


def ordered_rig() -> Rig:
    rig = a_rig()
    rig.subscribe("q", filter_tags=["a"])
    return rig


def publish(rig: Rig, name: str, after: str | None = None, tag: str = "a") -> Published:
    """Publish a message with its name as body and dedup id."""
    (reply,) = together(rig, named(name, after, tag))
    if isinstance(reply, DomainError):
        raise reply
    assert isinstance(reply, Published)
    return reply


def named(name: str, after: str | None = None, tag: str = "a") -> PublishRequest:
    return structs.replace(request(name.encode(), labels=[tag], dedup=name), after=after)


def test_a_publish_after_a_message_that_is_not_stored_is_refused_and_stores_nothing() -> None:
    rig = ordered_rig()
    rows = len(rig.log.rows)

    with pytest.raises(OutOfOrder, match="topic 'news' remembers no message with dedup id '1'"):
        publish(rig, "2", after="1")
    assert len(rig.log.rows) == rows

    publish(rig, "1")
    publish(rig, "2", after="1")
    publish(rig, "3", after="2")
    assert rig.bodies() == [b"1", b"2", b"3"]


def test_a_message_that_matches_no_subscription_has_no_followers() -> None:
    rig = ordered_rig()
    publish(rig, "1", tag="nobody's")

    with pytest.raises(OutOfOrder):
        publish(rig, "2", after="1")


def test_a_message_is_followed_as_long_as_its_id_is_remembered() -> None:
    rig = ordered_rig()
    publish(rig, "1")
    rig.delete(*rig.handles())
    publish(rig, "2", after="1")
    rig.settle(Limits().dedup_life_ms)

    with pytest.raises(OutOfOrder):
        publish(rig, "3", after="2")


def test_publishes_that_are_decided_together_follow_each_other() -> None:
    rig = ordered_rig()

    replies = together(
        rig, named("1"), named("2", "1"), named("4", "3"), named("5", "2"), named("6", "x"), named("7", "6")
    )

    assert [type(reply) for reply in replies] == [Published, Published, OutOfOrder, Published, OutOfOrder, OutOfOrder]
    assert rig.bodies() == [b"1", b"2", b"5"]


def test_a_repeat_of_a_numbered_publish_is_answered_whatever_it_follows() -> None:
    rig = ordered_rig()
    (first,) = together(rig, structs.replace(named("1"), session=7, sequence=1))

    (again,) = together(rig, structs.replace(named("1", "never published"), session=7, sequence=1))

    assert isinstance(first, Published)
    assert isinstance(again, Published)
    assert list(again.message_ids) == list(first.message_ids)


def test_a_message_is_followed_after_a_restart() -> None:
    rig = ordered_rig()
    publish(rig, "1")
    for again in (rig.crash(), rig.crash_after(rig.checkpoint())):
        publish(again, "2", after="1")
        assert again.bodies() == [b"1", b"2"]


def test_the_plan_of_a_publish_that_restarts_keeps_the_order() -> None:
    rig = ordered_rig()
    many = PublishRequest(
        [b"%d" % number for number in range(100)],
        None,
        [["a", f"own-{number}"] for number in range(100)],
        dedup_ids=[f"n{number}" for number in range(100)],
    )
    plan = rig.broker.plan_publish(ACCOUNT, "news", [many, named("z", "n99")], rig.now_ms)
    assert not plan.advance(100)
    rig.subscribe("late", filter_tags=["a"])
    while not plan.advance(100):
        pass

    replies = rig.done(rig.broker.apply_publish(plan, rig.now_ms))

    assert [type(reply) for reply in replies] == [Published, Published]
    assert rig.bodies("late", 200)[-1] == b"z"
