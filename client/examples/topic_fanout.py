"""One topic, three queues: who subscribed to what gets it, each in a queue of its own.

    python topic_fanout.py cmq://ID:KEY@localhost

The URL can also come from the environment variable CMQ_URL. What it shows:

* A producer publishes to a topic and knows nothing of who reads it. It says with tags what a message is about.
* Each subscription puts its own copy into its own queue; from then on the queue's rules hold, and its consumer works
  as with any other queue, at its own pace.
* ``matched`` says how many get a message. One that nobody wants is discarded, which is no error.
* All that the program makes it ensures: run it again, and it finds its topic, queues and subscriptions.
"""

import asyncio
import os
import sys

from cmqd_client import Queue, connect

TOPIC = "example-shop"
WANTED = {
    "example-billing": ["paid", "refunded"],
    "example-parcels": ["paid"],
    "example-stock": ["paid", "refunded", "delivered"],
}
"""Queues, and the tags that each of them is for."""
EVENTS = [
    (b"order 1 was looked at", ["seen"]),
    (b"order 1 was paid", ["paid", "card"]),
    (b"goods were delivered", ["delivered"]),
    (b"order 1 was refunded", ["refunded", "card"]),
]


async def consume(queue: Queue) -> None:
    """Print and delete everything that is in a queue."""
    while messages := await queue.receive(16, wait=0):
        for message in messages:
            print(f"{queue.name}: {message.body.decode()}")
        (await queue.delete_batch(messages)).raise_for_failures()


async def main(url: str) -> None:
    """Subscribe, publish, consume."""
    async with connect(url) as client:
        topic = await client.ensure_topic(TOPIC)
        queues: list[Queue] = []
        for name, tags in WANTED.items():
            queue = await client.ensure_queue(name)
            await topic.subscribe(name, queue=queue, filter_tags=tags, ensure=True)
            queues.append(queue)

        for body, tags in EVENTS:
            published = await topic.publish(body, tags=tags)
            print(f"published: {body.decode()}, for {published.matched or 'nobody'}")

        # A publish that was answered is in every queue, so nobody has to wait.
        for queue in queues:
            await consume(queue)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ["CMQ_URL"]))
