"""Topics through the server: every operation, publishes decided together, pushes and their secrets."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cmqd.core.operations.publish_plan import PublishPlan
from cmqd.core.outcome import PublishRequest
from cmqd.log.errors import LogFailed
from cmqd.log.values import LogState
from cmqd.server import collecting
from cmqd.server.accounts_file import FILE_NAME
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_types.topics import SubscriptionSummary
from support.server_rig import RigClient, ServerRig, code_of

URL = "https://example.com/hook"


async def a_topic(client: RigClient, topic: str = "news", **attributes: Any) -> wire.TopicInfo:
    return await client.expect(wire.TopicInfo, wire.EnsureTopic, topic, attributes)


async def to_queue(client: RigClient, queue: str, topic: str = "news", **attributes: Any) -> wire.SubscriptionInfo:
    """A subscription of a queue's name that delivers to it."""
    await client.expect(wire.QueueInfo, wire.EnsureQueue, queue, {})
    return await client.expect(wire.SubscriptionInfo, wire.Subscribe, topic, queue, {"endpoint": queue, **attributes})


async def to_url(client: RigClient, name: str = "hook", topic: str = "news", **attributes: Any) -> str:
    """A subscription to a URL; its secret."""
    made = await client.expect(wire.SubscriptionInfo, wire.Subscribe, topic, name, {"endpoint": URL, **attributes})
    assert made.secret is not None
    return made.secret


async def publish(client: RigClient, *bodies: bytes, topic: str = "news", **named: Any) -> wire.MessagesPublished:
    return await client.expect(wire.MessagesPublished, wire.PublishMessages, topic, list(bodies), **named)


def note_publishes(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[list[bytes]]]]:
    """What the core is asked to publish: topic, and the bodies of each request; one entry for each call."""
    calls: list[tuple[str, list[list[bytes]]]] = []
    real = rig.broker.plan_publish

    def noting(account: str, topic: str, requests: Sequence[PublishRequest], now_ms: int) -> PublishPlan:
        calls.append((topic, [request.bodies for request in requests]))
        return real(account, topic, requests, now_ms)

    monkeypatch.setattr(rig.broker, "plan_publish", noting)
    return calls


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

    async def test_what_is_refused_has_its_code(self, rig: ServerRig) -> None:
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


