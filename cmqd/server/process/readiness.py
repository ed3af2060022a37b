"""Readiness of a broker, for ``/readyz``: of a leader to answer, of a standby to take over.

- A leader is ready unless a proof or an append has kept it waiting for ``WAITS_S``. A broker without redundancy is a
  leader while its storage answers. A question that needs no disk would call a broker ready that is cut off.
- A standby is ready if its last look at the engine whose rows are all copied began less than ``LOOKED_WITHIN_S`` ago,
  and its own rows are replayed. While a leader writes, each look finds rows: the rule asks for copied ones, not for a
  look without any.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from cmqd.log.values import EngineStatus
from cmqd.server.monitoring.server_figures import ServerFigures

WAITS_S: Final = 3.0
LOOKED_WITHIN_S: Final = 10.0


class BrokerRole(StrEnum):
    """Role of a broker."""

    LEADER = "leader"
    STANDBY = "standby"


class Readiness(NamedTuple):
    """Role and readiness at a moment."""

    role: BrokerRole
    reason: str
    """Why the broker is not ready; empty = it is ready. Strangers may read the text."""


def readiness_of_leader(figures: ServerFigures) -> Readiness:
    """Return the readiness of a broker that serves."""
    waited_s = figures.unanswered_s()
    reason = f"the log has not answered for {waited_s:.1f} s" if waited_s >= WAITS_S else ""
    return Readiness(BrokerRole.LEADER, reason)


def readiness_of_standby(status: EngineStatus, now_s: float, *, is_replayed: bool) -> Readiness:
    """Return the readiness of a standby.

    Args:
        status: of the engine.
        now_s: time, by the clock of proofs.
        is_replayed: the rows that the folder had at the start are applied.
    """
    reason = ""
    if not is_replayed:
        reason = "the broker recovers"
    elif not status.copied_s:
        reason = "the standby has not copied the log yet"
    elif now_s - status.copied_s >= LOOKED_WITHIN_S:
        reason = f"the standby has not seen the whole log for {now_s - status.copied_s:.0f} s"
    return Readiness(BrokerRole.STANDBY, reason)
