"""Undelivered messages of one subscription: never tried, scheduled for a retry, or out of retries.

Facts (``apply_...``) are applied alike live and in recovery, without a clock. Attempts under way and retries
that an operator hurried exist only in memory, so after a restart each message is where its facts left it.

    never tried:  waiting ---- delivered ---> gone
                     |
                   failed
                     v
    in retry:     scheduled -- delivered, dropped, or expired --> gone
                     |  ^
             retries |  | failed once more (again scheduled, or exhausted)
             used up v  |
                  exhausted (tried once more after ``published`` or ``retry_now``, under backoff when its turn comes)

Two strategies (spec 3.5), which may be exchanged at any time:

- ``backoff``: one attempt at a time, always of the oldest message. A message has up to four attempts, and newer
  messages wait meanwhile; then the message is dropped.
- ``exponential_decay``: as many attempts at once as there are slots. Due retries come first, in the order of their
  times, then messages never tried, the oldest first. After a message failed twice in a row the subscription is
  *blocked*: each retry is paired with a *probe*, a message never tried; all other messages wait until a delivery
  succeeds. Without probes a subscription with few failing messages would learn late that its target is back.

This module knows positions in the topic and times; it does not know topics, queues or URLs.
"""

from collections.abc import Iterator
from heapq import heappop, heappush, merge
from itertools import islice
from typing import TypeAlias

import msgspec
from pyroaring import BitMap64

from cmqd.core.facts.drops import Drops
from cmqd.core.facts.retry_schedule import BACKOFF, EXPONENTIAL_DECAY
from cmqd_segment.records import (
    DeliveriesCleared,
    DeliveriesDropped,
    DeliveriesFailed,
    MessagesDelivered,
    ranges,
    unpack_runs,
)
from cmqd_types.totals import SubscriptionTotals

DAMAGED = "damaged"
"""Reason of a drop: the body cannot be read."""
OPERATOR = "operator"
"""Reason of a drop: an operator dropped the message, alone or with all others of the subscription."""
BLOCKED_FROM = 2
"""Consecutive failures of one message that block its subscription."""
MAX_KNOWN = 100_000
"""Limit of messages in retry. At the limit no new message is tried; a message in retry costs about 350 bytes."""
_HEAP_SLACK = 1024
"""Stale entries that the heap may always hold: a short heap would be cleaned up again and again."""


