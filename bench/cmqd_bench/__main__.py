"""``python -m cmqd_bench SCENARIO ...``; see bench/README.md."""

import argparse
import sys

from cmqd_bench.compare.tree import RevisionUnknown, WrongProduct
from cmqd_bench.compare.turns import CompareFailed
from cmqd_bench.figures.results import ResultsUnreadable
from cmqd_bench.load.wire import RequestFailed
from cmqd_bench.machine.broker import BrokerFailed
from cmqd_bench.machine.conditions import ConditionsError
from cmqd_bench.machine.termination import treat_sigterm_like_ctrl_c
from cmqd_bench.options import build_parser, options_from, plan_from, quick
from cmqd_bench.peers.errors import MeasurementFailed
from cmqd_bench.runner import print_report

RUN_FAILED = 1
SLOWER = 3
INTERRUPTED = 130


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run a command and return its exit code. Modules are imported here, because some need more than the base set."""
    match arguments.scenario:
        case "micro":
            from cmqd_bench.micro.runner import print_micro

            print_micro(name_filter=arguments.filter, json_output=arguments.json)
        case "compare":
            from cmqd_bench.compare.run import Plan, print_compare

            return 0 if print_compare(plan_from(Plan, arguments)) else SLOWER
        case "scenarios":
            from cmqd_bench.compare.scenarios import Plan, print_scenarios

            return 0 if print_scenarios(plan_from(Plan, arguments)) else SLOWER
        case "curves":
            from cmqd_bench.curves.run import Plan, print_curves

            print_curves(plan_from(Plan, arguments))
        case "match":
            from cmqd_bench.micro.match import print_match

            print_match(json_output=arguments.json)
        case "consumer":
            from cmqd_bench.compare.consumer_cpu import Plan, print_consumer

            print_consumer(plan_from(Plan, arguments))
        case "takeover":
            from cmqd_bench.redundancy.takeover import Plan, print_takeover

            print_takeover(plan_from(Plan, arguments))
        case "redundancy":
            from cmqd_bench.redundancy.costs import Plan, print_redundancy

            print_redundancy(plan_from(Plan, arguments))
        case "attack":
            from cmqd_bench.attack.run import Plan, print_attacks

            print_attacks(plan_from(Plan, arguments))
        case "peers":
            from cmqd_bench.peers.harness import Plan, print_peers

            try:
                print_peers(plan_from(Plan, arguments))
            except ValueError as error:
                parser.error(str(error))
        case "spark":
            from cmqd_bench.spark.report import Plan, print_spark

            print_spark(plan_from(Plan, arguments))
        case "quick":
            from cmqd_bench.micro.runner import print_micro

            print_micro()
            for options in quick():
                print()
                print_report(options)
        case _:
            try:
                options = options_from(arguments)
            except ValueError as error:
                parser.error(str(error))
            print_report(options)
    return 0


def main() -> int:
    """Exit code 0 with a report, 1 for a failed run, 2 for wrong arguments, 3 for slower code, 130 when interrupted."""
    parser = build_parser()
    arguments = parser.parse_args()
    treat_sigterm_like_ctrl_c()
    try:
        return _run(parser, arguments)
    except (
        BrokerFailed,
        CompareFailed,
        ConditionsError,
        MeasurementFailed,
        RequestFailed,
        ResultsUnreadable,
        RevisionUnknown,
        TimeoutError,
        WrongProduct,
        OSError,
    ) as error:
        print(f"cmqd_bench: {str(error) or type(error).__name__}", file=sys.stderr)
        return RUN_FAILED
    except KeyboardInterrupt:
        print("cmqd_bench: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
