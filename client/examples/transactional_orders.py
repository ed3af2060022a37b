"""Producers are killed between their database commit and their decision; the checker of another producer decides.

    python transactional_orders.py cmq://ID:KEY@localhost

The URL can also come from the environment variable CMQ_URL. The program shows:

* Each order is a row in SQLite and a message in a queue; neither may exist without the other.
* Three producers, each a process of its own, are killed (SIGKILL) with an undecided half message: the first after its
  database commit, the second before, the third with its transaction open.
* A checker reads the same database: the order in the database is delivered, the other orders are dropped. The checker
  runs in another process than the dead producers, and could run on any machine that reaches the database.

A checker must not answer ROLLBACK for a transaction that can still commit. This checker therefore inserts the row that
the local transaction needs, with the id of the message as its key, in its own transaction. If the insert succeeds, the
order cannot be inserted any longer; if the row exists, the order was committed.
"""

import asyncio
import os
import signal
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from cmqd_client import HalfMessage, TransactionCheck, TransactionStatus, connect

QUEUE = "example-orders"
DIES = ("after its commit", "before its commit", "within its transaction")


def open_database(path: Path) -> sqlite3.Connection:
    """Open the producers' database; several processes may use it at the same time."""
    database = sqlite3.connect(path, timeout=10, isolation_level=None)
    database.execute("create table if not exists orders (message text primary key, what text)")
    return database


async def produce(url: str, path: Path, dies: str) -> None:
    """Send an order as a half message, and die at the given point."""

    def insert(message: HalfMessage, what: str) -> TransactionStatus:
        print(f"producer: {message.id} is stored as a half message, {what!r}", flush=True)
        with closing(open_database(path)) as database:
            if dies == DIES[1]:
                os.kill(os.getpid(), signal.SIGKILL)
            database.execute("begin immediate")
            database.execute("insert into orders values (?, ?)", (message.id, what))
            if dies == DIES[2]:
                os.kill(os.getpid(), signal.SIGKILL)
            database.execute("commit")
            if dies == DIES[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        return TransactionStatus.COMMIT

    async with connect(url) as client, client.transaction_producer(QUEUE) as producer:
        result = await producer.send(
            f"order of the producer that dies {dies}".encode(), insert, f"dies {dies}", first_check=1
        )
        print(f"producer: {result.id} is {result.status.name}", flush=True)


async def settle(url: str, path: Path) -> None:
    """Kill three producers, then decide their half messages with a checker."""
    asked: list[str] = []

    def was_inserted(check: TransactionCheck) -> TransactionStatus:
        with closing(open_database(path)) as database:
            # An empty order means "too late": a later insert of the real order fails, because the key is taken.
            database.execute("insert or ignore into orders values (?, '')", (check.id,))
            (what,) = database.execute("select what from orders where message = ?", (check.id,)).fetchone()
        status = TransactionStatus.COMMIT if what else TransactionStatus.ROLLBACK
        asked.append(check.id)
        print(f"checker:  {check.id}, {check.age:.1f} s old, check {check.attempt}: {status.name}", flush=True)
        return status

    async with connect(url) as client:
        queue = await client.ensure_queue(QUEUE, transactional=True)
        await queue.clear()
        for dies in DIES:
            child = await asyncio.create_subprocess_exec(
                sys.executable, __file__, "produce", str(path), dies, env=os.environ | {"CMQ_URL": url}
            )
            code = await child.wait()
            print(f"parent:   the producer that was to die {dies} ended with {code}", flush=True)
        print(f"parent:   {(await queue.attributes()).half} half messages are undecided", flush=True)

        async with client.transaction_producer(QUEUE, was_inserted):
            # Returns when a commit makes a message active.
            messages = await queue.receive(16, wait=20)
            for message in messages:
                print(f"consumer: {message.id} {message.body.decode()}", flush=True)
                await message.delete()
            while (info := await queue.attributes()).half:  # noqa: ASYNC110 - the server must act
                await asyncio.sleep(0.1)
        print(f"parent:   {len(asked)} checks; {info.half} half messages and {info.active} messages are left")


if __name__ == "__main__":
    if sys.argv[1:2] == ["produce"]:
        asyncio.run(produce(os.environ["CMQ_URL"], Path(sys.argv[2]), sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main_url = sys.argv[1] if len(sys.argv) > 1 else os.environ["CMQ_URL"]
            asyncio.run(settle(main_url, Path(folder) / "orders.sqlite"))
