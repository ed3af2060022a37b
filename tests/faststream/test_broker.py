"""FastStream's handlers over the broker, with a clock that the test turns."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from faststream import AckPolicy, BaseMiddleware, FastStream
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SetupError

from cmqd_client import Client, ConsumedMessage, Message, QueueAttributes, connect
from cmqd_client.errors import QueueDiffers, QueueNotFound
from cmqd_faststream import CmqBroker, CmqMessage, CmqResponse, CmqRouter, Delivery
from cmqd_faststream.annotations import CmqMessage as MessageArgument
from cmqd_protocol import messages as wire
from support.client.local_server import LocalServer
from support.eventually import eventually

DEAD: QueueAttributes = {"dead_letter_queue": "dead", "dead_letter_max_receives": 10}


@asynccontextmanager
async def running(broker: CmqBroker) -> AsyncGenerator[CmqBroker]:
    """Run the subscribers of a broker during the block."""
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def broker_of(server: LocalServer, **options: Any) -> CmqBroker:
    return CmqBroker(server.url, logger=None, **options)


async def counts(server: LocalServer, queue: str) -> tuple[int, int]:
    """Return how many messages are active, and how many in flight."""
    info = await server.info(queue)
    return info.active, info.in_flight


async def until_counts(server: LocalServer, queue: str, expected: tuple[int, int]) -> None:
    while await counts(server, queue) != expected:
        pass


# ---------------------------------------------------------------------- the ends of messages


async def test_a_handled_message_is_deleted(server: LocalServer) -> None:
    broker = broker_of(server)
    seen: list[Any] = []

    @broker.subscriber("shop")
    async def handle(body: dict[str, int]) -> None:
        seen.append(body)

    async with running(broker):
        await broker.publish({"order": 7}, "shop")
        await eventually(lambda: seen)
        await until_counts(server, "shop", (0, 0))
    assert seen == [{"order": 7}]


async def test_handled_messages_are_deleted_together(server: LocalServer) -> None:
    broker = broker_of(server)
    seen: list[int] = []

    @broker.subscriber("shop", max_workers=50)
    async def handle(order: int) -> None:
        seen.append(order)

    async with running(broker):
        await broker.publish_batch(*range(100), queue="shop")
        await until_counts(server, "shop", (0, 0))
    assert sorted(seen) == list(range(100))
    assert len(server.link.of(wire.DeleteMessages)) < 20


async def test_a_message_of_a_failed_handler_comes_back_after_a_pause(server: LocalServer) -> None:
    broker = broker_of(server)
    receives: list[int] = []

    @broker.subscriber("shop")
    async def handle(body: str, message: MessageArgument) -> None:
        receives.append(message.raw_message.receive_count)
        if len(receives) < 3:
            raise ValueError("not yet")

    async with running(broker):
        await broker.publish("x", "shop")
        for failures in (1, 2):
            await eventually(lambda failures=failures: len(server.link.of(wire.ChangeVisibility)) == failures)
            server.advance(5)
        await until_counts(server, "shop", (0, 0))
    assert receives == [1, 2, 3]


async def test_a_handler_chooses_the_pause(server: LocalServer) -> None:
    broker = broker_of(server)
    receives: list[int] = []

    @broker.subscriber("shop")
    async def handle(body: str, message: MessageArgument) -> None:
        receives.append(message.raw_message.receive_count)
        if len(receives) == 1:
            raise NackMessage(delay=3_600)
        if len(receives) == 2:
            await message.nack(delay=7_200)

    async with running(broker):
        await broker.publish("x", "shop")
        await server.link.wait_handled(wire.ChangeVisibility, 1)
        server.advance(3_601)
        await server.link.wait_handled(wire.ChangeVisibility, 2)
        server.advance(7_201)
        await until_counts(server, "shop", (0, 0))
    assert receives == [1, 2, 3]
    assert [request.visibility_timeout_ms for request in server.link.of(wire.ChangeVisibility)] == [
        3_600_000,
        7_200_000,
    ]


async def test_a_rejected_message_becomes_a_dead_letter(server: LocalServer) -> None:
    broker = broker_of(server)

    @broker.subscriber("shop", queue_attributes=DEAD)
    async def handle(body: str) -> None:
        raise RejectMessage(reason="no such order")

    async with running(broker):
        await broker.publish("x", "shop")
        await until_counts(server, "dead", (1, 0))
    dead = (await server.admin.queue("dead").peek(1)).messages[0]
    assert dead.origin is not None
    assert dead.origin.rejection == "no such order"


async def test_a_policy_rejects_after_an_error(server: LocalServer) -> None:
    broker = broker_of(server, ack_policy=AckPolicy.REJECT_ON_ERROR)

    @broker.subscriber("shop", queue_attributes=DEAD)
    async def handle(body: str) -> None:
        raise ValueError("no such order")

    async with running(broker):
        await broker.publish("x", "shop")
        await until_counts(server, "dead", (1, 0))


async def test_a_policy_acknowledges_first(server: LocalServer) -> None:
    broker = broker_of(server)
    seen: list[tuple[int, int]] = []

    @broker.subscriber("shop", ack_policy=AckPolicy.ACK_FIRST)
    async def handle(body: str) -> None:
        seen.append(await counts(server, "shop"))
        raise ValueError("too late")

    async with running(broker):
        await broker.publish("x", "shop")
        await eventually(lambda: seen)
    assert seen == [(0, 0)]
    assert await counts(server, "shop") == (0, 0)


async def test_a_handler_acknowledges_by_itself_at_once(server: LocalServer) -> None:
    broker = broker_of(server)
    seen: list[tuple[int, int]] = []

    @broker.subscriber("shop", ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, message: MessageArgument) -> None:
        await message.ack()
        await message.ack()
        seen.append(await counts(server, "shop"))

    async with running(broker):
        await broker.publish("x", "shop")
        await eventually(lambda: seen)
    assert seen == [(0, 0)]


async def test_a_message_that_its_handler_leaves_open_is_delivered_again(server: LocalServer) -> None:
    broker = broker_of(server)
    receives: list[int] = []

    @broker.subscriber("shop", ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, message: MessageArgument) -> None:
        receives.append(message.raw_message.receive_count)
        if len(receives) == 2:
            await message.nack()
        if len(receives) == 3:
            await message.ack()

    async with running(broker):
        await broker.publish("x", "shop")
        for pauses in (1, 2):
            await server.link.wait_handled(wire.ChangeVisibility, pauses)
            server.advance(5)
        await until_counts(server, "shop", (0, 0))
    assert receives == [1, 2, 3]


async def test_an_exception_acknowledges(server: LocalServer) -> None:
    broker = broker_of(server)

    @broker.subscriber("shop")
    async def handle(body: str) -> None:
        raise AckMessage

    async with running(broker):
        await broker.publish("x", "shop")
        await until_counts(server, "shop", (0, 0))
    assert await counts(server, "shop") == (0, 0)


async def test_a_body_that_does_not_decode_is_no_end_of_the_subscriber(server: LocalServer) -> None:
    broker = broker_of(server)
    seen: list[int] = []

    @broker.subscriber("shop", queue_attributes=DEAD, ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(order: int) -> None:
        seen.append(order)

    async with running(broker):
        await server.put("shop", b"{", headers={"content-type": "application/json"})
        await broker.publish(7, "shop")
        await until_counts(server, "dead", (1, 0))
        await eventually(lambda: seen)
    assert seen == [7]


# ---------------------------------------------------------------------- publishing


async def test_a_publish_to_a_topic_reaches_its_queues(server: LocalServer) -> None:
    broker = broker_of(server)
    seen: list[tuple[str, str]] = []

    @broker.subscriber("audit", topic="shop", binding_keys=["orders.#"])
    async def audit(body: str) -> None:
        seen.append(("audit", body))

    @broker.subscriber("refunds", topic="shop", binding_keys=["*.refunded"])
    async def refunds(body: str) -> None:
        seen.append(("refunds", body))

    async with running(broker):
        await broker.publish("paid", topic="shop", routing_key="orders.paid")
        await broker.publish("refunded", topic="shop", routing_key="orders.refunded")
        await eventually(lambda: len(seen) == 3)
    assert sorted(seen) == [("audit", "paid"), ("audit", "refunded"), ("refunds", "refunded")]


async def test_tags_choose_the_messages_of_a_topic(server: LocalServer) -> None:
    broker = broker_of(server)
    seen: list[str] = []

    @broker.subscriber("red", topic="colours", filter_tags=["red"])
    async def red(body: str) -> None:
        seen.append(body)

    async with running(broker):
        await broker.publish_batch("green", topic="colours", tags=["green"])
        await broker.publish("red", topic="colours", tags=["red", "big"])
        await eventually(lambda: seen)
    assert seen == ["red"]


async def test_results_of_handlers_are_published(server: LocalServer) -> None:
    broker = broker_of(server)
    await server.admin.create_queue("receipts")
    receipts = broker.publisher("receipts", headers={"from": "charge"})

    @receipts
    @broker.subscriber("shop")
    async def charge(order: int) -> CmqResponse:
        return CmqResponse({"order": order}, headers={"tenant": 3}, delay=60)

    async with running(broker):
        await broker.publish(7, "shop", correlation_id="c-7")
        while not (await server.admin.queue("receipts").peek(1, states=["delayed"])).messages:
            pass
    receipt = (await server.admin.queue("receipts").peek(1, states=["delayed"])).messages[0]
    assert receipt.body == b'{"order":7}' or receipt.body == b'{"order": 7}'
    assert dict(receipt.headers) == {
        "content-type": "application/json",
        "correlation-id": "c-7",
        "from": "charge",
        "tenant": "3",
    }


async def test_a_batch_of_results_is_stored_in_one_step(server: LocalServer) -> None:
    broker = broker_of(server)
    await server.admin.create_queue("parts")
    parts = broker.publisher("parts", batch=True)

    @parts
    @broker.subscriber("shop")
    async def split(count: int) -> list[int]:
        return list(range(count))

    async with running(broker):
        await broker.publish(3, "shop")
        await until_counts(server, "parts", (3, 0))
        await parts.publish([3, 4])
    assert await server.bodies("parts") == [b"0", b"1", b"2", b"3", b"4"]


async def test_an_empty_body_arrives_as_such(server: LocalServer) -> None:
    broker = broker_of(server)
    seen: list[bytes] = []

    @broker.subscriber("shop")
    async def handle(body: bytes, message: MessageArgument) -> None:
        seen.append(message.body)

    async with running(broker):
        await broker.publish(b"", "shop")
        await eventually(lambda: seen)
    assert seen == [b""]


async def test_a_publish_with_a_lost_answer_is_stored_once(server: LocalServer) -> None:
    async with broker_of(server) as broker:
        server.link.lose_answer(wire.SendMessages)
        sent = await broker.publish("x", "orders")
    assert sent is not None
    assert await counts(server, "orders") == (1, 0)


async def test_a_message_goes_to_a_queue_or_a_topic(server: LocalServer) -> None:
    async with broker_of(server) as broker:
        with pytest.raises(SetupError, match="a queue or to a topic"):
            await broker.publish("x", "orders", topic="shop")


async def test_nothing_is_created_if_that_is_not_allowed(server: LocalServer) -> None:
    broker = broker_of(server, create=False)
    broker.subscriber("missing")
    with pytest.raises(QueueNotFound):
        async with broker:
            await broker.publish("x", "missing")
    with pytest.raises(QueueNotFound):
        async with broker:
            await broker.publish_batch("x", queue="missing")


# ---------------------------------------------------------------------- requests


async def test_a_request_gets_the_result_of_a_handler(server: LocalServer) -> None:
    broker = broker_of(server)

    @broker.subscriber("prices")
    async def price(quantity: int) -> dict[str, int]:
        return {"cents": quantity * 250}

    async with running(broker):
        reply = await broker.request(4, "prices", correlation_id="mine")
        assert isinstance(reply, CmqMessage)
        assert await reply.decode() == {"cents": 1_000}
        assert reply.correlation_id == "mine"


async def test_requests_of_other_programs_are_answered(server: LocalServer) -> None:
    broker = broker_of(server)

    @broker.subscriber("prices")
    async def price(quantity: int) -> int:
        return quantity * 250

    async with running(broker), connect(server.url) as client:
        reply = await client.request("prices", b"4")
    assert reply.body == b"1000"


async def test_other_programs_answer_requests(server: LocalServer) -> None:
    async def answer(client: Client) -> None:
        async for message in client.queue("orders").consume():
            async with message.process():
                assert isinstance(message, Message)
                await message.reply(b"1000")
            return

    async with broker_of(server) as broker, connect(server.url) as client:
        answering = asyncio.create_task(answer(client))
        reply = await broker.request(4, "orders", correlation_id="mine")
        await answering
    assert await reply.decode() == 1_000
    assert reply.correlation_id == "mine"


async def test_the_reply_to_a_client_that_is_gone_is_dropped(server: LocalServer) -> None:
    broker = broker_of(server)

    @broker.subscriber("prices")
    async def price(quantity: int) -> int:
        return quantity * 250

    async with running(broker):
        await server.put("prices", b"4", headers={"reply-to": "gone", "correlation-id": "1"})
        await until_counts(server, "prices", (0, 0))
    assert await counts(server, "prices") == (0, 0)


# ---------------------------------------------------------------------- batches, order, iteration


async def test_a_batch_handler_is_cancelled_once_the_leases_of_all_messages_are_lost(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cmqd_client.consumers.consumption.EXTENSIONS_PER_LEASE", 120)
    broker = broker_of(server, lease=60)
    begun: list[list[Delivery]] = []
    ends: list[str] = []

    @broker.subscriber("shop", batch=True, max_records=2)
    async def handle(orders: list[int], message: MessageArgument) -> None:
        begun.append(cast("list[Delivery]", message.raw_message))
        if len(begun) == 2:
            ends.append(f"handled {orders}")
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            ends.append(str(cancelled))
            raise

    await server.admin.create_queue("shop")
    await server.put("shop", b"1", b"2")
    async with running(broker):
        await eventually(lambda: begun)
        first, second = [cast("ConsumedMessage[bytes]", delivery.message) for delivery in begun[0]]
        # The next extension of a lease finds that its receipt handle is invalid.
        await server.admin.queue("shop").delete(first.receipt_handle)
        await eventually(lambda: first.lost is not None)
        assert not ends, "a message is left to the handler"
        await server.admin.queue("shop").delete(second.receipt_handle)
        await eventually(lambda: ends)
        assert ends == [first.lost]

        await broker.publish(3, "shop")
        await eventually(lambda: len(ends) == 2)
        await until_counts(server, "shop", (0, 0))

    assert ends[1] == "handled [3]"


async def test_a_batch_of_which_a_lease_is_lost_settles_the_rest(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cmqd_client.consumers.consumption.EXTENSIONS_PER_LEASE", 120)
    broker = broker_of(server, lease=60)
    gate = asyncio.Event()
    begun: list[list[Delivery]] = []

    @broker.subscriber("shop", batch=True, max_records=2)
    async def handle(orders: list[int], message: MessageArgument) -> None:
        begun.append(cast("list[Delivery]", message.raw_message))
        await gate.wait()

    await server.admin.create_queue("shop")
    await server.put("shop", b"1", b"2")
    async with running(broker):
        await eventually(lambda: begun)
        first = cast("ConsumedMessage[bytes]", begun[0][0].message)
        await server.admin.queue("shop").release(first.receipt_handle)
        (again,) = await server.admin.queue("shop").receive(1, wait=0, visibility_timeout=3600)
        await eventually(lambda: first.lost is not None)
        gate.set()
        await until_counts(server, "shop", (0, 1))

    assert again.body == b"1"
    await again.delete()  # no other end of the batch touched it


async def test_a_batch_handler_that_awaits_a_cancelled_task_is_run_again(server: LocalServer) -> None:
    broker = broker_of(server)
    batches: list[list[int]] = []

    @broker.subscriber("shop", batch=True)
    async def handle(orders: list[int]) -> None:
        batches.append(orders)
        if len(batches) == 1:
            raise asyncio.CancelledError

    async with running(broker):
        await broker.publish(1, "shop")
        await server.link.wait_handled(wire.ChangeVisibility)
        server.advance(5)
        await until_counts(server, "shop", (0, 0))

    assert batches == [[1], [1]]


async def test_a_batch_has_what_is_there(server: LocalServer) -> None:
    broker = broker_of(server)
    batches: list[list[int]] = []

    @broker.subscriber("shop", batch=True, max_records=4)
    async def handle(orders: list[int]) -> None:
        batches.append(orders)

    async with broker:
        await broker.publish_batch(*range(10), queue="shop")
        await broker.start()
        await until_counts(server, "shop", (0, 0))
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    # The deletes of full batches ride in the next receive.
    receives, deletes = server.link.of(wire.ReceiveMessages), server.link.of(wire.DeleteMessages)
    together = [request.acknowledge for request in receives if request.acknowledge]
    assert [len(handles) for handles in together] == [4, 4]
    assert [len(request.receipt_handles) for request in deletes] == [2]


async def test_the_messages_of_a_batch_end_together(server: LocalServer) -> None:
    broker = broker_of(server)
    batches: list[list[int]] = []

    @broker.subscriber("shop", batch=True, queue_attributes=DEAD)
    async def handle(orders: list[int]) -> None:
        batches.append(orders)
        if len(batches) == 1:
            raise NackMessage(delay=60)
        raise RejectMessage(reason="no such orders")

    async with running(broker):
        await broker.publish_batch(1, 2, 3, queue="shop")
        await server.link.wait_handled(wire.ChangeVisibility)
        server.advance(61)
        await until_counts(server, "dead", (3, 0))
    assert batches == [[1, 2, 3], [1, 2, 3]]


async def test_an_ordered_subscriber_tries_a_failed_message_before_later_ones(server: LocalServer) -> None:
    broker = broker_of(server)
    seen: list[int] = []

    @broker.subscriber("shop", ordered=True)
    async def handle(order: int) -> None:
        seen.append(order)
        if seen == [0]:
            raise NackMessage(delay=0)

    async with broker:
        await broker.publish_batch(0, 1, 2, queue="shop")
        await broker.start()
        await until_counts(server, "shop", (0, 0))
    assert seen == [0, 0, 1, 2]


async def test_messages_without_a_handler(server: LocalServer) -> None:
    broker = broker_of(server)
    subscriber = broker.subscriber("shop")
    async with running(broker):
        assert await subscriber.get_one(timeout=0) is None
        await broker.publish_batch("first", "second", "third", queue="shop")

        first = await subscriber.get_one(timeout=0)
        assert await first.decode() == "first"
        await first.ack()
        seen: list[str] = []
        async for message in subscriber:
            seen.append(await message.decode())
            await message.ack()
            if len(seen) == 2:
                break
    assert seen == ["second", "third"]
    assert await counts(server, "shop") == (0, 0)


# ---------------------------------------------------------------------- start and stop


async def test_the_stop_waits_for_handlers_and_gives_the_rest_back(server: LocalServer) -> None:
    broker = broker_of(server)
    gate, begun = asyncio.Event(), asyncio.Event()

    @broker.subscriber("shop", prefetch=5)
    async def handle(order: int) -> None:
        begun.set()
        await gate.wait()

    await broker.start()
    await broker.publish_batch(*range(4), queue="shop")
    await begun.wait()
    while (await counts(server, "shop"))[1] < 4:
        pass
    stopping = asyncio.create_task(broker.stop())
    await until_counts(server, "shop", (3, 1))
    assert not stopping.done()
    gate.set()
    await stopping

    assert await counts(server, "shop") == (3, 0)
    assert [message.receive_count for message in await server.admin.queue("shop").receive(4, wait=0)] == [1, 1, 1]


@pytest.mark.parametrize("batch", [False, True])
async def test_handlers_that_take_too_long_are_cancelled(server: LocalServer, batch: bool) -> None:
    """Their messages are delivered again at once, and counted."""
    broker = broker_of(server, graceful_timeout=0.01)
    begun = asyncio.Event()
    ended: list[str] = []

    @broker.subscriber("shop", batch=batch)
    async def handle(order: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    await broker.start()
    await broker.publish(1, "shop")
    await begun.wait()
    await broker.stop()

    assert ended == ["cancelled"]
    assert await counts(server, "shop") == (1, 0)
    assert [message.receive_count for message in await server.admin.queue("shop").receive(wait=0)] == [2]


async def test_a_deleted_queue_is_created_again(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd_faststream.subscriber.RESTART_PAUSE", 0)
    broker = broker_of(server)
    seen: list[str] = []

    @broker.subscriber("shop")
    async def handle(body: str) -> None:
        seen.append(body)

    async with running(broker):
        await server.wait_status("waiting_receives", 1)
        await server.admin.delete_queue("shop")
        while "shop" not in (await server.admin.queues()).names:
            pass
        await broker.publish("x", "shop")
        await eventually(lambda: seen)


async def test_an_application_ends_with_a_subscriber_that_cannot_go_on(server: LocalServer) -> None:
    await server.admin.create_queue("shop")
    broker = broker_of(server, create=False)
    app = FastStream(broker, logger=None)

    @broker.subscriber("shop")
    async def handle(body: str) -> None: ...

    async def delete() -> None:
        await server.wait_status("waiting_receives", 1)
        await server.admin.delete_queue("shop")

    deleting = asyncio.create_task(delete())
    await app.run()
    await deleting


async def test_a_queue_with_other_attributes_is_refused_at_the_start(server: LocalServer) -> None:
    broker = broker_of(server)
    broker.subscriber("orders", queue_attributes={"max_message_bytes": 1_048_576})
    with pytest.raises(QueueDiffers):
        await broker.start()
    await broker.stop()


async def test_a_ping_tells_whether_the_server_answers(server: LocalServer) -> None:
    broker = broker_of(server)
    assert not await broker.ping()
    async with broker:
        assert await broker.ping()
        assert await broker.client.queue("orders").attributes()


async def test_a_router_puts_its_prefix_before_names(server: LocalServer) -> None:
    broker, router = broker_of(server), CmqRouter("shop.")
    seen: list[str] = []

    @router.subscriber("orders", topic="events")
    async def handle(body: str) -> None:
        seen.append(body)

    broker.include_router(router)
    async with running(broker):
        await broker.publish("by queue", "shop.orders")
        await broker.publish("by topic", topic="shop.events")
        await eventually(lambda: len(seen) == 2)
    names = (await server.admin.queues()).names
    assert [name.partition("--")[0] for name in names] == ["orders", "shop-orders"]


async def test_middlewares_see_deliveries_messages_and_commands(server: LocalServer) -> None:
    seen: list[str] = []

    class Watching(BaseMiddleware):
        async def on_receive(self) -> Any:
            assert isinstance(self.msg, Delivery)
            seen.append(f"receive {self.msg.queue} {self.msg.receive_count}")
            return await super().on_receive()

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.append(f"consume {msg.message_id[:4]}")
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            seen.append(f"publish {cmd.destination}")
            return await call_next(cmd)

    broker = broker_of(server, middlewares=[Watching])

    @broker.subscriber("shop")
    async def handle(body: str) -> None: ...

    async with running(broker):
        await broker.publish("x", "shop")
        await until_counts(server, "shop", (0, 0))
        await eventually(lambda: len(seen) == 3)
    assert seen == ["publish shop", "receive shop 1", "consume Msg-"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"binding_keys": ["a"]}, "a subscriber with a topic"),
        ({"topic": "t", "binding_keys": ["a"], "filter_tags": ["b"]}, "give one of them"),
        ({"max_workers": 0}, "max_workers is 0"),
        ({"batch": True, "max_records": 257}, "max_records is 257"),
        ({"ordered": True, "max_workers": 2}, "ordered=True"),
        ({"batch": True, "max_workers": 2}, "max_workers=1"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        CmqBroker().subscriber("shop", **options)


def test_a_publisher_has_one_destination() -> None:
    with pytest.raises(SetupError, match="a queue or a topic"):
        CmqBroker().publisher("shop", topic="shop")
    with pytest.raises(SetupError, match="for a publisher with a topic"):
        CmqBroker().publisher("shop", routing_key="a")
