"""Topics and subscriptions through the server: every operation."""

from pathlib import Path
from typing import Any

import pytest

from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.topics import SubscriptionSummary
from support.server.server_rig import ServerRig, code_of
from support.server.topics import URL, a_topic, publish, to_queue, to_url


class TestTopics:
    async def test_a_topic_tells_where_it_is_as_a_queue_does(self, tmp_path: Path) -> None:
        rig = await ServerRig.make(tmp_path, region="east", listen="127.0.0.1:0", advertise="mq.example.com:5681")
        await rig.server.start()
        client = await rig.client()

        topic = await a_topic(client)
        queue = await client.expect(wire.QueueInfo, wire.EnsureQueue, "q", {})

        where = {"region": "east", "address": "mq.example.com:5681"}
        assert where.items() <= topic.facts.items()
        assert where.items() <= queue.facts.items()
        await rig.server.close_connections(ErrorCode.SHUTTING_DOWN, "bye", 1)
        rig.close()

    async def test_topics_are_made_listed_changed_and_deleted(self, rig: ServerRig) -> None:
        client = await rig.client()

        made = await client.expect(wire.TopicInfo, wire.CreateTopic, "news", {"max_message_bytes": 2048})
        assert made.created
        assert made.attributes == {"max_message_bytes": 2048, "filter_type": "tag"}
        assert made.counts == {"retained": 0, "subscriptions": 0}
        assert made.facts["lifecycle_ms"] == 86_400_000
        again = await a_topic(client, max_message_bytes=2048)
        assert (again.created, again.topic_id) == (False, made.topic_id)
        differs = await client.expect(wire.Error, wire.EnsureTopic, "news", {"filter_type": "routing"})
        assert differs.name == "topic_differs"
        assert differs.details is not None
        assert differs.details["difference"] == {"filter_type": {"is": "tag", "wanted": "routing"}}
        changed = await client.expect(wire.TopicInfo, wire.SetTopicAttributes, "news", {"max_message_bytes": 4096})
        assert changed.attributes["max_message_bytes"] == 4096
        got = await client.expect(wire.TopicInfo, wire.GetTopicAttributes, "news")
        assert got.attributes == changed.attributes
        await a_topic(client, "other")
        listed = await client.expect(wire.TopicList, wire.ListTopics, "ew")
        assert (listed.total, listed.topics) == (1, [(made.topic_id, "news")])
        await client.expect(wire.Done, wire.DeleteTopic, "news")
        assert code_of(await client.ask(wire.GetTopicAttributes, "news")) == "topic_not_found"

    async def test_every_refusal_has_its_code(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_queue(client, "jobs")

        assert code_of(await client.ask(wire.CreateTopic, "News", {})) == "topic_exists"
        assert code_of(await client.ask(wire.DeleteTopic, "news")) == "topic_in_use"
        assert code_of(await client.ask(wire.PublishMessages, "nowhere", [b"x"])) == "topic_not_found"
        assert code_of(await client.ask(wire.GetSubscription, "news", "nobody")) == "subscription_not_found"
        assert code_of(await client.ask(wire.Subscribe, "news", "jobs", {"endpoint": "jobs"})) == "subscription_exists"
        differs = await client.ask(wire.EnsureSubscription, "news", "jobs", {"endpoint": "jobs", "paused": True})
        assert code_of(differs) == "subscription_differs"
        missing = await client.ask(wire.Subscribe, "news", "other", {"endpoint": "nowhere"})
        assert code_of(missing) == "queue_not_found"
        bad = await client.expect(wire.Error, wire.Subscribe, "news", "bad", {"endpoint": "jobs", "strategy": "never"})
        assert (bad.name, (bad.details or {})["field"]) == ("invalid_argument", "strategy")

    async def test_accounts_do_not_see_each_other(self, rig: ServerRig) -> None:
        admin = await rig.client()
        other = await rig.client(await rig.accounts.create_account("admin", "other", 1))
        await a_topic(admin)
        await to_queue(admin, "jobs")

        assert code_of(await other.ask(wire.PublishMessages, "news", [b"x"])) == "topic_not_found"
        await a_topic(other)
        assert (await publish(other, b"theirs")).matched == [0]

        assert await admin.receive("jobs") == []


class TestSubscriptions:
    async def test_subscriptions_are_made_listed_changed_and_ended(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)

        made = await to_queue(client, "jobs", filter_tags=["a"])
        assert (made.topic, made.subscription, made.created, made.secret) == ("news", "jobs", True, None)
        assert made.attributes["protocol"] == "queue"
        assert made.counts == {"waiting": 0, "in_retry": 0, "dropped": 0}
        changed = await client.expect(
            wire.SubscriptionInfo, wire.SetSubscriptionAttributes, "news", "jobs", {"filter_tags": [], "paused": True}
        )
        assert (changed.attributes["filter_tags"], changed.attributes["paused"]) == ([], True)
        assert (await publish(client, b"x", tags=[["b"]])).matched == [1]
        await to_url(client)
        listed = await client.expect(wire.SubscriptionList, wire.ListSubscriptions, "news")
        assert listed.total == 2
        assert listed.subscriptions == [
            SubscriptionSummary("hook", "https", URL, False, 0, 0, None),
            SubscriptionSummary("jobs", "queue", "jobs", True, 1, 0, None),
        ]
        assert (await client.expect(wire.DeliveriesDone, wire.DropDeliveries, "news", "jobs")).messages == 1
        assert (await client.expect(wire.DeliveriesDone, wire.RetryDeliveries, "news", "jobs")).messages == 0
        got = await client.expect(wire.SubscriptionInfo, wire.GetSubscription, "news", "jobs")
        assert (got.counts["dropped"], got.created) == (1, False)
        await client.expect(wire.Done, wire.Unsubscribe, "news", "jobs")
        assert code_of(await client.ask(wire.GetSubscription, "news", "jobs")) == "subscription_not_found"
        assert (await publish(client, b"y")).matched == [1]

    async def test_a_message_reaches_those_it_matches(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        for queue, tags in (("apples", ["apple"]), ("phones", ["xiaomi"]), ("all", [])):
            await to_queue(client, queue, filter_tags=tags)

        reply = await publish(client, b"1", b"2", b"3", tags=[["apple"], ["other"], []])

        assert reply.matched == [2, 1, 1]
        assert [message.body for message in await client.receive("apples")] == [b"1"]
        assert await client.receive("phones") == []
        assert [message.body for message in await client.receive("all")] == [b"1", b"2", b"3"]

    async def test_a_routing_topic_takes_keys(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client, filter_type="routing")
        await to_queue(client, "jobs", binding_keys=["1.*.0", "2.#"])

        reply = await publish(client, b"1", b"2", b"3", routing_keys=["1.any.0", "1.0", "2"], tags=[[]])

        assert reply.matched == [1, 0, 1]
        assert [message.body for message in await client.receive("jobs")] == [b"1", b"3"]

    @pytest.mark.parametrize(
        ("filter_type", "named", "field"),
        [
            ("tag", {"routing_keys": ["a.b"]}, "routing_key"),
            ("routing", {"tags": [["a"]]}, "tags"),
            ("routing", {}, "routing_key"),
            ("tag", {"tags": [["a"]], "routing_keys": ["b"]}, "routing_key"),
            ("routing", {"tags": [["a"]], "routing_keys": ["b"]}, "routing_key"),
            ("tag", {"tags": [["a"], ["b"]]}, "tags"),
            ("tag", {"tags": [["a,b"]]}, "tags"),
        ],
    )
    async def test_labels_of_the_other_kind_are_refused(
        self, rig: ServerRig, filter_type: str, named: dict[str, Any], field: str
    ) -> None:
        client = await rig.client()
        await a_topic(client, filter_type=filter_type)

        refused = await client.expect(wire.Error, wire.PublishMessages, "news", [b"x"], **named)

        assert refused.name == "invalid_argument"
        assert (refused.details or {})["field"].startswith(field)

    async def test_empty_labels_of_the_other_kind_are_none(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_queue(client, "jobs", filter_tags=["a"])

        assert (await publish(client, b"x", routing_keys=[""])).matched == [0]
        assert (await publish(client, b"x", routing_keys=[""], tags=[["a"]])).matched == [1]

    async def test_a_numbered_publish_is_stored_once(self, rig: ServerRig) -> None:
        client, other = await rig.client(), await rig.client()
        await a_topic(client)
        await to_queue(client, "jobs")

        first = await publish(client, b"x", session=7, sequence=1)
        again = await publish(other, b"x", session=7, sequence=1)

        assert again.message_ids == first.message_ids
        assert (first.matched, again.matched) == ([1], [None])
        assert len(await client.receive("jobs")) == 1
