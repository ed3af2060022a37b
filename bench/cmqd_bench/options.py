"""The arguments of the command line as one frozen value.

A scenario's defaults are in ``DEFAULTS``; a flag that a scenario does not have is an error.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from cmqd_bench.attack.attacker import ATTACKS
from cmqd_bench.wire import MIN_BODY

MAX_BATCH = 256
MAX_BATCH_BYTES = 1_048_576
"""Largest batch and largest body, in bytes."""
SHORT_ROUND_SECONDS = 15.0
"""Below this a round is cheap enough to be repeated; three show whether the machine is quiet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parameters of a scenario; unused parameters keep their defaults."""

    scenario: str
    seconds: float = 10.0
    """Measured time of a round, after the warm-up."""
    warm_up: float = 1.0
    batch: int = 16
    body: int = 256
    connections: int = 16
    rate: float = 2_000.0
    """Messages (with endpoints: pushes) a second of an open loop."""
    backlog: int = 500_000
    messages: int = 1_000_000
    subscribers: int = 10
    unmatched: bool = False
    """No subscriber matches the published messages."""
    endpoints: int = 20
    spread: float = 60.0
    """Seconds over which delayed messages become due."""
    saturate: bool = False
    rounds: int | None = None
    durability: str = "fsync"
    scratch: Path | None = None
    keep: bool = False
    json: bool = False

    def expected_seconds(self) -> float:
        """Return the approximate duration of a round, including the start of the server."""
        match self.scenario:
            case "drain":
                return 5.0 + self.backlog / 50_000
            case "idle":
                return 5.0 + self.connections / 1_000 + self.seconds
            case "delayed":
                return 10.0 + self.spread + self.messages / 40_000
            case "backlog":
                return 30.0 + self.messages / 60_000
            case "rewind" | "deadletter":
                return 15.0 + self.messages / 20_000
            case "push":
                return 2 * (self.warm_up + self.seconds) + 2.0
            case _:
                return self.warm_up + self.seconds + 1.0

    def effective_rounds(self) -> int:
        """Return the requested number of rounds; by default three if rounds are short, else a single round."""
        if self.rounds is not None:
            return self.rounds
        return 3 if self.expected_seconds() < SHORT_ROUND_SECONDS else 1


_COMMON = ("body", "durability", "rounds", "scratch", "keep", "json")
SCENARIOS: Mapping[str, tuple[str, Sequence[str]]] = {
    "cycle": (
        "C producers and C consumers at once; a consumer receives, then deletes in a request of its own",
        ("batch", "connections", "seconds", "warm_up"),
    ),
    "send": (
        "C producers, one request outstanding each",
        ("batch", "connections", "seconds", "warm_up", "saturate"),
    ),
    "latency": (
        "one message at a time at a fixed rate, from its intended time to its receipt",
        ("rate", "connections", "seconds", "warm_up"),
    ),
    "drain": ("receive and delete messages that were sent before", ("backlog", "batch", "connections")),
    "idle": (
        "connections that all wait in a long poll, woken at random",
        ("connections", "rate", "seconds", "warm_up"),
    ),
    "delayed": ("messages that become due in random order", ("messages", "spread", "connections", "batch")),
    "backlog": (
        "a queue with very many messages: memory, restart after kill -9, speed of draining",
        ("messages", "batch", "connections"),
    ),
    "rewind": (
        "messages are consumed, rewound and consumed again: time to the answer, speed of the second time",
        ("messages", "batch", "connections"),
    ),
    "transactions": (
        "C producers send half messages and commit them, one request outstanding each",
        ("batch", "connections", "seconds", "warm_up"),
    ),
    "deadletter": (
        "very many messages are overdue at once: speed of the moves, latency of fresh messages, memory",
        ("messages", "batch", "connections"),
    ),
    "fanout": (
        "C producers publish to a topic with N queues subscribed, one request outstanding each; no consumers",
        ("batch", "connections", "subscribers", "unmatched", "seconds", "warm_up"),
    ),
    "push": (
        "a topic with N URLs at a fixed rate: all answer at once, then all but one never answer",
        ("endpoints", "rate", "seconds", "warm_up"),
    ),
}
"""By scenario: the summary, and the options beside the common options."""

DEFAULTS: Mapping[str, Mapping[str, object]] = {
    # Enough connections that a commit holds the requests of many; more bring little.
    "cycle": {"connections": 64},
    "send": {"connections": 64},
    "latency": {"batch": 1},
    "drain": {"connections": 64},
    "idle": {"connections": 10_000, "rate": 500.0, "batch": 1, "warm_up": 2.0},
    "delayed": {"batch": 64},
    "backlog": {"messages": 10_000_000, "connections": 64},
    "rewind": {"connections": 64},
    "transactions": {"batch": 1, "connections": 64},
    "deadletter": {"connections": 64},
    "fanout": {"batch": 1, "connections": 64},
    # Long enough for the time-outs of hanging requests (15 s) and the retries after a time-out.
    "push": {"batch": 1, "connections": 4, "rate": 2_400.0, "seconds": 20.0, "warm_up": 2.0},
}


def defaults(scenario: str) -> Options:
    """Return the default options of a scenario."""
    return replace(Options(scenario=scenario), **DEFAULTS[scenario])  # pyright: ignore[reportArgumentType]


def quick() -> Sequence[Options]:
    """Return short rounds that reveal a slowdown within a minute."""
    return [
        replace(defaults("cycle"), batch=16, seconds=3.0, rounds=2),
        replace(defaults("cycle"), batch=1, connections=64, seconds=3.0, rounds=2),
        replace(defaults("send"), batch=1, seconds=3.0, rounds=2),
        replace(defaults("latency"), seconds=3.0, rounds=2),
    ]


def whole(low: int, high: int):
    """An argument type: an integer within a range, refused by name, value and limit."""

    def parse(text: str) -> int:
        try:
            value = int(text.replace("_", "").replace(",", ""))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not within {low} .. {high}")
        return value

    return parse


def decimal(low: float, high: float):
    """An argument type: a number within a range."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not within {low} .. {high}")
        return value

    return parse


