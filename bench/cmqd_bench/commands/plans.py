"""The commands that are no scenario: the docstring is the help, the fields are the flags."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar, dataclass_transform

from cmqd_bench.attack.attacker import ATTACKS
from cmqd_bench.commands.arguments import decimal, names_of, option, some_of, switch, whole
from cmqd_bench.commands.options import Durable, OnDisk, Printed
from cmqd_protocol.limits import MAX_BATCH, MAX_BATCH_BYTES

T = TypeVar("T")
SPARK_PARTS = ("batch", "prune", "stream", "sink")
CURVE_NAMES = ("queues", "connections", "waiting", "backlog", "subscribers", "body", "batch", "rate")
"""The scale curves, in the order in which they run."""
ATTACK_CASES = tuple((kind, count) for kind, attack in ATTACKS.items() for count in attack.connections)
"""Attacks and their numbers of connections."""


class Command(NamedTuple):
    """A command: its plan, and the dotted name of the function that takes the plan.

    The function returns False if the measured code is slower than that of the base.
    """

    plan: type
    function: str


COMMANDS: dict[str, Command] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def command(name: str, function: str) -> Callable[[type[T]], type[T]]:
    """Declare a class as the plan of a command. The module of ``function`` is imported when the command runs, because
    some modules need more than the base set."""

    def declare(plan: type[T]) -> type[T]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(plan)
        COMMANDS[name] = Command(made, f"cmqd_bench.{function}")
        return made

    return declare


def cases_of(text: str) -> Sequence[tuple[str, int]]:
    """Parse an argument: attacks as ``kind:connections``, separated by commas."""
    cases: list[tuple[str, int]] = []
    for part in text.split(","):
        kind, _, count = part.strip().partition(":")
        if kind not in ATTACKS or not count.isdigit() or not 1 <= int(count) <= 1_000:
            raise argparse.ArgumentTypeError(
                f"{part!r} is not kind:connections with 1 to 1000 connections and a kind of {', '.join(ATTACKS)}"
            )
        cases.append((kind, int(count)))
    return cases


@command("quick", "runner.print_quick")
class Quick:
    """The command micro, then short rounds of cycle, send and latency."""


@command("micro", "micro.runner.print_micro")
class Micro(Printed):
    """The codec, each operation of the core, and the matching of a topic, call by call."""

    filter: str = option(str, "only benchmarks with this text in the name", "", shown="")


@command("compare", "compare.run.print_compare")
class Compare(Printed):
    """The benchmarks of micro against another commit, in turns, with verdicts; exit code 3 if a benchmark is slower."""

    base: str = option(str, "commit to compare the working tree with", "HEAD", metavar="REVISION")
    turns: int = option(whole(1, 100), "with fresh processes; benchmarks that differ get as many again", 7)
    seconds: float = option(decimal(1, 3600), "after which no further turn begins", 120.0)
    tolerance: float = option(decimal(0, 1), "smallest share of the time that counts as a difference", 0.05)
    filter: str = option(str, "only benchmarks with this text in the name", "", shown="")


@command("scenarios", "compare.scenarios.print_scenarios")
class CompareScenarios(OnDisk):
    """Batches, fan-out, backlog, restart and idle connections against another commit, in turns, with verdicts."""

    base: str = option(str, "commit to compare the working tree with", "HEAD", metavar="REVISION")
    turns: int = option(whole(1, 100), "of both commits, each on fresh brokers", 5)
    seconds: float = option(decimal(1, 36_000), "after which no further turn begins", 900.0)
    tolerance: float = option(decimal(0, 1), "smallest share of a figure that counts as a difference", 0.03)
    filter: str = option(str, "only scenarios with this text in the name", "", shown="")


@command("takeover", "redundancy.takeover.print_takeover")
class Takeover(OnDisk):
    """Two brokers over three PostgreSQL servers: how long callers wait when a broker or a server is lost."""

    rounds: int = option(whole(1, 100), "with a killed broker; half as many with a lost server", 10)


@command("redundancy", "redundancy.costs.print_redundancy")
class Redundancy(OnDisk):
    """The second copy: CPU of broker, primary and standby, and the latency of a send, against a local fsync."""

    messages: int = option(whole(256, 10_000_000), "messages of a turn", 102_400)
    turns: int = option(whole(1, 100), "of each kind of broker; medians count", 3)


@command("curves", "curves.run.print_curves")
class Curves(Durable):
    """Scale curves: cost per message and latency against queues, connections, backlog, subscribers, body and batch."""

    curves: Sequence[str] = option(
        some_of(CURVE_NAMES), f"some of {','.join(CURVE_NAMES)}", CURVE_NAMES, shown="all", metavar="CURVE,.."
    )
    quick: bool = switch("one turn of two small steps per curve, a quarter of a second each")
    turns: int = option(whole(1, 100), "of every curve, each on a fresh broker; the backlog has a single turn", 3)
    seconds: float = option(decimal(0.1, 600), "measured time of a step", 1.5)
    warm_up: float = option(decimal(0, 600), "seconds before measuring", 0.5)
    limit: float = option(decimal(1, 100_000), "seconds after which no further step begins", 1200.0)
    output: Path | None = option(Path, "file of results to write, for the documents", shown="", metavar="FILE")


@command("attack", "attack.run.print_attacks")
class Attack(Durable):
    """Floods, unfinished frames and a bulk producer: the latency of a healthy client beside each, and memory."""

    cases: Sequence[tuple[str, int]] = option(
        cases_of,
        "attacks",
        ATTACK_CASES,
        shown=",".join(f"{kind}:{count}" for kind, count in ATTACK_CASES),
        metavar="CASE,..",
    )
    seconds: float = option(decimal(1, 60), "of each attack", 8.0)
    settle: float = option(decimal(0, 120), "seconds after it until memory is measured", 60.0)
    rate: float = option(decimal(1, 1_000), "healthy sends a second", 100.0)
    python: str | None = option(str, "interpreter of the installation to attack", shown="this one", metavar="PATH")


@command("peers", "peers.harness.print_peers")
class Peers:
    """The same work against cmqd and other brokers in turns; the load is a small C program."""

    rows: Sequence[str] = option(names_of, "some of the rows", (), shown="all", metavar="ROW,..")
    peers: Sequence[str] = option(names_of, "some of the peers", (), shown="all", metavar="PEER,..")
    builds: Sequence[str] = option(
        names_of, "further installations of cmqd, by their interpreters", (), shown="", metavar="NAME=PYTHON,.."
    )
    turns: int = option(whole(1, 100), "of every row and peer; medians count", 5)
    repeats: int = option(whole(0, 10), "repetitions at most of a row in which redis-always varies by over 1.3", 1)
    seconds: float = option(decimal(0.1, 3600), "measured time of a row", 4.0)
    warm_up: float = option(decimal(0, 600), "seconds before measuring", 1.0)
    limit: float = option(decimal(1, 100_000), "seconds after which no further turn begins", 3600.0)
    body: int = option(whole(28, MAX_BATCH_BYTES // MAX_BATCH), "bytes of each body", 256)
    scratch: Path | None = option(Path, "folder for data, on a disk", shown="the temporary folder")
    keep: bool = switch("leave data and server log in the scratch folder")
    json: Path | None = option(Path, "write the measurements into a file of results, too", shown="", metavar="FILE")


@command("spark", "spark.report.print_spark")
class Spark(OnDisk):
    """The Spark connector: batch, pruning, stream and sink; needs the Spark set."""

    messages: int = option(whole(1, 100_000_000), "messages", 5_000_000)
    body: int = option(whole(1, MAX_BATCH_BYTES), "bytes of each body", 256)
    rounds: int = option(whole(1, 100), "interleaved rounds, the best counts", 3)
    unix_sockets: bool = switch("between Java and Python, instead of Spark's default, TCP")
    parts: Sequence[str] = option(
        some_of(SPARK_PARTS), f"some of {','.join(SPARK_PARTS)}", SPARK_PARTS, shown="all", metavar="PART,.."
    )
