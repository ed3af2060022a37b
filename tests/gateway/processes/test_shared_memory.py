"""Memory that several gateway processes write: limits hold for the sum, and a killed process frees the lock."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cmqd_gateway.callers.rates import KeyRates, Rates
from cmqd_gateway.processes.shared_memory import Column, SharedAmount, SharedKeyRates, SharedMemory
from support.server.fake_clock import StoppedTimer


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory(3)
    yield memory
    memory.lock.close()


def in_forked_process(work: Callable[[], None]) -> int:
    """Run a function in a process of its own and return the way that it ended."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_limit_holds_for_the_sum_and_each_process_knows_its_part(memory: SharedMemory) -> None:
    first, second = (SharedAmount(memory, process, Column.BODIES) for process in (0, 1))
    other = SharedAmount(memory, 1, Column.HEADS)

    assert first.take(60, 100)
    assert not second.take(41, 100)
    assert second.take(40, 100)
    assert other.take(100, 100)
    assert (first.held, second.held, other.held) == (60, 40, 100)
    first.add(-1)
    assert second.take(1, 100)
    assert not first.take(1, 100)

    memory.empty_row(1)
    assert (first.held, second.held, other.held) == (59, 0, 0)


def test_forked_processes_never_pass_a_limit_together(memory: SharedMemory) -> None:
    limit = 1_000
    taken = SharedMemory(3)
    counts = [SharedAmount(taken, process, Column.CONNECTIONS) for process in range(3)]
    pids: list[int] = []
    for process in range(3):
        pid = os.fork()
        if not pid:
            amount = SharedAmount(memory, process, Column.CONNECTIONS)
            for _ in range(limit):
                if amount.take(1, limit):
                    counts[process].add(1)
            os._exit(0)
        pids.append(pid)

    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0, 0]
    assert memory.sum(Column.CONNECTIONS) == taken.sum(Column.CONNECTIONS) == limit
    taken.lock.close()


def test_the_lock_of_a_killed_process_is_free(memory: SharedMemory) -> None:
    def killed() -> None:
        with memory.lock:
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_forked_process(killed) == -signal.SIGKILL
    assert SharedAmount(memory, 0, Column.HEADS).take(1, 1)


@pytest.mark.parametrize("rate", [0, 5, 100])
def test_rates_are_those_of_a_single_process(memory: SharedMemory, rate: int) -> None:
    clock = StoppedTimer()
    single, shared = KeyRates(rate, clock), SharedKeyRates(rate, memory.lock)
    shared.now = clock

    def answers(rates: Rates) -> list[bool]:
        return [rates.take(key) for key in ("one", "one", "two", "one") for _ in range(3)]

    for pause in (0.0, 0.1, 0.45, 2.0):
        clock.seconds += pause
        assert answers(shared) == answers(single)


def test_a_key_has_one_rate_in_all_processes(memory: SharedMemory) -> None:
    rates = SharedKeyRates(4, memory.lock)
    rates.now = StoppedTimer()

    def three() -> None:
        assert [rates.take("key") for _ in range(3)] == [True] * 3

    assert in_forked_process(three) == 0
    assert [rates.take("key"), rates.take("key"), rates.take("other")] == [True, False, True]


def test_the_bucket_that_is_idle_for_longest_makes_room(memory: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd_gateway.processes.shared_memory._SETS", 1)
    rates = SharedKeyRates(1, memory.lock)
    rates.now = clock = StoppedTimer()
    for number in range(17):
        clock.seconds += 0.001
        assert rates.take(f"key {number}")

    assert [rates.take("key 1"), rates.take("key 16"), rates.take("key 0")] == [False, False, True]


def test_shared_memory_lives_without_a_name(memory: SharedMemory, tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
    assert memory.sum(Column.HEADS) == 0