ATTACK_CASES: Sequence[tuple[str, int]] = (
    ("zeros", 1),
    ("zeros", 50),
    ("zeros-authenticated", 1),
    ("zeros-authenticated", 50),
    ("cancels", 1),
    ("cancels", 50),
    ("unfinished", 150),
    ("bulk", 1),
    ("publishes", 1),
    ("dedup-ids", 4),
    ("sessions", 4),
)
"""Attacks and their numbers of connections."""

SPARK_PARTS = ("batch", "prune", "stream", "sink", "tail")


def parts_of(text: str) -> Sequence[str]:
    """An argument type: parts of the scenario spark, separated by commas."""
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts:
        if part not in SPARK_PARTS:
            raise argparse.ArgumentTypeError(f"{part!r} is none of {', '.join(SPARK_PARTS)}")
    return parts


def add_option(parser: argparse.ArgumentParser, name: str, default: Options) -> None:
    """Add the flag ``--name``; its default is that of the scenario."""
    flag = "--" + name.replace("_", "-")
    value = getattr(default, name)
    shown = "%(default)s"
    match name:
        case "seconds":
            parser.add_argument(
                flag, type=decimal(0.1, 3600), default=value, help=f"measured time of a round ({shown})"
            )
        case "warm_up":
            parser.add_argument(flag, type=decimal(0, 600), default=value, help=f"seconds before measuring ({shown})")
        case "batch":
            parser.add_argument(flag, type=whole(1, MAX_BATCH), default=value, help=f"messages per request ({shown})")
        case "body":
            parser.add_argument(
                flag, type=whole(MIN_BODY, MAX_BATCH_BYTES), default=value, help=f"bytes of each body ({shown})"
            )
        case "connections":
            parser.add_argument(flag, type=whole(1, 100_000), default=value, help=f"connections of each kind ({shown})")
        case "rate":
            parser.add_argument(flag, type=decimal(0.1, 200_000), default=value, help=f"messages a second ({shown})")
        case "backlog" | "messages":
            parser.add_argument(flag, type=whole(1, 100_000_000), default=value, help=f"messages ({shown})")
        case "subscribers":
            parser.add_argument(flag, type=whole(0, 500), default=value, help=f"queues that get a copy ({shown})")
        case "unmatched":
            parser.add_argument(flag, action="store_true", help="no subscriber matches the published messages")
        case "endpoints":
            parser.add_argument(flag, type=whole(2, 500), default=value, help=f"URLs, one subscription each ({shown})")
        case "spread":
            parser.add_argument(
                flag, type=decimal(1, 3000), default=value, help=f"seconds over which messages become due ({shown})"
            )
        case "saturate":
            parser.add_argument(
                flag, action="store_true", help="two more processes keep the server's loop busy with batches"
            )
        case "rounds":
            parser.add_argument(
                flag,
                type=whole(1, 100),
                help="rounds, each on a fresh server: best CPU, median latency (3 when a round is under 15 s, else 1)",
            )
        case "durability":
            parser.add_argument(flag, choices=("fsync", "os"), default=value, help=f"of the server ({shown})")
        case "scratch":
            parser.add_argument(flag, type=Path, help="folder for data, on a disk (default: the temporary folder)")
        case "keep":
            parser.add_argument(flag, action="store_true", help="leave data and server log in the scratch folder")
        case "json":
            parser.add_argument(flag, action="store_true", help="print only a JSON object")
        case _:
            raise ValueError(name)


