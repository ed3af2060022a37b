"""The rows of the table: the work of each, and the order in which peers take turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cmqd_bench.commands.arguments import WrongArguments
from cmqd_bench.figures.results import Scenario

TABLE_RATE = 2_000
"""The open loop that is a row of the table; further rates show the latency over the rate."""
GATE_REQUESTS = 16
"""Requests of all consumers by which the producers of a cycle may be ahead, as in the scenario ``cycle``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A row of the table."""

    name: str
    title: str
    producers: int = 0
    consumers: int = 0
    outstanding: int = 1
    batch: int = 1
    rate: float = 0.0
    """Sends a second of an open loop; 0 = closed loop."""
    fill_per_second: int = 0
    """Messages that are sent before the run, for each second of the run; 0 = the queue is empty."""
    records: Literal["sends", "pairs", "stamps"] = "sends"
    max_turns: int = 100
    """Largest number of turns."""
    latency: str = "request to reply"
    """The meaning of the latency."""

    @property
    def connections(self) -> int:
        """Return the number of connections."""
        return self.producers + self.consumers

    @property
    def ahead(self) -> int:
        """Return the bound of the messages by which producers may be ahead; 0 = no bound."""
        is_cycle = self.producers > 0 and self.consumers > 0 and self.rate == 0
        return GATE_REQUESTS * self.consumers * self.batch if is_cycle else 0

    def scenario(self) -> Scenario:
        """Return the row's entry in a file of results."""
        return Scenario(name=self.name, title=self.title)


def at_rate(rate: int, max_turns: int = 100) -> Work:
    """Return an open loop with this rate; readers of results take the rate from the name."""
    return Work(
        name=f"rate-{rate}",
        title=f"{rate:,}/s end to end, 16 producers and 16 consumers",
        producers=16,
        consumers=16,
        outstanding=64,
        rate=rate,
        records="stamps",
        max_turns=max_turns,
        latency="intended time of sending to receipt",
    )


WORKS: Sequence[Work] = (
    Work(name="send-1x1", title="send, 1 connection, one outstanding", producers=1),
    Work(name="send-64x1", title="send, 64 connections, one outstanding each", producers=64),
    Work(name="send-8x128", title="single sends, 8 connections, 128 outstanding each", producers=8, outstanding=128),
    Work(
        name="receive-delete-8",
        title="receive 1 + delete 1, 8 connections",
        consumers=8,
        fill_per_second=16_000,
        records="pairs",
        latency="receive to the delete's answer",
    ),
    Work(
        name="cycle-64",
        title="cycle, batch 1, 64 producers and 64 consumers",
        producers=64,
        consumers=64,
        records="stamps",
        latency="send to receipt",
    ),
    at_rate(TABLE_RATE),
    Work(
        name="cycle-16-batch-16",
        title="cycle, batch 16, 16 producers and 16 consumers",
        producers=16,
        consumers=16,
        batch=16,
        records="stamps",
        latency="send to receipt",
    ),
    Work(name="batches-8", title="best batches: 256 messages, 8 connections", producers=8, outstanding=2, batch=256),
)
"""The rows of the table, in its order."""
RATE_TURNS = 1
RATES: Sequence[Work] = tuple(
    at_rate(rate, 100 if rate == TABLE_RATE else RATE_TURNS)
    for rate in (250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 16_000)
)
"""Open loops for the latency over the rate. Rates that are no row of the table have a single turn."""
RATES_NAME = "rates"
"""The name of all rows of ``RATES``."""
TABLE_NAME = "table"
"""The name of all rows of the table."""


def works_of(names: Sequence[str]) -> Sequence[Work]:
    """Return the rows with these names, in the order of the table; without names all rows of the table.

    Raises:
        WrongArguments: a name is no row's name.
    """
    work_by_name = {work.name: work for work in (*WORKS, *RATES)}
    groups = {TABLE_NAME: [work.name for work in WORKS], RATES_NAME: [work.name for work in RATES]}
    chosen: set[str] = set()
    for name in names or (TABLE_NAME,):
        if name not in work_by_name and name not in groups:
            raise WrongArguments(f"{name!r} is no row; the rows are {', '.join((*work_by_name, *groups))}")
        chosen.update(groups.get(name, (name,)))
    return [work for name, work in work_by_name.items() if name in chosen]


def turn_order(peers: int, turn: int) -> Sequence[int]:
    """Return the order of the peers in a turn (from 1). The first peer changes with the turn, and even turns run
    backwards, so a peer does not always follow the same peer.
    """
    if not peers:
        return ()
    start = (turn - 1) % peers
    order = [(start + offset) % peers for offset in range(peers)]
    return order if turn % 2 else order[::-1]
