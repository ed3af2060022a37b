"""The commands ``cmqd ha``: their names and flags; the work of each is a module of its own.

To add a command: its parser in ``add_commands``, its line in ``run``. The module is imported in ``run`` alone, because
``cmqd config`` runs without the libraries of a server.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from cmqd.settings import Settings

AddSettings: TypeAlias = Callable[..., None]
"""Adds ``--config`` and the flags of the settings with these names to a parser."""


def add_commands(commands: Any, add_settings: AddSettings) -> None:
    """Add the group ``ha`` to the commands of ``cmqd``.

    A command on an engine calls ``set_defaults(redundancy="postgresql")``: ``engine_url`` is a setting with redundancy
    alone.
    """
    group = commands.add_parser("ha", help="commands on redundancy", description="Commands on redundancy.")
    group = group.add_subparsers(dest="ha_command", required=True, metavar="COMMAND")
    importing = group.add_parser(
        "import",
        help="move the log of a data folder into an empty engine",
        description="Copy rows, newest checkpoint and accounts of a data folder into an empty engine, compare the copy"
        " row by row, and mark the folder as a cache of the engine. The broker must be stopped. An interrupted import"
        " changes nothing, and is repeated.",
    )
    importing.add_argument("data", type=Path, metavar="FOLDER", help="data folder of the stopped broker")
    for command in (importing,):
        add_settings(command, "engine_url", "shard")
        command.set_defaults(redundancy="postgresql")


def run(chosen: argparse.Namespace, settings: Settings) -> int:
    """Run the chosen command and return its exit code. Raises ModuleNotFoundError without the libraries of a server."""
    match chosen.ha_command:
        case "import":
            from cmqd.ha import moves

            return moves.run_import(settings)
        case other:
            raise ValueError(other)
