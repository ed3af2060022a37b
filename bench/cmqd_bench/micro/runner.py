"""Runs the micro benchmarks of the codec, of the core and of the matching, and prints the results."""

import json
from pathlib import Path

from cmqd_bench.commands import plans
from cmqd_bench.machine.conditions import conditions
from cmqd_bench.micro.codec import codec_micros
from cmqd_bench.micro.core import core_micros
from cmqd_bench.micro.match import match_micros
from cmqd_bench.micro.measuring import ROUNDS, Micro, run_micros


def all_micros() -> list[Micro]:
    """Return all benchmarks, the codec first."""
    return [*codec_micros(), *core_micros(), *match_micros()]


def print_micro(plan: plans.Micro) -> None:
    """Run and print the benchmarks with the filter in the name."""
    results = run_micros([micro for micro in all_micros() if plan.filter in micro.name])
    facts = conditions(Path())
    if plan.json:
        figures = {
            result.name: {
                "us": round(result.nanoseconds / 1000, 4),
                "per": result.item,
                "relative": round(result.relative, 4),
            }
            for result in results
        }
        print(json.dumps({"scenario": "micro", "micro": figures, "conditions": facts}, indent=2))
        return
    print(f"  {'benchmark':<52} {'us':>9}  {'per':<9} {'x reference':>11}")
    for result in results:
        print(f"  {result.name:<52} {result.nanoseconds / 1000:>9.3f}  {result.item:<9} {result.relative:>11.3f}")
    print(f"\n  {facts['cpu']}, Python {facts['python']}, best of {ROUNDS} rounds")
