"""Runs the rounds of a scenario on fresh servers, and reports the results."""

import gc
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import uvloop

from cmqd_bench.figures.measure import Round
from cmqd_bench.figures.report import report, to_json, to_text
from cmqd_bench.machine.broker import Broker, broker_folder
from cmqd_bench.machine.conditions import conditions, raise_file_limit, scratch_root
from cmqd_bench.options import Options
from cmqd_bench.scenarios import (
    backlog,
    console,
    cycle,
    deadletter,
    delayed,
    drain,
    fanout,
    gateway,
    idle,
    latency,
    metrics,
    push,
    rewind,
    send,
    transactions,
)

RUNS: Mapping[str, Callable[[Options, Broker], Awaitable[Round]]] = {
    "cycle": cycle.run,
    "send": send.run,
    "latency": latency.run,
    "drain": drain.run,
    "idle": idle.run,
    "delayed": delayed.run,
    "backlog": backlog.run,
    "rewind": rewind.run,
    "transactions": transactions.run,
    "deadletter": deadletter.run,
    "fanout": fanout.run,
    "push": push.run,
    "gateway": gateway.run,
    "metrics": metrics.run,
    "console": console.run,
}
FILES = 4096
"""Open files for any scenario; idle needs more."""
DISTURBED_CORES = 0.15
"""More than kernel threads that write to the disk use on the server's behalf."""


def run_round(options: Options, root: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a round on a fresh server and return its figures; see ``Broker.environment``."""
    with broker_folder(root, durability=options.durability, keep=options.keep) as broker:
        broker.environment = environment

        async def run() -> Round:
            return await RUNS[options.scenario](options, broker)

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
