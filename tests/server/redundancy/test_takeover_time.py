"""Broker time at a takeover, over an engine in memory and clocks that the test turns: never more than has passed."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cmqd.core.broker import Broker as CoreBroker
from cmqd.core.limits import Limits
from cmqd.engine.fencing import FencedEngine
from cmqd.engine.interface import EngineRow, ImportedLog, StoredAccounts, StoredCheckpoint
from cmqd.log.values import Takeover
from cmqd.server.loop.clock import BrokerClock, LastTime, start_offset
from cmqd.server.redundancy.takeover_time import Evidence, ResumedTime, log_resumed_time, needs_row, resumed_time
from cmqd.storage.redundancy.following import Following
from cmqd.storage.segments.row_inserts import LogRow
from cmqd_segment.records import ClockOffset
from support.core.builders import KEY
from support.engine.replicas import Replicas
from support.server.fake_clock import EPOCH_MS

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SKEWS = pytest.mark.parametrize("skew_ms", [40 * SECOND_MS, 2 * HOUR_MS, -2 * HOUR_MS])


class World:
    """Servers and brokers with clocks that are off, over one true time."""

    def __init__(self, folder: Path) -> None:
        self.true_ms = EPOCH_MS
        self.replicas = Replicas(folder)
        self.database = self.replicas.database
        self.server_skews = dict.fromkeys(self.database.servers, 0)
        for name, server in self.database.servers.items():
            server.clock_ms = lambda name=name: self.true_ms + self.server_skews[name]
        self.offset_ms = 0
        """The offset that the log records."""
        self.last_time = LastTime()

    def pass_time(self, ms: int) -> None:
        self.true_ms += ms


class Broker:
    """A broker that follows and leads; its wall clock is ``skew_ms`` ahead of the true time."""

    def __init__(self, world: World, skew_ms: int = 0, *, adopts: bool = False) -> None:
        self.world = world
        self.skew_ms = skew_ms
        self._adopts = adopts
        self.engine: FencedEngine = world.replicas.engine()
        self._steps: Iterator[Callable[[], object]] = iter(())
        self._following = Following(self.engine, None, self, lambda _rows: True, self._pause, 0, self._clock_s)
        self.clock: BrokerClock
        self.takeover: Takeover | None = None
        self.resumed: ResumedTime | None = None
        self._last_lsn = 0

    def lead(self, *while_following: Callable[[], object]) -> "Broker":
        """Follow, a poll before, between and after these steps, and lead at the last one."""
        self._steps = iter(while_following)
        assert self._following.run()
        world, taken, self.takeover = self.world, self._following.taken, self._following.takeover
        assert taken is not None
        self._last_lsn = taken.last_lsn
        self.resumed = resumed_time(
            self.takeover, offset_ms=world.offset_ms, wall_ms=self._wall_ms(), now_s=self._clock_s()
        )
        self.clock = BrokerClock(
            not_before_ms=world.last_time.ms,
            offset_ms=world.offset_ms,
            resumed_ms=None if self.resumed is None else self.resumed.time_ms,
            adopt=self._adopts,
            wall=self._wall_ms,
            monotonic_ns=lambda: world.true_ms * 1_000_000,
        )
        if self.clock.has_stepped:
            world.last_time.ms = 0
        world.offset_ms = self.clock.lasting_offset_ms
        return self

    def append(self) -> int:
        """Append a row and return its time."""
        self._last_lsn += 1
        row = EngineRow(self._last_lsn, 0, self.clock.now_ms(), 1, b"queues", b"\x90", b"data")
        self.engine.append([row])
        self.world.last_time.row(row.time_ms, [])
        return row.time_ms

    def end(self) -> None:
        self.engine.release()

    def _wall_ms(self) -> int:
        return self.world.true_ms + self.skew_ms

    def _clock_s(self) -> float:
        return self.world.true_ms / 1000

    def _pause(self, _seconds: float) -> bool:
        step = next(self._steps, None)
        if step is not None:
            step()
        return step is not None

    # Events of ``Following``

    def accounts_stored(self, accounts: StoredAccounts) -> None: ...

    def follows(self, last_lsn: int) -> None: ...

    def copied_all(self, begun_s: float) -> None: ...

    def epoch_begins(self, epoch: int) -> None: ...

    def gap_found(self, first_lsn: int, last_lsn: int) -> None: ...

    def reclaim(self, below: int) -> None: ...

    def copied(self, rows: Sequence[LogRow]) -> None: ...


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def passed_ms(broker: Broker) -> int:
    assert broker.resumed is not None
    return broker.resumed.passed_ms


# ---------------------------------------------------------------- warm


@SKEWS
def test_a_standby_that_followed_counts_by_its_own_boot_clock(world: World, skew_ms: int) -> None:
    leader, standby = Broker(world).lead(), Broker(world, skew_ms)
    times: list[int] = []

    standby.lead(lambda: times.append(leader.append()), lambda: world.pass_time(10 * SECOND_MS), leader.end)

    assert standby.clock.now_ms() == times[0] + 10 * SECOND_MS == world.true_ms
    assert standby.clock.offset_ms == skew_ms, "the offset is measured anew"
    assert standby.clock.lasting_offset_ms == (skew_ms if abs(skew_ms) > MINUTE_MS else 0)


def test_the_engine_the_leader_and_their_machine_are_gone_and_all_other_clocks_are_wrong(world: World) -> None:
    """The survivor's broker and engine share a machine whose clock is two hours ahead."""
    world.server_skews["b"] = 2 * HOUR_MS
    leader, standby = Broker(world).lead(), Broker(world, 2 * HOUR_MS)

    def lose_the_machine() -> None:
        world.database.crash("a")
        world.pass_time(25 * SECOND_MS)
        world.database.promote("b")
        world.database.follow("c", "b")
        world.database.name_standby("b", "c")

    standby.lead(leader.append, lambda: None, lose_the_machine)

    assert standby.clock.now_ms() == world.true_ms == EPOCH_MS + 25 * SECOND_MS


