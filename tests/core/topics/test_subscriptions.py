"""Subscriptions: attributes, limits, names, ensure, lists; and their messages after a change or the end."""

import pytest

from cmqd.core.domain_errors import (
    InvalidArgument,
    QueueNotFound,
    SubscriptionDiffers,
    SubscriptionExists,
    SubscriptionNotFound,
    TooManySubscriptions,
)
from cmqd_types.topics import SubscriptionInfo
from support.cases import each_case
from support.core.builders import ACCOUNT, START_MS, Rig
from support.core.facts import facts
from support.core.publishing import URL, a_rig, topic_info, unsubscribe


def info(rig: Rig, name: str, topic: str = "news") -> SubscriptionInfo:
    return rig.broker.subscription_info(ACCOUNT, topic, name, rig.now_ms)


def change(rig: Rig, name: str, **attributes: object) -> SubscriptionInfo:
    outcome = rig.broker.set_subscription_attributes(ACCOUNT, "news", name, attributes, rig.now_ms)
    return rig.done(outcome)


def test_a_subscription_to_a_queue_has_these_attributes():
    rig = a_rig()
    rig.create("q")

    made = rig.done(rig.broker.subscribe(ACCOUNT, "news", "to-s", {"endpoint": "q"}, rig.now_ms))

    assert made.created
    assert (made.topic, made.subscription) == ("news", "to-s")
    assert made.attributes == {
        "protocol": "queue",
        "endpoint": "q",
        "strategy": "exponential_decay",
        "content_format": "json",
        "filter_tags": [],
        "binding_keys": [],
        "paused": False,
    }
    assert made.counts == {"waiting": 0, "in_retry": 0, "dropped": 0}
    assert made.facts == {
        "id": rig.broker.subscription_info(ACCOUNT, "news", made.subscription).facts["id"],
        "created_ms": START_MS,
        "modified_ms": START_MS,
        "blocked": False,
        "last_error": None,
        "last_error_ms": None,
        "next_attempt_ms": None,
    }
    assert topic_info(rig).counts["subscriptions"] == 1


@pytest.mark.parametrize("url", ["http://example.com/", "https://example.com:8443/in?x=1", "HTTP://example.com"])
def test_the_protocol_of_a_url_is_its_scheme(url: str):
    rig = a_rig()

    rig.subscribe(url, name="to-s")

    assert info(rig, "to-s").attributes["protocol"] == url.partition(":")[0].lower()
    assert info(rig, "to-s").counts == {"waiting": 0, "in_retry": 0, "dropped": 0, "delivered": 0}


def test_every_attribute_of_a_subscription_can_be_chosen_and_is_there_after_a_restart():
    rig = a_rig()
    chosen = {
        "protocol": "https",
        "endpoint": URL,
        "strategy": "backoff",
        "content_format": "simplified",
        "filter_tags": ["a", "b"],
        "paused": True,
    }

    rig.done(rig.broker.subscribe(ACCOUNT, "news", "to-s", chosen, rig.now_ms))

    assert info(rig, "to-s").attributes == {**chosen, "binding_keys": []}
    assert facts(rig.crash().broker) == facts(rig.broker)
    assert facts(rig.crash_after(rig.checkpoint()).broker) == facts(rig.broker)


