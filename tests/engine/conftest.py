"""The engines that the conformance suite runs over."""

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Protocol

import pytest

from cmqd.engine.database import Database
from cmqd.engine.fencing import FencedEngine
from cmqd.engine.postgresql.servers import PostgresDatabase
from support.engine.memory_engine import MemoryDatabase
from support.postgresql.installation import Installation
from support.postgresql.servers import PostgresCluster


class Place(Protocol):
    """An empty group of servers with a primary and its named standby."""

    def database(self) -> Database:
        """Return the database as another broker sees it."""
        ...

    def close(self) -> None: ...


class MemoryPlace:
    def __init__(self, _request: pytest.FixtureRequest) -> None:
        self._database = MemoryDatabase(pause=lambda: time.sleep(0.001))

    def database(self) -> Database:
        return self._database

    def close(self) -> None:
        pass


class PostgresPlace:
    """A shard of its own in the servers that all tests of the session share."""

    shards = count(1)

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._cluster: PostgresCluster = request.getfixturevalue("shared_cluster")
        self._shard = next(self.shards)

    def database(self) -> Database:
        return PostgresDatabase(self._cluster.url("broker"), self._shard)

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster(Installation.of_session()) as cluster:
        yield cluster


PLACES: list[object] = [
    pytest.param(MemoryPlace, id="memory"),
    pytest.param(PostgresPlace, id="postgresql", marks=[pytest.mark.system, pytest.mark.postgresql]),
]
"""A line per implementation of ``Database``."""


class OpenEngine(Protocol):
    """Open an engine, as another broker."""

    def __call__(self, *, wall_ms: Callable[[], int] = ...) -> FencedEngine: ...


@pytest.fixture(params=PLACES)
def open_engine(request: pytest.FixtureRequest) -> Iterator[OpenEngine]:
    """Open an engine, as another broker."""
    place: Place = request.param(request)
    engines: list[FencedEngine] = []
    ids = count(1)

    def open_one(*, wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> FencedEngine:
        engine = FencedEngine(
            place.database(),
            monotonic=time.monotonic,
            sleep=time.sleep,
            stopping=lambda: False,
            new_log_id=lambda: f"log-{next(ids)}",
            wall_ms=wall_ms,
        )
        engines.append(engine)
        return engine

    yield open_one
    for engine in engines:
        engine.close()
    place.close()
