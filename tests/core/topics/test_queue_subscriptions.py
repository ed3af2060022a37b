"""The subscriptions of all topics that deliver to a queue."""

from collections.abc import Sequence

import pytest

from cmqd.core.domain_errors import InvalidArgument, QueueNotFound
from cmqd_types.topics import QueueSubscription
from support.core.builders import ACCOUNT, Rig
from support.core.publishing import URL


def listed(rig: Rig, offset: int = 0, limit: int = 100, queue: str = "q") -> tuple[int, list[str]]:
    total, page = rig.broker.list_queue_subscriptions(ACCOUNT, queue, offset, limit)
    return total, [f"{each.topic}/{each.name}" for each in page]


def a_rig() -> Rig:
    """Two subscriptions each of three topics to a queue, made in no order, and others."""
    rig = Rig()
    rig.create("q")
    rig.create("other")
    for topic in ("news", "sport", "art", "none"):
        rig.create_topic(topic)
    for name in ("b", "a"):
        for topic in ("sport", "news", "art"):
            rig.subscribe("q", topic, name)
    rig.subscribe("other", "news", "c")
    rig.subscribe(URL, "news", "d")
    return rig


ALL = ["art/a", "art/b", "news/a", "news/b", "sport/a", "sport/b"]


def test_they_are_listed_in_order_of_topic_and_name():
    rig = a_rig()
    rig.broker.set_subscription_attributes(ACCOUNT, "art", "b", {"paused": True}, rig.now_ms)
    rig.publish(b"x", topic="art")

    assert listed(rig) == (6, ALL)
    assert listed(rig, queue="other") == (1, ["news/c"])
    _, page = rig.broker.list_queue_subscriptions(ACCOUNT, "q", 1, 1)
    assert page == [QueueSubscription("b", "queue", "q", True, 1, 0, None, "art")]


@pytest.mark.parametrize("limit", range(1, 8))
def test_pages_join_to_the_whole(limit: int):
    rig = a_rig()

    for offset in range(8):
        assert listed(rig, offset, limit) == (6, ALL[offset : offset + limit])


def test_a_deleted_queue_has_the_subscriptions_that_outlived_it():
    rig = a_rig()
    rig.create("unused")
    rig.delete_queue("q")
    rig.delete_queue("unused")

    assert listed(rig) == (6, ALL)
    for name in ("unused", "never", ""):
        with pytest.raises(QueueNotFound):
            listed(rig, queue=name)
    for topic in ("news", "sport", "art"):
        for name in ("a", "b"):
            rig.done(rig.broker.unsubscribe(ACCOUNT, topic, name, rig.now_ms))
    with pytest.raises(QueueNotFound):
        listed(rig)
    rig.create("q")
    assert listed(rig) == (0, [])


def test_ended_subscriptions_are_gone_and_new_ones_are_in_their_place():
    rig = a_rig()
    for name in ("a", "b"):
        rig.done(rig.broker.unsubscribe(ACCOUNT, "news", name, rig.now_ms))
    rig.subscribe("q", "sport", "aa")

    assert listed(rig) == (5, ["art/a", "art/b", "sport/a", "sport/aa", "sport/b"])
    assert listed(rig.crash()) == listed(rig)
    assert listed(rig.crash_after(rig.checkpoint())) == listed(rig)


def test_a_caller_sees_and_counts_the_topics_that_are_selected():
    rig = a_rig()

    def shows(names: Sequence[str]) -> list[bool]:
        asked.extend(names)
        return [name != "news" for name in names]

    asked: list[str] = []
    total, page = rig.broker.list_queue_subscriptions(ACCOUNT, "q", 1, 2, selects=shows)

    assert (total, [(each.topic, each.name) for each in page]) == (4, [("art", "b"), ("sport", "a")])
    assert asked == ["art", "news", "sport"]
    assert rig.broker.list_queue_subscriptions(ACCOUNT, "q", 0, 9, selects=lambda names: [False for _ in names]) == (
        0,
        [],
    )


def test_an_account_sees_its_own_subscriptions_alone():
    rig = a_rig()
    rig.done(rig.broker.create_queue("shop", "q", {}, rig.now_ms))

    assert rig.broker.list_queue_subscriptions("shop", "q", 0, 100) == (0, [])


@pytest.mark.parametrize(("offset", "limit"), [(-1, 1), (0, 0), (0, 1001), (1 << 32, 1)])
def test_a_page_out_of_range_is_refused(offset: int, limit: int):
    with pytest.raises(InvalidArgument):
        listed(a_rig(), offset, limit)
