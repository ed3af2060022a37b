"""The scenarios and their options: an option is a field, from which its flag is made.

A scenario has some of the options, with its own defaults; a flag that a scenario does not have is an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from cmqd_bench.commands.arguments import decimal, option, switch, whole
from cmqd_load.limits import MIN_BODY
from cmqd_protocol.limits import MAX_BATCH, MAX_BATCH_BYTES

SHORT_ROUND_SECONDS = 15.0
"""Below this a round is cheap enough to be repeated; three show whether the machine is quiet."""
DRAINS = 3
"""Drains of the scenario backlog, with and without backlog; the best drains are compared, so that a slow moment of the
disk has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A command that prints its result."""

    json: bool = switch("print only a JSON object")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDisk(Printed):
    """A command that runs servers over folders on a disk."""

    scratch: Path | None = option(Path, "folder for data, on a disk", shown="the temporary folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable(OnDisk):
    """A command that runs servers with a durability."""

    durability: str = option(str, "of the server", "fsync", choices=("fsync", "os"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Durable):
    """The options of a scenario; unused options keep their defaults."""

    scenario: str
    seconds: float = option(decimal(0.1, 3600), "measured time of a round", 10.0)
    warm_up: float = option(decimal(0, 600), "seconds before measuring", 1.0)
    batch: int = option(whole(1, MAX_BATCH), "messages per request", 16)
    body: int = option(whole(MIN_BODY, MAX_BATCH_BYTES), "bytes of each body", 256)
    connections: int = option(whole(1, 100_000), "connections of each kind", 16)
    rate: float = option(decimal(0.1, 200_000), "messages (with endpoints: pushes) a second of an open loop", 2_000.0)
    messages: int = option(whole(1, 100_000_000), "messages", 1_000_000)
    subscribers: int = option(whole(0, 500), "queues that get a copy", 10)
    unmatched: bool = switch("no subscriber matches the published messages")
    acknowledge: bool = switch("consumers delete in the request of the next receive")
    endpoints: int = option(whole(2, 500), "URLs, one subscription each", 20)
    spread: float = option(decimal(1, 3000), "seconds over which messages become due", 60.0)
    saturate: bool = switch("two more processes keep the server's loop busy with batches")
    queues: int = option(whole(0, 1_000_000), "queues without messages", 100_000)
    idle: int = option(whole(0, 100_000), "HTTP connections that stay idle", 10_000)
    flood: float = option(
        decimal(0, 3600), "seconds of a flood by strangers, with the gateway's memory each second", 40.0
    )
    rounds: int | None = option(
        whole(1, 100),
        "rounds, each on a fresh server: best CPU, median latency",
        shown="3 when a round is under 15 s, else 1",
    )
    keep: bool = switch("leave data and server log in the scratch folder")

    def expected_seconds(self) -> float:
        """Return the approximate duration of a round, including the start of the server."""
        match self.scenario:
            case "idle":
                return 5.0 + self.connections / 1_000 + self.seconds
            case "delayed":
                return 10.0 + self.spread + self.messages / 40_000
            case "backlog":
                return 30.0 + self.messages / 60_000
            case "queues":
                return 60.0 + self.queues / 1_000 + 20 * self.seconds
            case "push":
                return 2 * (self.warm_up + self.seconds) + 2.0
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


class Scenario(NamedTuple):
    """A scenario: its summary, its options beside ``COMMON``, and its own defaults."""

    summary: str
    options: Sequence[str]
    defaults: Mapping[str, object] = {}


COMMON = ("body", "durability", "rounds", "scratch", "keep", "json")
SCENARIOS: Mapping[str, Scenario] = {
    "cycle": Scenario(
        "C producers and C consumers at once; a consumer receives, then deletes in a request of its own",
        ("batch", "connections", "seconds", "warm_up", "acknowledge"),
        # Enough connections that a commit holds the requests of many; more bring little.
        {"connections": 64},
    ),
    "send": Scenario(
        "C producers, one request outstanding each",
        ("batch", "connections", "seconds", "warm_up", "saturate"),
        {"connections": 64},
    ),
    "latency": Scenario(
        "one message at a time at a fixed rate, from its intended time to its receipt",
        ("rate", "connections", "seconds", "warm_up"),
        {"batch": 1},
    ),
    "queues": Scenario(
        "one message at a time at a fixed rate beside N quiet queues: checkpoints, memory, starts",
        ("queues", "rate", "connections", "seconds", "warm_up"),
        # The seconds of a window without a checkpoint.
        {"connections": 4, "seconds": 3.0, "batch": 1},
    ),
    "idle": Scenario(
        "connections that all wait in a long poll, woken at random",
        ("connections", "rate", "seconds", "warm_up"),
        {"connections": 10_000, "rate": 500.0, "batch": 1, "warm_up": 2.0},
    ),
    "delayed": Scenario(
        "messages that become due in random order", ("messages", "spread", "connections", "batch"), {"batch": 64}
    ),
    "backlog": Scenario(
        "a queue with very many messages: memory, restart after kill -9, speed of draining",
        ("messages", "batch", "connections"),
        {"messages": 10_000_000, "connections": 64},
    ),
    "transactions": Scenario(
        "C producers send half messages and commit them, one request outstanding each",
        ("batch", "connections", "seconds", "warm_up"),
        {"batch": 1, "connections": 64},
    ),
    "fanout": Scenario(
        "C producers publish to a topic with N queues subscribed, one request outstanding each; no consumers",
        ("batch", "connections", "subscribers", "unmatched", "seconds", "warm_up"),
        {"batch": 1, "connections": 64},
    ),
    "gateway": Scenario(
        "send, receive and delete over HTTP: one gateway and two; the native cycle beside them",
        ("connections", "idle", "seconds", "warm_up", "flood"),
        # Turns of these seconds, see the scenario.
        {"batch": 1, "connections": 64, "seconds": 2.0, "warm_up": 0.5},
    ),
    "push": Scenario(
        "a topic with N URLs at a fixed rate: all answer at once, then all but one never answer",
        ("endpoints", "rate", "seconds", "warm_up"),
        # Long enough for the time-outs of hanging requests (15 s) and the retries after a time-out.
        {"batch": 1, "connections": 4, "rate": 2_400.0, "seconds": 20.0, "warm_up": 2.0},
    ),
}


def defaults(scenario: str) -> Options:
    """Return the default options of a scenario."""
    return replace(Options(scenario=scenario), **SCENARIOS[scenario].defaults)  # pyright: ignore[reportArgumentType]
