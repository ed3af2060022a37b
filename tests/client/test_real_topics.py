"""Topics through the client, the command line and the example against a real broker, which is killed and restarted."""

import asyncio
import base64
import hmac
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cmqd_client import Client, ContentFormat, FilterType, Queue, RetryStrategy, connect
from cmqd_client.errors import (
    InvalidArgument,
    MessageTooLarge,
    QueueNotFound,
    SubscriptionDiffers,
    SubscriptionExists,
    SubscriptionNotFound,
    TopicDiffers,
    TopicExists,
    TopicInUse,
    TopicNotFound,
)
from support.processes.forked_program import write_command
from support.processes.running_broker import RunningBroker
from support.server.webhook_receiver import Received, WebhookReceiver, answer

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"


async def _bodies(queue: Queue) -> list[bytes]:
    found: list[bytes] = []
    while messages := await queue.receive(256, wait=0, visibility_timeout=3600):
        found += [message.body for message in messages]
    return found


async def test_every_operation_of_a_topic_works(broker: RunningBroker) -> None:
    async with connect(broker.url) as client:
        topic = await client.create_topic("shop", max_message_bytes=2048)
        with pytest.raises(TopicExists):
            await client.create_topic("Shop")
        with pytest.raises(TopicDiffers) as differs:
            await client.ensure_topic("shop", filter_type="routing")
        assert differs.value.difference == {"filter_type": ("tag", "routing")}
        assert (await topic.set_attributes(max_message_bytes=1024)).max_message_bytes == 1024
        with pytest.raises(MessageTooLarge):
            await topic.publish(b"x" * 1025)
        with pytest.raises(InvalidArgument, match="routing"):
            await topic.publish(b"x", routing_key="a")
        with pytest.raises(InvalidArgument, match="16 characters"):
            await topic.publish(b"x", tags=["x" * 17])
        with pytest.raises(QueueNotFound):
            await topic.subscribe("all", queue="orders")

        orders = await client.create_queue("orders")
        subscription = await topic.subscribe("all", queue=orders)
        assert subscription.secret is None
        with pytest.raises(SubscriptionExists):
            await topic.subscribe("all", queue=orders)
        assert (await topic.subscribe("all", queue=orders, ensure=True)).name == "all"
        with pytest.raises(SubscriptionDiffers) as other:
            await topic.subscribe("all", queue=orders, filter_tags=["a"], ensure=True)
        assert other.value.difference == {"filter_tags": ([], ["a"])}
        info = await subscription.set(filter_tags=["red"], strategy=RetryStrategy.BACKOFF)
        assert (info.protocol, info.endpoint, info.filter_tags, info.strategy) == (
            "queue",
            "orders",
            ["red"],
            "backoff",
        )
        with pytest.raises(InvalidArgument):
            await subscription.set(binding_keys=["a"])

        published = await topic.publish_batch([b"a", b"b"], tags=[["red"], ["blue"]], headers={"k": "v"})
        assert [one.matched for one in published] == [1, 0]
        (message,) = await orders.receive(16)
        assert (message.body, message.headers) == (b"a", {"k": "v"})
        assert message.id != published[0].id
        assert message.copy_of is not None
        assert (message.copy_of.topic, message.copy_of.subscription) == ("shop", "all")
        assert (message.copy_of.id, message.copy_of.tags) == (published[0].id, ["red"])
        assert [(one.name, one.endpoint, one.waiting) for one in await topic.subscriptions()] == [("all", "orders", 0)]
        attributes = await topic.attributes()
        assert (attributes.subscriptions, attributes.retained, attributes.lifecycle) == (1, 0, 86_400)

        with pytest.raises(TopicInUse):
            await client.delete_topic("shop")
        await subscription.unsubscribe()
        with pytest.raises(SubscriptionNotFound):
            await subscription.info()
        await client.delete_topic("shop")
        assert list(await client.topics()) == []
        with pytest.raises(TopicNotFound):
            await topic.publish(b"x")