class TestCollecting:
    async def test_publishes_of_several_clients_are_one_call_and_one_row(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clients = [await rig.client() for _ in range(3)]
        await a_topic(clients[0], max_message_bytes=1024)
        await to_queue(clients[0], "jobs")
        calls = note_publishes(rig, monkeypatch)
        lsn = rig.log.last_lsn
        bodies = [b"one", bytes(1025), b"three"]

        ids = [
            client.begin(wire.PublishMessages(client.next_id(), "news", [body]))
            for client, body in zip(clients, bodies, strict=True)
        ]
        assert calls == [], "nothing is decided before the I/O batch ends"
        for client in clients:
            await client.settle()

        assert calls == [("news", [[body] for body in bodies])]
        assert rig.log.last_lsn == lsn + 1
        one, two, three = (client.replies[request_id] for client, request_id in zip(clients, ids, strict=True))
        assert isinstance(one, wire.MessagesPublished)
        assert isinstance(three, wire.MessagesPublished)
        assert code_of(two) == "message_too_large"
        assert [message.body for message in await clients[0].receive("jobs")] == [b"one", b"three"]
        assert rig.server.counters.published == 2

    async def test_a_missing_topic_is_told_to_each(self, rig: ServerRig) -> None:
        clients = [await rig.client() for _ in range(2)]

        ids = [client.begin(wire.PublishMessages(client.next_id(), "nowhere", [b"x"])) for client in clients]
        for client in clients:
            await client.settle()

        assert [code_of(client.replies[request_id]) for client, request_id in zip(clients, ids, strict=True)] == [
            "topic_not_found"
        ] * 2

    async def test_a_client_sees_its_own_publishes(self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_queue(client, "jobs")
        calls = note_publishes(rig, monkeypatch)

        requests = [
            wire.PublishMessages(client.next_id(), "news", [b"one"]),
            wire.PublishMessages(client.next_id(), "news", [b"two"]),
            wire.ReceiveMessages(client.next_id(), "jobs", 16, 0),
            wire.PublishMessages(client.next_id(), "news", [b"three"]),
            wire.Unsubscribe(client.next_id(), "news", "jobs"),
            wire.PublishMessages(client.next_id(), "news", [b"four"]),
        ]
        for request in requests:
            client.machine.send(request)
        await client.settle()

        assert calls == [("news", [[b"one"], [b"two"]]), ("news", [[b"three"]]), ("news", [[b"four"]])]
        received = client.replies[requests[2].request_id]
        assert isinstance(received, wire.MessagesReceived)
        assert [message.body for message in received.messages] == [b"one", b"two"]
        matched = [getattr(client.replies[requests[at].request_id], "matched", None) for at in (0, 1, 3, 5)]
        assert matched == [[1], [1], [1], [0]]
        assert list(client.replies) == [request.request_id for request in requests]

    async def test_publishes_of_one_client_to_two_topics_keep_their_order(self, rig: ServerRig) -> None:
        client = await rig.client()
        for topic in ("one", "two"):
            await a_topic(client, topic)
            await to_queue(client, "jobs", topic)

        for number, topic in enumerate(("one", "two", "two", "one", "one", "two")):
            client.machine.send(wire.PublishMessages(client.next_id(), topic, [b"%d" % number]))
        await client.settle()

        assert [message.body for message in await client.receive("jobs")] == [b"%d" % number for number in range(6)]

    async def test_what_others_do_does_not_wait(self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        one, two = await rig.client(), await rig.client()
        await a_topic(one)
        await to_queue(one, "jobs")
        calls = note_publishes(rig, monkeypatch)

        one.begin(wire.PublishMessages(one.next_id(), "news", [b"x"]))
        two.begin(wire.SendMessages(two.next_id(), "jobs", [b"y"]))

        assert calls == []
        await one.settle()
        assert [message.body for message in await one.receive("jobs")] == [b"y", b"x"]

    @pytest.mark.parametrize(
        ("count", "size", "together"), [(1, 10, 256), (100, 10, 2), (1, 400_000, 2), (1, 1_048_576, 1), (256, 10, 1)]
    )
    async def test_no_more_is_collected_than_a_batch_may_be(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch, count: int, size: int, together: int
    ) -> None:
        client = await rig.client()
        await a_topic(client, max_message_bytes=1_048_576)
        await to_queue(client, "jobs")
        calls = note_publishes(rig, monkeypatch)

        for _ in range(together + 1):
            client.machine.send(wire.PublishMessages(client.next_id(), "news", [bytes(size)] * count))
        client.deliver()
        rig.give_turns()
        assert [len(requests) for _, requests in calls] == [together] * (1 + (together == 1))
        await client.settle()

        assert sum(len(requests) for _, requests in calls) == together + 1
        assert len(client.replies) == together + 1
        assert collecting.MAX_MESSAGES == 256

    async def test_headers_count_as_bodies_do(self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        client = await rig.client()
        await a_topic(client)
        calls = note_publishes(rig, monkeypatch)
        headers: list[dict[str, str] | None] = [{"h" * 100: "v" * 16_000}]

        for _ in range(70):
            client.machine.send(wire.PublishMessages(client.next_id(), "news", [b"x"], headers))
        await client.settle()

        assert [len(requests) for _, requests in calls] == [65, 5]

    async def test_a_client_that_goes_has_published(self, rig: ServerRig) -> None:
        one, two = await rig.client(), await rig.client()
        await a_topic(one)
        await to_queue(one, "jobs")

        two.begin(wire.PublishMessages(two.next_id(), "news", [b"x"]))
        two.transport.lose()
        await rig.turn()

        assert [message.body for message in await one.receive("jobs")] == [b"x"]

    async def test_a_publish_is_too_late_to_cancel(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)

        request_id = client.begin(wire.PublishMessages(client.next_id(), "news", [b"x"]))
        client.cancel(request_id)
        await client.settle()

        assert isinstance(client.replies[request_id], wire.MessagesPublished)

    async def test_what_is_collected_when_the_storage_fails_is_unknown(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)

        request_id = client.begin(wire.PublishMessages(client.next_id(), "news", [b"x"]))
        rig.log.fail(LogFailed("fsync: I/O error"))
        await client.settle()

        assert code_of(client.replies[request_id]) == "outcome_unknown"

    async def test_a_bug_in_the_core_leaves_all_of_them_unknown(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clients = [await rig.client() for _ in range(2)]
        await a_topic(clients[0])

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(rig.broker, "plan_publish", broken)
        ids = [client.begin(wire.PublishMessages(client.next_id(), "news", [b"x"])) for client in clients]
        for client in clients:
            await client.settle()

        for client, request_id in zip(clients, ids, strict=True):
            assert code_of(client.replies[request_id]) == "outcome_unknown"
        assert [type(failure) for failure in rig.failures] == [ZeroDivisionError]

    async def test_a_storage_that_is_behind_makes_publishes_busy(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client, max_message_bytes=1_048_576)
        await to_queue(client, "jobs")
        rig.log.hold()
        for _ in range(66):
            client.begin(wire.PublishMessages(client.next_id(), "news", [bytes(1_000_000)]))
            await rig.turn()
        await rig.wait_for_disk()
        for _ in range(4):
            client.begin(wire.PublishMessages(client.next_id(), "news", [bytes(1_048_576)]))
            await rig.turn()
        assert rig.log.pending_bytes >= 64 * 1_048_576

        refused = await client.expect(wire.Error, wire.PublishMessages, "news", [b"x"])
        rig.log.let_go()

        assert (refused.name, refused.retryable) == ("busy", True)

    async def test_a_nearly_full_disk_refuses_publishes(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        rig.log.report_state(LogState(True, "12 bytes are free", 12, 1, 1))
        await rig.turn()

        refused = await client.expect(wire.Error, wire.PublishMessages, "news", [b"x"])

        assert (refused.name, refused.text) == ("disk_nearly_full", "12 bytes are free")


class TestPushes:
    async def test_a_message_is_posted_signed_and_done(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        secret = await to_url(client)

        (message_id,) = (await publish(client, b"x", tags=[["a"]])).message_ids
        await rig.tick()

        (push,) = rig.pusher.pushes
        assert (push.url, push.message.message_id, push.message.body, push.attempt) == (URL, message_id, b"x", 1)
        assert push.message.labels == ["a"]
        assert rig.pusher.signed_with == [[secret]]
        assert (await client.expect(wire.TopicInfo, wire.GetTopicAttributes, "news")).counts["retained"] == 1
        rig.pusher.end()
        await rig.turn()
        assert (await client.expect(wire.TopicInfo, wire.GetTopicAttributes, "news")).counts["retained"] == 0
        assert rig.server.counters.pushes_delivered == 1

    async def test_one_that_failed_is_retried_and_its_error_shown(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_url(client)
        await publish(client, b"x")
        await rig.tick()

        rig.pusher.end("status 500")
        await rig.turn()
        info = await client.expect(wire.SubscriptionInfo, wire.GetSubscription, "news", "hook")
        assert (info.facts["last_error"], info.counts["in_retry"]) == ("status 500", 1)
        assert rig.server.counters.pushes_failed == 1
        rig.clock.advance(1_000)
        await rig.tick()

        assert [push.attempt for push in rig.pusher.pushes] == [2]

    async def test_nothing_is_posted_before_it_is_durable(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_url(client)
        rig.log.hold()

        client.begin(wire.PublishMessages(client.next_id(), "news", [b"x"]))
        await client.settle()
        await rig.tick()
        assert rig.pusher.pushes == []
        rig.log.let_go()
        await client.settle()
        await rig.tick()

        assert [push.message.body for push in rig.pusher.pushes] == [b"x"]

    async def test_after_a_failure_of_the_storage_nothing_is_posted(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_url(client)
        rig.log.hold()
        client.begin(wire.PublishMessages(client.next_id(), "news", [b"x"]))
        await client.settle()

        rig.log.fail(LogFailed("fsync: I/O error"))
        await client.settle()

        assert rig.pusher.pushes == []
        assert len(rig.server.outbox) == 0

    async def test_a_drain_begins_no_push_and_records_what_ends(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_url(client)
        await publish(client, b"x", b"y")
        await rig.tick()
        assert rig.pusher.under_way == 2
        rig.pusher.ends_with = None

        await rig.server.drain(2.0)

        assert rig.pusher.closed_within_s == 1.0
        assert [topic.counts()["retained"] for topic in rig.broker.topics.values()] == [0]
        assert rig.log.durable_lsn == rig.log.last_lsn

    async def test_what_a_drain_cuts_short_is_for_the_next_start(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_url(client)
        await publish(client, b"x")
        await rig.tick()

        await rig.server.drain(0.2)

        (subscription,) = rig.broker.subscriptions.values()
        assert subscription.counts()["in_retry"] == 0
        assert [topic.counts()["retained"] for topic in rig.broker.topics.values()] == [1]

    async def test_the_status_tells_of_topics_and_pushes(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_url(client)
        await publish(client, b"x")
        await rig.tick()

        status = (await client.expect(wire.ServerStatus, wire.GetServerStatus)).status

        assert (status["topics"], status["subscriptions"], status["pushes_under_way"]) == (1, 1, 1)
        assert status["counters"]["published"] == 1
        assert status["counters"]["pushes_delivered"] == 0

    async def test_without_the_extra_a_subscription_to_a_url_is_refused(self, tmp_path: Path) -> None:
        rig = await ServerRig.make(tmp_path, can_push=False)
        client = await rig.client()
        await a_topic(client)

        for make in (wire.Subscribe, wire.EnsureSubscription):
            refused = await client.expect(wire.Error, make, "news", "hook", {"endpoint": URL})
            assert (refused.name, refused.retryable) == ("push_unavailable", False)
            assert "cmqd[http]" in refused.text
        await to_queue(client, "jobs")

        assert not rig.broker.gates.pushing
        rig.close()


def secrets_in(folder: Path) -> dict[str, dict[str, Any]]:
    return json.loads((folder / FILE_NAME).read_text())["content"]["subscription_secrets"]


class TestSecrets:
    async def test_a_secret_is_told_once(self, rig: ServerRig, tmp_path: Path) -> None:
        client = await rig.client()
        await a_topic(client)

        secret = await to_url(client)
        again = await client.expect(wire.SubscriptionInfo, wire.EnsureSubscription, "news", "hook", {"endpoint": URL})
        info = await client.expect(wire.SubscriptionInfo, wire.GetSubscription, "news", "hook")

        assert secret.startswith("whsec_")
        assert len(secret) == len("whsec_") + 44
        assert (again.created, again.secret, info.secret) == (False, None, None)
        (kept,) = secrets_in(tmp_path).values()
        assert kept == {"secret": secret}

    async def test_a_rotated_one_stays_valid_for_a_while(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        first = await to_url(client)

        rotated = await client.expect(wire.SubscriptionSecret, wire.RotateSecret, "news", "hook", 60_000)
        (subscription_id,) = rig.broker.subscriptions
        now_ms = rig.clock.now_ms()

        assert rotated.overlap_until_ms == now_ms + 60_000
        assert rotated.secret != first
        assert rig.accounts.secrets_of(subscription_id, now_ms + 59_999) == [rotated.secret, first]
        assert rig.accounts.secrets_of(subscription_id, now_ms + 60_000) == [rotated.secret]
        by_default = await client.expect(wire.SubscriptionSecret, wire.RotateSecret, "news", "hook")
        assert by_default.overlap_until_ms == now_ms + 86_400_000
        await publish(client, b"x")
        await rig.tick()
        assert rig.pusher.signed_with == [[by_default.secret, rotated.secret]]

    async def test_a_rotation_that_makes_no_sense_is_refused(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_url(client)
        await to_queue(client, "jobs")

        too_long = await client.expect(wire.Error, wire.RotateSecret, "news", "hook", 604_800_001)
        of_a_queue = await client.expect(wire.Error, wire.RotateSecret, "news", "jobs")

        assert [(refused.name, (refused.details or {})["field"]) for refused in (too_long, of_a_queue)] == [
            ("invalid_argument", "overlap_ms"),
            ("invalid_argument", "subscription"),
        ]
        assert code_of(await client.ask(wire.RotateSecret, "news", "nobody")) == "subscription_not_found"

    async def test_unsubscribing_forgets_it(self, rig: ServerRig, tmp_path: Path) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_url(client)

        await client.expect(wire.Done, wire.Unsubscribe, "news", "hook")
        await client.settle()

        assert secrets_in(tmp_path) == {}

    async def test_requests_that_follow_at_once_are_taken_in_turn(self, rig: ServerRig, tmp_path: Path) -> None:
        client = await rig.client()
        await a_topic(client)

        requests = [
            wire.Subscribe(client.next_id(), "news", "hook", {"endpoint": URL}),
            wire.RotateSecret(client.next_id(), "news", "hook"),
            wire.PublishMessages(client.next_id(), "news", [b"x"]),
            wire.Unsubscribe(client.next_id(), "news", "hook"),
            wire.RotateSecret(client.next_id(), "news", "hook"),
        ]
        for request in requests:
            client.machine.send(request)
        await client.settle()

        made, rotated, published, ended, late = (client.replies[request.request_id] for request in requests)
        assert isinstance(made, wire.SubscriptionInfo)
        assert made.secret is not None
        assert code_of(rotated) == "subscription_not_found", "it was gone before its turn came"
        assert isinstance(published, wire.MessagesPublished)
        assert published.matched == [1]
        assert isinstance(ended, wire.Done)
        assert code_of(late) == "subscription_not_found"
        assert secrets_in(tmp_path) == {}

    async def test_nothing_is_posted_before_there_is_a_secret(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = await rig.client()
        await a_topic(client)
        go_on = asyncio.Event()
        accounts: Any = rig.accounts
        write = accounts._write

        async def slowly(content: bytes) -> None:
            await go_on.wait()
            await write(content)

        monkeypatch.setattr(accounts, "_write", slowly)
        subscribing = client.begin(wire.Subscribe(client.next_id(), "news", "hook", {"endpoint": URL}))
        publishing = client.begin(wire.PublishMessages(client.next_id(), "news", [b"x"]))
        for _ in range(20):
            await asyncio.sleep(0)
        rig.server.broker_events.tick(rig.clock.now_ms())
        for _ in range(20):
            await asyncio.sleep(0)
        client.read()
        assert publishing in client.replies
        assert subscribing not in client.replies
        assert (rig.pusher.pushes, len(rig.server.outbox)) == ([], 1)
        go_on.set()
        await client.settle()

        made = client.replies[subscribing]
        assert isinstance(made, wire.SubscriptionInfo)
        assert rig.pusher.signed_with == [[made.secret]]

    async def test_if_it_cannot_be_written_there_is_no_subscription(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = await rig.client()
        await a_topic(client)

        async def failing(content: bytes) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(rig.accounts, "_write", failing)
            refused = await client.expect(wire.Error, wire.Subscribe, "news", "hook", {"endpoint": URL})
        assert refused.code == ErrorCode.INTERNAL_ERROR
        assert "No space left" in refused.text
        assert rig.broker.subscriptions == {}

        await to_url(client)

    async def test_a_start_gives_and_forgets_secrets_as_the_log_says(self, rig: ServerRig, tmp_path: Path) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_url(client, "kept")
        await to_url(client, "lost")
        kept, lost = rig.broker.subscriptions
        before = secrets_in(tmp_path)
        await rig.accounts.forget_secret(lost)
        await rig.accounts.make_secret(999)

        await rig.server.match_secrets()

        after = secrets_in(tmp_path)
        assert set(after) == {str(kept), str(lost)}
        assert after[str(kept)] == before[str(kept)]
        assert after[str(lost)] != before[str(lost)]
        written = (tmp_path / FILE_NAME).stat().st_mtime_ns
        await rig.server.match_secrets()
        assert (tmp_path / FILE_NAME).stat().st_mtime_ns == written, "nothing to change, nothing written"
