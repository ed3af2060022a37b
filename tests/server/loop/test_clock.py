"""Broker time: wall clock at the start, then monotonic, slewed slowly, never backwards."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from cmqd.server.loop.clock import (
    FORWARD_WAIT_MS,
    JUMP_MS,
    RECORD_EVERY_MS,
    SLEW_MS_PER_S,
    BrokerClock,
    LastTime,
    OffsetWatch,
)
from cmqd_segment.checkpoint import CheckpointHeader
from cmqd_segment.records import ClockOffset, NumbersReserved
from support.server.fake_clock import EPOCH_MS, FakeClock

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def a_clock(fake: FakeClock, **named: Any) -> tuple[BrokerClock, list[int]]:
    jumps: list[int] = []
    clock = BrokerClock(wall=fake.wall, monotonic_ns=fake.monotonic_ns, on_jump=jumps.append, **named)
    return clock, jumps


def let_pass(fake: FakeClock, clock: BrokerClock, seconds: int) -> None:
    for _ in range(seconds):
        fake.advance(1_000)
        clock.check()


def test_it_starts_at_the_wall_clock_and_goes_on_with_the_monotonic_one() -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake)

    fake.advance(1_234)

    assert clock.now_ms() == EPOCH_MS + 1_234


def test_it_never_starts_before_the_last_time_in_the_log() -> None:
    fake = FakeClock()
    clock, jumps = a_clock(fake, not_before_ms=EPOCH_MS + 3_600_000)

    assert clock.now_ms() == EPOCH_MS + 3_600_000
    let_pass(fake, clock, 10)
    assert jumps == []
    assert clock.lasting_offset_ms == -3_600_000


def test_a_start_ahead_of_the_wall_clock_is_made_up_for_slowly() -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake, not_before_ms=EPOCH_MS + 100)

    let_pass(fake, clock, 10)
    assert clock.offset_ms == -100 + 10 * SLEW_MS_PER_S
    let_pass(fake, clock, 60)
    assert clock.offset_ms == 0


def test_a_small_step_of_the_wall_clock_is_followed_at_the_rate_of_slewing() -> None:
    fake = FakeClock()
    clock, jumps = a_clock(fake)

    fake.jump(1_000)
    let_pass(fake, clock, 1)
    assert clock.offset_ms == 1_000 - SLEW_MS_PER_S
    let_pass(fake, clock, 300)

    assert clock.offset_ms == 0
    assert jumps == []


def test_a_step_back_never_makes_it_go_back() -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake)
    before = clock.now_ms()

    fake.jump(-30_000)
    seen = [before]
    for _ in range(50):
        fake.advance(1)
        clock.check()
        seen.append(clock.now_ms())

    assert seen == sorted(seen)
    let_pass(fake, clock, 10_000)
    assert clock.offset_ms == 0


def test_a_jump_of_more_than_a_minute_is_told_once_and_not_followed() -> None:
    fake = FakeClock()
    clock, jumps = a_clock(fake)

    fake.jump(7_200_000)
    let_pass(fake, clock, 100)

    assert jumps == [7_200_000]
    assert clock.now_ms() == EPOCH_MS + 100_000


def test_a_jump_back_to_the_right_time_cancels_the_jump() -> None:
    fake = FakeClock()
    clock, jumps = a_clock(fake)

    fake.jump(7_200_000)
    let_pass(fake, clock, 5)
    fake.jump(-7_200_000)
    let_pass(fake, clock, 5)

    assert jumps == [7_200_000, -7_200_000]
    assert clock.offset_ms == 0


def test_drift_after_an_ignored_jump_is_still_followed() -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake)
    fake.jump(7_200_000)
    let_pass(fake, clock, 2)

    fake.jump(50)
    let_pass(fake, clock, 60)

    assert clock.offset_ms == 7_200_000


def test_checks_more_often_than_once_a_second_do_not_slew_faster() -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake)

    fake.jump(1_000)
    for _ in range(20):
        fake.advance(100)
        clock.check()

    assert clock.offset_ms == 1_000 - 2 * SLEW_MS_PER_S


# ---------------------------------------------------------------------- an offset that lasts


def test_a_jump_forward_is_closed_by_the_slew_once_it_has_lasted_an_hour() -> None:
    fake = FakeClock()
    clock, jumps = a_clock(fake)

    fake.jump(2 * JUMP_MS)
    let_pass(fake, clock, FORWARD_WAIT_MS // 1000)
    assert clock.offset_ms == 2 * JUMP_MS
    let_pass(fake, clock, 1000)
    assert clock.offset_ms == 2 * JUMP_MS - 1000 * SLEW_MS_PER_S, "faster than the slew"
    let_pass(fake, clock, 2 * JUMP_MS // SLEW_MS_PER_S)

    assert clock.offset_ms == clock.lasting_offset_ms == 0
    assert jumps == [2 * JUMP_MS]


def test_another_jump_forward_begins_the_hour_anew() -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake)

    fake.jump(HOUR_MS)
    let_pass(fake, clock, 3000)
    fake.jump(HOUR_MS)
    let_pass(fake, clock, 3000)

    assert clock.offset_ms == 2 * HOUR_MS


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, -YEAR_MS])
def test_a_jump_back_stays(jump_ms: int) -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake)

    fake.jump(jump_ms)
    let_pass(fake, clock, 10_000)

    assert clock.offset_ms == clock.lasting_offset_ms == jump_ms
    assert clock.now_ms() == EPOCH_MS + 10_000_000


def test_what_a_jump_back_leaves_of_a_jump_is_closed_if_it_is_small() -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake)

    fake.jump(HOUR_MS)
    let_pass(fake, clock, 10)
    fake.jump(-HOUR_MS - 500)
    let_pass(fake, clock, 1)
    assert clock.lasting_offset_ms == 0
    let_pass(fake, clock, 200)

    assert clock.offset_ms == 0


def test_a_suspend_looks_like_a_jump_forward_since_the_monotonic_clock_stands_still() -> None:
    fake = FakeClock()
    clock, jumps = a_clock(fake)
    let_pass(fake, clock, 5)

    fake.jump(8 * HOUR_MS)
    let_pass(fake, clock, 1)

    assert clock.now_ms() == EPOCH_MS + 6_000
    assert jumps == [8 * HOUR_MS]


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, YEAR_MS, -YEAR_MS, 59_000, -59_000])
def test_broker_time_never_steps_and_keeps_within_half_a_percent(jump_ms: int) -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake)
    last_ms = clock.now_ms()

    fake.jump(jump_ms)
    for _ in range(FORWARD_WAIT_MS // 1000 + 500):
        let_pass(fake, clock, 1)
        now_ms = clock.now_ms()
        assert 995 <= now_ms - last_ms <= 1005
        last_ms = now_ms


# ---------------------------------------------------------------------- starts


@pytest.mark.parametrize("offset_ms", [0, HOUR_MS, -HOUR_MS, -YEAR_MS])
def test_a_start_takes_the_recorded_offset_and_counts_the_time_in_between(offset_ms: int) -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake, offset_ms=offset_ms, not_before_ms=EPOCH_MS - offset_ms - 600_000)

    assert clock.now_ms() == EPOCH_MS - offset_ms
    assert clock.offset_ms == clock.lasting_offset_ms == offset_ms


def test_after_a_start_with_a_clock_a_year_ahead_the_offset_is_minus_a_year_and_stays() -> None:
    fake = FakeClock()
    last_ms = EPOCH_MS + YEAR_MS
    clock, _ = a_clock(fake, not_before_ms=last_ms)

    let_pass(fake, clock, 10_000)

    assert clock.now_ms() == last_ms + 10_000_000
    assert clock.lasting_offset_ms == -YEAR_MS
    assert clock.wall_ms() == EPOCH_MS + 10_000_000, "right to the outside"


@pytest.mark.parametrize("offset_ms", [-HOUR_MS, -54 * YEAR_MS])
def test_a_clock_that_was_behind_at_the_start_before_and_is_right_now_lets_nothing_expire(offset_ms: int) -> None:
    """As on a machine with a clock that starts in 1970 until the network is there."""
    stopped_ms = 5_000
    clock, _ = a_clock(FakeClock(), offset_ms=offset_ms, not_before_ms=EPOCH_MS - stopped_ms)

    assert clock.now_ms() == EPOCH_MS
    assert clock.lasting_offset_ms == 0


def test_a_clock_that_was_put_right_while_the_broker_was_stopped_leaves_the_time_of_the_stop_to_the_slew() -> None:
    fake = FakeClock()
    stopped_ms = 600_000

    clock, _ = a_clock(fake, offset_ms=HOUR_MS, not_before_ms=EPOCH_MS - stopped_ms)

    assert clock.now_ms() == EPOCH_MS - stopped_ms
    assert clock.lasting_offset_ms == stopped_ms
    let_pass(fake, clock, (FORWARD_WAIT_MS + stopped_ms * 1000 // SLEW_MS_PER_S) // 1000)
    assert clock.offset_ms == 0


def test_a_crash_between_a_jump_back_and_its_record_is_told_by_the_last_time_in_the_log() -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake, offset_ms=0, not_before_ms=EPOCH_MS + HOUR_MS)

    assert clock.now_ms() == EPOCH_MS + HOUR_MS
    assert clock.lasting_offset_ms == -HOUR_MS


@pytest.mark.parametrize("ahead_ms", [YEAR_MS, HOUR_MS, JUMP_MS + 1])
def test_adopting_the_wall_clock_ends_a_negative_offset(ahead_ms: int) -> None:
    clock, _ = a_clock(FakeClock(), not_before_ms=EPOCH_MS + ahead_ms, offset_ms=-ahead_ms, adopt=True)

    assert clock.now_ms() == EPOCH_MS
    assert clock.has_stepped
    assert clock.offset_ms == clock.lasting_offset_ms == 0


def test_adopting_the_wall_clock_ends_a_positive_offset() -> None:
    clock, _ = a_clock(FakeClock(), not_before_ms=EPOCH_MS - 9 * HOUR_MS, offset_ms=8 * HOUR_MS, adopt=True)

    assert clock.now_ms() == EPOCH_MS
    assert clock.has_stepped


@pytest.mark.parametrize("ahead_ms", [0, JUMP_MS, -JUMP_MS])
def test_adopting_the_wall_clock_does_nothing_within_a_minute(ahead_ms: int) -> None:
    clock, _ = a_clock(FakeClock(), not_before_ms=EPOCH_MS + ahead_ms, adopt=True)

    assert not clock.has_stepped
    assert clock.now_ms() == EPOCH_MS + max(0, ahead_ms)


def test_the_last_time_of_a_log_is_that_of_its_checkpoint_or_of_the_rows_after_it() -> None:
    last = LastTime()
    assert last.ms == 0
    last.part(CheckpointHeader(5, EPOCH_MS, 1, 1, 1))
    last.row(EPOCH_MS - 5, [])
    assert last.ms == EPOCH_MS
    last.row(EPOCH_MS + 7, [NumbersReserved(1, 1, 1)])
    assert last.ms == EPOCH_MS + 7


def test_rows_before_a_step_back_do_not_count() -> None:
    last = LastTime()
    last.part(CheckpointHeader(5, EPOCH_MS + YEAR_MS, 1, 1, 1))
    last.row(EPOCH_MS + YEAR_MS + 1, [ClockOffset(-YEAR_MS, EPOCH_MS + YEAR_MS + 1)])

    last.row(EPOCH_MS, [ClockOffset(0, EPOCH_MS, True), NumbersReserved(1, 1, 1)])
    last.row(EPOCH_MS + 1, [])

    assert last.ms == EPOCH_MS + 1


# ---------------------------------------------------------------------- records of the offset


def watched(fake: FakeClock, **named: Any) -> tuple[BrokerClock, OffsetWatch, list[int]]:
    clock, _ = a_clock(fake, **named)
    records: list[int] = []
    return clock, OffsetWatch(clock, records.append), records


def watch_for(fake: FakeClock, watch: OffsetWatch, seconds: int) -> None:
    for _ in range(seconds):
        fake.advance(1_000)
        watch.check()


def test_an_offset_is_recorded_at_the_next_check_and_once() -> None:
    fake = FakeClock()
    _, watch, records = watched(fake)

    watch_for(fake, watch, 5)
    assert records == []
    fake.jump(HOUR_MS)
    watch_for(fake, watch, 1)
    assert records == [HOUR_MS]
    watch_for(fake, watch, 60)
    assert records == [HOUR_MS]
    fake.jump(-HOUR_MS)
    watch_for(fake, watch, 60)

    assert records == [HOUR_MS, 0]


def test_small_jumps_forward_that_add_up_count_as_one_jump() -> None:
    """As of a machine that is stopped for half a minute again and again, faster than the slew makes up for."""
    fake = FakeClock()
    clock, watch, records = watched(fake)

    for _ in range(20):
        fake.jump(30_000)
        watch_for(fake, watch, 60)

    total_ms = 20 * 30_000
    assert clock.offset_ms == pytest.approx(total_ms, abs=20 * 60 * SLEW_MS_PER_S)
    assert records[-1] == pytest.approx(total_ms, abs=2 * JUMP_MS)
    again, _ = a_clock(fake, not_before_ms=clock.now_ms(), offset_ms=records[-1])
    assert abs(again.now_ms() - clock.now_ms()) <= 2 * JUMP_MS, "a restart is no jump of broker time"


def test_small_jumps_back_that_add_up_are_logged_and_made_up_for() -> None:
    fake = FakeClock()
    clock, watch, _ = watched(fake)

    with capture_logs() as logs:
        for _ in range(20):
            fake.jump(-30_000)
            watch_for(fake, watch, 1)
        watch_for(fake, watch, HOUR_MS // 1000)

    assert [event["event"] for event in logs] == ["clock_offset"]
    assert "0.5 % slower" in logs[0]["text"]
    watch_for(fake, watch, 34 * HOUR_MS // 1000)
    assert clock.offset_ms == 0


def test_a_clock_that_jumps_to_and_fro_writes_a_bounded_number_of_records() -> None:
    fake = FakeClock()
    clock, watch, records = watched(fake)

    for _ in range(600):
        fake.jump(HOUR_MS)
        watch_for(fake, watch, 1)
        fake.jump(-HOUR_MS)
        watch_for(fake, watch, 1)

    assert len(records) <= 1_200_000 // RECORD_EVERY_MS + 1
    watch_for(fake, watch, 20)
    assert ([0, *records])[-1] == clock.lasting_offset_ms == 0


def test_while_an_offset_is_closed_the_record_is_never_off_by_more_than_a_minute_or_so() -> None:
    fake = FakeClock()
    clock, watch, records = watched(fake, offset_ms=300_000)

    for _ in range(FORWARD_WAIT_MS // 1000 + 300_000 // SLEW_MS_PER_S):
        watch_for(fake, watch, 1)
        assert abs(([300_000, *records])[-1] - clock.lasting_offset_ms) <= JUMP_MS

    assert records[-1] == 0
    assert len(records) <= 5
