"""Runs the micro benchmarks of the tree on ``PYTHONPATH``, a measurement per line of standard input.

The parent starts the file as a script for both trees, so the same code measures both. The benchmarks come from the
tree: the file uses only ``all_micros``, ``Micro.name`` and ``Micro.prepare``, which every commit since the first micro
suite has. The first line of output is a JSON object with the names of the benchmarks and the folder of the product;
then each line with the number of a benchmark is answered with the nanoseconds of CPU per item.

CPU time of the process, not wall time: on a busy machine the wall time holds the time of other programs.
"""

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time_ns

import cmqd
from cmqd_bench.micro.runner import all_micros

MEASURED_NS = 10_000_000
"""A work shorter than this is repeated: a work of a millisecond is too short for caches and clocks to be steady."""
MAX_WORKS = 6


def nanoseconds(prepare: Callable[[], Callable[[], int]]) -> float:
    """Return the CPU per item of the fastest of several works."""
    best, total = float("inf"), 0
    for _ in range(MAX_WORKS):
        work = prepare()
        started = process_time_ns()
        items = work()
        elapsed = process_time_ns() - started
        best = min(best, elapsed / items)
        total += elapsed
        if total >= MEASURED_NS:
            break
    # Collect between measurements, so that no collection falls into a measurement.
    gc.collect()
    return best


def main() -> None:
    """Answer until standard input ends."""
    micros = all_micros()
    product = str(Path(cmqd.__file__).resolve().parents[1])
    print(json.dumps({"names": [micro.name for micro in micros], "product": product}), flush=True)
    gc.disable()
    for line in sys.stdin:
        print(nanoseconds(micros[int(line)].prepare), flush=True)


if __name__ == "__main__":
    main()
