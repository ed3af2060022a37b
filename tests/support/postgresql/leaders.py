"""Brokers of a cluster as its engines see them: engines in threads of their own, with a note of each durable row."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from cmqd.engine.fencing import FencedEngine
from cmqd.engine.interface import EngineRow
from cmqd.engine.postgresql.servers import PostgresDatabase
from cmqd.server.loop.clock import wall_ms
from support.eventually import eventually_elsewhere
from support.postgresql.servers import PostgresCluster, PostgresServer

Result = TypeVar("Result")


class Leader:
    """A broker that leads, or tries to.

    Args:
        name: the end of its links.
        role: of its sessions.
    """

    def __init__(self, cluster: PostgresCluster, name: str, shard: int = 0, *, role: str = "cmqd") -> None:
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.shard = shard
        self.engine = FencedEngine(
            PostgresDatabase(cluster.url(name, role=role), shard),
            monotonic=time.monotonic,
            sleep=self._wait,
            stopping=self._stop.is_set,
            new_log_id=lambda: "the log",
            wall_ms=wall_ms,
        )
        self.epoch = 0
        self.last_lsn = 0
        self.acknowledged: list[int] = []
        """LSNs of the rows that the engine called durable."""

    def __enter__(self) -> "Leader":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.shutdown()
        self.engine.close()

    def run(self, call: Callable[[], Result]) -> "Future[Result]":
        """Make a call in the thread of the broker's rows."""
        return self._thread.submit(call)

    def take(self) -> "Future[None]":
        """Lead, in the thread."""
        return self.run(self._take)

    def append(self) -> "Future[None]":
        """Append a row, in the thread."""
        return self.run(self._append)

    def is_waiting_for(self, text: str) -> bool:
        """Return True while the thread waits for something with this text in its description."""
        return text in self.engine.waiting_for

    def _take(self) -> None:
        taken = self.engine.take()
        self.epoch, self.last_lsn = taken.epoch, taken.last_lsn

    def _append(self) -> None:
        row = row_of(self.last_lsn + 1, self.epoch)
        self.engine.append([row])
        self.last_lsn = row.lsn
        self.acknowledged.append(row.lsn)

    def _wait(self, seconds: float) -> None:
        self._stop.wait(seconds)


def row_of(lsn: int, epoch: int, data: bytes = b"body") -> EngineRow:
    """Return a row as a broker makes it."""
    return EngineRow(lsn, epoch, time_ms=1000 + lsn, messages=1, queues=b"queues", meta=b"meta %d" % lsn, data=data)


def stored_lsns(server: PostgresServer, shard: int = 0) -> list[int]:
    """Return the LSNs of the rows that are visible on a server."""
    rows = server.ask("SELECT lsn FROM cmqd_rows WHERE shard = %s ORDER BY lsn", shard)
    return [lsn for (lsn,) in rows]


def wait_until_unreplicated(server: PostgresServer, call: "Future[Any]") -> None:
    """Wait until a commit waits for the standby of a server. Returns too when the call has ended."""
    query = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    eventually_elsewhere(lambda: call.done() or server.ask(query) == [(True,)])
