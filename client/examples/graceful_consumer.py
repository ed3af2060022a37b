"""A worker that processes messages until SIGTERM or Ctrl-C, and stops without losing a message.

    python graceful_consumer.py cmq://ID:KEY@localhost QUEUE

The program shows:

* Several messages are processed at the same time, and each is deleted afterwards: the messages of a worker that dies
  are delivered to other workers when their visibility timeout ends.
* A message that fails is released, and delivered again, until it has failed three times.
* Stopping cancels the waiting receive, which is safe: a message on its way to the worker goes back to the queue,
  uncounted. The messages in progress are finished.
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
    """Process a message. The body ``fail`` shows the way of a failing message."""
    if message.body == b"fail":
        raise ValueError("this message cannot be processed")
    print(f"done: {message.body.decode(errors='replace')}", flush=True)


async def handle(message: Message) -> None:
    """Process a message, then delete or release it."""
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
        # The work took longer than the visibility timeout; the message is delivered again.
        print(f"too late: {message.id}", file=sys.stderr, flush=True)
    except CmqError as problem:
        # Neither deleted nor released: the message is delivered again after its visibility timeout.
        print(f"not deleted: {message.id}: {problem}", file=sys.stderr, flush=True)


async def consume(queue: Queue) -> None:
    """Receive until cancelled, with at most ``AT_ONCE`` messages in progress; then finish the messages in progress."""
    in_progress: set[asyncio.Task[None]] = set()
    try:
        while True:
            if len(in_progress) == AT_ONCE:
                await asyncio.wait(in_progress, return_when=asyncio.FIRST_COMPLETED)
            try:
                messages = await queue.receive(AT_ONCE - len(in_progress), wait=20)
            except CmqError as problem:
                # The client has repeated the call before it raises; the server is away for longer.
                if not problem.retryable:
                    raise
                print(f"waiting: {problem}", file=sys.stderr, flush=True)
                await asyncio.sleep(1)
                continue
            for message in messages:
                task = asyncio.create_task(handle(message))
                in_progress.add(task)
                task.add_done_callback(in_progress.discard)
    finally:
        if in_progress:
            await asyncio.wait(in_progress)


async def main(url: str, name: str) -> None:
    """Consume until a signal arrives."""
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
