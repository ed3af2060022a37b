"""taskiq with cmqd as broker: tasks with a delay, a retry and a rejection.

    pip install cmqd[taskiq]
    python taskiq_orders.py cmq://ID:KEY@localhost

The URL can also come from the environment variable CMQ_URL. The program starts a worker of its own, which usually is
started by ``taskiq worker taskiq_orders:broker``, and shows:

* A task stays in the broker, under a lease that the worker extends, until the task is done. The tasks of a killed
  worker go to another.
* A task with the label ``delay`` waits in the broker. So does a task that failed, until its retry.
* A rejected task is kept in the dead-letter queue, with the reason.
* Tasks use the client of the broker for queues of their own: here for receipts, in place of a result backend.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from taskiq import Context, SmartRetryMiddleware, TaskiqDepends

from cmqd_client import connect
from cmqd_taskiq import CmqBroker

URL = sys.argv[1] if __name__ == "__main__" and sys.argv[1:] else os.environ["CMQ_URL"]
QUEUE, DEAD, RECEIPTS = "example-taskiq", "example-taskiq-dead", "example-taskiq-receipts"
CONTEXT: Context = TaskiqDepends()

broker = CmqBroker(
    URL,
    queue=QUEUE,
    queue_attributes={"dead_letter_queue": DEAD, "dead_letter_max_receives": 10},
).with_middlewares(SmartRetryMiddleware(default_delay=1))
failed: set[int] = set()


@broker.task("charge", retry_on_error=True)
async def charge(order: int, cents: int, context: Context = CONTEXT) -> None:
    """Charge an order, and send the receipt."""
    if cents <= 0:
        context.reject()
    if cents > 900 and order not in failed:
        failed.add(order)
        raise ConnectionError("the bank does not answer")
    await broker.client.queue(RECEIPTS).send(f"order {order}: {cents} cents".encode())


async def main() -> None:
    """Start a worker, send it tasks and end it."""
    async with connect(URL) as client:
        await client.ensure_queue(RECEIPTS)
        await broker.startup()
        await charge.kiq(1, 250)
        await charge.kiq(2, 1_000)
        await charge.kiq(3, -1)
        await charge.kicker().with_labels(delay=2).kiq(4, 500)

        command = ["-m", "taskiq", "worker", "taskiq_orders:broker", "--workers", "1", "--log-level", "ERROR"]
        environment = {**os.environ, "CMQ_URL": URL}
        worker = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=Path(__file__).parent, env=environment, stderr=asyncio.subprocess.DEVNULL
        )
        receipts: list[str] = []
        async for message in client.queue(RECEIPTS).consume():
            async with message.process():
                receipts.append(message.body.decode())
            if len(receipts) == 3:
                break
        print("receipts:", sorted(receipts))
        async for message in client.queue(DEAD).consume():
            assert message.origin is not None
            print("rejected:", message.origin.rejection)
            await message.delete()
            break
        worker.send_signal(signal.SIGTERM)
        print("the worker ended with", await worker.wait())
        await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