RetryPart: TypeAlias = tuple[list[tuple[int, int, int]], list[str], list[tuple[int, int]]]
"""(retries, errors, failures) of a ``RetriesSlice``."""


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Retry state of a message that failed; replaced, never changed: a checkpoint under way may refer to it."""

    attempts: int
    """Attempts that failed."""
    next_ms: int
    """Time at which the next attempt is due; 0 = the retries are used up."""
    error: str = ""
    """Reason of the last failure; the messages of a record share the text. Empty in a checkpoint of an older
    version."""
    failed_ms: int = 0


class Deliveries:
    """Undelivered messages of one subscription; see the module.

    Invariants: an undelivered message is either in ``waiting`` or in ``retries``. ``exhausted`` holds the messages of
    ``retries`` with next time 0. Every other message of ``retries`` is under way, hurried, or in the heap with its
    time. A hurried message that was never tried is in ``_unsent`` too. Under backoff at most one attempt is started
    while none is under way.
    """

    __slots__ = (
        "_failed",
        "_heap",
        "_hurried",
        "_picked",
        "_probes",
        "_probes_owed",
        "_unsent",
        "blocked",
        "delivered",
        "dropped",
        "drops",
        "exhausted",
        "failed",
        "last_error",
        "last_error_ms",
        "max_known",
        "paused",
        "retries",
        "strategy",
        "under_way",
        "waiting",
    )

    def __init__(self, strategy: str = EXPONENTIAL_DECAY, *, paused: bool = False, max_known: int = MAX_KNOWN) -> None:
        self.strategy = strategy
        """May be changed at any time: it is read when an attempt starts, and again when the attempt ends."""
        self.paused = paused
        """No attempt is started; attempts under way end normally. May be set at any time."""
        self.max_known = max_known

        self.waiting = BitMap64()
        """Messages never tried, or in their first attempt."""
        self.retries: dict[int, Retry] = {}
        """By position: undelivered messages that failed, exhausted messages included."""
        self.exhausted = BitMap64()
        """Messages of ``retries`` without retries left; they stay until they expire."""
        self.blocked = False
        """A message failed twice in a row, and no delivery has succeeded since. Recorded under either strategy, to
        follow from the facts alone; only ``exponential_decay`` holds messages up for it.
        """
        self.delivered = 0
        """Messages that the target took, and copies that went to the queue at their publish."""
        self.failed = 0
        """Attempts that failed."""
        self.dropped = 0
        """Includes expired messages."""
        self.drops = Drops()
        self.last_error = ""
        self.last_error_ms = 0

        self.under_way: dict[int, int] = {}
        """Attempts started and not ended: position -> number of the attempt, 1 for the first. The attempt
        of a message that an operator dropped meanwhile, or that expired, stays here until it ends (see
        ``given_back``): under backoff a second attempt beside it would break the order.
        """
        self._unsent = BitMap64()
        """``waiting`` without the messages under way."""
        self._failed = BitMap64()
        """The keys of ``retries``, in order."""
        self._heap: list[tuple[int, int]] = []
        """(time, position) of scheduled retries; a stale entry is removed when it comes to the top, because removing
        it at once would mean a search of the heap."""
        self._hurried = BitMap64()
        """Messages that are due at once: of ``retries``, whatever their time says, and messages never tried that an
        operator picked. Never a message under way."""
        self._probes_owed = 0
        """Retries started while blocked, less probes started."""
        self._probes: set[int] = set()
        """Messages under way that were started as probes."""
        self._picked: set[int] = set()
        """Messages under way that were never tried before, and were hurried."""

    # ------------------------------------------------------------------ facts

    def apply_waiting(self, first: int, stop: int) -> None:
        """Add messages published for this subscription."""
        self.waiting.add_range(first, stop)
        self._unsent.add_range(first, stop)

    def apply_scattered(self, positions: list[int]) -> None:
        """Add messages published for this subscription, at positions that form no range."""
        # A union of two sets would copy the part of ``waiting`` near its end: the longer the backlog, the slower.
        self.waiting.update(positions)
        self._unsent.update(positions)

    def apply_delivered(self, record: MessagesDelivered) -> None:
        """Remove delivered messages and unblock."""
        # A delivered message that was dropped meanwhile counts as dropped alone: ``_forget`` finds it no more.
        for start, stop in ranges(record.positions):
            self.delivered += self._forget(start, stop)
            self._end(start, stop)
        # Any success ends the block, also that of an old attempt: the target answers.
        self._unblock()

    def apply_failed(self, record: DeliveriesFailed) -> None:
        """Record a failed attempt of each message. A message that is gone by now stays gone."""
        # The attempt ends whether or not the message is still wanted: its slot is free, and under backoff the next
        # message may start.
        facts = zip(unpack_runs(record.positions), record.attempts, record.next_ms, strict=True)
        for position, attempts, next_ms in facts:
            self.under_way.pop(position, None)
            self._probes.discard(position)
            self._picked.discard(position)
            self.failed += 1
            if not self.is_pending(position):
                continue
            self.waiting.discard(position)
            self._unsent.discard(position)
            self._note(position, Retry(attempts, next_ms, record.error, record.failed_ms))
            if attempts >= BLOCKED_FROM:
                self.blocked = True
        self.last_error = record.error
        self.last_error_ms = record.failed_ms

    def apply_dropped(self, record: DeliveriesDropped) -> None:
        """Remove dropped messages.

        An operator's drop does not end attempts under way: their requests still hold their slots until they answer.
        """
        dropped = BitMap64()
        for start, stop in ranges(record.positions):
            dropped.add_range(start, stop)
            self.dropped += self._forget(start, stop)
            if record.reason == "retries":
                self._end(start, stop)
        self.drops.note(record.reason, dropped, record.dropped_ms)
        if record.reason == DAMAGED:
            self.last_error = "the message is damaged in the log"
            self.last_error_ms = record.dropped_ms
        if not self.pending_count:
            self._unblock()

    def apply_cleared(self, record: DeliveriesCleared) -> None:
        """Remove all messages below the floor of the record, because an operator dropped them."""
        cleared = self.pending()
        cleared.remove_range(record.floor, 1 << 63)
        self.drops.note(OPERATOR, cleared, record.cleared_ms)
        self.apply_floor(record.floor)

    def apply_floor(self, floor: int) -> int:
        """Remove the expired messages, all below ``floor``, and return their count."""
        dropped = self._forget(0, floor)
        self.dropped += dropped
        if not self.pending_count:
            self._unblock()
        return dropped

    def _unblock(self) -> None:
        """End the block: a delivery succeeded, or no message is left to end the block."""
        self.blocked = False
        self._probes_owed = 0
        self._probes.clear()

    def _note(self, position: int, retry: Retry) -> None:
        # An earlier entry of the message in the heap turns stale: its time differs from the time of the retry. The top
        # of the heap is compared with the retry before use.
        self.retries[position] = retry
        self._failed.add(position)
        if retry.next_ms:
            self.exhausted.discard(position)
            self._schedule(retry.next_ms, position)
        else:
            self.exhausted.add(position)

    def _forget(self, start: int, stop: int) -> int:
        """Remove the messages of a range from all sets and return their count."""
        count = self.live_in(start, stop)
        if count == self.pending_count:
            # The range covers every undelivered message: new sets make a million messages as cheap as one message.
            self.waiting, self._unsent, self._failed = BitMap64(), BitMap64(), BitMap64()
            self.exhausted, self._hurried = BitMap64(), BitMap64()
            self.retries, self._heap = {}, []
            return count
        self.waiting.remove_range(start, stop)
        self._unsent.remove_range(start, stop)
        if self.retries:
            for position in _within(self._failed, start, stop):
                del self.retries[position]
            for positions in (self._failed, self.exhausted):
                positions.remove_range(start, stop)
        # Without the condition of the retries: a hurried message may be a message that was never tried.
        if self._hurried:
            self._hurried.remove_range(start, stop)
        return count

    def _end(self, start: int, stop: int) -> None:
        """Forget the attempts of a range, which have ended."""
        if stop - start > len(self.under_way):
            ended = [position for position in self.under_way if start <= position < stop]
        else:
            ended = [position for position in range(start, stop) if position in self.under_way]
        for position in ended:
            del self.under_way[position]
            self._probes.discard(position)
            self._picked.discard(position)

    # ------------------------------------------------------------------ counts

    def totals(self) -> SubscriptionTotals:
        """Return the counts since the subscription was made."""
        return SubscriptionTotals(self.delivered, self.failed, self.dropped)

    def reset_totals(self) -> None:
        """Let the counts begin at 0 again."""
        self.delivered = self.failed = self.dropped = 0

    @property
    def waiting_count(self) -> int:
        """Count the messages never tried, or in their first attempt."""
        return len(self.waiting)

    @property
    def retrying_count(self) -> int:
        """Count the undelivered messages that failed at least once, exhausted messages included."""
        return len(self.retries)

    def live_in(self, first: int, stop: int) -> int:
        """Count the undelivered messages of a range."""
        return self.waiting.range_cardinality(first, stop) + self._failed.range_cardinality(first, stop)

    @property
    def pending_count(self) -> int:
        """Count the undelivered messages."""
        return len(self.waiting) + len(self.retries)

    def first_pending(self) -> int | None:
        """Return the position of the oldest undelivered message."""
        firsts = [positions.min() for positions in (self.waiting, self._failed) if positions]
        return min(firsts, default=None)

    def last_pending(self) -> int | None:
        """Return the position of the newest undelivered message."""
        lasts = [positions.max() for positions in (self.waiting, self._failed) if positions]
        return max(lasts, default=None)

    @property
    def held_up(self) -> bool:
        """True if new messages wait because the subscription is blocked; backoff ignores the block."""
        return self.blocked and self.strategy != BACKOFF

    def state_of(self, position: int) -> str | None:
        """Return the state of a message, one of ``cmqd_types.deliveries``; None if it is not undelivered."""
        retry = self.retries.get(position)
        if retry is None and position not in self.waiting:
            return None
        if position in self.under_way:
            return "under_way"
        if retry is None:
            return "waiting"
        return "in_retry" if retry.next_ms else "out_of_retries"

    def pending_from(self, start: int, most: int) -> list[int]:
        """Return up to ``most`` undelivered messages from position ``start`` on, ascending."""
        both = [positions.iter_equal_or_larger(start) for positions in (self.waiting, self._failed) if positions]
        return list(islice(merge(*both), most))

    def is_pending(self, position: int) -> bool:
        """True if the message is undelivered."""
        return position in self.waiting or position in self.retries

    def pending(self) -> BitMap64:
        """Return the positions of all undelivered messages."""
        return self.waiting | self._failed

    # ------------------------------------------------------------------ intentions

    def start(self, now_ms: int, room: int) -> list[tuple[int, int]]:
        """Start up to ``room`` attempts; return (position, number of the attempt) for each.

        A started message is under way until a fact records the result, or :meth:`given_back` takes the start back.
        """
        started: list[tuple[int, int]] = []
        if self.paused:
            return started
        # The strategy of this moment: attempts that were started under another strategy end under this one.
        choose = self._next_in_order if self.strategy == BACKOFF else self._next_of_any
        while len(started) < room:
            position = choose(now_ms)
            if position is None:
                break
            retry = self.retries.get(position)
            # Out of the sets that ``choose`` reads, and under way, before the next choice: else one message would be
            # chosen for every slot.
            if retry is None:
                self._unsent.remove(position)
                attempt = 1
                if position in self._hurried:
                    self._picked.add(position)
            else:
                attempt = retry.attempts + 1
            self._hurried.discard(position)
            self.under_way[position] = attempt
            started.append((position, attempt))
        return started

    def begin(self, position: int) -> None:
        """Mark a message that was published and tried in one step as under way; other messages are not examined."""
        self._unsent.remove(position)
        self.under_way[position] = 1

    def given_back(self, position: int) -> None:
        """Take back the start of an attempt that is not made after all, or has no use for its result any more."""
        if self.under_way.pop(position, None) is None:
            return
        if position in self.retries:
            # The message was due, by its time or as hurried, and its heap entry may be gone already. Without the mark
            # as hurried the message could be in no set that ``start`` reads, and would never be tried again.
            self._hurried.add(position)
            # The probe paired with this retry may still be under way: then the next retry gets no second probe.
            self._probes_owed = max(self._probes_owed - 1, -len(self._probes))
        elif position in self.waiting:
            self._unsent.add(position)
            if position in self._probes:
                self._probes_owed += self.blocked
            if position in self._picked:
                self._hurried.add(position)
        self._probes.discard(position)
        self._picked.discard(position)

    def upcoming(self, most: int) -> list[int]:
        """Return the oldest messages never tried and not under way: likely the next to start."""
        return list(islice(self._unsent, most))

    def retry_now(self) -> int:
        """Make all messages in retry due at once, exhausted messages included, and return their count.

        A message under way is left out, because its attempt is the hurried one already.
        """
        # Times stay as they are. After a restart, which forgets the hurry, a message follows its old time; a changed
        # time would have to be a record for each of up to 100,000 messages.
        hurried = self._failed - BitMap64(self.under_way)
        self._hurried |= hurried
        return len(hurried)

    def hurry(self, position: int) -> bool:
        """Make an undelivered message due at once; return False if its turn comes without hurry or not yet.

        A message under way is left as it is, because its attempt is the hurried one already. Under backoff a message
        behind the oldest waits for its turn all the same: order is the promise of that strategy.
        """
        if position in self.under_way or position in self._hurried:
            return True
        if position not in self.retries:
            # Never tried: its failure must find memory, as for every new message, together with the messages that
            # were hurried and have not started.
            known = len(self.retries) + len(self.under_way) + len(self._hurried)
            if position not in self._unsent or known >= self.max_known:
                return False
        self._hurried.add(position)
        return True

    def published(self) -> None:
        """Give exhausted messages one more attempt, because the topic had another publish. A restart forgets the
        hurried messages, so call this after recovery too.
        """
        if self.exhausted:
            self._hurried |= self.exhausted - BitMap64(self.under_way)

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return the time at which :meth:`start` has an attempt to make if slots are free, ``now_ms`` or less for at
        once; None if no time alone brings an attempt.
        """
        if self.paused:
            return None
        if self.strategy == BACKOFF:
            position = self._head()
            return None if position is None else self._due_ms(position, now_ms)
        # The same conditions as in ``_next_of_any``. An answer "now" for a message that ``start`` would not choose
        # makes the tick spin; no answer for one that it would choose leaves the message until the next unrelated
        # change.
        if self._hurried or (self._may_probe() if self.blocked else self._may_try_new()):
            return now_ms
        scheduled = self._first_scheduled()
        return None if scheduled is None else scheduled[0]

    def _head(self) -> int | None:
        """Return the only message that may start under backoff; None while an attempt is under way."""
        if self.under_way:
            return None
        if not self._failed:
            return self._unsent.min() if self._unsent else None
        first = self._failed.min()
        return min(first, self._unsent.min()) if self._unsent else first

    def _due_ms(self, position: int, now_ms: int) -> int:
        if position in self._hurried or position not in self.retries:
            return now_ms
        # An exhausted message has time 0: its turn is at once.
        return self.retries[position].next_ms

    def _next_in_order(self, now_ms: int) -> int | None:
        position = self._head()
        return None if position is None or self._due_ms(position, now_ms) > now_ms else position

    def _next_of_any(self, now_ms: int) -> int | None:
        # An owed probe goes before the next retry: with a single free slot, retries would take every slot from it.
        if self.blocked and self._may_probe():
            self._probes_owed = max(self._probes_owed - 1, 0)
            probe = self._unsent.min()
            self._probes.add(probe)
            return probe
        position = self._next_retry(now_ms)
        if position is not None:
            # A hurried message that was never tried is a probe itself.
            if self.blocked and position in self.retries and self._may_try_new():
                self._probes_owed += 1
            return position
        return self._unsent.min() if not self.blocked and self._may_try_new() else None

    def _next_retry(self, now_ms: int) -> int | None:
        if self._hurried:
            return self._hurried.min()
        scheduled = self._first_scheduled()
        if scheduled is None or scheduled[0] > now_ms:
            return None
        heappop(self._heap)
        return scheduled[1]

    def _may_try_new(self) -> bool:
        """True if a message was never tried, and ``max_known`` leaves room to remember its failure."""
        if not self._unsent:
            return False
        known = len(self.retries)
        if known + len(self.under_way) < self.max_known:
            return True
        return known + sum(attempt == 1 for attempt in self.under_way.values()) < self.max_known

    def _may_probe(self) -> bool:
        """True if a blocked subscription may start a probe.

        A blocked subscription with no retry to come (dropped, exhausted or expired) would stay blocked forever, so
        then a probe is started without a retry.
        """
        alone = not self.under_way and not self._hurried and len(self.retries) == len(self.exhausted)
        return (self._probes_owed > 0 or alone) and self._may_try_new()

    # ------------------------------------------------------------------ the heap

    def _schedule(self, next_ms: int, position: int) -> None:
        heappush(self._heap, (next_ms, position))
        if len(self._heap) > 2 * len(self.retries) + _HEAP_SLACK:
            self._heap = sorted({entry for entry in self._heap if self._is_scheduled(entry)})

    def _first_scheduled(self) -> tuple[int, int] | None:
        heap = self._heap
        while heap and not self._is_scheduled(heap[0]):
            heappop(heap)
        return heap[0] if heap else None

    def _is_scheduled(self, entry: tuple[int, int]) -> bool:
        next_ms, position = entry
        retry = self.retries.get(position)
        return retry is not None and retry.next_ms == next_ms and position not in self.under_way

    # ------------------------------------------------------------------ checkpoint

    def retry_parts(self, size: int) -> Iterator[RetryPart]:
        """Return (position, attempts, next time or 0) of ``retries`` as it is now, ``size`` entries at a time, with the
        failures beside them."""
        entries = list(self.retries.items())
        return (_retry_part(entries[at : at + size]) for at in range(0, len(entries), size))

    def load_retries(self, part: RetryPart) -> None:
        """Restore a part made by :meth:`retry_parts`; ``exhausted`` follows from it."""
        retries, errors, failures = part
        for place, (position, attempts, next_ms) in enumerate(retries):
            # A checkpoint of an older version has no failures.
            number, failed_ms = failures[place] if failures else (-1, 0)
            self._note(position, Retry(attempts, next_ms, errors[number] if number >= 0 else "", failed_ms))

    def load(
        self,
        waiting: BitMap64,
        *,
        blocked: bool,
        delivered: int,
        failed: int,
        dropped: int,
        last_error: str,
        last_error_ms: int,
    ) -> None:
        """Restore the fields of these names from a checkpoint into a new object; the retries follow."""
        self.waiting = waiting
        self._unsent = waiting.copy()
        self.blocked = blocked
        self.delivered = delivered
        self.failed = failed
        self.dropped = dropped
        self.last_error = last_error
        self.last_error_ms = last_error_ms


def _retry_part(entries: list[tuple[int, Retry]]) -> RetryPart:
    numbers: dict[str, int] = {}
    failures = [(numbers.setdefault(retry.error, len(numbers)), retry.failed_ms) for _, retry in entries]
    return [(position, retry.attempts, retry.next_ms) for position, retry in entries], list(numbers), failures


def _within(positions: BitMap64, start: int, stop: int) -> list[int]:
    found: list[int] = []
    for position in positions.iter_equal_or_larger(start):
        if position >= stop:
            break
        found.append(position)
    return found