async def test_matching_by_routing_key(broker: RunningBroker) -> None:
    async with connect(broker.url) as client:
        topic = await client.create_topic("routes", filter_type=FilterType.ROUTING)
        for name, keys in (("word", ["1.*.0"]), ("words", ["1.#.0", "#.0"]), ("all", ["#"])):
            await topic.subscribe(name, queue=await client.create_queue(name), binding_keys=keys)

        published = await topic.publish_batch([b"a", b"b", b"c"], routing_keys=["1.any.0", "1.2.3.0", "x"])

        assert [one.matched for one in published] == [3, 2, 1]
        assert await _bodies(client.queue("word")) == [b"a"]
        assert await _bodies(client.queue("words")) == [b"a", b"b"]
        assert await _bodies(client.queue("all")) == [b"a", b"b", b"c"]


async def test_waiting_messages_survive_a_crash_and_are_delivered_once_possible(broker: RunningBroker) -> None:
    async with connect(broker.url, patience=60) as client:
        topic = await client.create_topic("shop")
        queue = await client.create_queue("orders")
        subscription = await topic.subscribe("all", queue=queue)
        await subscription.pause()
        published = await topic.publish_batch([b"a", b"b"], tags=["x"])
        assert [one.matched for one in published] == [1, 1]
        assert (await subscription.info()).waiting == 2
        assert (await topic.attributes()).retained == 2

        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)

        assert (await subscription.info()).paused
        assert (await topic.attributes()).retained == 2
        await subscription.resume()
        while (await topic.attributes()).retained:  # noqa: ASYNC110 - a process acts meanwhile
            await asyncio.sleep(0.02)
        assert sorted(await _bodies(queue)) == [b"a", b"b"]

        await subscription.pause()
        await topic.publish(b"c")
        assert (await subscription.drop_waiting()).messages == 1
        assert (await subscription.retry_now()).messages == 0
        assert (await subscription.info()).dropped == 1


