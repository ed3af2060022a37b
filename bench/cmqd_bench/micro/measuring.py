"""Runs micro benchmarks so that the results of a run can be compared.

Every benchmark runs once per round, in turn, and the best round counts: a slow moment of the machine affects a single
round, not all rounds of a benchmark. The first benchmark is a fixed piece of work in plain Python. The report also
shows every result as a multiple of the first, and the multiples stay comparable between machines.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

ROUNDS = 7
REFERENCE = "reference: 100 dict updates"

Work = Callable[[], int]
"""Does the work and returns the number of items (messages, calls)."""


@dataclass(frozen=True, slots=True)
class Micro:
    """One benchmark: ``prepare`` makes fresh state outside the measured time and returns the work."""

    name: str
    prepare: Callable[[], Work]
    item: str = "message"


@dataclass(frozen=True, slots=True)
class MicroResult:
    """Result of a benchmark in its best round."""

    name: str
    item: str
    nanoseconds: float
    relative: float
    """Multiple of the reference."""


def repeated(call: Callable[[], object], times: int, items: int = 1) -> Work:
    """Return work that makes ``times`` calls of ``call``, with ``items`` items per call."""

    def work() -> int:
        for _ in range(times):
            call()
        return times * items

    return work


def _reference() -> Work:
    numbers: dict[int, int] = {}

    def update() -> None:
        for key in range(100):
            numbers[key] = numbers.get(key, 0) + 1

    return repeated(update, 500)


def run_micros(micros: Sequence[Micro], rounds: int = ROUNDS) -> list[MicroResult]:
    """Run all benchmarks and return their results, the reference first."""
    everything = [Micro(REFERENCE, _reference, "call"), *micros]
    best = [float("inf")] * len(everything)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for index, micro in enumerate(everything):
                work = micro.prepare()
                started = perf_counter_ns()
                items = work()
                best[index] = min(best[index], (perf_counter_ns() - started) / items)
                del work
                gc.collect()
    finally:
        if collecting:
            gc.enable()
    return [
        MicroResult(micro.name, micro.item, time, time / best[0]) for micro, time in zip(everything, best, strict=True)
    ]
