"""Topics: attributes, limits, names, ensure, lists, and refusals."""

from collections.abc import Callable

import pytest

from cmqd.core.domain_errors import (
    DomainError,
    InvalidArgument,
    TooManyTopics,
    TopicDiffers,
    TopicExists,
    TopicInUse,
    TopicNotFound,
)
from cmqd.core.facts.topic import EXACTLY_BEHIND
from cmqd.core.limits import Limits
from support.core.builders import ACCOUNT, START_MS, Rig
from support.core.facts import facts
from support.core.publishing import a_rig, topic_info, unsubscribe


def test_a_topic_without_attributes_has_those_of_the_specification():
    rig = Rig()

    made = rig.done(rig.broker.create_topic(ACCOUNT, "news", {}, rig.now_ms))

    assert made.created
    assert made.topic == "news"
    assert made.attributes == {"max_message_bytes": 65_536, "filter_type": "tag"}
    assert made.counts == {"retained": 0, "subscriptions": 0}
    assert made.facts == {
        "created_ms": START_MS,
        "modified_ms": START_MS,
        "lifecycle_ms": 86_400_000,
        "oldest_message_ms": None,
    }


def test_every_attribute_of_a_topic_can_be_chosen():
    rig = a_rig(max_message_bytes=1_048_576, filter_type="routing")

    assert topic_info(rig).attributes == {"max_message_bytes": 1_048_576, "filter_type": "routing"}
    assert topic_info(rig.crash()).attributes == topic_info(rig).attributes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_message_bytes", 1023),
        ("max_message_bytes", 1_048_577),
        ("max_message_bytes", "many"),
        ("max_message_bytes", True),
        ("filter_type", "both"),
        ("filter_type", 1),
        ("retention", 5),
    ],
)
def test_an_attribute_of_a_topic_out_of_range_or_unknown_is_refused(field: str, value: object):
    rig = Rig()

    with pytest.raises(InvalidArgument):
        rig.broker.create_topic(ACCOUNT, "news", {field: value}, rig.now_ms)

    assert rig.broker.topics == {}


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a.b"])
def test_a_name_of_a_topic_or_a_subscription_has_letters_digits_dashes_and_underscores(name: str):
    rig = a_rig()
    rig.create("q")

    with pytest.raises(InvalidArgument):
        rig.broker.create_topic(ACCOUNT, name, {}, rig.now_ms)
    with pytest.raises(InvalidArgument):
        rig.broker.subscribe(ACCOUNT, "news", name, {"endpoint": "q"}, rig.now_ms)


def test_the_largest_message_can_be_changed_and_nothing_else():
    rig = a_rig()
    rig.now_ms += 5000

    rig.done(rig.broker.set_topic_attributes(ACCOUNT, "news", {"max_message_bytes": 2048}, rig.now_ms))
    rig.done(rig.broker.set_topic_attributes(ACCOUNT, "news", {"filter_type": "tag"}, rig.now_ms))
    with pytest.raises(InvalidArgument, match="fixed when a topic is created"):
        rig.broker.set_topic_attributes(ACCOUNT, "news", {"filter_type": "routing"}, rig.now_ms)

    assert topic_info(rig).attributes == {"max_message_bytes": 2048, "filter_type": "tag"}
    assert topic_info(rig).facts["modified_ms"] == START_MS + 5000
    assert facts(rig.crash().broker) == facts(rig.broker)


def test_a_name_is_taken_in_any_case():
    rig = Rig()
    rig.create_topic("News")

    with pytest.raises(TopicExists, match="already exists"):
        rig.create_topic("News")
    with pytest.raises(TopicExists, match="only in case"):
        rig.create_topic("NEWS")
    with pytest.raises(TopicExists):
        rig.broker.ensure_topic(ACCOUNT, "NEWS", {}, rig.now_ms)
    with pytest.raises(TopicNotFound):
        rig.broker.topic_info(ACCOUNT, "NEWS")


def test_a_topic_and_a_queue_may_share_a_name():
    rig = Rig()
    rig.create("same")
    rig.create_topic("same")

    rig.subscribe("same", topic="same")
    rig.publish(b"1", topic="same")

    assert rig.bodies("same") == [b"1"]


