# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false, reportUnusedImport=false
# (Celery has no types.)
"""Celery with cmqd as broker: tasks, results, a task with an ETA, and remote control.

    pip install cmqd[celery]
    python celery_orders.py cmq://ID:KEY@localhost

The URL can also come from the environment variable CMQ_URL. The program starts a worker of its own, which usually is
started by ``celery -A celery_orders worker``, and shows:

* ``import cmqd_kombu`` registers the URLs; nothing else of the Celery program changes.
* ``acks_late``: the task's message stays in the broker, under a lease that the worker extends, until the task is done.
  The tasks of a killed worker go to another.
* A task with a countdown waits in the broker, not in the worker's memory.
* Results (``rpc://``) and remote control (``inspect``) use the same broker.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from celery import Celery

import cmqd_kombu  # noqa: F401 - registers cmq://

app = Celery("celery_orders", broker=os.environ.get("CMQ_URL"), backend="rpc://")
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 1
app.conf.task_default_queue = "example-celery"


@app.task
def price(quantity: int, cents: int) -> int:
    """Return the price of an order in cents."""
    return quantity * cents


def main(url: str) -> None:
    """Start a worker, send it tasks and end it."""
    app.conf.broker_url = url
    command = [sys.executable, "-m", "celery", "-A", "celery_orders", "--quiet", "worker", "--concurrency", "2"]
    environment = {**os.environ, "CMQ_URL": url}
    worker = subprocess.Popen(command, cwd=Path(__file__).parent, env=environment, stdout=subprocess.DEVNULL)
    try:
        orders = [price.delay(quantity, 250) for quantity in range(1, 4)]
        print("prices:", [order.get(timeout=60) for order in orders])
        print("with a countdown:", price.apply_async((4, 250), countdown=2).get(timeout=60))
        print("workers that answer:", len(app.control.ping(timeout=2)))
    finally:
        worker.send_signal(signal.SIGTERM)
        print("the worker ended with", worker.wait())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.environ["CMQ_URL"])
