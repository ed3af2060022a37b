"""Time without a reachable broker does not count as time without use."""

from cmqd.core.runtime.runtime import Gates
from cmqd.server.loop.reachable_time import LONGEST_GAP_S, ListeningTime

BEAT_S = 0.1


class Timer:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_a_server_listens_from_its_start_to_its_drain() -> None:
    gates = Gates()
    assert gates.listening_since_ms == 0, "a core alone is always reachable"
    listening = ListeningTime(gates, Timer())
    assert gates.listening_since_ms is None

    listening.begin(5_000)
    assert gates.listening_since_ms == 5_000

    listening.end()
    assert gates.listening_since_ms is None


def test_a_process_that_runs_goes_on_listening_whatever_broker_time_does() -> None:
    gates, timer = Gates(), Timer()
    listening = ListeningTime(gates, timer)
    listening.begin(5_000)

    for now_ms in (5_100, 5_200, 1_000_000, 2_000_000):
        timer.seconds += BEAT_S
        listening.pass_time(now_ms)
    timer.seconds += LONGEST_GAP_S
    listening.pass_time(2_000_001)

    assert gates.listening_since_ms == 5_000


def test_a_process_that_stood_still_listens_since_it_runs_again() -> None:
    gates, timer = Gates(), Timer()
    listening = ListeningTime(gates, timer)
    listening.begin(5_000)

    timer.seconds += LONGEST_GAP_S + BEAT_S
    listening.pass_time(3_605_000)
    timer.seconds += BEAT_S
    listening.pass_time(3_605_100)

    assert gates.listening_since_ms == 3_605_000


def test_a_server_that_does_not_listen_is_not_reachable_after_a_pause_either() -> None:
    gates, timer = Gates(), Timer()
    listening = ListeningTime(gates, timer)

    timer.seconds += 2 * LONGEST_GAP_S
    listening.pass_time(3_605_000)

    assert gates.listening_since_ms is None
