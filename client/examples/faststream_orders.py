"""FastStream with cmqd as broker: a topic, retries, dead letters, batches and requests.

    pip install cmqd[faststream]
    python faststream_orders.py cmq://ID:KEY@localhost

The URL can also come from the environment variable CMQ_URL. The program runs its subscribers itself; usually
``faststream run faststream_orders:app`` does, and ``faststream docs serve faststream_orders:app`` shows the AsyncAPI
page. It shows:

* A subscriber is a consumer of a queue, with four handlers at once. Its result is published to a topic.
* A handler that raises ``NackMessage`` gets the message again after a pause, ``RejectMessage`` moves the message to the
  dead-letter queue with a reason, and any other error delivers it again after a pause that grows.
* Another subscriber gets what the topic delivers to its queue, in batches.
* A request waits for the result of a handler.
"""

import asyncio
import os
import sys

from faststream import FastStream
from faststream.exceptions import NackMessage, RejectMessage
from pydantic import BaseModel

from cmqd_faststream import CmqBroker
from cmqd_faststream.annotations import CmqMessage

URL = sys.argv[1] if __name__ == "__main__" and sys.argv[1:] else os.environ["CMQ_URL"]
ORDERS, DEAD, RECEIPTS = "example-faststream", "example-faststream-dead", "example-faststream-receipts"
SHOP, PRICES = "example-faststream-shop", "example-faststream-prices"

broker = CmqBroker(URL, logger=None)
app = FastStream(broker)
archived: asyncio.Queue["Receipt"] = asyncio.Queue()


class Order(BaseModel):
    """An order of a customer."""

    id: int
    cents: int


class Receipt(BaseModel):
    """Proof that an order is paid."""

    order: int
    cents: int


@broker.subscriber(ORDERS, max_workers=4, queue_attributes={"dead_letter_queue": DEAD, "dead_letter_max_receives": 10})
@broker.publisher(topic=SHOP, routing_key="orders.paid")
async def charge(order: Order, message: CmqMessage) -> Receipt:
    """Charge an order; the receipt goes to the topic."""
    if order.cents <= 0:
        raise RejectMessage(reason="nothing to pay")
    if order.cents > 900 and message.raw_message.receive_count == 1:
        raise NackMessage(delay=1)  # the bank does not answer
    return Receipt(order=order.id, cents=order.cents)


@broker.subscriber(RECEIPTS, topic=SHOP, binding_keys=["orders.#"], batch=True)
async def archive(receipts: list[Receipt]) -> None:
    """Keep receipts."""
    for receipt in receipts:
        archived.put_nowait(receipt)


@broker.subscriber(PRICES)
async def price(quantity: int) -> int:
    """Return a price in cents."""
    return quantity * 250


async def main() -> None:
    """Run the subscribers, and send orders."""
    async with broker:
        await broker.start()
        for order in (Order(id=1, cents=250), Order(id=2, cents=1_000), Order(id=3, cents=-1)):
            await broker.publish(order, ORDERS)
        receipts = [await archived.get() for _ in range(2)]
        print("receipts:", sorted((receipt.order, receipt.cents) for receipt in receipts))
        dead = await broker.subscriber(DEAD).get_one(timeout=60)
        print("rejected:", dead.raw_message.message.origin.rejection)
        await dead.ack()
        print("the price of 4:", await (await broker.request(4, PRICES)).decode())


if __name__ == "__main__":
    asyncio.run(main())
