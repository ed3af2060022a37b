"""Turns of two trees: a fresh process per tree and turn, measured in alternation, benchmark by benchmark."""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Self

from cmqd_bench.compare.tree import environment
from cmqd_bench.compare.verdict import TOLERANCE, Comparison, Verdict, compare
from cmqd_bench.failures import BenchFailed

CHILD = Path(__file__).with_name("child.py")
ROUNDS = 3
"""Measurements of a benchmark in a turn, per tree; the best counts, because other programs only add time."""
MIN_TURNS = 5
"""Fewer turns agree by chance too often: a suite has forty benchmarks."""
END_SECONDS = 10


class CompareFailed(BenchFailed):
    """A tree could not be measured; the text has the end of its standard error."""


class Child:
    """A process that runs the benchmarks of a tree."""

    def __init__(self, tree: Path, hash_seed: int) -> None:
        # -P: without the folder of the script on the path, because its siblings are modules of this package.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(tree, hash_seed),
            cwd=tree,
        )
        self._tree = tree
        self.names: list[str] = []

    def __enter__(self) -> Self:
        try:
            opened = json.loads(self._read())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.names = opened["names"]
        if Path(opened["product"]) != self._tree.resolve():
            self.__exit__(None, None, None)
            raise CompareFailed(f"{self._tree} was to be measured, but the process imported {opened['product']}")
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def measure(self, name: str) -> float:
        """Run a benchmark once and return the nanoseconds of CPU per item."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{self.names.index(name)}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the read that follows tells why the process has ended
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            raise CompareFailed(f"the benchmarks of {self._tree} ended:\n{self._process.stderr.read()[-2000:]}")
        return line


def one_turn(base: Child, new: Child, names: Sequence[str], base_first: bool) -> dict[str, tuple[float, float]]:
    """Measure benchmarks on both trees in alternation; return (base, new) nanoseconds by name."""
    order = (base, new) if base_first else (new, base)
    times: dict[str, tuple[float, float]] = {}
    for name in names:
        best = {base: float("inf"), new: float("inf")}
        for _ in range(ROUNDS):
            for child in order:
                best[child] = min(best[child], child.measure(name))
        times[name] = best[base], best[new]
    return times


class Turns:
    """All turns of a run."""

    def __init__(self, base: Path, new: Path, name_filter: str = "") -> None:
        self._base = base
        self._new = new
        self._filter = name_filter
        self._times: dict[str, list[tuple[float, float]]] = {}
        self.count = 0
        self.only_base: list[str] = []
        self.only_new: list[str] = []
        """Benchmarks that only one of the trees has: without a verdict."""

    def run(self, turns: int, seconds: float, tolerance: float = TOLERANCE) -> None:
        """Run up to ``turns`` turns of all benchmarks, and as many again of the benchmarks that differ.

        No turn begins after ``seconds``, beyond the smallest number of turns that allows a verdict.
        """
        deadline = monotonic() + seconds
        while self.count < min(turns, MIN_TURNS) or (self.count < turns and monotonic() < deadline):
            self._turn(None)
        # Forty benchmarks give a difference by chance now and then; further turns confirm or refute the difference.
        while self.count < 2 * turns and monotonic() < deadline and (different := self._different(tolerance)):
            self._turn(different)

    def comparisons(self, tolerance: float) -> list[Comparison]:
        """Return the benchmarks of both trees with their verdicts, in the order of the suite."""
        return [compare(name, times, tolerance) for name, times in self._times.items()]

    def _different(self, tolerance: float) -> list[str]:
        return [each.name for each in self.comparisons(tolerance) if each.verdict is not Verdict.SAME]

    def _turn(self, chosen: Sequence[str] | None) -> None:
        self.count += 1
        with ExitStack() as stack:
            base = stack.enter_context(Child(self._base, self.count))
            new = stack.enter_context(Child(self._new, self.count))
            if chosen is None:
                own = [name for name in new.names if self._filter in name]
                chosen = [name for name in own if name in base.names]
                self.only_new = [name for name in own if name not in base.names]
                self.only_base = [name for name in base.names if self._filter in name and name not in new.names]
            for name, pair in one_turn(base, new, chosen, base_first=self.count % 2 == 1).items():
                self._times.setdefault(name, []).append(pair)
