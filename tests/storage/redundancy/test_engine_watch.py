"""The watch of an engine counts the time of waits, and asks a leader's engine for its view."""

import asyncio
from typing import cast

import pytest

from cmqd.engine.interface import Engine
from cmqd.log.values import BrokerSeen, CopyLag, EngineStatus, EngineView
from cmqd.storage.redundancy.engine_watch import EngineWatch


class Waiting:
    """The part of an engine that the watch reads, and a clock."""

    waiting_for = ""
    now_s = 100.0


def watch_of(engine: Waiting, reports: list[EngineStatus]) -> EngineWatch:
    return EngineWatch(cast(Engine, engine), reports.append, lambda: engine.now_s)


def test_an_engine_that_answers_is_not_reported() -> None:
    engine, reports = Waiting(), list[EngineStatus]()
    watch = watch_of(engine, reports)

    for _ in range(3):
        watch.look()
        engine.now_s += 1

    assert reports == []


def test_waits_add_up_from_look_to_look() -> None:
    engine, reports = Waiting(), list[EngineStatus]()
    watch = watch_of(engine, reports)
    for seconds, waiting_for in ((1, "a primary"), (1, "a primary"), (1, ""), (5, "a primary"), (2, "")):
        engine.waiting_for = waiting_for
        watch.look()
        engine.now_s += seconds
    watch.look()

    assert reports == [
        EngineStatus("a primary", 0, 0),
        EngineStatus("a primary", 1000, 1000),
        EngineStatus("", 0, 2000),
        EngineStatus("a primary", 0, 2000),
        EngineStatus("", 0, 7000),
    ]


async def test_views_are_asked_for_until_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd.storage.redundancy.engine_watch.VIEW_SECONDS", 0)
    engine, reports = Waiting(), list[EngineStatus]()
    watch = watch_of(engine, reports)
    asked = 0

    async def ask() -> EngineView:
        nonlocal asked
        asked += 1
        if asked == 3:
            watch.stop()
        return EngineView(asked, 1, [], [])

    await asyncio.wait_for(watch.run_views(ask), 10)
    watch.look()

    assert asked == 3
    assert reports == [EngineStatus(view=EngineView(3, 1, [], []))]


def test_a_view_names_the_best_standby_and_the_second_copy() -> None:
    view = EngineView(
        10,
        4,
        [BrokerSeen("a", "1@b", 4, True), BrokerSeen("b", "2@b", 2, False), BrokerSeen("c", "3@b", 9, False)],
        [CopyLag("n3", False, 0, 0), CopyLag("n2", True, 5, 1)],
    )

    assert [(broker.address, view.rows_behind(broker)) for broker in view.standbys] == [("c", 1), ("b", 8)]
    assert view.second_copy == CopyLag("n2", True, 5, 1)
