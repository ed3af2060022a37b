"""Publish to a topic; three subscriptions with different filter tags copy the messages into three queues.

    python topic_fanout.py cmq://ID:KEY@localhost

The URL can also come from the environment variable CMQ_URL. The program shows:

* A producer publishes to a topic with tags and does not know the consumers.
* Each subscription has its own copy in its own queue. The rules of that queue apply, and its consumer works at its own
  pace.
* ``matched`` is the number of subscriptions that matched. A message without a match is discarded; that is not an error.
* Topic, queues and subscriptions are ensured: a second run finds them.
"""

import asyncio
import os
import sys

from cmqd_client import Queue, connect

TOPIC = "example-shop"
FILTER_TAGS = {
    "example-billing": ["paid", "refunded"],
    "example-parcels": ["paid"],
    "example-stock": ["paid", "refunded", "delivered"],
}
"""The filter tags of each queue's subscription."""
EVENTS = [
    (b"order 1 was looked at", ["seen"]),
    (b"order 1 was paid", ["paid", "card"]),
    (b"goods were delivered", ["delivered"]),
    (b"order 1 was refunded", ["refunded", "card"]),
]


async def consume(queue: Queue) -> None:
    """Print and delete all messages of a queue."""
    while messages := await queue.receive(16, wait=0):
        for message in messages:
            print(f"{queue.name}: {message.body.decode()}")
        await queue.delete_batch(messages)


async def main(url: str) -> None:
    """Subscribe, publish, consume."""
    async with connect(url) as client:
        topic = await client.ensure_topic(TOPIC)
        queues: list[Queue] = []
        for name, tags in FILTER_TAGS.items():
            queue = await client.ensure_queue(name)
            await topic.subscribe(name, queue=queue, filter_tags=tags, ensure=True)
            queues.append(queue)

        for body, tags in EVENTS:
            published = await topic.publish(body, tags=tags)
            print(f"published: {body.decode()}, matched {published.matched}")

        # The copies of an answered publish are in the queues, so the consumers need not wait.
        for queue in queues:
            await consume(queue)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ["CMQ_URL"]))
