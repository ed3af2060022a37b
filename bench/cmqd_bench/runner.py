"""Runs the rounds of a scenario on fresh servers, and reports the results."""

import gc
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import uvloop

from cmqd_bench.commands.options import Options, defaults
from cmqd_bench.commands.plans import Micro, Quick
from cmqd_bench.figures.measure import Round
from cmqd_bench.figures.report import report, to_json, to_text
from cmqd_bench.machine.broker import broker_folder
from cmqd_bench.machine.conditions import conditions, raise_file_limit, scratch_root
from cmqd_bench.micro.runner import print_micro

FILES = 4096
"""Open files for any scenario; idle needs more."""
DISTURBED_CORES = 0.15
"""More than kernel threads that write to the disk use on the server's behalf."""


def run_round(options: Options, root: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a round on a fresh server and return its figures; see ``Broker.environment``."""
    scenario = import_module(f"cmqd_bench.scenarios.{options.scenario}")
    with broker_folder(root, durability=options.durability, keep=options.keep) as broker:
        broker.environment = environment

        async def run() -> Round:
            return await scenario.run(options, broker)

        return uvloop.run(run()).as_json()


def run_scenario(options: Options) -> dict[str, Any]:
    """Run all rounds and return the report."""
    raise_file_limit(FILES)
    root = scratch_root(options.scratch)
    described = conditions(root)
    rounds: list[dict[str, Any]] = []
    count = options.effective_rounds()
    # The load keeps its few objects for the whole run: a garbage collection would only add a pause to the latencies.
    gc.freeze()
    gc.disable()
    for number in range(1, count + 1):
        rounds.append(run_round(options, root))
        gc.collect()
        _tell(options, f"round {number} of {count}", rounds[-1])
    return report(options, rounds, described)


def _tell(options: Options, which: str, figures: Mapping[str, Any]) -> None:
    """Print a line at the end of a round; on standard error, because standard output is for the report."""
    line = f"{options.scenario}: {which}: {figures['messages_per_second']:,.0f} messages/s, "
    line += f"server {figures['server_cpu_us_per_message']} us a message"
    if figures["other_cores"] > DISTURBED_CORES and not options.saturate:
        line += f"; DISTURBED: other programs used {figures['other_cores']} cores"
    print(line, file=sys.stderr, flush=True)


def print_report(options: Options) -> None:
    """Run and print; with ``json`` standard output gets only the JSON object."""
    result = run_scenario(options)
    print(to_json(result) if options.json else to_text(result))


def print_quick(_plan: Quick) -> None:
    """Run and print the micro benchmarks and short rounds that reveal a slowdown within a minute."""
    print_micro(Micro())
    for options in (
        replace(defaults("cycle"), batch=16),
        replace(defaults("cycle"), batch=1),
        replace(defaults("send"), batch=1),
        defaults("latency"),
    ):
        print()
        print_report(replace(options, seconds=3.0, rounds=2))
