"""The parser of ``python -m cmqd_bench``, and the checked options of a scenario."""

import argparse
from dataclasses import fields, replace
from inspect import getdoc

from cmqd_bench.commands.arguments import WrongArguments, add_flags
from cmqd_bench.commands.options import COMMON, DRAINS, SCENARIOS, Options, defaults
from cmqd_bench.commands.plans import COMMANDS
from cmqd_protocol.limits import MAX_BATCH_BYTES


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="cmqd_bench", description="Load harness of cmqd: real servers, real disk, the native protocol."
    )
    commands = parser.add_subparsers(dest="scenario", required=True, metavar="scenario")
    for name, command in COMMANDS.items():
        text = " ".join((getdoc(command.plan) or "").removesuffix(".").split())
        add_flags(commands.add_parser(name, help=text, description=text), command.plan)
    for name, scenario in SCENARIOS.items():
        own = commands.add_parser(name, help=scenario.summary, description=scenario.summary)
        add_flags(own, Options, (*scenario.options, *COMMON), scenario.defaults)
    return parser


def options_from(arguments: argparse.Namespace) -> Options:
    """Return the options of a parsed command line.

    Raises:
        WrongArguments: the options contradict each other.
    """
    names = {field.name for field in fields(Options)}
    options = replace(
        defaults(arguments.scenario),
        **{name: value for name, value in vars(arguments).items() if name in names},  # pyright: ignore[reportArgumentType]
    )
    if options.batch * options.body > MAX_BATCH_BYTES:
        raise WrongArguments(
            f"--batch {options.batch} x --body {options.body} is over the {MAX_BATCH_BYTES} bytes of one batch"
        )
    smallest = DRAINS * (options.held() + 2)
    if options.scenario == "backlog" and options.messages < smallest:
        # The consumers of a drain leave up to a batch each behind. Without spare messages, the next drain would wait
        # for them until their visibility timeout ends.
        raise WrongArguments(
            f"--messages {options.messages} are too few for --connections {options.connections} with batches of"
            f" {options.batch}; at least {smallest} are needed"
        )
    return options
