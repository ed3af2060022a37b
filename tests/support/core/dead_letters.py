"""A queue with a dead-letter queue."""

from typing import Any

import pytest

from cmqd.core.domain_errors import DomainError
from cmqd.core.limits import Limits
from cmqd_segment.records import MessagesSent
from support.core.builders import ACCOUNT, NaiveLog, Rig
from support.core.facts import facts

MINUTE_MS = 60_000
AFTER_MS = 300_000
VISIBLE_MS = 1000


def by_receives(most: int = 1, limits: Limits | None = None, **attributes: Any) -> Rig:
    """``q`` with ``dlq``, policy 0; leases of a second."""
    rig = Rig(limits)
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=most, visibility_timeout_ms=VISIBLE_MS)
    if attributes:
        rig.set(**attributes)
    return rig


def by_age(limits: Limits | None = None, rewind_ms: int = 0) -> Rig:
    """``q`` with ``dlq``, policy 1."""
    rig = Rig(limits)
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_after_ms=AFTER_MS, rewind_ms=rewind_ms)
    return rig


def fail(rig: Rig, times: int = 1, most: int = 16) -> None:
    """Receive, and let the leases end."""
    for _ in range(times):
        assert rig.receive(most=most, visibility_timeout_ms=VISIBLE_MS)
        rig.settle(VISIBLE_MS + 100)


def refused(rig: Rig, error: type[DomainError], name: str = "q", **attributes: Any) -> DomainError:
    before = facts(rig.broker)
    names = [one for _, one in rig.broker.list_queues(ACCOUNT, "", 0, 100)[1]]
    call = rig.set if name in names else rig.create
    with pytest.raises(error) as raised:
        call(name, **attributes)
    assert facts(rig.broker) == before
    return raised.value


def dead(rig: Rig) -> list[bytes]:
    """Bodies of the dead letters, looked at in a broker of its own."""
    again = rig.crash()
    found: list[bytes] = []
    while bodies := again.bodies("dlq", most=256):
        found += bodies
    return found


def crashed_after(rig: Rig, rows: int) -> Rig:
    """A broker that was killed when this number of rows was durable."""
    log = NaiveLog()
    log.rows = rig.log.rows[:rows]
    for _, record in log.records():
        if isinstance(record, MessagesSent):
            first = record.first_position
            keys = [(record.queue_id, position) for position in range(first, first + len(record.sizes))]
            log.stored.update((key, rig.log.stored[key]) for key in keys)
    return Rig(rig.limits, log=log).crash()
