"""The commands ``cmqd ha``: their names and flags; the work of a command is a module of its own.

To add a command: its parser in ``add_commands``, its line in ``run``. The module is imported in ``run`` alone, because
``cmqd config`` runs without the libraries of a server.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from cmqd.exit_codes import ExitCode
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
    _add_init(group)
    _add_watching(group, add_settings)
    _add_moves(group, add_settings)


def _add_init(group: Any) -> None:
    """Add the command that writes the files of a cluster."""
    command = group.add_parser(
        "init",
        help="write PostgreSQL's, Patroni's and the brokers' files, with safe settings",
        description="Write a folder with what two brokers over replicated PostgreSQL servers need: Patroni's and the"
        " brokers' settings, passwords, systemd units, a README with the steps. Without --hosts all of it runs on this"
        " machine, for a try. Overwrites nothing.",
    )
    command.add_argument("folder", type=Path, metavar="FOLDER", help="is created")
    command.add_argument("--nodes", type=int, default=3, help="PostgreSQL servers: 3 or 5 (3)")
    command.add_argument("--hosts", default="", metavar="HOST,...", help="addresses of the machines, one for each node")
    command.add_argument(
        "--etcd", default="", metavar="HOST:PORT,...", help="an etcd cluster, in place of Patroni's Raft"
    )
    command.add_argument("--programs", type=Path, metavar="FOLDER", help="folder with initdb and postgres")
    command.add_argument("--first-port", type=int, default=15432, help="of the servers on this machine (15432)")
    command.add_argument(
        "--broker-ports",
        type=_ports,
        default=(),
        metavar="PORT,PORT",
        help="of the two brokers (5680,5681; with --hosts 5680 on both)",
    )
    command.set_defaults(config=None)


def _ports(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(port) for port in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError("two numbers: PORT,PORT") from None


def _add_watching(group: Any, add_settings: AddSettings) -> None:
    """Add the commands that ask the servers of an engine."""
    check = group.add_parser(
        "check",
        help="refuse settings of PostgreSQL that can lose answered requests, and say why",
        description="Examine every server of the engine: each unsafe setting, the reason and the cure; the log and its"
        " leader. Changes nothing. Exit code 8: a setting is not safe, or commits would wait.",
    )
    status = group.add_parser(
        "status",
        help="show the leader, the newest row and the standbys",
        description="Show the leader, the newest row, the checkpoint, the standbys and the copies of PostgreSQL, as the"
        " newest primary tells it. Exit code 8: commits wait, or no broker leads or follows.",
    )
    handover = group.add_parser(
        "handover",
        help="let the leader of this machine end in order, and its standby lead",
        description="Stop the broker of the data folder, which must lead, once a standby has its rows; wait until the"
        " standby leads. A supervisor may start the stopped broker again, as the standby. Exit code 8: nothing was"
        " stopped, or no other broker leads in time.",
    )
    accounts = group.add_parser(
        "accounts",
        help="write the accounts of a log into a file",
        description="Write the accounts of the log, with keys and all other secrets, into a file of the form of"
        " accounts.json, mode 0600: for 'cmqd restore --accounts'. Changes nothing in the engine.",
    )
    accounts.add_argument("file", type=Path, metavar="FILE", help="is replaced")
    for command in (check, status, handover, accounts):
        add_settings(command, *(("engine_url", "shard", "data") if command is handover else ("engine_url", "shard")))
        command.add_argument("--json", action="store_true", help="print one JSON document")
        command.set_defaults(redundancy="postgresql")
    check.add_argument(
        "--one-address",
        action="store_true",
        help="the address of the URL follows the primary, as that of a managed PostgreSQL; it may lack the standby",
    )
    handover.add_argument(
        "--within", type=float, default=30.0, metavar="SECONDS", help="time in which another broker must lead (30)"
    )


def _add_moves(group: Any, add_settings: AddSettings) -> None:
    """Add the commands that move a log between a data folder and an engine."""
    importing = group.add_parser(
        "import",
        help="move the log of a data folder into an empty engine",
        description="Copy rows, newest checkpoint and accounts of a data folder into an empty engine, compare the copy"
        " row by row, and mark the folder as a cache of the engine. The broker must be stopped. An interrupted import"
        " changes nothing, and is repeated.",
    )
    importing.add_argument("data", type=Path, metavar="FOLDER", help="data folder of the stopped broker")
    exporting = group.add_parser(
        "export",
        help="move the log of an engine into a data folder",
        description="Copy the log of an engine into a data folder that is its cache, or empty; compare the copy row by"
        " row; write accounts.json; retire the log in the engine, so that no broker leads it there again; and make the"
        " folder a log for redundancy = none. All brokers of the shard must be stopped. An interrupted export is"
        " repeated.",
    )
    exporting.add_argument("data", type=Path, metavar="FOLDER", help="data folder: a cache of the log, or empty")
    for command in (importing, exporting):
        add_settings(command, "engine_url", "shard")
        command.set_defaults(redundancy="postgresql")


def run(chosen: argparse.Namespace, settings: Settings) -> int:
    """Run the chosen command and return its exit code. Raises ModuleNotFoundError without the libraries of a server."""
    match chosen.ha_command:
        case "init":
            from cmqd.ha.init import init

            return init(
                chosen.folder,
                chosen.nodes,
                print,
                hosts=[host for host in chosen.hosts.split(",") if host],
                etcd=[host for host in chosen.etcd.split(",") if host],
                programs=chosen.programs,
                first_port=chosen.first_port,
                broker_ports=chosen.broker_ports,
            )
        case "import" | "export":
            from cmqd.ha import moves

            return moves.run_import(settings) if chosen.ha_command == "import" else moves.run_export(settings)
        case "check" | "status" | "handover" | "accounts":
            return _watch_over(chosen, settings)
        case other:
            raise ValueError(other)


def _watch_over(chosen: argparse.Namespace, settings: Settings) -> int:
    """Run a command that asks the servers of the engine."""
    from cmqd.ha.output import Output

    output = Output(print, as_json=chosen.json)
    try:
        from cmqd.engine.postgresql.servers import PostgresDatabase
    except ImportError as missing:
        output.refuse(f"PostgreSQL needs: pip install 'cmqd[ha]' ({missing})")
        return ExitCode.USAGE
    try:
        database = PostgresDatabase(settings.engine_url, settings.shard)
    except ValueError as error:
        output.refuse(f"engine_url cannot be used: {error}")
        return ExitCode.USAGE
    match chosen.ha_command:
        case "check":
            from cmqd.ha.postgresql_check import check

            return check(database, settings.shard, output, one_address=chosen.one_address)
        case "accounts":
            from cmqd.ha.accounts import write_accounts

            return write_accounts(database, settings.shard, chosen.file, output)
        case "status":
            from cmqd.ha.status import status

            return status(database, settings.shard, output)
        case _:
            from cmqd.ha.handover import Handover

            return Handover(database, settings.data).run(chosen.within, output)
