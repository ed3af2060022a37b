"""A worker that deals with messages until it is told to stop (SIGTERM or Ctrl-C), and then loses none.

    python graceful_consumer.py cmq://ID:KEY@localhost QUEUE

What it shows:

* Several messages are dealt with at once, each deleted only after that: a worker that dies leaves its messages to
  others when their visibility timeout ends.
* A message that fails is released, to be tried again by whoever comes next, until it has failed three times.
* Stopping cancels the waiting receive, which is safe: a message on its way to it goes back to the queue, uncounted.
  What is already in hand is finished.
"""

import asyncio
import os
import signal
import sys

from cmqd_client import CmqError, Message, Queue, connect
from cmqd_client.errors import ReceiptHandleInvalid

AT_ONCE = 8
MAX_RECEIVES = 3


async def work(message: Message) -> None:
    """What the worker is for. The body ``fail`` shows what happens to a failing message."""
    if message.body == b"fail":
        raise ValueError("this one cannot be done")
    print(f"done: {message.body.decode(errors='replace')}", flush=True)


async def handle(message: Message) -> None:
    """Deal with one message, and settle it whatever happens."""
    try:
        try:
            await work(message)
        except Exception as problem:
            if message.receive_count < MAX_RECEIVES:
                await message.release()
                return
            print(f"given up: {message.id}: {problem}", file=sys.stderr, flush=True)
        await message.delete()
    except ReceiptHandleInvalid:
        # It took longer than the visibility timeout; somebody else has it, or will have it again.
        print(f"too late: {message.id}", file=sys.stderr, flush=True)
    except CmqError as problem:
        # Not settled: the visibility timeout brings it back.
        print(f"not settled: {message.id}: {problem}", file=sys.stderr, flush=True)


async def consume(queue: Queue) -> None:
    """Receive for ever, with at most ``AT_ONCE`` messages in hand; when cancelled, finish those."""
    in_hand: set[asyncio.Task[None]] = set()
    try:
        while True:
            if len(in_hand) == AT_ONCE:
                await asyncio.wait(in_hand, return_when=asyncio.FIRST_COMPLETED)
            try:
                messages = await queue.receive(AT_ONCE - len(in_hand), wait=20)
            except CmqError as problem:
                # The client has tried again by itself before it says so; the server is away for longer.
                if not problem.retryable:
                    raise
                print(f"waiting: {problem}", file=sys.stderr, flush=True)
                await asyncio.sleep(1)
                continue
            for message in messages:
                task = asyncio.create_task(handle(message))
                in_hand.add(task)
                task.add_done_callback(in_hand.discard)
    finally:
        if in_hand:
            await asyncio.wait(in_hand)


async def main(url: str, name: str) -> None:
    """Consume until a signal comes."""
    async with connect(url) as client:
        consumer = asyncio.create_task(consume(client.queue(name)))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, consumer.cancel)
        print("ready", flush=True)
        try:
            await consumer
        except asyncio.CancelledError:
            print("stopped", flush=True)


if __name__ == "__main__":
    main_url = sys.argv[1] if len(sys.argv) > 1 else os.environ["CMQ_URL"]
    asyncio.run(main(main_url, sys.argv[2] if len(sys.argv) > 2 else "example-jobs"))