def test_accounts_have_topics_of_their_own():
    rig = a_rig()

    rig.done(rig.broker.create_topic("other", "news", {}, rig.now_ms))

    assert rig.broker.facts.topics.find("other", "news") is not rig.broker.facts.topics.find(ACCOUNT, "news")
    assert rig.broker.list_topics("other", "", 0, 10)[0] == 1


def test_an_account_has_so_many_topics():
    rig = Rig(Limits(max_topics_per_account=2))
    rig.create_topic("topic-a")
    rig.create_topic("topic-b")

    with pytest.raises(TooManyTopics):
        rig.create_topic("topic-c")
    rig.done(rig.broker.create_topic("other", "topic-c", {}, rig.now_ms))
    rig.done(rig.broker.delete_topic(ACCOUNT, "topic-a"))

    rig.create_topic("topic-c")


def test_ensure_makes_a_topic_once():
    rig = Rig()

    first = rig.done(rig.broker.ensure_topic(ACCOUNT, "news", {"max_message_bytes": 4096}, rig.now_ms))
    rows = rig.log.last_lsn
    second = rig.done(rig.broker.ensure_topic(ACCOUNT, "news", {"max_message_bytes": 4096}, rig.now_ms))
    third = rig.done(rig.broker.ensure_topic(ACCOUNT, "news", {}, rig.now_ms))

    assert (first.created, second.created, third.created) == (True, False, False)
    assert first.topic_id == second.topic_id == third.topic_id
    assert rig.log.last_lsn == rows


def test_ensure_tells_how_a_topic_differs():
    rig = a_rig()

    with pytest.raises(TopicDiffers) as caught:
        rig.broker.ensure_topic(ACCOUNT, "news", {"max_message_bytes": 2048, "filter_type": "tag"}, rig.now_ms)

    assert caught.value.details["difference"] == {"max_message_bytes": {"is": 65_536, "wanted": 2048}}
    with pytest.raises(InvalidArgument):
        rig.broker.ensure_topic(ACCOUNT, "news", {"max_message_bytes": 1}, rig.now_ms)


def test_topics_are_listed_in_order_of_name():
    rig = Rig()
    for name in ("b-1", "a-2", "c-1", "a-1"):
        rig.create_topic(name)

    def names(search: str, offset: int, limit: int) -> tuple[int, list[str]]:
        total, page = rig.broker.list_topics(ACCOUNT, search, offset, limit)
        return total, [name for _, name in page]

    assert names("", 0, 100) == (4, ["a-1", "a-2", "b-1", "c-1"])
    assert names("", 1, 2) == (4, ["a-2", "b-1"])
    assert names("a", 0, 100) == (2, ["a-1", "a-2"])
    assert names("x", 0, 100) == (0, [])
    with pytest.raises(InvalidArgument):
        names("", -1, 10)
    with pytest.raises(InvalidArgument):
        names("", 0, 0)


def test_a_topic_with_a_subscription_is_not_deleted():
    rig = a_rig()
    rig.subscribe("q")

    with pytest.raises(TopicInUse):
        rig.broker.delete_topic(ACCOUNT, "news")
    unsubscribe(rig, "to-q")
    rig.done(rig.broker.delete_topic(ACCOUNT, "news"))

    with pytest.raises(TopicNotFound):
        topic_info(rig)
    assert facts(rig.crash().broker) == facts(rig.broker)


def test_the_name_of_a_deleted_topic_is_free_and_its_id_is_not_used_again():
    rig = Rig()
    old = rig.create_topic()
    rig.done(rig.broker.delete_topic(ACCOUNT, "news"))

    new = rig.create_topic()

    assert new.topic_id > old.topic_id
    assert facts(rig.crash().broker) == facts(rig.broker)


def test_ids_of_topics_subscriptions_and_queues_are_from_one_counter():
    rig = Rig()

    ids = [rig.create_topic().topic_id, rig.create("q").queue_id, rig.subscribe("q").subscription_id]
    again = rig.crash()
    ids += [again.create_topic("topic-u").topic_id, again.create("r").queue_id]

    assert len(set(ids)) == 5
    assert ids == sorted(ids)


