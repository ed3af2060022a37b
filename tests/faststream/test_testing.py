"""Handlers without a server, and the AsyncAPI page."""

import asyncio
import json
from typing import Any

import pytest
from faststream import FastStream
from faststream.exceptions import SubscriberNotFound
from faststream.specification import AsyncAPI
from faststream.specification.asyncapi import get_asyncapi_html
from pydantic import BaseModel

from cmqd_faststream import CmqBroker, CmqPublisher, CmqRoute, CmqRouter, TestCmqBroker
from cmqd_faststream.testing import matches


class Order(BaseModel):
    id: int


class Receipt(BaseModel):
    order: int


def shop() -> tuple[CmqBroker, Any, Any]:
    broker = CmqBroker("cmq://ID:SECRET@shop.example:5690", logger=None)
    receipts = broker.publisher(topic="events", routing_key="orders.paid")

    @receipts
    @broker.subscriber("orders", max_workers=4)
    async def charge(order: Order) -> Receipt:
        """Charge an order."""
        return Receipt(order=order.id)

    return broker, charge, receipts


async def test_a_publish_calls_the_handler_and_its_publishers() -> None:
    broker, charge, receipts = shop()
    seen: list[list[Receipt]] = []

    @broker.subscriber("archive", topic="events", binding_keys=["orders.#"], batch=True)
    async def archive(batch: list[Receipt]) -> None:
        seen.append(batch)

    @broker.subscriber("refunds", topic="events", binding_keys=["*.refunded"])
    async def refunds(receipt: Receipt) -> None: ...

    async with TestCmqBroker(broker) as tested:
        await tested.publish(Order(id=7), "orders")
        charge.mock.assert_called_once_with({"id": 7})
        receipts.mock.assert_called_once()
        assert not refunds.mock.called
    assert seen == [[Receipt(order=7)]]


async def test_a_publisher_without_a_subscriber_is_recorded_too() -> None:
    broker, _, receipts = shop()
    async with TestCmqBroker(broker) as tested:
        await tested.publish(Order(id=7), "orders")
        receipts.mock.assert_called_once_with({"order": 7})


async def test_one_subscriber_of_a_queue_gets_a_message() -> None:
    broker = CmqBroker(logger=None)

    @broker.subscriber("orders")
    async def first(body: str) -> None: ...

    @broker.subscriber("orders")
    async def second(body: str) -> None: ...

    async with TestCmqBroker(broker) as tested:
        await tested.publish("x", "orders")
        assert first.mock.call_count + second.mock.call_count == 1


async def test_a_request_returns_the_result() -> None:
    broker = CmqBroker(logger=None)

    @broker.subscriber("prices")
    async def price(quantity: int) -> int:
        return quantity * 250

    async with TestCmqBroker(broker) as tested:
        reply = await tested.request(4, "prices", correlation_id="mine")
        assert await reply.decode() == 1_000
        assert reply.correlation_id == "mine"
        with pytest.raises(SubscriberNotFound, match="'nowhere' has no subscriber"):
            await tested.request(4, "nowhere")


async def test_errors_of_handlers_reach_the_test() -> None:
    broker = CmqBroker(logger=None)

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        raise ValueError("no such order")

    async with TestCmqBroker(broker) as tested:
        with pytest.raises(ValueError, match="no such order"):
            await tested.publish("x", "orders")


async def test_batches_call_handlers_of_single_messages_for_each() -> None:
    broker = CmqBroker(logger=None)
    seen: list[int] = []

    @broker.subscriber("orders")
    async def handle(order: int) -> None:
        seen.append(order)

    async with TestCmqBroker(broker) as tested:
        await tested.publish_batch(1, 2, 3, queue="orders")
    assert seen == [1, 2, 3]


async def test_routes_of_a_router_are_tested_alike() -> None:
    calls: list[str] = []

    async def handle(body: str) -> str:
        calls.append(body)
        return body

    router = CmqRouter("shop.", handlers=[CmqRoute(handle, "orders", publishers=[CmqPublisher("receipts")])])
    broker = CmqBroker(logger=None, routers=[router])
    async with TestCmqBroker(broker) as tested:
        await tested.publish("x", "shop.orders")
        assert broker.publishers[0].mock.call_count == 1  # pyright: ignore[reportAttributeAccessIssue]
    assert calls == ["x"]


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("orders.paid", "orders.paid", True),
        ("orders.*", "orders.paid", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.paid.twice", False),
        ("#", "", True),
        ("orders.#", "orders", True),
        ("orders.#.late", "orders.paid.very.late", True),
        ("#.late", "orders.early", False),
    ],
)
def test_binding_keys_match_as_in_the_server(pattern: str, key: str, expected: bool) -> None:
    assert matches(pattern.split("."), key.split(".")) is expected


def test_the_page_describes_queues_and_topics_and_hides_the_key() -> None:
    broker, _, _ = shop()

    @broker.subscriber("hidden", include_in_schema=False)
    async def hidden(body: str) -> None: ...

    page = json.loads(AsyncAPI(broker, title="Shop").to_specification().to_json())

    assert page["servers"]["development"]["host"] == "shop.example:5690"
    assert page["servers"]["development"]["protocol"] == "cmq"
    addresses = {name: channel["address"] for name, channel in page["channels"].items()}
    assert addresses == {"orders:Charge": "orders", "events:orders.paid:Publisher": "events:orders.paid"}
    assert page["channels"]["orders:Charge"]["description"] == "Charge an order."
    assert set(page["components"]["schemas"]) >= {"Order", "Receipt"}
    html = get_asyncapi_html(AsyncAPI(broker, title="Shop").to_specification())
    assert "shop.example:5690" in html
    assert "SECRET" not in json.dumps(page) + html


def test_an_application_takes_the_broker() -> None:
    broker, charge, _ = shop()

    async def run() -> None:
        async with TestCmqBroker(broker):
            app = FastStream(broker, logger=None)
            await app.start()
            await broker.publish(Order(id=7), "orders")
            charge.mock.assert_called_once()
            await app.stop()

    asyncio.run(run())