@each_case(
    "attributes",
    [
        {},
        {"endpoint": ""},
        {"endpoint": 5},
        {"endpoint": "a queue"},
        {"endpoint": "ftp://example.com/"},
        {"endpoint": "https://"},
        {"endpoint": "q", "protocol": "https"},
        {"endpoint": URL, "protocol": "http"},
        {"endpoint": URL, "protocol": "queue"},
        {"endpoint": "q", "protocol": "smtp"},
        {"endpoint": "q", "strategy": "never"},
        {"endpoint": "q", "content_format": "xml"},
        {"endpoint": "q", "paused": 1},
        {"endpoint": "q", "filter_tags": "abc"},
        {"endpoint": "q", "filter_tags": [1]},
        {"endpoint": "q", "filter_tags": ["x" * 17]},
        {"endpoint": "q", "filter_tags": [""]},
        {"endpoint": "q", "filter_tags": ["a,b"]},
        {"endpoint": "q", "filter_tags": ["a", "b", "c", "d", "e", "f"]},
        {"endpoint": "q", "binding_keys": ["a.b"]},
        {"endpoint": "q", "color": "red"},
    ],
    ids=str,
)
def test_attributes_that_are_not_legal_make_no_subscription(attributes: dict[str, object]):
    rig = a_rig()
    rig.create("q")

    with pytest.raises(InvalidArgument):
        rig.broker.subscribe(ACCOUNT, "news", "to-s", attributes, rig.now_ms)

    assert topic_info(rig).counts["subscriptions"] == 0


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"binding_keys": []},
        {"binding_keys": ["a", "b", "c", "d", "e", "f"]},
        {"binding_keys": [""]},
        {"binding_keys": ["x" * 65]},
        {"binding_keys": ["." * 16]},
        {"binding_keys": ["a"], "filter_tags": ["a"]},
    ],
    ids=str,
)
def test_a_subscription_to_a_routing_topic_has_one_to_five_keys_and_no_tags(attributes: dict[str, object]):
    rig = a_rig(filter_type="routing")
    rig.create("q")

    with pytest.raises(InvalidArgument):
        rig.broker.subscribe(ACCOUNT, "news", "to-s", {"endpoint": "q", **attributes}, rig.now_ms)


def test_five_tags_of_sixteen_characters_and_five_keys_of_sixty_four_bytes_are_allowed():
    rig = a_rig()
    rig.create_topic("topic-r", filter_type="routing")
    tags = [f"{number}" + "标" * 15 for number in range(5)]
    keys = [f"{number}." + "x" * 62 for number in range(5)]

    rig.subscribe("q", filter_tags=[*tags, tags[0]])
    rig.subscribe("q", topic="topic-r", binding_keys=keys)

    assert info(rig, "to-q").attributes["filter_tags"] == tags
    assert info(rig, "to-q", "topic-r").attributes["binding_keys"] == keys


def test_a_queue_must_be_there_when_it_is_subscribed():
    rig = a_rig()
    rig.done(rig.broker.create_queue("other", "q", {}, rig.now_ms))

    with pytest.raises(QueueNotFound):
        rig.broker.subscribe(ACCOUNT, "news", "to-s", {"endpoint": "q"}, rig.now_ms)


def test_a_subscription_name_is_taken_in_any_case_and_free_in_another_topic():
    rig = a_rig()
    rig.create_topic("topic-u")
    rig.subscribe("q", name="Mine")

    for name in ("Mine", "MINE"):
        with pytest.raises(SubscriptionExists):
            rig.broker.subscribe(ACCOUNT, "news", name, {"endpoint": "q"}, rig.now_ms)
    with pytest.raises(SubscriptionExists):
        rig.broker.ensure_subscription(ACCOUNT, "news", "MINE", {"endpoint": "q"}, rig.now_ms)
    with pytest.raises(SubscriptionNotFound):
        info(rig, "MINE")

    rig.subscribe("q", topic="topic-u", name="Mine")


def test_a_topic_has_five_hundred_subscriptions():
    rig = a_rig()
    rig.create("q")
    for number in range(500):
        rig.subscribe(URL if number % 2 else "q", name=f"sub{number}")

    with pytest.raises(TooManySubscriptions):
        rig.subscribe("q", name="more")

    assert rig.publish(b"1").matched == [500]
    assert rig.counts("q")["active"] == 250
    assert topic_info(rig).counts == {"retained": 1, "subscriptions": 500}
    again = rig.crash()
    assert facts(again.broker) == facts(rig.broker)
    with pytest.raises(TooManySubscriptions):
        again.subscribe("q", name="more")
    unsubscribe(rig, "sub7")
    rig.subscribe("q", name="more")


