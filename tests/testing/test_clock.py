"""The clock of a broker for tests: the time of the machine, stops and turns."""

from concurrent.futures import Future
from datetime import UTC, datetime, timedelta

import pytest

from cmqd.testing.clock import Clock, TurnedTime

SECOND_NS = 1_000_000_000


class Machine:
    def __init__(self) -> None:
        self.ns = 7 * SECOND_NS

    def __call__(self) -> int:
        return self.ns


def test_time_runs_with_the_machine_and_is_moved_on_both_clocks() -> None:
    machine = Machine()
    turned = TurnedTime(machine, start_ms=1_000_000)
    assert (turned.wall_ms(), turned.monotonic_ns()) == (1_000_000, 0)

    machine.ns += 2 * SECOND_NS
    turned.move(500)

    assert (turned.wall_ms(), turned.monotonic_ns()) == (1_002_500, 2_500_000_000)


def test_a_stopped_time_changes_by_moves_alone_and_goes_on_from_there() -> None:
    machine = Machine()
    turned = TurnedTime(machine, start_ms=0)
    machine.ns += SECOND_NS
    turned.run(False)
    turned.run(False)
    machine.ns += 5 * SECOND_NS
    assert turned.wall_ms() == 1_000

    turned.move(3_600_000)
    assert turned.wall_ms() == 3_601_000
    turned.run(True)
    machine.ns += SECOND_NS
    assert turned.wall_ms() == 3_602_000


class Turns:
    """Stands in for a broker: keeps by how much the clock was turned."""

    def __init__(self) -> None:
        self.turns: list[tuple[int, bool]] = []

    def __call__(self, ms: int, stepwise: bool) -> "Future[None]":
        self.turns.append((ms, stepwise))
        done: Future[None] = Future()
        done.set_result(None)
        return done


def clock_of(turns: Turns, deadline_ms: int | None = None) -> Clock:
    return Clock(turns, lambda: 90_000, lambda _: None, lambda: deadline_ms)


async def test_units_are_added() -> None:
    turns = Turns()
    clock = clock_of(turns)

    clock.advance(30)
    clock.advance(0.25, minutes=1, hours=3, days=1, stepwise=True)
    clock.advance(timedelta(hours=2))
    await clock.advance_async(minutes=0.5)

    assert turns.turns == [(30_000, False), (97_260_250, True), (7_200_000, False), (30_000, False)]


def test_time_never_goes_back() -> None:
    turns = Turns()

    with pytest.raises(ValueError, match="cannot be turned by -60 s; broker time never goes back"):
        clock_of(turns).advance(60, minutes=-2)

    assert turns.turns == []


def test_times_are_datetimes_in_utc() -> None:
    assert clock_of(Turns()).now() == datetime(1970, 1, 1, 0, 1, 30, tzinfo=UTC)
    assert clock_of(Turns()).next_deadline() is None
    assert clock_of(Turns(), 120_500).next_deadline() == datetime(1970, 1, 1, 0, 2, 0, 500_000, tzinfo=UTC)
