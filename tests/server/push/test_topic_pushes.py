"""Pushes of a topic through the server, and the secrets of their signatures."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.server.access.accounts_file import FILE_NAME
from cmqd.server.monitoring.counters import Counters
from cmqd.server.push.subscription_secrets import SubscriptionSecrets
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.server.server_rig import ServerRig, code_of
from support.server.topics import URL, a_topic, publish, to_queue, to_url


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
        assert rig.server.part(Counters).pushes_delivered == 1

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
        assert rig.server.part(Counters).pushes_failed == 1
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

        await rig.server.part(SubscriptionSecrets).match()

        after = secrets_in(tmp_path)
        assert set(after) == {str(kept), str(lost)}
        assert after[str(kept)] == before[str(kept)]
        assert after[str(lost)] != before[str(lost)]
        written = (tmp_path / FILE_NAME).stat().st_mtime_ns
        await rig.server.part(SubscriptionSecrets).match()
        assert (tmp_path / FILE_NAME).stat().st_mtime_ns == written, "nothing to change, nothing written"
