"""A queue with a rewind window."""

from typing import Any

import pytest

from cmqd.core.domain_errors import TimeNotRewindable
from cmqd.core.limits import Limits
from cmqd_fold import time_steps
from support.core.builders import ACCOUNT, Rig
from support.core.facts import facts

HOUR_MS = 3_600_000


def rewindable(
    *bodies: bytes,
    gap_ms: int = 1,
    limits: Limits | None = None,
    rewind_ms: int = HOUR_MS,
    retention_ms: int = 96 * HOUR_MS,
) -> Rig:
    """A queue with these messages, sent from START_MS on at this interval, and all deleted."""
    rig = Rig(limits)
    rig.create(rewind_ms=rewind_ms, retention_ms=retention_ms)
    for body in bodies:
        rig.send(body)
        rig.now_ms += gap_ms
    consume(rig, len(bodies))
    return rig


def consume(rig: Rig, count: int, name: str = "q") -> list[bytes]:
    """Receive and delete; the bodies in the order of arrival."""
    got: list[bytes] = []
    while len(got) < count:
        messages = rig.receive(name, most=16)
        assert messages, f"only {got} came"
        got += [message.body for message in messages]
        assert rig.delete(*[message.receipt_handle for message in messages], name=name) == []
    return got


def ask(rig: Rig, waiter_id: int, time_ms: int) -> Any:
    """A rewind with page-ins that the test answers."""
    return rig.done(rig.broker.rewind(ACCOUNT, "q", waiter_id, time_ms, False, rig.now_ms))


def refused(rig: Rig, time_ms: int, strict: bool = False) -> TimeNotRewindable:
    before = facts(rig.broker)
    with pytest.raises(TimeNotRewindable) as raised:
        rig.rewind(time_ms, strict=strict)
    assert facts(rig.broker) == before
    return raised.value


def merged_in_replay(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A queue with all time steps in the live broker, while a replay of the whole log merges neighbours.

    The live broker drops the steps of pruned messages; a replay does not know the time of the prune.
    """
    monkeypatch.setattr(time_steps, "MAX_STEPS", 128)
    rig = Rig()
    rig.create(rewind_ms=10_000)
    for _ in range(258):
        rig.send(b"x")
        consume(rig, 1)
        rig.settle(1000)
    rig.set(rewind_ms=5_500)
    assert list(rig.queue().index.rewindable) == list(range(253, 258))
    return rig
