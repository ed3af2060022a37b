"""Topics, subscriptions and the secrets of their signatures over restarts of a real server."""

import base64
import hmac
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from cmqd.server.access.accounts_file import AccountsFile
from cmqd_client import ContentFormat, RetryStrategy, SubscriptionInfo, TopicInfo, connect
from support.processes.running_server import RunningServer
from support.server.webhook_receiver import Received, WebhookReceiver

pytestmark = pytest.mark.system

LOOPBACK = "--push-allow-loopback"


def signatures(received: Received) -> list[str]:
    return received.headers["webhook-signature"].split(" ")


def signature(received: Received, secret: str) -> str:
    """Verify a signature by Standard Webhooks, with the receiver's own code."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    headers = received.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + received.body
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def known(info: SubscriptionInfo | TopicInfo) -> dict[str, Any]:
    """All details that do not change with a restart (the port does)."""
    return {name: value for name, value in info.details.items() if name not in ("request_id", "address")}


async def test_topics_and_subscriptions_survive_kill_nine(tmp_path: Path) -> None:
    with RunningServer(tmp_path, LOOPBACK) as server:
        async with connect(server.url) as client:
            await client.create_queue("red")
            by_tag = await client.create_topic("by-tag", max_message_bytes=2_048)
            by_key = await client.create_topic("by-key", filter_type="routing")
            gone = await client.create_topic("gone")
            await by_tag.subscribe("red", queue="red", filter_tags=["red", "größer"])
            await by_tag.subscribe("url", url="http://127.0.0.1:9/x", strategy=RetryStrategy.BACKOFF)
            await by_tag.subscription("url").pause()
            await by_key.subscribe("red", queue="red", binding_keys=["a.*", "#.z"])
            url, simplified = "https://example.com/", ContentFormat.SIMPLIFIED
            await by_key.subscribe("url", url=url, binding_keys=["z"], content_format=simplified)
            await by_key.subscription("red").set(binding_keys=["b.#"])
            await by_tag.subscribe("left", queue="red")
            await by_tag.subscription("left").unsubscribe()
            await client.delete_topic(gone.name)
            await by_tag.publish(b"before", tags=["red"])
            before = [known(await topic.attributes()) for topic in (by_tag, by_key)]
            subscribed = [known(await topic.subscription(name).info()) for topic in (by_tag, by_key) for name in NAMES]
        server.kill()

        server.start()
        async with connect(server.url) as client:
            by_tag, by_key = client.topic("by-tag"), client.topic("by-key")
            assert (await client.topics()).names == ["by-key", "by-tag"]
            assert [known(await topic.attributes()) for topic in (by_tag, by_key)] == before
            assert [one.name for one in await by_tag.subscriptions()] == NAMES
            infos = [known(await topic.subscription(name).info()) for topic in (by_tag, by_key) for name in NAMES]
            assert infos == subscribed

            # And the filters still hold.
            assert (await by_tag.publish(b"1", tags=["größer"])).matched == 2
            assert (await by_tag.publish(b"2", tags=["blue"])).matched == 1
            assert (await by_key.publish(b"3", routing_key="b.c.d")).matched == 1
            assert (await by_key.publish(b"4", routing_key="a.b")).matched == 0
            received = await client.queue("red").receive(256, wait=0)
            assert [message.body for message in received] == [b"before", b"1", b"3"]


NAMES = ["red", "url"]


async def test_pushes_are_signed_with_the_same_secret_after_kill_nine(tmp_path: Path) -> None:
    async with WebhookReceiver() as receiver:
        with RunningServer(tmp_path, LOOPBACK) as server:
            async with connect(server.url) as client:
                topic = await client.create_topic("news")
                kept = (await topic.subscribe("kept", url=receiver.url("/kept"))).secret
                old = (await topic.subscribe("rotated", url=receiver.url("/rotated"))).secret
                new = (await topic.subscription("rotated").rotate_secret(overlap=3_600)).secret
                over = (await topic.subscribe("over", url=receiver.url("/over"))).secret
                only = (await topic.subscription("over").rotate_secret(overlap=0)).secret
            server.kill()

            server.start()
            async with connect(server.url) as client:
                await client.topic("news").publish(b"x")
                received = {one.target: one for one in await receiver.wait_for(3)}

        assert kept is not None
        assert old is not None
        assert over not in {None, only}
        assert signatures(received["/kept"]) == [signature(received["/kept"], kept)]
        rotated = received["/rotated"]
        assert signatures(rotated) == [signature(rotated, new), signature(rotated, old)]
        assert signatures(received["/over"]) == [signature(received["/over"], only)]
        assert "subscription_secrets_made" not in server.log
        for secret in (kept, old, new, only):
            assert secret not in server.log
        for secret in (kept, new, only):
            assert secret in (server.data / "accounts.json").read_text()
        for segment in (server.data).rglob("*.db*"):
            assert kept.encode() not in segment.read_bytes(), "secrets stay out of the log"


async def test_a_subscription_whose_secret_is_lost_gets_a_new_one_and_the_log_says_so(tmp_path: Path) -> None:
    async with WebhookReceiver() as receiver:
        with RunningServer(tmp_path, LOOPBACK, "--log-format", "json") as server:
            async with connect(server.url) as client:
                topic = await client.create_topic("news")
                lost = (await topic.subscribe("lost", url=receiver.url("/lost"))).secret
                kept = (await topic.subscribe("kept", url=receiver.url("/kept"))).secret
                await (await client.create_queue("jobs")).send(b"x")
                await topic.subscribe("queue", queue="jobs")
            server.stop()
            file = server.data / "accounts.json"
            accounts = AccountsFile(server.data)
            document = accounts.read()
            assert document is not None
            (lost_number,) = (key for key, entry in document.subscription_secrets.items() if entry.secret == lost)
            lost_id = str(lost_number)
            # As after a crash between the log and this file; and the reverse case, a secret of no subscription.
            document.subscription_secrets[999_999] = document.subscription_secrets.pop(lost_number)
            accounts.write(document)

            server.start()

            lines = [json.loads(line) for line in server.log.splitlines()]
            (made,) = (line for line in lines if line["event"] == "subscription_secrets_made")
            assert made["level"] == "warning"
            assert made["subscription_ids"] == [int(lost_id)]
            (forgotten,) = (line for line in lines if line["event"] == "subscription_secrets_forgotten")
            assert forgotten["count"] == 1
            secrets = json.loads(file.read_text())["content"]["subscription_secrets"]
            assert len(secrets) == 2
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            replaced = secrets[lost_id]["secret"]
            assert lost is not None
            assert kept is not None
            async with connect(server.url) as client:
                topic = client.topic("news")
                await topic.publish(b"x")
                received = {one.target: one for one in await receiver.wait_for(2)}
                assert signatures(received["/lost"]) == [signature(received["/lost"], replaced)]
                assert replaced != lost
                assert signatures(received["/kept"]) == [signature(received["/kept"], kept)]

                told = (await topic.subscription("lost").rotate_secret(overlap=0)).secret
                await topic.publish(b"y")
                (last,) = (one for one in (await receiver.wait_for(4))[2:] if one.target == "/lost")
                assert signatures(last) == [signature(last, told)]
                assert replaced not in server.log
                assert told not in server.log


async def test_dropped_messages_and_errors_survive_every_kill_nine(tmp_path: Path) -> None:
    dropped: list[str] = []
    with RunningServer(tmp_path, LOOPBACK) as server:
        async with connect(server.url) as client:
            topic = await client.create_topic("news")
            await client.create_queue("copies")
            await topic.subscribe("copies", queue="copies")
            # Too small for the messages: the first attempt fails with the publish, later attempts after seconds.
            await client.create_queue("small", max_message_bytes=1024)
            await topic.subscribe("small", queue="small")
            await topic.subscribe("paused", url="http://127.0.0.1:9/y")
            await topic.subscription("paused").pause()
            bodies = [b"%2d" % number * 600 for number in range(12)]
            ids = [sent.id for sent in await topic.publish_batch(bodies)]
        for round_number in range(4):
            async with connect(server.url) as client:
                topic = client.topic("news")
                for name in ("small", "paused"):
                    await topic.subscription(name).drop(ids[round_number])
                dropped.append(ids[round_number])
                await topic.subscription("small").retry(ids[11])
            server.kill()
            server.start()
            async with connect(server.url) as client:
                topic = client.topic("news")
                waiting = list(await topic.subscription("small").peek())
                assert [message.id for message in waiting] == [one for one in ids if one not in dropped]
                assert [message.body for message in waiting] == bodies[len(dropped) :]
                assert all(
                    message.attempts >= 1 and "takes up to 1024" in str(message.last_error) for message in waiting
                )
                for message_id in ids:
                    reports = {one.subscription: one for one in await topic.deliveries(message_id)}
                    assert (reports["copies"].state, reports["copies"].endpoint) == ("delivered", "copies")
                    told = {name: (reports[name].state, reports[name].drop_reason) for name in ("small", "paused")}
                    if message_id in dropped:
                        assert told == dict.fromkeys(("small", "paused"), ("dropped", "operator"))
                    else:
                        assert told == {"small": ("in_retry", None), "paused": ("waiting", None)}


async def test_a_pause_holds_over_every_kill_nine_and_its_messages_come_after_the_end(tmp_path: Path) -> None:
    async with WebhookReceiver() as receiver:
        with RunningServer(tmp_path, LOOPBACK) as server:
            async with connect(server.url) as client:
                topic = await client.create_topic("news")
                await client.create_queue("copies")
                await topic.subscribe("copies", queue="copies", filter_tags=["held"])
                await topic.subscribe("held", url=receiver.url("/held"), filter_tags=["held"])
                await topic.subscribe("open", url=receiver.url("/open"), filter_tags=["open"])
            for number in range(3):
                async with connect(server.url) as client:
                    topic = client.topic("news")
                    for name in ("copies", "held"):
                        await topic.subscription(name).pause()
                    await topic.publish(b"before %d" % number, tags=["held"])
                server.kill()
                server.start()
                async with connect(server.url) as client:
                    topic = client.topic("news")
                    await topic.publish(b"after %d" % number, tags=["held"])
                    fates = {one.subscription: one.fate for one in await topic.match(tags=["held"])}
                    assert fates == {"copies": "paused", "held": "paused", "open": "no_match"}
                    # The broker posts: an open subscription of the same start is served.
                    await topic.publish(b"open", tags=["open"])
                    received = await receiver.wait_for(3 * number + 1)
                    assert [one.target for one in received].count("/open") == number + 1
                    assert (await topic.subscription("held").info()).waiting == 2
                    assert await client.queue("copies").receive(16, wait=0) == []

                    for name in ("copies", "held"):
                        await topic.subscription(name).resume()
                    held = [json.loads(one.body)["msgBody"] for one in (await receiver.wait_for(3 * number + 3))[-2:]]
                    assert sorted(held) == [f"after {number}", f"before {number}"]
                    copies = await client.queue("copies").receive(16, wait=5)
                    copies += await client.queue("copies").receive(16, wait=5) if len(copies) < 2 else []
                    assert sorted(copy.body for copy in copies) == [b"after %d" % number, b"before %d" % number]
                    for copy in copies:
                        await copy.delete()
