"""The engines that the conformance suite runs over."""

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Protocol

import pytest

from cmqd.engine.database import Database
from cmqd.engine.fencing import FencedEngine
from cmqd.engine.memory import MemoryDatabase


class Place(Protocol):
    """An empty group of servers with a primary and its named standby."""

    def database(self) -> Database:
        """Return the database as another broker sees it."""
        ...

    def close(self) -> None: ...


class MemoryPlace:
    def __init__(self) -> None:
        self._database = MemoryDatabase(pause=lambda: time.sleep(0.001))

    def database(self) -> Database:
        return self._database

    def close(self) -> None:
        pass


PLACES: list[object] = [pytest.param(MemoryPlace, id="memory")]
"""A line per implementation of ``Database``."""

OpenEngine = Callable[[], FencedEngine]


@pytest.fixture(params=PLACES)
def open_engine(request: pytest.FixtureRequest) -> Iterator[OpenEngine]:
    """Open an engine, as another broker."""
    place: Place = request.param()
    engines: list[FencedEngine] = []
    ids = count(1)

    def open_one() -> FencedEngine:
        engine = FencedEngine(
            place.database(),
            monotonic=time.monotonic,
            sleep=time.sleep,
            stopping=lambda: False,
            new_log_id=lambda: f"log-{next(ids)}",
        )
        engines.append(engine)
        return engine

    yield open_one
    for engine in engines:
        engine.close()
    place.close()