def test_of_the_last_rows_the_one_that_came_soonest_counts(world: World) -> None:
    """A poll that was held up says less than the polls before; but clocks drift, so that old rows say nothing."""
    leader, standby = Broker(world).lead(), Broker(world)

    def append_and_hold_up(ms: int) -> Callable[[], None]:
        def step() -> None:
            leader.append()
            world.pass_time(ms)

        return step

    standby.lead(leader.append, append_and_hold_up(900), leader.end)
    assert standby.clock.now_ms() == world.true_ms

    third = Broker(world)

    def append_late() -> None:
        world.pass_time(10 * SECOND_MS)
        standby.append()
        world.pass_time(900)

    third.lead(standby.append, append_late, standby.end)
    assert third.clock.now_ms() == world.true_ms - 900


def test_a_row_that_came_last_of_all_counts_if_it_is_later(world: World) -> None:
    """The standby is cut off for ten minutes, and has the newest row only from its own takeover."""
    leader, standby = Broker(world).lead(), Broker(world)
    times: list[int] = []

    def cut_off() -> None:
        world.pass_time(10 * MINUTE_MS)
        times.append(leader.append())
        leader.end()

    standby.lead(leader.append, lambda: None, cut_off)

    assert standby.clock.now_ms() == times[0] == world.true_ms


def test_an_idle_log_goes_on_by_the_time_that_the_standby_has_followed(world: World) -> None:
    leader, standby = Broker(world).lead(), Broker(world, -2 * HOUR_MS)

    standby.lead(leader.append, lambda: world.pass_time(DAY_MS), leader.end)

    assert standby.clock.now_ms() == world.true_ms == EPOCH_MS + DAY_MS


def test_a_row_of_the_first_copy_is_no_row_that_came(world: World) -> None:
    """It may be an hour old: both brokers may have been stopped."""
    leader = Broker(world).lead()
    leader.append()
    world.pass_time(HOUR_MS)
    standby = Broker(world)

    standby.lead(lambda: world.pass_time(SECOND_MS), leader.end)

    assert standby.resumed is not None
    assert standby.resumed.evidence is Evidence.CLOCKS
    assert standby.clock.now_ms() == world.true_ms


def test_a_row_of_an_earlier_leader_says_nothing_of_a_later_one(world: World) -> None:
    """Its time may have been set anew: the last leader was started with --adopt-wall-clock."""
    first, standby = Broker(world, 2 * HOUR_MS).lead(), Broker(world)

    def take_over() -> None:
        first.end()
        world.pass_time(MINUTE_MS)
        adopter = Broker(world, adopts=True).lead()
        assert adopter.clock.has_stepped
        adopter.append()
        # Not by ``release``: the standby has the lock in the same poll in which it finds the row.
        adopter.end()

    standby.lead(first.append, lambda: world.pass_time(SECOND_MS), take_over)

    assert standby.clock.now_ms() == world.true_ms


# ---------------------------------------------------------------- cold


