"""A worker: python graceful_consumer.py cmq://ID:KEY@localhost QUEUE. SIGTERM or Ctrl-C stops it without a loss."""

import asyncio
import sys

from cmqd_client import ConsumedMessage, Reject, connect


async def main(url: str, queue: str) -> None:
    """Handle up to 8 messages at a time: delete, retry after a failure, or make a dead letter."""
    async with connect(url) as client:

        @client.queue(queue).consumer(concurrency=8)
        async def work(message: ConsumedMessage) -> None:
            if not message.body.isascii():
                raise Reject("not ASCII")
            print(f"done: {message.body.decode()}", flush=True)

        await client.run(work)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
