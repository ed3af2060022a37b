"""The broker: every operation on queues and messages, as pure functions of state, arguments and ``now_ms``.

An operation validates (raising a DomainError before anything changed), decides on records, applies them through the
same ``apply`` methods that recovery uses, and returns an Outcome. It never waits, reads no clock and touches no disk:
what it needs from the log comes back through :meth:`Broker.pages_read`, what time brings through :meth:`Broker.tick`.
The operations are in modules of their own, one for each theme; this class is their sum.
"""

from collections.abc import Sequence

from cmqd.core.administration import Administration
from cmqd.core.facts.dedup import DedupIds
from cmqd.core.outcome import Effects, Outcome
from cmqd.core.peeking import Peeking
from cmqd.core.recovery import Recovery
from cmqd.core.runtime.window import cost
from cmqd.core.sending import Sending
from cmqd.core.settling import Settling
from cmqd.core.ticking import Ticking
from cmqd.core.topics import Topics
from cmqd_segment.records import Runs, StoredMessage


class Broker(Administration, Topics, Ticking, Settling, Sending, Peeking, Recovery):
    """All queues of all accounts, and the numbers that they share.

    ``handle_key``: see :mod:`cmqd.core.receipts`; it must stay the same over restarts, or handles lose their meaning.
    ``seed``: any number, for the random part of pauses between deliveries.
    """

    def pages_read(self, read_id: int, messages: Sequence[StoredMessage], missing: Runs, now_ms: int) -> Outcome[int]:
        """The log's answer to a PageRead: a prefix of what was asked, and the positions that cannot be read.

        The reply is how many messages were newly found to be damaged; they are no longer receivable.
        """
        effects = Effects()
        damaged = 0
        if read_id in self._reads:
            queue_id, read = self._reads.pop(read_id)
            queue = self.queues.get(queue_id)
            if queue is not None:
                damaged = self._page_arrived(queue, read, messages, missing)
                # What came goes out before others need room for their bodies and drop it; it starts no read, for ...
                self._serve(queue, effects, now_ms)
            # ... those who stand in line for a page-in come before this queue's next one.
            while self._read_line and len(self._reads) < self.limits.max_reads:
                waiting = self.queues.get(self._read_line.popleft())
                if waiting is not None:
                    waiting.read_wanted = False
                    self._serve(waiting, effects, now_ms)
            if queue is not None:
                queue.reading = False
                self._serve(queue, effects, now_ms)
        elif read_id in self._prefetches:
            read = self._prefetches.pop(read_id)
            queue = self.queues.get(read.queue_id)
            if queue is not None:
                self._prefetch_arrived(queue, read, messages, missing)
                self._prefetch(queue, effects)
                self._serve(queue, effects, now_ms)
        elif read_id in self._move_reads:
            queue = self.queues.get(self._move_reads.pop(read_id).queue_id)
            if queue is None:
                self._read_next_in_line(effects)
            else:
                damaged = self._moves_arrived(queue, messages, missing, effects, now_ms)
        elif read_id in self._rewind_reads:
            self._rewind_arrived(read_id, messages, effects, now_ms)
        elif read_id in self._overflow_reads:
            queue = self.queues.get(self._overflow_reads.pop(read_id))
            if queue is not None:
                damaged = self._overflow_arrived(queue, messages, missing, effects, now_ms)
                self._tick_overflow(queue, effects)
        elif read_id in self._commit_reads:
            damaged = self._commits_arrived(self._commit_reads.pop(read_id), messages, missing, effects, now_ms)
        elif read_id in self._check_reads:
            queue = self.queues.get(self._check_reads.pop(read_id))
            if queue is not None:
                damaged = self._checks_arrived(queue, messages, missing, effects, now_ms)
        elif read_id in self._delivery_reads:
            damaged = self._deliveries_arrived(read_id, messages, missing, effects, now_ms)
        elif read_id in self._peeks:
            damaged = self._peek_arrived(read_id, messages, missing, effects, now_ms)
        return effects.outcome(damaged)

    def check_invariants(self) -> None:
        """Assert what the classes promise; for tests."""
        for queue in self.queues.values():
            queue.index.check_invariants()
            assert self._names[queue.account][queue.name] is queue
            for position in queue.window.messages:
                assert position in queue.index.active, "the window holds a body that is not active"
            for position in queue.window.soon:
                assert position in queue.index.delayed, "the window holds a body ahead of time that is not delayed"
            for position in queue.window.half:
                assert position in queue.index.half, "the window holds a body as half that is not"
        for topic in self.topics.values():
            assert self._topic_names[topic.account][topic.name] is topic
            for subscription_id, subscription in topic.subscriptions.items():
                assert self.subscriptions[subscription_id] is subscription
                if self._salvage is None:
                    assert subscription.flows == subscription.may_flow(), "messages take another way than they may"
                subscription.deliveries.check_invariants()
        assert sum(endpoint.under_way for endpoint in self._endpoints.values()) == len(self._pushes)
        assert sum(not is_trusted for _, is_trusted in self._pushes.values()) == self._doubtful_pushes
        windows = [queue.window for queue in self.queues.values()]
        assert self._budget.used == sum(window.size for window in windows)
        for window in windows:
            held = [*window.messages.values(), *window.soon.values(), *window.half.values()]
            assert window.size == sum(map(cost, held))
            assert window.half_size == sum(map(cost, window.half.values()))
        for commits in self._commits.values():
            assert all(commits.decisions.values()), "somebody is said to wait for a commit, and nobody does"
        assert sorted(self._commits) == sorted(self._commit_reads.values()), "a commit waits for a page nobody reads"
        waiting = {
            request.waiter_id: request
            for commits in self._commits.values()
            for decisions in commits.decisions.values()
            for request, *_ in decisions
        }
        for waiter_id, request in self._deciding.items():
            assert waiting[waiter_id] is request, "a request waits, and none of its decisions does"
        tables: dict[str, list[DedupIds]] = {}
        for queue in self.queues.values():
            tables.setdefault(queue.account, []).append(queue.dedup_ids)
        for topic in self.topics.values():
            if topic.known_dedup_ids is not None:
                tables.setdefault(topic.account, []).append(topic.known_dedup_ids)
        self.promises.memory.check_invariants(tables, self.sessions)
        ended = sum(waiter_id in self._waiters for _, waiter_ids in self._ended_waits for waiter_id in waiter_ids)
        assert len(self._waiters) == ended + sum(len(queue.line.waiting) for queue in self.queues.values())
