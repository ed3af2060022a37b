"""The receiving half of a channel, against a server with a clock that the test turns."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from cmqd_client import Client, QueueInfo, connect
from cmqd_client.errors import InvalidArgument
from cmqd_kombu import envelope
from cmqd_kombu.consuming import Consumer, Consuming, Delivery
from cmqd_kombu.options import Options
from cmqd_kombu.routing import Routing
from cmqd_protocol import messages as wire
from support.client.local_server import LocalServer


class Channel:
    """A consuming half and its deliveries."""

    def __init__(self, client: Client, **options: Any) -> None:
        self.arrived: asyncio.Queue[list[Delivery] | Exception] = asyncio.Queue()
        settings = Options(**options)
        self.routing = Routing(client, settings)
        self.consuming = Consuming(client, self.routing, settings, self.arrived.put_nowait, self.arrived.put_nowait)

    def consume(self, queue: str = "orders", *, no_ack: bool = False) -> Consumer:
        consumer = Consumer(f"tag-{queue}", queue, no_ack)
        self.consuming.start(consumer)
        return consumer

    async def batch(self) -> list[Delivery]:
        arrived = await self.arrived.get()
        assert isinstance(arrived, list)
        return arrived


async def test_the_prefetch_limit_is_exact_and_an_acknowledgement_makes_room(client: Client) -> None:
    queue = client.queue("orders")
    await queue.send_batch([b"%d" % number for number in range(5)])
    channel = Channel(client)
    channel.consuming.set_limit(2)
    channel.consume()

    first = await channel.batch()
    assert [delivery.content.body for delivery in first] == [b"0", b"1"]
    assert (await queue.attributes()).in_flight == 2
    channel.consuming.acknowledge(first[0].tag)
    (third,) = await channel.batch()
    assert third.content.body == b"2"
    await channel.consuming.flushed()
    info = await queue.attributes()
    assert (info.active, info.in_flight) == (2, 2)
    await channel.consuming.close()
    assert (await queue.attributes()).active == 4


async def test_two_queues_together_keep_the_limit_and_the_surplus_goes_back_uncounted(client: Client) -> None:
    await client.create_queue("others")
    channel = Channel(client)
    channel.consuming.set_limit(1)
    channel.consume("orders")
    channel.consume("others")
    await client.queue("orders").send(b"a")
    await client.queue("others").send(b"b")

    (first,) = await channel.batch()
    other = client.queue("others" if first.content.body == b"a" else "orders")
    while (await other.attributes()).in_flight:  # noqa: ASYNC110 - a task of the channel acts meanwhile
        await asyncio.sleep(0)
    channel.consuming.acknowledge(first.tag)
    (second,) = await channel.batch()
    assert {first.content.body, second.content.body} == {b"a", b"b"}
    assert second.receive_count == 1
    await channel.consuming.close()


async def test_leases_of_held_messages_are_extended(server: LocalServer, client: Client) -> None:
    queue = client.queue("orders")
    await queue.send(b"a long task")
    channel = Channel(client, lease=30.0)
    channel.consume()
    (delivery,) = await channel.batch()
    for _ in range(5):
        server.advance(20)
        await channel.consuming.extend_leases()
    assert (await queue.attributes()).in_flight == 1

    channel.consuming.acknowledge(delivery.tag)
    await channel.consuming.flushed()
    info = await queue.attributes()
    assert (info.active, info.in_flight) == (0, 0)
    await channel.consuming.close()


async def test_a_lost_lease_frees_its_place(server: LocalServer, client: Client) -> None:
    await client.queue("orders").send(b"a")
    channel = Channel(client, lease=30.0)
    channel.consuming.set_limit(1)
    channel.consume()
    (lost,) = await channel.batch()
    server.advance(31)
    await channel.consuming.extend_leases()
    (again,) = await channel.batch()
    assert (lost.receive_count, again.receive_count) == (1, 2)
    await channel.consuming.close()


async def test_a_message_that_is_not_due_is_hidden_again(server: LocalServer, client: Client) -> None:
    queue = client.queue("orders")
    due = server.broker.clock.now() + timedelta(hours=2)
    headers = envelope.transport_headers(round(due.timestamp() * 1000), None)
    await queue.send(b"late", delay=3600, headers=headers)
    channel = Channel(client)
    server.advance(3601)
    assert await channel.consuming.get("orders", no_ack=False) is None
    info = await queue.attributes()
    assert (info.active, info.in_flight) == (0, 1)
    server.advance(3600)
    delivery = await channel.consuming.get("orders", no_ack=False)
    assert delivery is not None
    await channel.consuming.close()


async def test_an_expired_message_is_deleted(server: LocalServer, client: Client) -> None:
    queue = client.queue("orders")
    await queue.send(b"old", headers=envelope.transport_headers(None, 2_000))
    channel = Channel(client)
    server.advance(3)
    assert await channel.consuming.get("orders", no_ack=False) is None
    info = await queue.attributes()
    assert (info.active, info.in_flight) == (0, 0)


async def test_a_cancelled_consumer_returns_what_no_callback_got_uncounted(client: Client) -> None:
    queue = client.queue("orders")
    await queue.send_batch([b"taken", b"buffered"])
    channel = Channel(client)
    consumer = channel.consume()
    taken, buffered = await channel.batch()
    assert consumer.take(taken.tag)
    await channel.consuming.cancel(consumer.tag)

    assert not consumer.take(buffered.tag)
    (message,) = await queue.receive(16, wait=0)
    assert (message.body, message.receive_count) == (b"buffered", 1)
    await message.delete()
    await channel.consuming.close()
    (message,) = await queue.receive(16, wait=0)
    assert (message.body, message.receive_count) == (b"taken", 2)


async def test_levels_are_received_highest_first(client: Client) -> None:
    channel = Channel(client)
    await channel.routing.declare_queue("shop", passive=False, auto_delete=False, arguments={"x-max-priority": 10})
    for name, priority in [("low", 3), ("high", 9), ("none", 0)]:
        message: dict[str, Any] = {
            "body": name,
            "content-type": "text/plain",
            "content-encoding": "utf-8",
            "headers": {},
        }
        properties = {"priority": priority, "delivery_tag": name}
        await channel.routing.publish({**message, "properties": properties}, "", "shop", mandatory=True)
    channel.consume("shop")
    assert [delivery.content.body for delivery in await channel.batch()] == [b"high", b"low", b"none"]
    await channel.consuming.close()


async def test_a_queue_that_was_deleted_is_declared_again_with_its_bindings(client: Client) -> None:
    channel = Channel(client)
    await channel.routing.declare_exchange("shop", "direct")
    await channel.routing.declare_queue("shop", passive=False, auto_delete=False, arguments={})
    await channel.routing.bind("shop", "shop", "new")
    channel.consume("shop")
    await client.delete_queue("shop")
    while "shop" not in (await client.queues()).names:  # noqa: ASYNC110 - a task of the channel acts meanwhile
        await asyncio.sleep(0)
    message: dict[str, Any] = {"body": "x", "content-type": "text/plain", "content-encoding": "utf-8", "headers": {}}
    properties = {"delivery_tag": "a"}
    await channel.routing.publish({**message, "properties": properties}, "shop", "new", mandatory=True)
    assert [delivery.content.body for delivery in await channel.batch()] == [b"x"]
    await channel.consuming.close()


async def test_a_rejected_message_goes_to_the_dead_letter_queue(client: Client) -> None:
    await client.create_queue("failed-orders")
    queue = client.queue("orders")
    await queue.set_attributes(dead_letter_queue="failed-orders", dead_letter_max_receives=5)
    await queue.send(b"a")
    channel = Channel(client)
    delivery = await channel.consuming.get("orders", no_ack=False)
    assert delivery is not None
    await channel.consuming.reject(delivery.tag, requeue=False)

    (letter,) = await client.queue("failed-orders").receive(16, wait=0)
    assert letter.origin is not None
    assert (letter.body, letter.origin.queue, letter.origin.rejection) == (b"a", "orders", "rejected without requeue")
    info = await queue.attributes()
    assert (info.active, info.in_flight) == (0, 0)
    await channel.consuming.close()


async def test_a_rejected_message_is_deleted_without_a_dead_letter_queue(client: Client) -> None:
    queue = client.queue("orders")
    await queue.send(b"a")
    channel = Channel(client)
    channel.consuming.set_limit(1)
    channel.consume()
    (delivery,) = await channel.batch()
    await queue.send(b"b")
    await channel.consuming.reject(delivery.tag, requeue=False)
    (second,) = await channel.batch()
    assert second.content.body == b"b"
    info = await queue.attributes()
    assert (info.active, info.in_flight) == (0, 1)
    await channel.consuming.close()


async def test_a_message_that_the_dead_letter_queue_does_not_take_comes_again(
    server: LocalServer, client: Client
) -> None:
    await client.create_queue("failed-orders", max_message_bytes=1024)
    queue = client.queue("orders")
    await queue.set_attributes(dead_letter_queue="failed-orders", dead_letter_max_receives=5)
    await queue.send(b"a" * 1025)
    channel = Channel(client, lease=30.0)
    delivery = await channel.consuming.get("orders", no_ack=False)
    assert delivery is not None
    await channel.consuming.reject(delivery.tag, requeue=False)
    await channel.consuming.extend_leases()
    server.advance(31)
    again = await channel.consuming.get("orders", no_ack=False)
    assert again is not None
    assert again.receive_count == 2
    await channel.consuming.close()


@pytest.mark.parametrize(
    ("auto_delete", "arguments", "seconds"),
    [
        (True, {}, 60),
        (True, {"x-expires": 10_000}, 60),  # as kombu declares the queues of replies to remote control
        (False, {"x-expires": 300_000}, 300),
        (True, {"x-expires": 10**12}, 15 * 86_400),
    ],
)
async def test_a_queue_that_expires_goes_with_its_messages_when_it_is_unused(
    server: LocalServer, client: Client, auto_delete: bool, arguments: dict[str, Any], seconds: int
) -> None:
    server.broker.clock.stop()
    channel = Channel(client)
    await channel.routing.declare_queue("x.reply", passive=False, auto_delete=auto_delete, arguments=arguments)
    name = channel.routing.name("x.reply")
    info = await client.queue(name).attributes()
    assert (info.auto_delete_after, info.auto_delete_only_empty) == (seconds, False)
    await client.queue(name).send(b"a late reply")
    server.advance(seconds - 1)
    assert set((await client.queues()).names) == {"orders", name}
    server.advance(2)
    assert (await client.queues()).names == ["orders"]


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
async def test_a_new_queue_does_not_get_what_an_expired_queue_of_its_name_missed(
    server: LocalServer, client: Client, kind: str
) -> None:
    message: dict[str, Any] = {"content-type": "text/plain", "content-encoding": "utf-8", "headers": {}}

    async def declared() -> Channel:
        channel = Channel(client)
        await channel.routing.declare_exchange("control", kind)
        await channel.routing.declare_queue("worker", passive=False, auto_delete=True, arguments={})
        for key in ("all", "worker"):
            await channel.routing.bind("worker", "control", key)
        return channel

    async def publish(channel: Channel, body: str) -> None:
        parts = {"body": body, "properties": {"delivery_tag": body}}
        await channel.routing.publish({**message, **parts}, "control", "all", mandatory=True)

    first = await declared()
    await publish(first, "before")
    server.advance(61)
    assert (await client.queues()).names == ["orders"]
    await publish(first, "shutdown")

    second = await declared()
    await publish(second, "ping")
    server.advance(20)
    bodies: list[bytes] = []
    while (delivery := await second.consuming.get("worker", no_ack=True)) is not None:
        bodies.append(delivery.content.body)
    assert bodies == [b"ping"]


async def test_a_queue_with_a_consumer_does_not_expire(server: LocalServer, client: Client) -> None:
    channel = Channel(client)
    await channel.routing.declare_queue("events", passive=False, auto_delete=True, arguments={})
    consumer = channel.consume("events")
    for number in range(20):
        await client.queue("events").send(b"%d" % number)
        (delivery,) = await channel.batch()
        assert delivery.content.body == b"%d" % number
        consumer.take(delivery.tag)
        channel.consuming.acknowledge(delivery.tag)
        await channel.consuming.flushed()
        server.advance(20)
    assert "events" in (await client.queues()).names
    await channel.consuming.close()
    server.advance(31)  # ends a wait that the server has not cancelled yet: in one long step its end would be a use
    assert "events" in (await client.queues()).names
    server.advance(61)
    assert "events" not in (await client.queues()).names


async def test_an_old_server_keeps_queues_that_would_expire(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure = client.ensure_queue_info
    asked: list[bool] = []

    async def refuse(_: Client, name: str, **attributes: Any) -> QueueInfo:
        asked.append("auto_delete_after" in attributes)
        if "auto_delete_after" in attributes:
            raise InvalidArgument("a queue has no attribute", details={"field": "auto_delete_after_ms"})
        return await ensure(name, **attributes)

    monkeypatch.setattr(Client, "ensure_queue_info", refuse)
    channel = Channel(client)
    for queue in ("one", "two"):
        await channel.routing.declare_queue(queue, passive=False, auto_delete=True, arguments={})
    assert asked == [True, False, False]
    assert set((await client.queues()).names) == {"orders", "one", "two"}


async def test_an_undeclared_queue_fails_the_consumer(client: Client) -> None:
    channel = Channel(client)
    channel.consume("missing")
    assert "missing" in str(await channel.arrived.get())


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
async def test_an_eta_is_kept_through_every_exchange(server: LocalServer, client: Client, kind: str) -> None:
    channel = Channel(client)
    await channel.routing.declare_exchange("shop", kind)
    for name in ("one", "two"):
        await channel.routing.declare_queue(name, passive=False, auto_delete=False, arguments={})
        await channel.routing.bind(name, "shop", "orders.new")
    headers = {"eta": "2999-01-01T00:00:00"}
    message: dict[str, Any] = {
        "body": "x",
        "content-type": "text/plain",
        "content-encoding": "utf-8",
        "headers": headers,
    }
    with pytest.raises(Exception, match="keeps messages for"):
        await channel.routing.publish(
            {**message, "properties": {"delivery_tag": "a"}}, "shop", "orders.new", mandatory=True
        )
    assert (await client.queue("one").attributes()).delayed == 0


@pytest.mark.parametrize(
    ("longest_ms", "hours", "delays"),
    [
        (None, [5, 4, 6], [5, 1, 4, 1, 1]),
        (86_400_000, [5, 25, 26, 23], [5, 25, 1, 1, 23]),
    ],
    ids=["an hour", "a day"],
)
async def test_a_late_task_waits_for_as_long_as_the_server_allows(
    longest_ms: int | None, hours: list[int], delays: list[int]
) -> None:
    settings = {} if longest_ms is None else {"max_delay_ms": longest_ms}
    async with LocalServer(**settings) as server, connect(server.url, patience=300, request_timeout=300) as client:
        channel = Channel(client)
        now = server.broker.clock.now()
        for number in hours:
            eta = now + timedelta(hours=number)
            message: dict[str, Any] = {"body": "x", "content-type": "text/plain", "content-encoding": "utf-8"}
            parts = {"headers": {"eta": eta.isoformat()}, "properties": {"delivery_tag": str(number)}}
            await channel.routing.publish({**message, **parts}, "", "orders", mandatory=True)
        asked = [round(request.delay_ms / 3_600_000) for request in server.link.of(wire.SendMessages)]
        assert (await client.queue("orders").attributes()).delayed == len(hours)

    assert asked == delays


@pytest.mark.parametrize(("eta_in_broker", "expected"), [(True, (0, 1)), (False, (1, 0))])
async def test_the_broker_keeps_a_task_until_its_eta_unless_the_worker_shall(
    server: LocalServer, client: Client, eta_in_broker: bool, expected: tuple[int, int]
) -> None:
    channel = Channel(client, eta_in_broker=eta_in_broker)
    eta = server.broker.clock.now() + timedelta(seconds=600)
    message: dict[str, Any] = {"body": "x", "content-type": "text/plain", "content-encoding": "utf-8"}
    parts = {"headers": {"eta": eta.isoformat()}, "properties": {"delivery_tag": "a"}}
    await channel.routing.publish({**message, **parts}, "", "orders", mandatory=True)
    info = await client.queue("orders").attributes()
    assert (info.active, info.delayed) == expected
