"""Attributes follow their declarations; what disk leaves out keeps its default for all time."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict, replace

from cmqd_segment.records import QueueCreated
from cmqd_types.attributes import QUEUE, SUBSCRIPTION, TOPIC, QueueAttributes, SubscriptionAttributes, TopicAttributes
from cmqd_types.declared import Attribute
from support.cases import each_case
from support.core.builders import ACCOUNT, START_MS, Rig

STORED: list[tuple[type[msgspec.Struct], dict[str, Any]]] = [
    (
        QueueAttributes,
        {
            "polling_wait_ms": 200,
            "visibility_timeout_ms": 30_000,
            "max_message_bytes": 65_536,
            "retention_ms": 345_600_000,
            "delay_ms": 0,
            "max_backlog": 100_000_000,
            "max_delayed": 1_000_000,
            "rewind_ms": 0,
            "dead_letter_queue": "",
            "dead_letter_max_receives": 0,
            "dead_letter_after_ms": 0,
            "transactional": False,
            "first_check_ms": 5_000,
            "max_checks": 15,
            "auto_delete_after_ms": 0,
            "auto_delete_only_empty": True,
        },
    ),
    (TopicAttributes, {"max_message_bytes": 65_536, "filter_type": "tag"}),
    (
        SubscriptionAttributes,
        {
            "protocol": "queue",
            "endpoint": "",
            "strategy": "exponential_decay",
            "content_format": "json",
            "filter_tags": [],
            "binding_keys": [],
            "paused": False,
        },
    ),
]
"""Values that an empty stored map stands for: a line is added with an attribute, and never changes."""


@pytest.mark.parametrize(("kind", "values"), STORED)
def test_an_empty_stored_map_stands_for_the_same_values_for_all_time(
    kind: type[msgspec.Struct], values: dict[str, Any]
):
    attributes = msgspec.msgpack.decode(b"\x80", type=kind)

    assert asdict(attributes) == values
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(attributes)) == {}


def test_a_changed_default_of_the_product_is_for_new_queues_and_leaves_stored_queues_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
):
    rig = Rig()
    old = rig.create("old")
    stored = msgspec.msgpack.encode(QueueCreated(1, "account", "old", QueueAttributes(), START_MS))

    monkeypatch.setitem(QUEUE, "retention_ms", replace(QUEUE["retention_ms"], default=86_400_000))
    new = rig.create("new")

    assert (old.attributes()["retention_ms"], new.attributes()["retention_ms"]) == (345_600_000, 86_400_000)
    assert msgspec.msgpack.encode(QueueCreated(1, "account", "old", QueueAttributes(), START_MS)) == stored
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(new.index.attributes)) == {"retention_ms": 86_400_000}
    rig.set("old", delay_ms=1)
    assert rig.queue("old").attributes()["retention_ms"] == 345_600_000
    recovered = rig.crash()
    for queue in (old, new):
        assert recovered.queue(queue.name).attributes() == queue.attributes()


def test_a_changed_default_of_topics_and_subscriptions_leaves_the_stored_ones_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
):
    rig = Rig()
    topic = rig.create_topic("old")
    subscription = rig.subscribe("q", "old")

    monkeypatch.setitem(TOPIC, "max_message_bytes", replace(TOPIC["max_message_bytes"], default=1024))
    monkeypatch.setitem(SUBSCRIPTION, "content_format", replace(SUBSCRIPTION["content_format"], default="simplified"))
    new_topic = rig.create_topic("new")
    new_subscription = rig.subscribe("q", "new")

    assert (topic.attributes.max_message_bytes, new_topic.attributes.max_message_bytes) == (65_536, 1024)
    assert subscription.attributes.content_format == "json"
    assert new_subscription.attributes.content_format == "simplified"
    recovered = rig.crash()
    for name, earlier in (("old", subscription), ("new", new_subscription)):
        topics = recovered.broker.facts.topics
        assert topics.find(ACCOUNT, name).attributes == earlier.topic.attributes
        assert topics.find_subscription(ACCOUNT, name, earlier.name).attributes == earlier.attributes


@each_case("attribute", [*QUEUE.values(), *TOPIC.values(), *SUBSCRIPTION.values()], ids=lambda it: it.name)
def test_a_declaration_makes_sense(attribute: Attribute):
    assert attribute.label
    assert attribute.help
    assert not attribute.help.endswith(".")
    if attribute.is_number:
        assert isinstance(attribute.default, int)
        assert attribute.low <= attribute.default <= attribute.high
        assert not attribute.zero or attribute.low == 0 < attribute.high
        assert not attribute.least or attribute.zero
    if attribute.choices:
        assert attribute.default in attribute.choices