def _is_signed(request: Received, secret: str) -> bool:
    """True if a signature is made with this secret, by Standard Webhooks."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    proof = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    return f"v1,{proof}" in request.headers["webhook-signature"].split()


async def test_a_url_is_posted_to_signed_and_again_after_a_failure(tmp_path: Path) -> None:
    with RunningBroker(tmp_path, "--push-allow-loopback") as broker:
        async with connect(broker.url) as client, WebhookReceiver() as receiver:
            topic = await client.create_topic("shop")
            hook = await topic.subscribe("hook", url=receiver.url("/hook"))
            secret = hook.secret
            assert secret is not None

            receiver.next("/hook", answer(503))
            await topic.publish("grüße".encode(), tags=["red"])
            first, second = await receiver.wait_for(2)
            assert json.loads(second.body)["msgBody"] == "grüße"
            assert second.headers["x-cmq-message-tag"] == "red"
            assert first.headers["webhook-id"] == second.headers["webhook-id"]
            assert _is_signed(first, secret)
            assert _is_signed(second, secret)
            while not (info := await hook.info()).delivered:  # noqa: ASYNC110 - a process acts meanwhile
                await asyncio.sleep(0.02)
            assert (info.protocol, info.waiting, info.in_retry) == ("http", 0, 0)
            assert info.last_error is not None
            assert "503" in info.last_error

            rotated = await hook.rotate_secret(overlap=60)
            await hook.set(content_format=ContentFormat.SIMPLIFIED)
            await topic.publish(b"\xff\x00")
            third = (await receiver.wait_for(3))[2]
            assert third.body == b"\xff\x00"
            assert _is_signed(third, secret)
            assert _is_signed(third, rotated.secret)


async def test_a_dedup_id_is_known_after_a_crash(broker: RunningBroker) -> None:
    async with connect(broker.url) as client:
        topic = await client.create_topic("shop")
        queue = await client.create_queue("orders")
        await topic.subscribe("all", queue=queue)
        first = await topic.publish(b"a", dedup_id="A")
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        second = await topic.publish(b"b", dedup_id="A")
        assert (second.id, second.matched) == (first.id, None)
        assert await _bodies(queue) == [b"a"]


async def _produce(client: Client, numbers: range) -> None:
    for number in numbers:
        await client.topic("shop").publish(str(number).encode(), tags=["even" if number % 2 == 0 else "odd"])


async def test_nothing_is_lost_or_delivered_twice_while_the_broker_is_killed(broker: RunningBroker) -> None:
    async with connect(broker.url, patience=60) as client:
        topic = await client.create_topic("shop")
        all_, even = await client.create_queue("all"), await client.create_queue("even")
        await topic.subscribe("all", queue=all_)
        await topic.subscribe("even", queue=even, filter_tags=["even"])
        producers = [asyncio.create_task(_produce(client, range(100 * part, 100 * (part + 1)))) for part in range(8)]
        for stored in (100, 400):
            while (await all_.attributes()).active < stored:  # noqa: ASYNC110 - a process acts meanwhile
                await asyncio.sleep(0)
            assert not all(producer.done() for producer in producers)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        await asyncio.gather(*producers)

        assert sorted(map(int, await _bodies(all_))) == list(range(800))
        assert sorted(map(int, await _bodies(even))) == list(range(0, 800, 2))


def test_the_example_fans_out(broker: RunningBroker) -> None:
    command = [sys.executable, EXAMPLES / "topic_fanout.py", broker.url]
    for _ in range(2):
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        assert ran.stdout.splitlines() == [
            "published: order 1 was looked at, matched 0",
            "published: order 1 was paid, matched 3",
            "published: goods were delivered, matched 1",
            "published: order 1 was refunded, matched 2",
            "example-billing: order 1 was paid",
            "example-billing: order 1 was refunded",
            "example-parcels: order 1 was paid",
            "example-stock: order 1 was paid",
            "example-stock: goods were delivered",
            "example-stock: order 1 was refunded",
        ]


def test_the_command_line_publishes_a_stream(broker: RunningBroker, tmp_path: Path) -> None:
    environment = os.environ | {"CMQ_CONTEXT_FILE": str(broker.context_file), "XDG_CONFIG_HOME": str(tmp_path)}
    forks = (write_command("cmq", "cmq_cli", tmp_path),)

    def cmq(*arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = [str(tmp_path / "cmq"), *arguments]
        return subprocess.run(command, env=environment, input=stdin, capture_output=True, check=False, pass_fds=forks)

    assert cmq("queue", "create", "red").returncode == 0
    assert cmq("topic", "create", "shop").returncode == 0
    assert cmq("sub", "create", "shop", "red", "--queue", "red", "--filter-tag", "red").returncode == 0
    stream = b'{"b": {"n": 1}, "t": ["red"]}\n{"b": "two", "t": "blue"}\n{"b": "three", "t": ["blue", "red"]}\n'
    fields = ("--ndjson", "--body-field", "b", "--tag-field", "t")
    ran = cmq("publish", "shop", *fields, stdin=stream)
    assert (ran.returncode, ran.stderr) == (
        0,
        b"3 published; 2 copies for subscriptions; 1 discarded without a matching subscription\n",
    )
    assert cmq("receive", "red", "-n", "9", "--delete", "--raw").stdout == b'{"n": 1}\nthree\n'
    refused = cmq("publish", "shop", *fields, stdin=stream + b'{"b": "four", "t": "' + b"x" * 17 + b'"}\n')
    assert refused.returncode == 6
    assert b"cmq: line 4: a tag has 1 to 16 characters" in refused.stderr
    assert cmq("receive", "red", "-n", "9", "--delete", "--raw").stdout == b'{"n": 1}\nthree\n'
    assert cmq("publish", "shop", "x", "--routing-key", "a").returncode == 1
    assert cmq("sub", "info", "shop", "nothing").returncode == 3
    assert cmq("topic", "delete", "shop", "--yes").returncode == 1
    assert cmq("sub", "delete", "shop", "red", "--yes").returncode == 0
    assert cmq("topic", "delete", "shop", "--yes").returncode == 0