def stopped(world: World, ms: int) -> None:
    """A leader appends a row and ends; time passes."""
    leader = Broker(world).lead()
    leader.append()
    leader.end()
    world.pass_time(ms)


@pytest.mark.parametrize(
    ("skew_ms", "expected_ms"), [(40 * SECOND_MS, 10 * SECOND_MS), (2 * HOUR_MS, 10 * SECOND_MS), (-2 * HOUR_MS, 0)]
)
def test_a_start_counts_by_the_engine_and_a_wall_clock_only_shortens(
    world: World, skew_ms: int, expected_ms: int
) -> None:
    stopped(world, 10 * SECOND_MS)

    broker = Broker(world, skew_ms).lead()

    assert broker.clock.now_ms() == EPOCH_MS + expected_ms
    assert broker.clock.offset_ms == skew_ms + 10 * SECOND_MS - expected_ms


def test_the_time_in_which_both_brokers_were_stopped_counts(world: World) -> None:
    """A delay of 30 minutes is due after an hour."""
    stopped(world, HOUR_MS)

    assert Broker(world).lead().clock.now_ms() == EPOCH_MS + HOUR_MS


def test_a_promoted_engine_whose_clock_is_ahead_adds_no_time(world: World) -> None:
    stopped(world, MINUTE_MS)
    world.server_skews["b"] = 2 * HOUR_MS
    world.database.crash("a")
    world.database.promote("b")
    world.database.follow("c", "b")
    world.database.name_standby("b", "c")

    assert Broker(world).lead().clock.now_ms() == EPOCH_MS + MINUTE_MS


def test_a_promoted_engine_whose_clock_is_behind_lets_time_stand_still(world: World) -> None:
    stopped(world, MINUTE_MS)
    world.server_skews = dict.fromkeys(world.server_skews, -2 * HOUR_MS)

    assert Broker(world).lead().clock.now_ms() == EPOCH_MS


def test_a_recorded_offset_below_0_adds_no_time(world: World) -> None:
    """The wall clock was an hour behind, and was set right since; the engine's clock is ahead by now."""
    stopped(world, 10 * MINUTE_MS)
    world.offset_ms = -HOUR_MS
    world.server_skews = dict.fromkeys(world.server_skews, 2 * HOUR_MS)

    assert passed_ms(Broker(world).lead()) == 10 * MINUTE_MS


def test_a_log_ahead_of_the_wall_clock_stands_still(world: World) -> None:
    leader = Broker(world, HOUR_MS).lead()
    leader.append()
    leader.end()
    world.offset_ms = -HOUR_MS
    world.pass_time(10 * MINUTE_MS)

    broker = Broker(world).lead()

    assert broker.clock.now_ms() == EPOCH_MS + HOUR_MS
    assert broker.clock.lasting_offset_ms == -50 * MINUTE_MS


def test_a_recorded_offset_above_0_shortens(world: World) -> None:
    """Broker time was an hour behind the wall clock, and stays so."""
    stopped(world, 10 * MINUTE_MS)
    world.offset_ms = HOUR_MS

    broker = Broker(world, HOUR_MS).lead()

    assert broker.clock.now_ms() == world.true_ms
    assert broker.clock.lasting_offset_ms == HOUR_MS


def test_fences_have_no_time(world: World) -> None:
    stopped(world, MINUTE_MS)
    for _ in range(3):
        Broker(world).lead().end()
        world.pass_time(MINUTE_MS)

    assert Broker(world).lead().clock.now_ms() == world.true_ms == EPOCH_MS + 4 * MINUTE_MS


def test_a_trim_leaves_the_row_that_has_the_time(world: World) -> None:
    leader = Broker(world).lead()
    for _ in range(5):
        leader.append()
    leader.end()
    second = Broker(world).lead()
    second.engine.put_checkpoint(6, b"checkpoint")
    second.engine.trim([(1, 100)])
    second.end()
    world.pass_time(MINUTE_MS)

    third = world.replicas.engine()

    assert third.take().newest == (6, 1, EPOCH_MS, EPOCH_MS)
    assert [row.lsn for row in world.replicas.rows] == [1, 6, 7, 8]


def test_broker_time_is_never_below_the_last_time_of_the_log(world: World) -> None:
    stopped(world, 0)
    # A checkpoint later than the newest row.
    world.last_time.ms = EPOCH_MS + MINUTE_MS

    assert Broker(world).lead().clock.now_ms() == EPOCH_MS + MINUTE_MS