def test_ensure_makes_a_subscription_once():
    rig = a_rig()
    rig.create("q")
    wanted = {"endpoint": "q", "filter_tags": ["a", "a"]}

    first = rig.done(rig.broker.ensure_subscription(ACCOUNT, "news", "to-s", wanted, rig.now_ms))
    subscriptions = list(rig.broker.subscriptions)
    rows = rig.log.last_lsn
    second = rig.done(rig.broker.ensure_subscription(ACCOUNT, "news", "to-s", wanted, rig.now_ms))

    assert (first.created, second.created) == (True, False)
    assert list(rig.broker.subscriptions) == subscriptions
    assert rig.log.last_lsn == rows


def test_ensure_tells_how_a_subscription_differs():
    rig = a_rig()
    rig.subscribe("q", name="to-s")

    with pytest.raises(SubscriptionDiffers) as caught:
        rig.broker.ensure_subscription(ACCOUNT, "news", "to-s", {"endpoint": URL, "strategy": "backoff"}, rig.now_ms)

    assert caught.value.details["difference"] == {
        "endpoint": {"is": "q", "wanted": URL},
        "strategy": {"is": "exponential_decay", "wanted": "backoff"},
    }


def test_subscriptions_are_listed_in_order_of_name():
    rig = a_rig()
    for name in ("b-1", "a-2", "c-1", "a-1"):
        rig.subscribe("q", name=name)

    def names(search: str, offset: int, limit: int) -> tuple[int, list[str]]:
        total, page = rig.broker.list_subscriptions(ACCOUNT, "news", search, offset, limit)
        return total, [summary.name for summary in page]

    assert names("", 0, 100) == (4, ["a-1", "a-2", "b-1", "c-1"])
    assert names("", 1, 2) == (4, ["a-2", "b-1"])
    assert names("a", 0, 100) == (2, ["a-1", "a-2"])
    with pytest.raises(InvalidArgument):
        names("", 0, 0)


@pytest.mark.parametrize("operation", ["info", "set", "unsubscribe", "retry", "drop"])
def test_a_subscription_that_does_not_exist_is_not_found(operation: str):
    rig = a_rig()
    broker, now_ms = rig.broker, rig.now_ms
    calls = {
        "info": lambda: broker.subscription_info(ACCOUNT, "news", "to-s"),
        "set": lambda: broker.set_subscription_attributes(ACCOUNT, "news", "to-s", {}, now_ms),
        "unsubscribe": lambda: broker.unsubscribe(ACCOUNT, "news", "to-s", now_ms),
        "retry": lambda: broker.retry_deliveries(ACCOUNT, "news", "to-s", now_ms),
        "drop": lambda: broker.drop_deliveries(ACCOUNT, "news", "to-s", now_ms),
    }

    with pytest.raises(SubscriptionNotFound):
        calls[operation]()


def test_tags_count_for_later_publishes():
    rig = a_rig()
    rig.subscribe("q", filter_tags=["a"])
    rig.publish(b"1", labels=["a"])

    change(rig, "to-q", filter_tags=["b"])

    assert rig.publish(b"2", labels=["a"]).matched == [0]
    assert rig.publish(b"3", labels=["b"]).matched == [1]
    assert rig.bodies("q") == [b"1", b"3"]
    assert facts(rig.crash().broker) == facts(rig.broker)


def test_changed_tags_do_not_touch_waiting_messages():
    rig = a_rig()
    rig.subscribe(URL, filter_tags=["a"])
    rig.publish(b"1", labels=["a"])

    change(rig, "web", filter_tags=["b"])
    rig.settle()

    assert [push.message.body for push in rig.pushes] == [b"1"]


def test_filter_tags_can_be_cleared():
    rig = a_rig()
    rig.subscribe("q", filter_tags=["a"])

    assert change(rig, "to-q", filter_tags=[]).attributes["filter_tags"] == []

    assert rig.publish(b"1").matched == [1]


def test_binding_keys_can_be_changed_and_not_cleared():
    rig = a_rig(filter_type="routing")
    rig.subscribe("q", binding_keys=["a.*"])

    change(rig, "to-q", binding_keys=["b.#"])
    with pytest.raises(InvalidArgument):
        change(rig, "to-q", binding_keys=[])

    assert rig.publish(b"1", labels="a.x").matched == [0]
    assert rig.publish(b"1", labels="b.x.y").matched == [1]


