"""``python -m cmqd_bench SCENARIO ...``; see bench/README.md."""

import argparse
import sys
from importlib import import_module

from cmqd_bench.commands.arguments import WrongArguments, plan_from
from cmqd_bench.commands.command_line import build_parser, options_from
from cmqd_bench.commands.plans import COMMANDS
from cmqd_bench.failures import BenchFailed
from cmqd_bench.machine.termination import treat_sigterm_like_ctrl_c
from cmqd_bench.runner import print_report
from cmqd_load.failures import LoadError

RUN_FAILED = 1
SLOWER = 3
INTERRUPTED = 130


def _run(arguments: argparse.Namespace) -> int:
    """Run a command and return its exit code."""
    command = COMMANDS.get(arguments.scenario)
    if command is None:
        print_report(options_from(arguments))
        return 0
    module, _, function = command.function.rpartition(".")
    is_fast_enough = getattr(import_module(module), function)(plan_from(command.plan, arguments))
    return SLOWER if is_fast_enough is False else 0


def main() -> int:
    """Exit code 0 with a report, 1 for a failed run, 2 for wrong arguments, 3 for slower code, 130 when interrupted."""
    parser = build_parser()
    arguments = parser.parse_args()
    treat_sigterm_like_ctrl_c()
    try:
        return _run(arguments)
    except WrongArguments as error:
        parser.error(str(error))
    except (BenchFailed, LoadError, OSError) as error:
        print(f"cmqd_bench: {str(error) or type(error).__name__}", file=sys.stderr)
        return RUN_FAILED
    except KeyboardInterrupt:
        print("cmqd_bench: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
