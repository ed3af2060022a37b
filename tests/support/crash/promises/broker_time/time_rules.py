"""Rules about broker time with redundancy: only takeovers lose time, and no clock adds time."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from support.crash.promises.broker_time.bounds import ShownTime, sights
from support.crash.promises.history import History
from support.crash.promises.ledger import Ledger, Rule, Violation

_STALL_MS = 10_000
"""Broker time is read once per poll of the sockets: a request that comes in while the process is held up gets a time
before its call. The slew is much less."""


def check_broker_time(ledger: Ledger) -> Iterator[Violation]:
    """Broker time never runs back or ahead of this machine's clock, and stands still at takeovers only.

    The clock of the first leader is right. A takeover may lose the time since the last answer.
    """
    history = ledger.history
    if not history.leads_ns:
        return
    shown = ShownTime(history)
    lost_ms = list(accumulate(_stands_still_ms(history)))
    for sight in sights(history):
        back_ms = shown.seen_ms(sight.called_ns) - sight.time_ms
        if back_ms > 0:
            yield Violation(Rule.TIME_KEPT, f"broker time ran back by {back_ms:.0f} ms, to {sight.time_ms}")
        ahead_ms = sight.time_ms - shown.latest_ms(sight.answered_ns)
        if ahead_ms > 0:
            yield Violation(Rule.TIME_KEPT, f"broker time {sight.time_ms} was at least {ahead_ms:.0f} ms ahead")
        takeovers = bisect_right(history.leads_ns, sight.called_ns)
        behind_ms = history.wall_ms(sight.called_ns) - sight.time_ms
        excused_ms = lost_ms[takeovers - 1] if takeovers else 0.0
        if behind_ms > excused_ms + _STALL_MS:
            yield Violation(
                Rule.TIME_KEPT,
                f"broker time {sight.time_ms} was {behind_ms:.0f} ms behind, and takeovers explain {excused_ms:.0f} ms",
            )


def _stands_still_ms(history: History) -> Iterator[float]:
    """Yield for each leader the longest time for which broker time may have stood still at its takeover."""
    answered_ns = sorted(sight.answered_ns for sight in sights(history))
    for lead_ns in history.leads_ns:
        index = bisect_right(answered_ns, lead_ns)
        yield (lead_ns - answered_ns[index - 1]) / 1e6 if index else 0.0
