"""Checks: asking producers for decisions about half messages that are undecided for too long.

Due times are in buckets, by the time of the next check. A due position moves from its bucket to a set, and stays there
until a check is sent: while no client answers checks for the queue, and while the body is read from the log.

A check is counted when the check is sent. If checks were counted when due, a message could use up ``max_checks``
while no producer was connected, and would never be decided.
"""

from array import array
from collections.abc import Sequence
from itertools import islice

from pyroaring import BitMap64

from cmqd.core.domain_errors import NotTransactional
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.outcome import Check, Effects, Outcome
from cmqd.core.runtime.pages import Reading
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import Runs, StoredMessage, TransactionsChecked, pack_runs

CHECK_SWEEP_ABOVE = 1_000_000
"""Entries in buckets, at 8 bytes each, above which stale entries are swept."""


class Checks:
    """Asks producers about half messages."""

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._limits = facts.limits
        self._queues = facts.queues
        self._buckets = facts.queues.checks
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._commits = runtime.commits
        self._once_more = runtime.once_more
        self._lane = runtime.pages.checks
        self._sweep_above = CHECK_SWEEP_ABOVE

    def set_has_checkers(self, account: str, name: str, has_checkers: bool) -> None:
        """Set whether a connected client answers checks of a queue's half messages. Without a checker due checks stay
        due. The edge may withdraw a checker for a while if it does not keep up.

        Raises:
            QueueNotFound, NotTransactional: only for ``has_checkers``; its absence may be reported for any name.
        """
        queue = self._queues.find(account, name) if has_checkers else self._queues.names.get(account, {}).get(name)
        if queue is None:
            return
        if has_checkers and not queue.index.attributes.transactional:
            raise NotTransactional(name)
        # Kept in memory only: after a restart no client is connected, so no queue has a checker.
        self._runtime[queue.queue_id].has_checkers = has_checkers
        if has_checkers:
            self.take_up(queue)

    def check_again(self, account: str, name: str, message_ids: Sequence[int], now_ms: int) -> Outcome[None]:
        """Check these half messages once more, with another client: the client that was asked disconnected without an
        answer.

        The repeated check may exceed the limit of checks by one, because the lost check gave the producer no chance to
        answer. Messages decided meanwhile are left alone.
        """
        del now_ms
        queue = self._queues.names.get(account, {}).get(name)
        if queue is not None:
            index = queue.index
            positions = [index.halves.position_of(message_id) for message_id in message_ids]
            # Without the messages that were decided since: the lost client may have answered before its connection
            # ended.
            again = BitMap64([known for known in positions if known is not None]) & index.half
            self.want(queue, again)
            checked, max_checks = index.halves.checked, index.attributes.max_checks
            for position in again:
                # Below the limit the repeated check is the next check, and is counted. Only at the limit it needs
                # permission.
                if position in checked and checked[position].attempts >= max_checks:
                    self._once_more.setdefault(queue.queue_id, BitMap64()).add(position)
        return Outcome(None)

    def want(self, queue: Queue, positions: BitMap64) -> None:
        """Let half messages be checked as soon as a client answers checks."""
        if positions:
            self._queues.add_due_checks(queue.queue_id, positions)
            self.take_up(queue)

    def take_up(self, queue: Queue) -> None:
        """Let the next tick send the due checks of a queue, if a client answers checks and no page is being read."""
        queue_id = queue.queue_id
        if (
            self._queues.due_checks.get(queue_id)
            and queue_id not in self._lane.busy
            and self._runtime[queue_id].has_checkers
        ):
            self._agenda.checks_wanted[queue_id] = None

    def forget(self, queue: Queue) -> None:
        """Forget the checks of a queue that is deleted."""
        self._once_more.pop(queue.queue_id, None)

    def tick(self, effects: Effects, now_ms: int) -> None:
        """Take due entries from the buckets, and send a slice of the due checks of a queue."""
        # Buckets first: a check that comes due in this tick can be sent in this tick.
        due = self._buckets.take_due(now_ms, self._limits.tick_items)
        if due is not None:
            queue = self._queues.by_id.get(due[0])
            if queue is not None:
                self.want(queue, self._current(queue, due[1], now_ms))
        in_line = self._agenda.checks_wanted
        if in_line:
            # The first queue in line. A queue with checks left goes to the end, so that a large queue does not hold up
            # the others.
            queue_id = next(iter(in_line))
            del in_line[queue_id]
            queue = self._queues.by_id.get(queue_id)
            if queue is not None and self._runtime[queue_id].has_checkers:
                self._check_some(queue, effects, now_ms)

    def _current(self, queue: Queue, positions: "array[int]", now_ms: int) -> BitMap64:
        """Return the positions that are still half and have no entry for a later time."""
        # A decision does not search the buckets for its message, and neither does a check that was planned anew.
        # Entries are compared with the facts here instead, once, when they come due.
        half = BitMap64(positions) & queue.index.half
        checked = queue.index.halves.checked
        if checked:
            half -= BitMap64(
                [position for position in half if position in checked and checked[position].next_check_ms > now_ms]
            )
        return half

    def _check_some(self, queue: Queue, effects: Effects, now_ms: int) -> None:
        """Send the due checks with bodies in memory, up to a slice; then read the bodies of the next checks."""
        index, half = queue.index, self._runtime[queue.queue_id].window.half
        # Messages leave the set of due checks here and not when they are decided: a decision would pay for a look into
        # a set in which its message seldom is.
        due = self._queues.add_due_checks(queue.queue_id, BitMap64())
        due &= index.half
        # No check can be sent without a body. The next read of the log after a restart may find the body repaired.
        due -= index.halves.unreadable
        once_more = self._once_more.get(queue.queue_id)
        if once_more is not None:
            once_more &= index.half
        in_memory: list[StoredMessage] = []
        elsewhere: list[int] = []
        size = 0
        for position in islice(due, self._limits.tick_items):
            message = half.get(position)
            if message is None:
                if len(elsewhere) < self._limits.page_messages:
                    elsewhere.append(position)
            else:
                size += len(message.body)
                # A tick sends about as many bytes as a batch of messages has. The first check goes out whatever its
                # size.
                if size > self._limits.max_batch_bytes and in_memory:
                    break
                in_memory.append(message)
        # Bodies in memory go out now; the others are read afterwards, so one slow read does not hold up the checks of
        # messages that were sent a moment ago.
        self._ask(queue, due, in_memory, effects, now_ms)
        elsewhere = [position for position in elsewhere if self._may_ask(queue, due, position)]
        if elsewhere:
            queue_id = queue.queue_id
            self._lane.want(queue_id, queue_id, elsewhere, self._limits.page_bytes, None, effects.reads)
        elif due:
            # Without a page, or the page does this when it arrives. In line meanwhile, the queue would ask for the same
            # bodies.
            self._agenda.checks_wanted[queue.queue_id] = None

    def _may_ask(self, queue: Queue, due: BitMap64, position: int) -> bool:
        """Return whether a check may be sent; if not, the position leaves the due checks.

        No check is sent while a commit waits for the body: the producer has decided already. After ``max_checks`` a
        check is sent only once more for every :meth:`check_again`.
        """
        known = queue.index.halves.checked.get(position)
        commits = self._commits.get(queue.queue_id)
        is_being_committed = commits is not None and position in commits.decisions
        is_enough = known is not None and known.attempts >= queue.index.attributes.max_checks
        once_more = self._once_more.get(queue.queue_id)
        if is_being_committed or (is_enough and (once_more is None or position not in once_more)):
            self._is_settled(queue, due, position)
            return False
        return True

    def _is_settled(self, queue: Queue, due: BitMap64, position: int) -> None:
        """Remove a half message from the due checks."""
        due.discard(position)
        once_more = self._once_more.get(queue.queue_id)
        if once_more is not None:
            once_more.discard(position)
            if not once_more:
                del self._once_more[queue.queue_id]

    def _ask(
        self,
        queue: Queue,
        due: BitMap64,
        messages: Sequence[StoredMessage],
        effects: Effects,
        now_ms: int,
    ) -> None:
        """Send and count a check for every half message that is due, not expired and may be checked."""
        index = queue.index
        attributes = index.attributes
        asked: list[int] = []
        next_check_ms: list[int] = []
        for message in messages:
            position = message.position
            if position not in due or not self._may_ask(queue, due, position):
                continue
            # In any case, also without a check: an expired message that stayed due would come up in every tick.
            self._is_settled(queue, due, position)
            # A commit after the retention is refused, so a question about an expired message would be in vain.
            age_ms = now_ms - message.enqueue_ms
            if age_ms >= attributes.retention_ms or position not in index.half:
                continue
            known = index.halves.checked.get(position)
            attempt = 1 if known is None else known.attempts + 1
            first_ms = message.visible_ms - message.enqueue_ms
            # Doubling intervals: a producer that is down for hours is not asked every second for each of its messages.
            interval_ms = min(self._limits.max_check_interval_ms, first_ms << attempt)
            # 0 for the last check: no further check is planned, and a later change of ``max_checks`` finds the message
            # by it.
            asked.append(position)
            next_check_ms.append(now_ms + interval_ms if attempt < attributes.max_checks else 0)
            effects.checks.append(Check(queue.account, queue.name, message, age_ms, attempt))
        if asked:
            # In the outcome that has the checks: no check leaves the core uncounted, or a producer could be asked again
            # and again over restarts.
            record = TransactionsChecked(queue.queue_id, pack_runs(asked), now_ms, next_check_ms)
            self._queues.apply_checked(queue, record)
            effects.records.append(record)

    def on_page(
        self, reading: Reading[None], messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Send the checks of a page. If no client answers checks any more, the checks stay due."""
        # Before any return: while the queue is busy, its due checks are not taken up.
        self._lane.busy.discard(reading.owner_id)
        queue = self._queues.by_id.get(reading.owner_id)
        if queue is None:
            return 0
        due = self._queues.add_due_checks(queue.queue_id, BitMap64())
        # Before the checks of the page are sent: the next look at the due checks leaves these messages out.
        damaged = queue.index.set_damaged(missing) if missing else 0
        if self._runtime[queue.queue_id].has_checkers:
            self._ask(queue, due, messages, effects, now_ms)
            if due:
                # At the next tick, so that other queues come in between.
                self._agenda.checks_wanted[queue.queue_id] = None
        return damaged

    def sweep_if_many(self) -> None:
        """Remove stale entries if there are many: most half messages are decided long before their check is due."""
        if self._buckets.size <= self._sweep_above:
            return
        kept = self._buckets.sweep(self._checks_due)
        if kept is not None:
            self._sweep_above = max(CHECK_SWEEP_ABOVE, 2 * kept)

    def _checks_due(self, due_ms: int, queue_id: int, positions: "array[int]") -> "array[int]":
        queue = self._queues.by_id.get(queue_id)
        if queue is None:
            return array("Q")
        return array("Q", self._current(queue, positions, due_ms))
