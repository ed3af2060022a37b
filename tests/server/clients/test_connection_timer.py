"""The timer of connections: every deadline fires on time, within a step, and once."""

from cmqd.server.clients.connection_timer import BUCKETS, STEP_MS, ConnectionTimer


def due_between(timer: ConnectionTimer[str], start_ms: int, stop_ms: int) -> dict[str, int]:
    """The times of all events, with the timer turned every 50 ms."""
    came: dict[str, int] = {}
    for now_ms in range(start_ms, stop_ms, 50):
        for thing in timer.turn(now_ms):
            assert thing not in came
            came[thing] = now_ms
    return came


def test_a_thing_comes_when_it_is_due_or_within_a_step_after_it() -> None:
    timer: ConnectionTimer[str] = ConnectionTimer(1_000)
    dues = {f"due {due_ms}": due_ms for due_ms in (1_000, 1_001, 1_099, 1_100, 2_345, 60_000)}
    for thing, due_ms in dues.items():
        timer.add(thing, due_ms)

    came = due_between(timer, 1_000, 70_000)

    assert set(came) == set(dues)
    for thing, due_ms in dues.items():
        assert due_ms <= came[thing] <= due_ms + 2 * STEP_MS


def test_what_is_due_beyond_one_turn_comes_early_rather_than_never() -> None:
    timer: ConnectionTimer[str] = ConnectionTimer(0)
    timer.add("far", 10 * BUCKETS * STEP_MS)

    came = due_between(timer, 0, BUCKETS * STEP_MS + 200)

    assert came["far"] <= BUCKETS * STEP_MS


def test_after_a_long_sleep_everything_comes_at_once() -> None:
    timer: ConnectionTimer[int] = ConnectionTimer(0)
    for number in range(500):
        timer.add(number, number * 150)

    assert sorted(timer.turn(10_000_000)) == list(range(500))
    assert timer.turn(10_000_050) == []


def test_a_thing_added_again_comes_again() -> None:
    timer: ConnectionTimer[str] = ConnectionTimer(0)
    timer.add("a", 100)
    assert timer.turn(200) == ["a"]

    timer.add("a", 300)

    assert timer.turn(250) == []
    assert timer.turn(400) == ["a"]
