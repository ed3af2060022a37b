"""The demos: ``python -m cmqd_bench.demo [--spark | --console] [--input FILE] [--messages N]``.

Exit code 0 if the proof holds, 1 if a check fails or the demo could not finish, 2 for unusable input.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from cmqd_bench.commands.arguments import whole
from cmqd_bench.demo import kill
from cmqd_bench.demo.input import SourceError, json_lines, repository_source
from cmqd_bench.failures import BenchFailed
from cmqd_bench.machine.termination import treat_sigterm_like_ctrl_c
from cmqd_client import CmqError
from cmqd_load.failures import LoadError
from cmqd_log.errors import CmqdSourceError

HELD, BROKEN, INTERRUPTED = 0, 1, 130
MESSAGES = 20_000
MOST_MESSAGES = 10_000_000
FAILURES = (BenchFailed, LoadError, CmqError, CmqdSourceError, TimeoutError)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="cmqd_bench.demo", description="Kill a broker under load; lose no message.")
    parser.add_argument("--spark", action="store_true", help="read the log of a broker with Spark instead")
    parser.add_argument("--console", action="store_true", help="a lively broker with its console, until Ctrl-C")
    parser.add_argument("--no-browser", action="store_true", help="with --console: open no browser")
    parser.add_argument("--input", type=Path, metavar="FILE", help="NDJSON: objects with a body, or any JSON lines")
    messages = whole(kill.FEWEST, MOST_MESSAGES)
    parser.add_argument("--messages", type=messages, default=MESSAGES, help="number of messages (%(default)s)")
    parser.add_argument("--scratch", type=Path, help="where to put the temporary folder; on a disk")
    return parser


def main() -> int:
    """Run a demo and return the exit code; errors of the demo are printed in a line."""
    parser = build_parser()
    arguments = parser.parse_args()
    console = Console(highlight=False)
    treat_sigterm_like_ctrl_c()
    try:
        if arguments.console:
            from cmqd_bench.demo.console import run_demo as run_shop

            run_shop(console, arguments.scratch, open_browser=not arguments.no_browser)
            return HELD
        source = json_lines(arguments.input) if arguments.input else repository_source()
        if arguments.spark:
            from cmqd_bench.demo.spark import run_demo
        else:
            from cmqd_bench.demo.kill import run_demo
        holds = run_demo(source, arguments.messages, console, arguments.scratch)
    except SourceError as error:
        parser.error(str(error))
    except FAILURES as error:
        console.print(f"the demo failed: {str(error) or type(error).__name__}", style="bold red", markup=False)
        return BROKEN
    except ExceptionGroup as group:
        for error in group.exceptions:
            console.print(f"the demo failed: {error!r}", style="bold red", markup=False)
        return BROKEN
    except KeyboardInterrupt:
        # Ctrl-C is the only end of the shop.
        return HELD if arguments.console else INTERRUPTED
    return HELD if holds else BROKEN


if __name__ == "__main__":
    sys.exit(main())
