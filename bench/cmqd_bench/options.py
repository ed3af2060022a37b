"""The arguments of the command line as one frozen value.

A scenario's defaults are in ``DEFAULTS``; a flag that a scenario does not have is an error.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from cmqd_bench.attack.attacker import ATTACKS
from cmqd_bench.load.wire import MIN_BODY

MAX_BATCH = 256
MAX_BATCH_BYTES = 1_048_576
"""Largest batch and largest body, in bytes."""
SHORT_ROUND_SECONDS = 15.0
"""Below this a round is cheap enough to be repeated; three show whether the machine is quiet."""

DRAINS = 3
"""Drains of the scenario backlog, with and without backlog; the best drains are compared, so that a slow moment of the
disk has no effect."""


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
    acknowledge: bool = False
    """Consumers delete in the request of the next receive."""
    endpoints: int = 20
    spread: float = 60.0
    """Seconds over which delayed messages become due."""
    saturate: bool = False
    queues: int = 10_000
    path: str = "/metrics"
    """Path and query that a client of a gateway reads."""
    idle: int = 10_000
    """HTTP connections that stay idle."""
    flood: float = 40.0
    """Seconds for which strangers flood a gateway; 0 = no flood."""
    moto: str | None = None
    """Interpreter that has moto with its server; None = no comparison."""
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
            case "metrics":
                return 2 * (self.warm_up + self.seconds) + self.queues / 500
            case "console":
                return 10 * (self.warm_up + self.seconds) + self.queues / 500
            case "gateway":
                return 40 * (self.warm_up + self.seconds) + 15.0 + self.flood
            case _:
                return self.warm_up + self.seconds + 1.0

    def held(self) -> int:
        """Return the largest number of messages that the consumers hold at a time."""
        return self.connections * self.batch

    def effective_rounds(self) -> int:
        """Return the requested number of rounds; by default three if rounds are short, else a single round."""
        if self.rounds is not None:
            return self.rounds
        return 3 if self.expected_seconds() < SHORT_ROUND_SECONDS else 1


_COMMON = ("body", "durability", "rounds", "scratch", "keep", "json")
SCENARIOS: Mapping[str, tuple[str, Sequence[str]]] = {
    "cycle": (
        "C producers and C consumers at once; a consumer receives, then deletes in a request of its own",
        ("batch", "connections", "seconds", "warm_up", "acknowledge"),
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
    "gateway": (
        "send, receive and delete over HTTP: one gateway, two, and moto's SQS server; the native cycle beside them",
        ("connections", "idle", "seconds", "warm_up", "flood", "moto"),
    ),
    "metrics": (
        "/metrics of a gateway before a broker with N queues, and native latency at a fixed rate meanwhile",
        ("queues", "path", "rate", "connections", "seconds", "warm_up"),
    ),
    "console": (
        "the overview of the console open against closed, in turns: CPU a message, memory of the gateway",
        ("queues", "rate", "connections", "seconds", "warm_up"),
    ),
    "push": (
        "a topic with N URLs at a fixed rate: all answer at once, then all but one never answer",
        ("endpoints", "rate", "seconds", "warm_up"),
    ),
}
"""Scenarios by name: the summary, and the options beside the common options."""

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
    # Turns of these seconds, see the scenario.
    "gateway": {"batch": 1, "connections": 64, "seconds": 2.0, "warm_up": 0.5},
    "metrics": {"batch": 1, "rate": 1_000.0},
    # Turns of these seconds, see the scenario.
    "console": {"batch": 1, "rate": 2_000.0, "queues": 200, "seconds": 8.0, "warm_up": 2.0},
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


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return an argument type: an integer within a range; a refusal names option, value and limit."""
    return lambda text: int(_within(text.replace("_", "").replace(",", ""), int, "a whole number", low, high))


def decimal(low: float, high: float) -> Callable[[str], float]:
    """Return an argument type: a number within a range."""
    return lambda text: _within(text, float, "a number", low, high)


def _within(text: str, kind: Callable[[str], float], noun: str, low: float, high: float) -> float:
    try:
        value = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {noun}") from None
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{value} is not within {low} .. {high}")
    return value


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
    ("subscription-lists", 1),
    ("queue-lists", 1),
    ("topic-attributes", 1),
)
"""Attacks and their numbers of connections."""
_SHOWN = ",".join(f"{kind}:{count}" for kind, count in ATTACK_CASES)