@pytest.mark.parametrize("operation", ["info", "set", "delete", "publish", "subscribe", "list", "unsubscribe"])
def test_a_topic_that_does_not_exist_is_not_found(operation: str):
    rig = Rig()
    broker, now_ms = rig.broker, rig.now_ms
    calls = {
        "info": lambda: broker.topic_info(ACCOUNT, "news"),
        "set": lambda: broker.set_topic_attributes(ACCOUNT, "news", {}, now_ms),
        "delete": lambda: broker.delete_topic(ACCOUNT, "news"),
        "publish": lambda: broker.publish(ACCOUNT, "news", [], now_ms),
        "subscribe": lambda: broker.subscribe(ACCOUNT, "news", "to-s", {"endpoint": "q"}, now_ms),
        "list": lambda: broker.list_subscriptions(ACCOUNT, "news", "", 0, 10),
        "unsubscribe": lambda: broker.unsubscribe(ACCOUNT, "news", "to-s", now_ms),
    }

    with pytest.raises(TopicNotFound):
        calls[operation]()


def test_refusals_name_their_subject():
    rig = a_rig()
    rig.subscribe("q")

    with pytest.raises(DomainError) as caught:
        rig.broker.delete_topic(ACCOUNT, "news")

    assert caught.value.details == {"topic": "news", "subscriptions": 1}


def test_create_cuts_a_long_name_and_tells_the_name_that_it_used():
    rig = Rig()
    name = "n" * 63 + "-and-more"

    info = rig.done(rig.broker.create_topic(ACCOUNT, name, {}, rig.now_ms))

    assert (info.topic, info.created) == (name[:64], True)
    assert rig.crash().broker.facts.topics.find(ACCOUNT, name[:64]).name == name[:64]
    with pytest.raises(TopicExists) as taken:
        rig.broker.create_topic(ACCOUNT, name.upper(), {}, rig.now_ms)
    assert taken.value.details["existing"] == name[:64]


@pytest.mark.parametrize("name", ["n" * 64 + ".", "n" * 64 + "é", "n" * 64 + "\n", "ab"])
def test_create_cuts_no_name_that_is_not_legal_as_a_whole(name: str):
    rig = Rig()

    with pytest.raises(InvalidArgument, match="topic"):
        rig.broker.create_topic(ACCOUNT, name, {}, rig.now_ms)


def test_every_other_call_refuses_a_long_name():
    rig = Rig()
    name = "n" * 65
    rig.create_topic(name[:64])
    broker, now_ms = rig.broker, rig.now_ms
    attributes = {"endpoint": "q"}
    calls: list[Callable[[], object]] = [
        lambda: broker.ensure_topic(ACCOUNT, name, {}, now_ms),
        lambda: broker.subscribe(ACCOUNT, name[:64], name, attributes, now_ms),
        lambda: broker.create_queue(ACCOUNT, name, {}, now_ms),
    ]

    for call in calls:
        with pytest.raises(InvalidArgument, match="64"):
            call()
    for call in (
        lambda: broker.topic_info(ACCOUNT, name),
        lambda: broker.set_topic_attributes(ACCOUNT, name, {}, now_ms),
        lambda: broker.delete_topic(ACCOUNT, name),
        lambda: broker.publish(ACCOUNT, name, [], now_ms),
        lambda: broker.list_subscriptions(ACCOUNT, name, "", 0, 1),
    ):
        with pytest.raises(TopicNotFound):
            call()


def test_with_many_subscriptions_behind_the_retained_messages_are_bounded_from_above():
    rig = Rig()
    rig.create_topic()
    rig.broker.gates.pushing = False
    for number in range(EXACTLY_BEHIND + 1):
        name = f"sub-{number}"
        rig.subscribe(f"https://{number}.example/", name=name, protocol="https", filter_tags=[name, "all"])
    rig.publish(*[b"x"] * 5, labels=["all"])
    rig.publish(b"y", labels=["sub-0"])

    assert rig.broker.topic_info(ACCOUNT, "news").counts["retained"] == 6
    rig.done(rig.broker.drop_deliveries(ACCOUNT, "news", "sub-0", rig.now_ms))
    rig.done(rig.broker.drop_deliveries(ACCOUNT, "news", "sub-1", rig.now_ms))
    assert rig.broker.topic_info(ACCOUNT, "news").counts["retained"] == 5
