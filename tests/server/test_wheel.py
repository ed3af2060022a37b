"""The timing wheel: everything comes when it is due, within a step, and once."""

from cmqd.server.wheel import BUCKETS, STEP_MS, Wheel


def due_between(wheel: Wheel[str], start_ms: int, stop_ms: int) -> dict[str, int]:
    """When each thing comes, with the wheel turned every 50 ms."""
    came: dict[str, int] = {}
    for now_ms in range(start_ms, stop_ms, 50):
        for thing in wheel.turn(now_ms):
            assert thing not in came
            came[thing] = now_ms
    return came


def test_a_thing_comes_when_it_is_due_or_within_a_step_after_it() -> None:
    wheel: Wheel[str] = Wheel(1_000)
    dues = {f"due {due_ms}": due_ms for due_ms in (1_000, 1_001, 1_099, 1_100, 2_345, 60_000)}
    for thing, due_ms in dues.items():
        wheel.add(thing, due_ms)

    came = due_between(wheel, 1_000, 70_000)

    assert set(came) == set(dues)
    for thing, due_ms in dues.items():
        assert due_ms <= came[thing] <= due_ms + 2 * STEP_MS


def test_what_is_due_beyond_one_turn_comes_early_rather_than_never() -> None:
    wheel: Wheel[str] = Wheel(0)
    wheel.add("far", 10 * BUCKETS * STEP_MS)

    came = due_between(wheel, 0, BUCKETS * STEP_MS + 200)

    assert came["far"] <= BUCKETS * STEP_MS


def test_after_a_long_sleep_everything_comes_at_once() -> None:
    wheel: Wheel[int] = Wheel(0)
    for number in range(500):
        wheel.add(number, number * 150)

    assert sorted(wheel.turn(10_000_000)) == list(range(500))
    assert wheel.turn(10_000_050) == []


def test_a_thing_added_again_comes_again() -> None:
    wheel: Wheel[str] = Wheel(0)
    wheel.add("a", 100)
    assert wheel.turn(200) == ["a"]

    wheel.add("a", 300)

    assert wheel.turn(250) == []
    assert wheel.turn(400) == ["a"]