SPARK_PARTS = ("batch", "prune", "stream", "sink", "tail")
_PARTS = ",".join(SPARK_PARTS)


def parts_of(text: str) -> Sequence[str]:
    """Parse an argument: parts of the command spark, separated by commas."""
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts:
        if part not in SPARK_PARTS:
            raise argparse.ArgumentTypeError(f"{part!r} is none of {', '.join(SPARK_PARTS)}")
    return parts


def names_of(text: str) -> Sequence[str]:
    """Parse an argument: names, separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


CURVE_NAMES = ("queues", "connections", "waiting", "backlog", "subscribers", "body", "batch", "rate")
"""The scale curves, in the order in which they run."""


def curves_of(text: str) -> Sequence[str]:
    """Parse an argument: scale curves, separated by commas."""
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in CURVE_NAMES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(CURVE_NAMES)}")
    return names


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


Flag = Mapping[str, Any]
"""Arguments of ``ArgumentParser.add_argument``."""


def flag(kind: Callable[[str], object], text: str, default: object = None) -> Flag:
    """Return a flag with a value; the help shows the default."""
    return {"type": kind, "help": f"{text} (%(default)s)", "default": default}


def switch(text: str) -> Flag:
    """Return a flag without a value."""
    return {"action": "store_true", "help": text}


FLAGS: Mapping[str, Flag] = {
    "seconds": flag(decimal(0.1, 3600), "measured time of a round"),
    "warm_up": flag(decimal(0, 600), "seconds before measuring"),
    "batch": flag(whole(1, MAX_BATCH), "messages per request"),
    "body": flag(whole(MIN_BODY, MAX_BATCH_BYTES), "bytes of each body"),
    "connections": flag(whole(1, 100_000), "connections of each kind"),
    "rate": flag(decimal(0.1, 200_000), "messages a second"),
    "backlog": flag(whole(1, 100_000_000), "messages"),
    "messages": flag(whole(1, 100_000_000), "messages"),
    "subscribers": flag(whole(0, 500), "queues that get a copy"),
    "unmatched": switch("no subscriber matches the published messages"),
    "acknowledge": switch("consumers delete in the request of the next receive"),
    "endpoints": flag(whole(2, 500), "URLs, one subscription each"),
    "spread": flag(decimal(1, 3000), "seconds over which messages become due"),
    "queues": flag(whole(2, 10_000), "queues, that of the latencies included"),
    "path": flag(str, "path and query to read, such as /api/v1/queue-summaries?sort=active"),
    "idle": flag(whole(0, 100_000), "HTTP connections that stay idle"),
    "flood": flag(decimal(0, 3600), "seconds of a flood by strangers, with the gateway's memory each second"),
    "moto": {"metavar": "PYTHON", "help": "compare with moto's SQS server, of this interpreter"},
    "saturate": switch("two more processes keep the server's loop busy with batches"),
    "rounds": {
        "type": whole(1, 100),
        "help": "rounds, each on a fresh server: best CPU, median latency (3 when a round is under 15 s, else 1)",
    },
    "durability": {"choices": ("fsync", "os"), "default": "fsync", "help": "of the server (%(default)s)"},
    "scratch": {"type": Path, "help": "folder for data, on a disk (default: the temporary folder)"},
    "keep": switch("leave data and server log in the scratch folder"),
    "json": switch("print only a JSON object"),
}
"""Flags by field of ``Options``; each scenario has its own defaults."""

PROGRAMS: Mapping[str, tuple[str, Mapping[str, Flag]]] = {
    "quick": ("micro, then short rounds of cycle, send and latency", {}),
    "micro": (
        "the codec and each operation of the core, call by call",
        {"json": FLAGS["json"], "filter": {"default": "", "help": "only benchmarks with this text in the name"}},
    ),
    "compare": (
        "micro against another commit, in turns: a verdict per benchmark; exit code 3 if a benchmark is slower",
        {
            "base": {
                "default": "HEAD",
                "metavar": "REVISION",
                "help": "commit to compare the working tree with (HEAD)",
            },
            "turns": flag(whole(1, 100), "with fresh processes; benchmarks that differ get as many again", 7),
            "seconds": flag(decimal(1, 3600), "after which no further turn begins", 120.0),
            "tolerance": flag(decimal(0, 1), "smallest share of the time that counts as a difference", 0.05),
            "filter": {"default": "", "help": "only benchmarks with this text in the name"},
            "json": FLAGS["json"],
        },
    ),
    "scenarios": (
        "batches, fan-out, backlog, restart, idle connections against another commit, in turns: a verdict per figure",
        {
            "base": {
                "default": "HEAD",
                "metavar": "REVISION",
                "help": "commit to compare the working tree with (HEAD)",
            },
            "turns": flag(whole(1, 100), "of both commits, each on fresh brokers", 5),
            "seconds": flag(decimal(1, 36_000), "after which no further turn begins", 900.0),
            "tolerance": flag(decimal(0, 1), "smallest share of a figure that counts as a difference", 0.03),
            "filter": {"default": "", "help": "only scenarios with this text in the name"},
            "scratch": FLAGS["scratch"],
            "json": FLAGS["json"],
        },
    ),
    "match": (
        "the matching of a topic: tags and routing keys of 500 subscribers, call by call",
        {"json": FLAGS["json"]},
    ),
    "consumer": (
        "CPU of the client per message: a consumer against receive and delete",
        {
            "messages": flag(whole(16, 1_000_000), "messages of each run", 16_000),
            "rounds": flag(whole(1, 100), "of the three ways in turns; medians count", 5),
            "scratch": FLAGS["scratch"],
            "json": FLAGS["json"],
        },
    ),
    "takeover": (
        "two brokers over three PostgreSQL servers: how long callers wait when a broker or a server is lost",
        {
            "rounds": flag(whole(1, 100), "with a killed broker; half as many with a lost server", 10),
            "scratch": FLAGS["scratch"],
            "json": FLAGS["json"],
        },
    ),
    "redundancy": (
        "the second copy: CPU of broker, primary and standby, and the latency of a send, against a local fsync",
        {
            "messages": flag(whole(256, 10_000_000), "messages of a turn", 102_400),
            "turns": flag(whole(1, 100), "of each kind of broker; medians count", 3),
            "scratch": FLAGS["scratch"],
            "json": FLAGS["json"],
        },
    ),
    "curves": (
        "scale curves: cost per message and latency against queues, connections, backlog, subscribers, body and batch",
        {
            "curves": {
                "type": curves_of,
                "default": CURVE_NAMES,
                "metavar": "CURVE,..",
                "help": f"some of {','.join(CURVE_NAMES)} (all)",
            },
            "quick": switch("one turn of two small steps per curve, a quarter of a second each"),
            "turns": flag(whole(1, 100), "of every curve, each on a fresh broker; the backlog has a single turn", 3),
            "seconds": flag(decimal(0.1, 600), "measured time of a step", 1.5),
            "warm_up": flag(decimal(0, 600), "seconds before measuring", 0.5),
            "limit": flag(decimal(1, 100_000), "seconds after which no further step begins", 1200.0),
            "durability": FLAGS["durability"],
            "output": {"type": Path, "metavar": "FILE", "help": "file of results to write, for the documents"},
            "scratch": FLAGS["scratch"],
            "json": FLAGS["json"],
        },
    ),
    "attack": (
        "floods, unfinished frames and a bulk producer: the latency of a healthy client beside each, and memory",
        {
            "cases": {"type": cases_of, "default": ATTACK_CASES, "metavar": "CASE,..", "help": f"attacks ({_SHOWN})"},
            "seconds": flag(decimal(1, 60), "of each attack", 8.0),
            "settle": flag(decimal(0, 120), "seconds after it until memory is measured", 60.0),
            "rate": flag(decimal(1, 1_000), "healthy sends a second", 100.0),
            "durability": FLAGS["durability"],
            "python": {"help": "interpreter of the installation to attack", "metavar": "PATH"},
            "scratch": FLAGS["scratch"],
            "json": FLAGS["json"],
        },
    ),
    "peers": (
        "the same work against cmqd and other brokers in turns; the load is a small C program",
        {
            "rows": {"type": names_of, "default": (), "metavar": "ROW,..", "help": "some of the rows (all)"},
            "peers": {"type": names_of, "default": (), "metavar": "PEER,..", "help": "some of the peers (all)"},
            "builds": {
                "type": names_of,
                "default": (),
                "metavar": "NAME=PYTHON,..",
                "help": "further installations of cmqd, by their interpreters",
            },
            "moto": {"metavar": "PYTHON", "help": "interpreter that has moto and its server (this one, or python3)"},
            "turns": flag(whole(1, 100), "of every row and peer; medians count", 5),
            "repeats": flag(whole(0, 10), "repetitions at most of a row in which redis-always varies by over 1.3", 1),
            "seconds": flag(decimal(0.1, 3600), "measured time of a row", 4.0),
            "warm_up": flag(decimal(0, 600), "seconds before measuring", 1.0),
            "limit": flag(decimal(1, 100_000), "seconds after which no further turn begins", 3600.0),
            "body": flag(whole(28, MAX_BATCH_BYTES // MAX_BATCH), "bytes of each body", 256),
            "scratch": FLAGS["scratch"],
            "keep": FLAGS["keep"],
            "json": {"type": Path, "metavar": "FILE", "help": "write the measurements into a file of results, too"},
        },
    ),
    "spark": (
        "the Spark connector: batch, pruning, stream, sink, and what it costs a broker; needs the Spark set",
        {
            "messages": flag(whole(1, 100_000_000), "messages", 5_000_000),
            "body": flag(whole(1, MAX_BATCH_BYTES), "bytes of each body", 256),
            "rounds": flag(whole(1, 100), "interleaved rounds, the best counts", 3),
            "tail_rounds": flag(whole(1, 100), "of the part tail, medians count", 5),
            "tail_rate": flag(whole(1, 1_000_000), "of the part tail, messages/s", 16_000),
            "tail_seconds": flag(whole(1, 3600), "of the part tail, of each run", 8),
            "share_cores": switch("of the part tail: broker and Spark on the same cores"),
            "unix_sockets": switch("between Java and Python, instead of Spark's default, TCP"),
            "parts": {
                "type": parts_of,
                "default": SPARK_PARTS,
                "metavar": "PART,..",
                "help": f"some of {_PARTS} (all)",
            },
            "scratch": FLAGS["scratch"],
            "json": FLAGS["json"],
        },
    ),
}
"""Commands that are no scenario, with their flags."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line of ``python -m cmqd_bench``."""
    parser = argparse.ArgumentParser(
        prog="cmqd_bench", description="Load harness of cmqd: real servers, real disk, the native protocol."
    )
    commands = parser.add_subparsers(dest="scenario", required=True, metavar="scenario")
    programs = dict(PROGRAMS)
    for scenario, (text, names) in SCENARIOS.items():
        own = defaults(scenario)
        programs[scenario] = (
            text,
            {name: {**FLAGS[name], "default": getattr(own, name)} for name in (*names, *_COMMON)},
        )
    for name, (text, flags) in programs.items():
        command = commands.add_parser(name, help=text, description=text)
        for flag, arguments in flags.items():
            command.add_argument("--" + flag.replace("_", "-"), **arguments)
    return parser


def options_from(arguments: argparse.Namespace) -> Options:
    """Return the options of a parsed command line.

    Raises:
        ValueError: the options contradict each other.
    """
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
    smallest = DRAINS * (options.held() + 2)
    if options.scenario == "backlog" and options.messages < smallest:
        # The consumers of a drain leave up to a batch each behind. Without spare messages, the next drain would wait
        # for them until their visibility timeout ends.
        raise ValueError(
            f"--messages {options.messages} are too few for --connections {options.connections} with batches of"
            f" {options.batch}; at least {smallest} are needed"
        )
    return options


T = TypeVar("T")


def plan_from(kind: type[T], arguments: argparse.Namespace) -> T:
    """Return the flags of a command as an instance of a dataclass with these fields."""
    return kind(**{each.name: getattr(arguments, each.name) for each in fields(kind)})  # pyright: ignore[reportArgumentType]