def cases_of(text: str) -> Sequence[tuple[str, int]]:
    """An argument type: attacks as ``kind:connections``, separated by commas."""
    cases: list[tuple[str, int]] = []
    for part in text.split(","):
        kind, _, count = part.strip().partition(":")
        if kind not in ATTACKS or not count.isdigit() or not 1 <= int(count) <= 1_000:
            raise argparse.ArgumentTypeError(
                f"{part!r} is not kind:connections with 1 to 1000 connections and a kind of {', '.join(ATTACKS)}"
            )
        cases.append((kind, int(count)))
    return cases


def build_parser() -> argparse.ArgumentParser:
    """The whole command line of ``python -m cmqd_bench``."""
    parser = argparse.ArgumentParser(
        prog="cmqd_bench", description="Load harness of cmqd: real servers, real disk, the native protocol."
    )
    commands = parser.add_subparsers(dest="scenario", required=True, metavar="scenario")
    for scenario, (text, names) in SCENARIOS.items():
        command = commands.add_parser(scenario, help=text, description=text)
        for name in (*names, *_COMMON):
            add_option(command, name, defaults(scenario))
    commands.add_parser("quick", help="micro, then short rounds of cycle, send and latency")
    micro = commands.add_parser("micro", help="the codec and each operation of the core, call by call")
    micro.add_argument("--json", action="store_true", help="print only a JSON object")
    micro.add_argument("--filter", default="", help="only benchmarks with this text in the name")
    match_text = "who gets what of a topic: tags and routing keys of 500 subscribers, call by call"
    match_parser = commands.add_parser("match", help=match_text, description=match_text)
    match_parser.add_argument("--json", action="store_true", help="print only a JSON object")
    attack_text = (
        "floods, unfinished frames and a bulk producer: the latency of a healthy client beside each, and memory"
    )
    attack = commands.add_parser("attack", help=attack_text, description=attack_text)
    shown = ",".join(f"{kind}:{count}" for kind, count in ATTACK_CASES)
    attack.add_argument("--cases", type=cases_of, default=ATTACK_CASES, help=f"attacks ({shown})", metavar="CASE,..")
    attack.add_argument("--seconds", type=decimal(1, 60), default=8.0, help="of each attack (%(default)s)")
    attack.add_argument(
        "--settle", type=decimal(0, 120), default=60.0, help="seconds after it until memory is measured (%(default)s)"
    )
    attack.add_argument("--rate", type=decimal(1, 1_000), default=100.0, help="healthy sends a second (%(default)s)")
    attack.add_argument("--durability", choices=("fsync", "os"), default="fsync", help="of the server (%(default)s)")
    attack.add_argument("--python", help="interpreter of the installation to attack", metavar="PATH")
    attack.add_argument("--scratch", type=Path, help="folder for data, on a disk (default: the temporary folder)")
    attack.add_argument("--json", action="store_true", help="print only a JSON object")
    spark_text = "the Spark connector: batch, pruning, stream, sink, and what it costs a broker; needs the Spark set"
    spark = commands.add_parser("spark", help=spark_text, description=spark_text)
    spark.add_argument("--messages", type=whole(1, 100_000_000), default=5_000_000, help="messages (%(default)s)")
    spark.add_argument("--body", type=whole(1, MAX_BATCH_BYTES), default=256, help="bytes of each body (%(default)s)")
    spark.add_argument(
        "--rounds", type=whole(1, 100), default=3, help="interleaved rounds, the best counts (%(default)s)"
    )
    spark.add_argument(
        "--tail-rounds", type=whole(1, 100), default=5, help="of the part tail, medians count (%(default)s)"
    )
    spark.add_argument(
        "--tail-rate", type=whole(1, 1_000_000), default=16_000, help="of the part tail, messages/s (%(default)s)"
    )
    spark.add_argument(
        "--tail-seconds", type=whole(1, 3600), default=8, help="of the part tail, of each run (%(default)s)"
    )
    spark.add_argument(
        "--share-cores", action="store_true", help="of the part tail: broker and Spark on the same cores"
    )
    spark.add_argument(
        "--unix-sockets", action="store_true", help="between Java and Python, instead of Spark's default, TCP"
    )
    spark.add_argument(
        "--parts", type=parts_of, default=SPARK_PARTS, help=f"some of {','.join(SPARK_PARTS)} (all)", metavar="PART,.."
    )
    spark.add_argument("--scratch", type=Path, help="folder for data, on a disk (default: the temporary folder)")
    spark.add_argument("--json", action="store_true", help="print only a JSON object")
    return parser


def options_from(arguments: argparse.Namespace) -> Options:
    """Return the options of a parsed command line. Raises ValueError for contradictory options."""
    given = vars(arguments)
    names = {field.name for field in fields(Options)}
    options = replace(
        defaults(arguments.scenario),
        **{name: value for name, value in given.items() if name in names},  # pyright: ignore[reportArgumentType]
    )
    if options.batch * options.body > MAX_BATCH_BYTES:
        raise ValueError(
            f"--batch {options.batch} x --body {options.body} is over the {MAX_BATCH_BYTES} bytes of one batch"
        )
    return options