def test_strategy_and_format_can_be_changed():
    rig = a_rig()
    rig.subscribe(URL)
    rig.now_ms += 1000

    changed = change(rig, "web", strategy="backoff", content_format="simplified")

    assert changed.facts["modified_ms"] == START_MS + 1000
    rig.publish(b"1", b"2")
    rig.settle()
    assert [push.content_format for push in rig.pushes] == ["simplified"], "backoff: one at a time"
    assert facts(rig.crash().broker) == facts(rig.broker)


@pytest.mark.parametrize(("field", "value"), [("endpoint", "other"), ("protocol", "https"), ("endpoint", URL)])
def test_protocol_and_endpoint_cannot_be_changed(field: str, value: str):
    rig = a_rig()
    rig.create("other")
    rig.subscribe("q")

    with pytest.raises(InvalidArgument, match="fixed when a subscription is created"):
        change(rig, "to-q", **{field: value})

    assert change(rig, "to-q", protocol="queue", endpoint="q").attributes["endpoint"] == "q"


def test_a_change_that_is_refused_changes_nothing():
    rig = a_rig()
    rig.subscribe("q")

    with pytest.raises(InvalidArgument):
        change(rig, "to-q", strategy="backoff", filter_tags=["a,b"])

    assert info(rig, "to-q").attributes["strategy"] == "exponential_decay"


def test_unsubscribing_drops_waiting_messages():
    rig = a_rig()
    rig.subscribe(URL, paused=True)
    rig.publish(b"1", b"2")
    assert topic_info(rig).counts == {"retained": 2, "subscriptions": 1}

    unsubscribe(rig, "web")

    assert topic_info(rig).counts == {"retained": 0, "subscriptions": 0}
    assert rig.broker.subscriptions == {}
    rig.settle(86_400_000)
    assert rig.pushes == []
    assert facts(rig.crash().broker) == facts(rig.broker)


def test_what_waits_for_others_stays_when_one_leaves():
    rig = a_rig()
    rig.subscribe(URL, name="to-a", paused=True)
    rig.subscribe(URL, name="to-b", paused=True, filter_tags=["x"])
    rig.publish(b"1", b"2", each=[["x"], ["y"]])

    unsubscribe(rig, "to-a")

    assert topic_info(rig).counts["retained"] == 1
    assert topic_info(rig).facts["oldest_message_ms"] == START_MS


def test_copies_in_a_queue_stay_when_its_subscription_ends():
    rig = a_rig()
    rig.subscribe("q")
    rig.publish(b"1")

    unsubscribe(rig, "to-q")

    assert rig.publish(b"2").matched == [0]
    assert rig.bodies("q") == [b"1"]


def test_a_name_that_became_free_is_another_subscription():
    rig = a_rig()
    old = rig.subscribe(URL)
    rig.publish(b"1")
    unsubscribe(rig, "web")

    new = rig.subscribe(URL)

    rig.settle()
    assert new.subscription_id != old.subscription_id
    assert rig.pushes == []


def test_a_queue_that_is_deleted_and_made_again_gets_messages_again():
    rig = a_rig()
    rig.subscribe("q")
    rig.delete_queue("q")
    rig.publish(b"1")
    rig.create("q")

    rig.publish(b"2")
    assert rig.bodies("q") == [b"2"], "order is not promised"
    rig.settle(1000)

    assert rig.bodies("q") == [b"1"]


def test_the_oldest_message_is_the_oldest_undelivered_message():
    rig = a_rig()
    rig.subscribe(URL, strategy="backoff")
    rig.publish(b"1")
    rig.now_ms += 10_000
    rig.publish(b"2")
    assert topic_info(rig).facts["oldest_message_ms"] == START_MS

    rig.settle()
    rig.end_push(rig.pushes[0])

    assert topic_info(rig).facts["oldest_message_ms"] == START_MS + 10_000
