"""Mutations of recorded bytes, guided by the lines of the reader that they reach.

``CMQD_FUZZ_SECONDS`` is the time of a test, ``CMQD_FUZZ_SEED`` repeats a run. Without a time there are a few rounds of
a fixed seed.
"""

import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType
from typing import Any

SECONDS = float(os.environ.get("CMQD_FUZZ_SECONDS", "0"))
SEED = int(os.environ.get("CMQD_FUZZ_SEED", "0")) or (random.SystemRandom().getrandbits(32) if SECONDS else 38)


def rounds(name: str, few: int) -> Iterator[random.Random]:
    """Yield a source of choices for each round: a few rounds, or until the time is over."""
    print(f"CMQD_FUZZ_SEED={SEED}")
    end = time.monotonic() + SECONDS
    for number in itertools.count():
        if number >= few and time.monotonic() >= end:
            print(f"{name}: {number} rounds")
            return
        yield random.Random(f"{SEED} {name} {number}")


def mutated(chance: random.Random, data: bytes, others: Sequence[bytes], edges: Sequence[bytes]) -> bytes:
    """Return bytes with some changes: of a bit, a piece, an edge, or a piece of other bytes."""
    for _ in range(chance.choice([1, 1, 2, 4])):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0 if place < len(data):
                data = data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
            case 1:
                data = data[:place] + chance.choice(edges) + data[place + chance.choice([0, 1]) :]
            case 2:
                data = data[:place] + data[place + chance.randrange(1, 9) :]
            case 3:
                other = chance.choice(others)
                start = chance.randrange(len(other) + 1)
                data = data[:place] + other[start : start + chance.randrange(1, 40)] + data[place:]
            case 4:
                piece = data[place : place + chance.randrange(1, 20)]
                data = data[:place] + piece * chance.choice([2, 17, 300]) + data[place:]
            case _:
                data = data[:place]
        data = data[: 4 << 20]
    return data


def lines_of(files: Collection[str], call: Callable[[], None]) -> set[tuple[str, int]]:
    """Return the pairs of lines of these files that a call went from and to, as numbers in a file."""
    seen: set[tuple[str, int]] = set()
    last = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal last
        if frame.f_code.co_filename not in files:
            return None
        seen.add((frame.f_code.co_filename, last << 16 | frame.f_lineno))
        last = frame.f_lineno
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return seen
