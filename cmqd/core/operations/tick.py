"""The tick: work that comes due by time, in bounded slices.

Due waits end before leases and delays. Otherwise messages that become active in this tick would go to receives with a
deadline in the past. The review comes after expiry, so expired messages are not searched for dead letters.
"""

from cmqd.core.facts.facts import Facts
from cmqd.core.operations.checks import Checks
from cmqd.core.operations.dead_letters import DeadLetters
from cmqd.core.operations.delays import Delays
from cmqd.core.operations.deliver import Deliver
from cmqd.core.operations.expiry import Expiry
from cmqd.core.operations.prefetch import Prefetch
from cmqd.core.operations.publish import Publish
from cmqd.core.operations.receive import Receive
from cmqd.core.operations.redrives import Redrives
from cmqd.core.operations.rewind import Rewind
from cmqd.core.operations.serving import Serving
from cmqd.core.operations.settle import Settle
from cmqd.core.outcome import Effects, Outcome
from cmqd.core.runtime.runtime import Runtime


class Tick:
    """Does due work."""

    __slots__ = (
        "_agenda",
        "_checks",
        "_dead_letters",
        "_delays",
        "_deliver",
        "_expiry",
        "_prefetch",
        "_publish",
        "_queues",
        "_receive",
        "_redrives",
        "_rewind",
        "_runtime",
        "_serving",
        "_settle",
    )

    def __init__(
        self,
        facts: Facts,
        runtime: Runtime,
        receive: Receive,
        publish: Publish,
        settle: Settle,
        prefetch: Prefetch,
        delays: Delays,
        expiry: Expiry,
        rewind: Rewind,
        redrives: Redrives,
        dead_letters: DeadLetters,
        checks: Checks,
        deliver: Deliver,
        serving: Serving,
    ) -> None:
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._receive = receive
        self._publish = publish
        self._settle = settle
        self._prefetch = prefetch
        self._delays = delays
        self._expiry = expiry
        self._rewind = rewind
        self._redrives = redrives
        self._dead_letters = dead_letters
        self._checks = checks
        self._deliver = deliver
        self._serving = serving

    def tick(self, now_ms: int) -> Outcome[None]:
        """Do a bounded slice of the due work: end waits and leases, activate delayed messages, expire messages, ..."""
        effects = Effects()
        self._receive.tick_ended_waits(effects)
        self._publish.tick(effects, now_ms)
        self._receive.tick_waits(effects, now_ms)
        self._settle.tick_leases(effects, now_ms)
        self._prefetch.tick(effects, now_ms)
        self._delays.tick_delays(effects, now_ms)
        self._delays.tick_overflow(effects)
        self._expiry.tick(effects, now_ms)
        self._review(effects, now_ms)
        self._checks.tick(effects, now_ms)
        self._deliver.tick(effects, now_ms)
        self._expiry.tick_dedup_ids(now_ms)
        self._expiry.tick_sessions(now_ms)
        return effects.outcome(None)

    def _review(self, effects: Effects, now_ms: int) -> None:
        """Examine a queue for dead letters or its redrive, and for messages that can no longer be rewound."""
        queue_id = self._agenda.reviews.take(now_ms)
        queue = None if queue_id is None else self._queues.by_id.get(queue_id)
        if queue is None:
            return
        times = [self._rewind.prune(queue, now_ms)]
        if self._runtime[queue.queue_id].redriving is not None:
            times.append(self._redrives.go_on(queue, effects, now_ms))
        elif queue.dead_letters is not None:
            times.append(self._dead_letters.find(queue, effects, now_ms))
        # A receive may have waited for the body of a message that is now to be moved, with others behind it in memory.
        self._serving.serve(queue, effects, now_ms)
        next_ms = min((time for time in times if time is not None), default=None)
        if next_ms is not None:
            self._agenda.reviews.set(queue.queue_id, max(next_ms, now_ms + 1))
