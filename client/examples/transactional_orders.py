"""A producer is killed between its database commit and its answer; another producer's checker settles it.

    python transactional_orders.py cmq://ID:KEY@localhost

The URL can also come from the environment variable CMQ_URL. What it shows:

* Each order is a row in SQLite and a message in a queue, and there must never be one without the other.
* Three producers, each a process of its own, are killed (SIGKILL) with an undecided half message: one after it has
  committed to its database, one before, and one in the middle, with its transaction open.
* A checker reads the same database: the order that is in it is delivered, the others are dropped. It runs in another
  process than the ones that died, and could run on any machine that reaches the database.

A checker must not say ROLLBACK about a transaction that may still commit. Here it does what the local transaction
would need: it takes the row that the message's id names, in a transaction of its own. If it gets it, nobody can insert
the order any more; if the row is there, the order is.
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
    """The producers' database; several processes may use it at once."""
    database = sqlite3.connect(path, timeout=10, isolation_level=None)
    database.execute("create table if not exists orders (message text primary key, what text)")
    return database


async def produce(url: str, path: Path, dies: str) -> None:
    """One order, and a death."""

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
        result = await producer.send(f"order of one who dies {dies}".encode(), insert, f"dies {dies}", first_check=1)
        print(f"producer: {result.id} is {result.status.name}", flush=True)


async def settle(url: str, path: Path) -> None:
    """Kill three producers, then answer for them."""
    asked: list[str] = []

    def was_inserted(check: TransactionCheck) -> TransactionStatus:
        with closing(open_database(path)) as database:
            # An empty order stands for "too late": whoever comes with the real one now finds the place taken.
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
            # Answers when a commit makes a message deliverable.
            messages = await queue.receive(16, wait=20)
            for message in messages:
                print(f"consumer: {message.id} {message.body.decode()}", flush=True)
                await message.delete()
            while (info := await queue.attributes()).half:  # noqa: ASYNC110 - it is the server that has to act
                await asyncio.sleep(0.1)
        print(f"parent:   {len(asked)} checks; {info.half} half messages and {info.active} messages are left")


if __name__ == "__main__":
    if sys.argv[1:2] == ["produce"]:
        asyncio.run(produce(os.environ["CMQ_URL"], Path(sys.argv[2]), sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main_url = sys.argv[1] if len(sys.argv) > 1 else os.environ["CMQ_URL"]
            asyncio.run(settle(main_url, Path(folder) / "orders.sqlite"))
