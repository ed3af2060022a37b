"""Broker time: wall clock at the start, then monotonic, slewed slowly, never backwards."""

from cmqd.server.clock import SLEW_MS_PER_S, BrokerClock
from support.fake_clock import EPOCH_MS, FakeClock


def a_clock(fake: FakeClock, *, not_before_ms: int = 0) -> tuple[BrokerClock, list[int]]:
    jumps: list[int] = []
    clock = BrokerClock(
        not_before_ms=not_before_ms, wall=fake.wall, monotonic_ns=fake.monotonic_ns, on_jump=jumps.append
    )
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


def test_a_start_ahead_of_the_wall_clock_is_made_up_for_slowly() -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake, not_before_ms=EPOCH_MS + 100)

    let_pass(fake, clock, 10)
    assert clock.behind_wall_ms == -100 + 10 * SLEW_MS_PER_S
    let_pass(fake, clock, 60)
    assert clock.behind_wall_ms == 0


def test_a_small_step_of_the_wall_clock_is_followed_at_the_rate_of_slewing() -> None:
    fake = FakeClock()
    clock, jumps = a_clock(fake)

    fake.jump(1_000)
    let_pass(fake, clock, 1)
    assert clock.behind_wall_ms == 1_000 - SLEW_MS_PER_S
    let_pass(fake, clock, 300)

    assert clock.behind_wall_ms == 0
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
    assert clock.behind_wall_ms == 0


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
    assert clock.behind_wall_ms == 0


def test_drift_after_an_ignored_jump_is_still_followed() -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake)
    fake.jump(7_200_000)
    let_pass(fake, clock, 2)

    fake.jump(50)
    let_pass(fake, clock, 60)

    assert clock.behind_wall_ms == 7_200_000


def test_checks_more_often_than_once_a_second_do_not_slew_faster() -> None:
    fake = FakeClock()
    clock, _ = a_clock(fake)

    fake.jump(1_000)
    for _ in range(20):
        fake.advance(100)
        clock.check()

    assert clock.behind_wall_ms == 1_000 - 2 * SLEW_MS_PER_S
