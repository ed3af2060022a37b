"""Checks: asking producers what is to become of half messages of which nobody said anything.

Due times are in buckets, by the time of the next check. What comes due leaves them for a set of positions, where it
stays until a check is sent: while nobody answers checks for the queue, and while the body is read from the log. A check
is counted when it is sent, and only then.
"""

from array import array
from collections.abc import Sequence
from itertools import islice

from pyroaring import BitMap64

from cmqd.core.errors import NotTransactional
from cmqd.core.outcome import Check, Effects, Outcome
from cmqd.core.queue import Queue
from cmqd.core.receiving import Receiving
from cmqd.core.state import CHECK_SWEEP_ABOVE, PendingChecks
from cmqd_segment.records import Runs, StoredMessage, TransactionsChecked, pack_runs


class Checking(Receiving):
    """The part of the broker that asks about half messages."""

    def set_has_checkers(self, account: str, name: str, has_checkers: bool) -> None:
        """Whether there is anybody who answers checks of a queue's half messages; what is due meanwhile stays due. The
        edge may take this back for a while from one that does not keep up.

        Raises:
            QueueNotFound, NotTransactional: only for ``has_checkers``; that nobody is there can be said of any name.
        """
        queue = self.queue(account, name) if has_checkers else self._names.get(account, {}).get(name)
        if queue is None:
            return
        if has_checkers and not queue.index.attributes.transactional:
            raise NotTransactional(name)
        queue.has_checkers = has_checkers
        checks = self._checks.get(queue.queue_id)
        if has_checkers and checks is not None and checks.due and not checks.reading:
            self._checks_wanted[queue.queue_id] = None

    def check_again(self, account: str, name: str, message_ids: Sequence[int], now_ms: int) -> Outcome[None]:
        """Who was asked about these half messages has gone away without an answer: ask again, another one, and be it
        once more than is allowed. Whatever is decided by now is left alone.
        """
        del now_ms
        queue = self._names.get(account, {}).get(name)
        if queue is not None:
            index = queue.index
            positions = [index.halves.position_of(message_id) for message_id in message_ids]
            again = BitMap64([one for one in positions if one is not None]) & index.half
            self._want_checks(queue, again)
            checked, most = index.halves.checked, index.attributes.max_checks
            for position in again:
                if position in checked and checked[position].attempts >= most:
                    self._checks[queue.queue_id].once_more.add(position)
        return Outcome(None)

    def _tick_checks(self, effects: Effects, now_ms: int) -> None:
        """See what has come due, and ask about a slice of one queue's."""
        due = self._check_buckets.take_due(now_ms, self.limits.tick_items)
        if due is not None:
            queue = self.queues.get(due[0])
            if queue is not None:
                self._want_checks(queue, self._current(queue, due[1], now_ms))
        if self._checks_wanted:
            # The first in line; it goes to the end if anything is left.
            queue_id = next(iter(self._checks_wanted))
            del self._checks_wanted[queue_id]
            queue, wanted = self.queues.get(queue_id), self._checks.get(queue_id)
            if queue is not None and wanted is not None and queue.has_checkers:
                self._check_some(queue, wanted, effects, now_ms)

    def _current(self, queue: Queue, positions: "array[int]", now_ms: int) -> BitMap64:
        """Those that are still half and that have no entry for a later time."""
        half = BitMap64(positions) & queue.index.half
        checked = queue.index.halves.checked
        if checked:
            half -= BitMap64([one for one in half if one in checked and checked[one].next_check_ms > now_ms])
        return half

    def _check_some(self, queue: Queue, wanted: PendingChecks, effects: Effects, now_ms: int) -> None:
        """Ask about those whose bodies are in memory, up to a slice; then page in those that come next."""
        index, half = queue.index, queue.window.half
        wanted.due &= index.half
        wanted.once_more &= index.half
        wanted.due -= index.halves.unreadable
        in_memory: list[StoredMessage] = []
        elsewhere: list[int] = []
        size = 0
        for position in islice(wanted.due, self.limits.tick_items):
            message = half.get(position)
            if message is None:
                if len(elsewhere) < self.limits.page_messages:
                    elsewhere.append(position)
            else:
                size += len(message.body)
                if size > self.limits.max_batch_bytes and in_memory:
                    break
                in_memory.append(message)
        self._ask(queue, wanted, in_memory, effects, now_ms)
        elsewhere = [position for position in elsewhere if self._may_ask(queue, wanted, position)]
        if elsewhere:
            wanted.reading = True
            read = self._page_read(queue, elsewhere, self.limits.page_bytes)
            self._check_reads[read.read_id] = queue.queue_id
            effects.reads.append(read)
        elif wanted.due:
            self._checks_wanted[queue.queue_id] = None

    def _may_ask(self, queue: Queue, wanted: PendingChecks, position: int) -> bool:
        """Whether a producer may be asked (again); if not, it is due no more."""
        known = queue.index.halves.checked.get(position)
        commits = self._commits.get(queue.queue_id)
        is_being_committed = commits is not None and position in commits.decisions
        is_enough = known is not None and known.attempts >= queue.index.attributes.max_checks
        if is_being_committed or (is_enough and position not in wanted.once_more):
            wanted.due.discard(position)
            wanted.once_more.discard(position)
            return False
        return True

    def _ask(
        self,
        queue: Queue,
        wanted: PendingChecks,
        messages: Sequence[StoredMessage],
        effects: Effects,
        now_ms: int,
    ) -> None:
        """Send a check for each of these half messages that is due and may have one, and count it."""
        index = queue.index
        attributes = index.attributes
        asked: list[int] = []
        next_check_ms: list[int] = []
        for message in messages:
            position = message.position
            if position not in wanted.due or not self._may_ask(queue, wanted, position):
                continue
            wanted.due.discard(position)
            wanted.once_more.discard(position)
            age_ms = now_ms - message.enqueue_ms
            if age_ms >= attributes.retention_ms or position not in index.half:
                continue
            known = index.halves.checked.get(position)
            attempt = 1 if known is None else known.attempts + 1
            first_ms = message.visible_ms - message.enqueue_ms
            interval_ms = min(self.limits.max_check_interval_ms, first_ms << attempt)
            asked.append(position)
            next_check_ms.append(now_ms + interval_ms if attempt < attributes.max_checks else 0)
            effects.checks.append(Check(queue.account, queue.name, message, age_ms, attempt))
        if asked:
            record = TransactionsChecked(queue.queue_id, pack_runs(asked), now_ms, next_check_ms)
            index.apply_checked(record)
            effects.records.append(record)

    def _checks_arrived(
        self, queue: Queue, messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Bodies of half messages that are due; if nobody answers checks any more, they stay so. Returns how many were
        newly found to be damaged.
        """
        wanted = self._checks[queue.queue_id]
        wanted.reading = False
        damaged = queue.index.set_damaged(missing) if missing else 0
        if queue.has_checkers:
            self._ask(queue, wanted, messages, effects, now_ms)
            if wanted.due:
                # At the next tick: others come in between.
                self._checks_wanted[queue.queue_id] = None
        return damaged

    def _sweep_checks(self) -> None:
        """Most half messages are decided long before their check is due; remove entries of such."""
        kept = self._check_buckets.sweep(self._checks_due)
        if kept is not None:
            self._check_sweep_above = max(CHECK_SWEEP_ABOVE, 2 * kept)

    def _checks_due(self, due_ms: int, queue_id: int, positions: "array[int]") -> "array[int]":
        queue = self.queues.get(queue_id)
        if queue is None:
            return array("Q")
        return array("Q", self._current(queue, positions, due_ms))
