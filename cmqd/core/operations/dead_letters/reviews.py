"""Reviews: examinations of a queue for dead letters or its redrive, and for messages that can no longer be rewound."""

from cmqd.core.facts.facts import Facts
from cmqd.core.operations.dead_letters.redrives import Redrives
from cmqd.core.operations.dead_letters.search import DeadLetterSearch
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.operations.retention.rewind import Rewind
from cmqd.core.outcome import Effects
from cmqd.core.runtime.runtime import Runtime


class Reviews:
    """Makes the reviews that are due."""

    def __init__(
        self,
        facts: Facts,
        runtime: Runtime,
        rewind: Rewind,
        redrives: Redrives,
        dead_letters: DeadLetterSearch,
        serving: Serving,
    ) -> None:
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._reviews = runtime.agenda.reviews
        self._rewind = rewind
        self._redrives = redrives
        self._dead_letters = dead_letters
        self._serving = serving

    def tick(self, effects: Effects, now_ms: int) -> None:
        """Review one queue, and plan its next review."""
        queue_id = self._reviews.take(now_ms)
        queue = None if queue_id is None else self._queues.by_id.get(queue_id)
        if queue is None:
            return
        times = [self._rewind.prune(queue, now_ms)]
        if self._runtime[queue.queue_id].redriving is not None:
            times.append(self._redrives.go_on(queue, effects, now_ms))
        elif queue.dead_letters is not None:
            times.append(self._dead_letters.find(queue, effects, now_ms))
        # A receive may have waited for the body of a message that is now reserved, with bodies behind the message in
        # memory.
        self._serving.serve(queue, effects, now_ms)
        next_ms = min((time for time in times if time is not None), default=None)
        if next_ms is not None:
            self._reviews.set(queue.queue_id, max(next_ms, now_ms + 1))
