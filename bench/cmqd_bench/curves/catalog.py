"""The curves: the varied quantity, its steps, and the expected growth of the cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cmqd_bench.curves import loads
from cmqd_bench.curves.loads import Prepare
from cmqd_bench.figures.results import Scenario

FIXED_COST_BYTES = 8_192
"""Bytes of a body that cost as much as the rest of the message."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve: a quantity that varies in steps, and the load of a step."""

    scenario: Scenario
    steps: Sequence[int]
    quick_steps: Sequence[int]
    prepare: Prepare
    """Prepares the load of a step."""
    max_turns: int = 100
    """Largest number of turns: a curve with steps of minutes is not repeated."""
    room: Callable[[int], int] = lambda step: 1 << 30
    """Bytes of disk that a step may need."""


def _scenario(name: str, title: str, x: str, **further: object) -> Scenario:
    return Scenario(name=name, title=title, x=x, is_curve=True, is_log_x=True, **further)  # pyright: ignore[reportArgumentType]


CURVES: Mapping[str, Curve] = {
    curve.scenario.name: curve
    for curve in (
        Curve(
            _scenario("queues", "send, receive and delete one message, 64 connections over N queues", "queues"),
            (1, 10, 100, 1_000, 10_000),
            (1, 100),
            loads.queues,
        ),
        Curve(
            _scenario("connections", "send one message, N connections, one request outstanding each", "connections"),
            (1, 10, 100, 1_000, 10_000),
            (1, 100),
            loads.connections,
        ),
        Curve(
            _scenario(
                "waiting",
                "send, receive and delete one message, 64 connections beside N waiting receives",
                "waiting connections",
            ),
            (0, 10, 100, 1_000, 10_000),
            (0, 100),
            loads.waiting,
        ),
        Curve(
            _scenario(
                "backlog",
                "send, receive and delete 16 messages per request behind a backlog of N",
                "messages of backlog",
            ),
            (0, 10_000, 100_000, 1_000_000, 10_000_000),
            (0, 10_000),
            loads.backlog,
            max_turns=1,
            room=lambda step: (1 << 30) + 800 * step,
        ),
        Curve(
            _scenario("subscribers", "publish one message to N queues", "subscribed queues", item="copy"),
            (1, 5, 20, 100, 500),
            (1, 20),
            loads.subscribers,
        ),
        Curve(
            _scenario(
                "body",
                "send, receive and delete one message, 16 connections",
                "bytes per body",
                expected_slope=1.0,
                fixed_cost_x=float(FIXED_COST_BYTES),
            ),
            (32, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576),
            (32, 4_096),
            loads.body,
            room=lambda step: (2 << 30) + 20_000 * step,
        ),
        Curve(
            _scenario(
                "batch", "send, receive and delete, 16 connections, N messages per request", "messages per request"
            ),
            (1, 2, 4, 8, 16, 32, 64, 128, 256),
            (1, 16),
            loads.batch,
        ),
        Curve(
            _scenario(
                "rate",
                "send, receive and delete single messages at a fixed rate, open loop",
                "messages a second",
                is_offered_rate=True,
            ),
            (250, 500, 1_000, 2_000, 4_000, 8_000),
            (250, 500),
            loads.rate,
        ),
    )
}
"""The curves by name, in the order in which they run."""
