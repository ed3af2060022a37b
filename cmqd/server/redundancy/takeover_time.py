"""Broker time at a takeover: the newest row's time, plus the time that certainly passed since.

Without redundancy a start reads the wall clock (``loop.clock``). A standby's wall clock is another machine's,
and may be two hours ahead unnoticed: messages would expire and leases end at the takeover. Too little time makes
messages wait; too much time loses them.

- *Warm*: this broker saw a row of the newest row's epoch arrive while it followed. The time of its own boot clock since
  then has certainly passed. No other clock is asked, because all others may be wrong together: the new leader's machine
  often has the new primary of the engine too.
- *Cold*: the smaller of two differences. The engine's clock at the fence less its stamp of the row: the clocks of two
  servers, if the primary has changed. And the own wall clock less the time that it should have shown at the row, which
  is broker time plus the recorded offset. The wall clock only shortens the first difference; without a stamp broker
  time stands still.
- Imported rows have no stamp, and no leader of the engine before: the first leader starts as any broker on a folder.

A recorded offset below 0 counts as 0, because the offset would add time that no clock has shown: the wall clock may
have been set right since (decision 0070). An offset above 0 counts although a different machine's clock had the offset:
the offset can only shorten.
"""

from enum import StrEnum
from typing import NamedTuple

from cmqd.log.values import Takeover
from cmqd.server.broker_logger import get_logger

_log = get_logger()


class Evidence(StrEnum):
    """The clocks that broker time at a takeover rests on."""

    FOLLOWED = "followed"
    CLOCKS = "clocks"
    NONE = "none"


class ResumedTime(NamedTuple):
    """Broker time at a takeover."""

    time_ms: int
    passed_ms: int
    """Time that was added to the newest row's time."""
    evidence: Evidence


def resumed_time(takeover: Takeover | None, *, offset_ms: int, wall_ms: int, now_s: float) -> ResumedTime | None:
    """Return broker time at a takeover; None where the wall clock decides.

    Args:
        takeover: the newest row; None without redundancy, and for a log without a row.
        offset_ms: the offset that the log records: lead of the wall clock over broker time.
        wall_ms: the own wall clock.
        now_s: the clock of proofs.
    """
    if takeover is None or takeover.is_imported:
        return None
    if takeover.seen is not None:
        seen_ms = takeover.seen.time_ms + int((now_s - takeover.seen.seen_s) * 1000)
        passed_ms, evidence = seen_ms - takeover.time_ms, Evidence.FOLLOWED
    elif takeover.engine_ms is not None:
        since_take_ms = int((now_s - takeover.taken_s) * 1000)
        by_wall_ms = wall_ms - takeover.time_ms - max(offset_ms, 0)
        passed_ms, evidence = min(takeover.engine_ms + since_take_ms, by_wall_ms), Evidence.CLOCKS
    else:
        passed_ms, evidence = 0, Evidence.NONE
    passed_ms = max(passed_ms, 0)
    return ResumedTime(takeover.time_ms + passed_ms, passed_ms, evidence)


def needs_row(takeover: Takeover | None, last_time_ms: int, *, epoch: int) -> bool:
    """Return True if the log has times, but no row of a leader of the engine: its first leader must store one.

    Args:
        takeover: see ``resumed_time``.
        last_time_ms: the last time in the log, that of its checkpoint included.
        epoch: of this leader; 0 without redundancy.
    """
    return bool(epoch and last_time_ms) and (takeover is None or takeover.is_imported)


def log_resumed_time(takeover: Takeover | None, resumed: ResumedTime | None) -> None:
    """Log broker time at a takeover, and the lack of stamps, which the next takeover would need."""
    if resumed is not None:
        _log.info("broker_time_resumed", passed_ms=resumed.passed_ms, evidence=str(resumed.evidence))
        if resumed.evidence is Evidence.NONE:
            _log.warning(
                "broker_time_stood_still",
                text="the newest row has no stamp of the engine's clock, so the time since does not count: messages"
                " wait longer by that time",
            )
    if takeover is not None and not takeover.has_stamps:
        _log.warning(
            "engine_without_stamps",
            text="the engine's table has no column for stamps, and this broker's role may not add it, or had to wait:"
            " if both brokers stop, that time will not count. cmqd ha check prints the statement",
        )