def test_a_new_log_begins_with_the_wall_clock(world: World) -> None:
    broker = Broker(world, 40 * SECOND_MS).lead()

    assert (broker.takeover, broker.clock.now_ms()) == (None, EPOCH_MS + 40 * SECOND_MS)


def test_an_imported_log_goes_on_as_a_folder_does(world: World) -> None:
    rows = [EngineRow(1, 0, EPOCH_MS, 1, b"queues", b"\x90", b"data")]
    checkpoint = StoredCheckpoint(1, b"checkpoint")
    world.replicas.engine().import_log(ImportedLog("imported", 1, lambda: iter([rows]), checkpoint, b"keys"))
    world.pass_time(HOUR_MS)
    world.offset_ms = 10 * MINUTE_MS

    # A leader that ends before its first row changes nothing.
    Broker(world).lead().end()
    world.offset_ms = 10 * MINUTE_MS
    first = Broker(world).lead()
    assert first.resumed is None
    assert first.clock.now_ms() == EPOCH_MS + 50 * MINUTE_MS
    first.append()
    first.end()
    world.pass_time(MINUTE_MS)
    assert passed_ms(Broker(world).lead()) == MINUTE_MS


def test_the_first_leader_of_an_imported_log_stores_a_row() -> None:
    """Else an idle log would read the wall clock of each later leader, too."""
    imported, led = (Takeover(EPOCH_MS, is_imported, None, None, 10.0, True) for is_imported in (True, False))
    assert needs_row(imported, EPOCH_MS, epoch=3)
    assert needs_row(None, EPOCH_MS, epoch=3), "all rows were reclaimed: a checkpoint has the time"
    assert not needs_row(led, EPOCH_MS, epoch=3)
    assert not needs_row(None, 0, epoch=1), "a new log"
    assert not needs_row(None, EPOCH_MS, epoch=0), "no redundancy"

    clock = BrokerClock(wall=lambda: EPOCH_MS, monotonic_ns=lambda: 0)
    assert start_offset(CoreBroker(KEY, Limits()), clock) == ()
    assert [type(record) for record in start_offset(CoreBroker(KEY, Limits()), clock, always=True)] == [ClockOffset]


@pytest.mark.parametrize("skew_ms", [2 * HOUR_MS, -2 * HOUR_MS])
def test_adopting_the_wall_clock_is_a_step_once(world: World, skew_ms: int) -> None:
    stopped(world, MINUTE_MS)

    adopter = Broker(world, skew_ms, adopts=True).lead()
    assert adopter.clock.has_stepped
    assert adopter.append() == world.true_ms + skew_ms
    adopter.end()
    world.pass_time(MINUTE_MS)

    assert Broker(world, skew_ms).lead().clock.now_ms() == world.true_ms + skew_ms


# ---------------------------------------------------------------- without stamps


def test_a_table_without_stamps_gets_them_from_the_next_leader(world: World) -> None:
    world.database.has_stamps = world.database.may_add_columns = False
    stopped(world, MINUTE_MS)
    world.database.may_add_columns = True

    first = Broker(world).lead()
    assert first.resumed == ResumedTime(EPOCH_MS, 0, Evidence.NONE), "rows from before have none"
    first.append()
    first.end()
    world.pass_time(MINUTE_MS)

    assert passed_ms(Broker(world).lead()) == MINUTE_MS


def test_a_role_that_may_not_change_the_table_leads_without_stamps(world: World) -> None:
    world.database.has_stamps = world.database.may_add_columns = False
    leader, standby = Broker(world).lead(), Broker(world, 2 * HOUR_MS)
    standby.lead(leader.append, lambda: world.pass_time(MINUTE_MS), leader.end)
    assert standby.clock.now_ms() == world.true_ms, "a standby that followed needs none"
    standby.append()
    standby.end()
    world.pass_time(MINUTE_MS)

    with capture_logs() as lines:
        cold = Broker(world).lead()
        log_resumed_time(cold.takeover, cold.resumed)

    assert passed_ms(cold) == 0
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "broker_time_stood_still",
        "engine_without_stamps",
    ]


def test_a_takeover_with_stamps_is_no_warning() -> None:
    takeover = Takeover(EPOCH_MS, False, None, 5_000, 10.0, True)
    with capture_logs() as lines:
        log_resumed_time(takeover, resumed_time(takeover, offset_ms=0, wall_ms=EPOCH_MS + HOUR_MS, now_s=11.5))

    assert [(line["event"], line["passed_ms"], line["evidence"]) for line in lines] == [
        ("broker_time_resumed", 6_500, "clocks")
    ]
