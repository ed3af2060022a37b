"""What one subscriber of a topic has not had yet: which messages wait, which are tried again and when.

Facts are applied alike when they happen and in recovery (``apply_...``; no clock); intentions live in memory only
(``start``, what is under way, what an operator hurried), so after a restart each message is where its facts left it.

    never tried:  waiting ---- delivered ---> gone
                     |
                   failed
                     v
    in retry:     scheduled -- delivered, dropped, or its life ends --> gone
                     |  ^
             retries |  | failed once more (again scheduled, or exhausted)
             used up v  |
                  exhausted (tried once more after ``published`` or ``retry_now``, under backoff when its turn comes)

Two strategies (spec 3.5), which may be exchanged at any time:

- ``backoff``: one at a time, the oldest of all first. It is tried up to four times, and those behind it wait meanwhile;
  then it is dropped.
- ``exponential_decay``: as many at once as there is room. Those that are due again come first, in the order of their
  times, then those never tried, the oldest first. After a message failed twice in a row the subscriber is *blocked*:
  each retry takes one message along that was never tried, a *probe*; all others wait until anything is delivered.

It knows positions in the topic and times; nothing of topics, queues or URLs.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice

import msgspec
from pyroaring import BitMap64

from cmqd_segment.records import DeliveriesDropped, DeliveriesFailed, MessagesDelivered, ranges, unpack_runs

EXPONENTIAL_DECAY = "exponential_decay"
BACKOFF = "backoff"
DAMAGED = "damaged"
"""Why a message is dropped whose body cannot be read."""

BACKOFF_ATTEMPTS = 4
"""The first one and three retries."""
DECAY_ATTEMPTS = 177
"""The first one and 176 retries: the last of them is 86,015 s after it, just under the day that a message lives."""
LONGEST_GAP_MS = 512_000
BLOCKED_FROM = 2
"""Failures in a row of one message that block its subscriber."""
MAX_KNOWN = 100_000
"""Messages in retry beyond which none more is tried; about 300 bytes each."""
_HEAP_SLACK = 1024
"""Stale entries of the heap that are never worth a clean-up."""


class Retry(msgspec.Struct, frozen=True, gc=False):
    """What is known of a message that failed; replaced, never changed: a checkpoint under way may refer to it."""

    attempts: int
    """How many failed."""
    next_ms: int
    """When the next one is due; 0 = the retries are used up."""


class Deliveries:
    """See the module.

    Invariants: a message that is not gone is either in ``waiting`` or in ``retries``. ``exhausted`` are those in
    ``retries`` whose next time is 0. Each of the others there is under way, hurried, or in the heap with its time.
    Under backoff at most one is started while none is under way.
    """

    __slots__ = (
        "_failed",
        "_heap",
        "_hurried",
        "_probes",
        "_probes_owed",
        "_unsent",
        "blocked",
        "delivered",
        "dropped",
        "exhausted",
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
        """May be set to the other one at any time: it is asked when an attempt starts, and when it ends."""
        self.paused = paused
        """Nothing is started; what is under way ends as it does. May be set at any time."""
        self.max_known = max_known

        self.waiting = BitMap64()
        """Never tried, or the first attempt is under way."""
        self.retries: dict[int, Retry] = {}
        """By position: all that failed and are not gone, exhausted ones included."""
        self.exhausted = BitMap64()
        """Those in ``retries`` that have none left; they stay until their life ends."""
        self.blocked = False
        """A message failed twice in a row, and none was delivered since. Noted under either strategy, so that facts
        alone decide it; it holds messages up under ``exponential_decay`` only.
        """
        self.delivered = 0
        self.dropped = 0
        """Those whose life ended are among them."""
        self.last_error = ""
        self.last_error_ms = 0

        self.under_way: dict[int, int] = {}
        """Attempts that were started and have not ended: position -> number of the attempt, 1 for the first. One whose
        message was meanwhile dropped by an operator, or whose life ended, stays here until it ends too (see
        ``given_back``): under backoff nothing else goes out before.
        """
        self._unsent = BitMap64()
        """``waiting`` without those that are under way."""
        self._failed = BitMap64()
        """The keys of ``retries``, in order."""
        self._heap: list[tuple[int, int]] = []
        """(time, position) of retries to come; stale entries are removed when they come to the top."""
        self._hurried = BitMap64()
        """Those in ``retries`` that are due at once, whatever their time says; not those under way."""
        self._probes_owed = 0
        """Retries started while it is blocked less probes started."""
        self._probes: set[int] = set()
        """Those under way that were started as probes."""

    # ------------------------------------------------------------------ facts

    def apply_waiting(self, first: int, stop: int) -> None:
        """Messages were published for this subscriber."""
        self.waiting.add_range(first, stop)
        self._unsent.add_range(first, stop)

    def apply_scattered(self, positions: list[int]) -> None:
        """Messages were published for this subscriber, at positions that are no range."""
        # A union of two sets would copy the part of ``waiting`` near its end: the longer the backlog, the slower.
        self.waiting.update(positions)
        self._unsent.update(positions)

    def apply_delivered(self, record: MessagesDelivered) -> None:
        """It has these."""
        for start, stop in ranges(record.positions):
            self.delivered += self._forget(start, stop)
            self._end(start, stop)
        self._unblock()

    def apply_failed(self, record: DeliveriesFailed) -> None:
        """An attempt of each of these failed. One that is gone by now stays gone."""
        facts = zip(unpack_runs(record.positions), record.attempts, record.next_ms, strict=True)
        for position, attempts, next_ms in facts:
            self.under_way.pop(position, None)
            self._probes.discard(position)
            if not self.is_pending(position):
                continue
            self.waiting.discard(position)
            self._unsent.discard(position)
            self._note(position, Retry(attempts, next_ms))
            if attempts >= BLOCKED_FROM:
                self.blocked = True
        self.last_error = record.error
        self.last_error_ms = record.failed_ms

    def apply_dropped(self, record: DeliveriesDropped) -> None:
        """It does not get these."""
        for start, stop in ranges(record.positions):
            self.dropped += self._forget(start, stop)
            if record.reason == "retries":
                self._end(start, stop)
        if record.reason == DAMAGED:
            self.last_error = "the message is damaged in the log"
            self.last_error_ms = record.dropped_ms
        if not self.pending_count:
            self._unblock()

    def apply_floor(self, floor: int) -> int:
        """The life of all below ``floor`` is over; how many of them it had not had."""
        dropped = self._forget(0, floor)
        self.dropped += dropped
        if not self.pending_count:
            self._unblock()
        return dropped

    def _unblock(self) -> None:
        """Something was delivered, or nothing is left to be delivered."""
        self.blocked = False
        self._probes_owed = 0
        self._probes.clear()

    def _note(self, position: int, retry: Retry) -> None:
        self.retries[position] = retry
        self._failed.add(position)
        if retry.next_ms:
            self.exhausted.discard(position)
            self._schedule(retry.next_ms, position)
        else:
            self.exhausted.add(position)

    def _forget(self, start: int, stop: int) -> int:
        """Take the messages of a range out of all sets; how many there were."""
        count = self.live_in(start, stop)
        if count == self.pending_count:
            # All there is: a million of them go as quickly as one.
            self.waiting, self._unsent, self._failed = BitMap64(), BitMap64(), BitMap64()
            self.exhausted, self._hurried = BitMap64(), BitMap64()
            self.retries, self._heap = {}, []
            return count
        self.waiting.remove_range(start, stop)
        self._unsent.remove_range(start, stop)
        if self.retries:
            for position in _within(self._failed, start, stop):
                del self.retries[position]
            for positions in (self._failed, self.exhausted, self._hurried):
                positions.remove_range(start, stop)
        return count

    def _end(self, start: int, stop: int) -> None:
        """Attempts of a range have ended."""
        if stop - start > len(self.under_way):
            ended = [position for position in self.under_way if start <= position < stop]
        else:
            ended = [position for position in range(start, stop) if position in self.under_way]
        for position in ended:
            del self.under_way[position]
            self._probes.discard(position)

    # ------------------------------------------------------------------ counts

    @property
    def waiting_count(self) -> int:
        """Messages never tried, or tried just now for the first time."""
        return len(self.waiting)

    @property
    def retrying_count(self) -> int:
        """Messages that failed at least once and are not gone, exhausted ones included."""
        return len(self.retries)

    def live_in(self, first: int, stop: int) -> int:
        """How many messages of a range it has not had."""
        return self.waiting.range_cardinality(first, stop) + self._failed.range_cardinality(first, stop)

    @property
    def pending_count(self) -> int:
        """Messages that it has not had."""
        return len(self.waiting) + len(self.retries)

    def first_pending(self) -> int | None:
        """The oldest message that it has not had."""
        firsts = [positions.min() for positions in (self.waiting, self._failed) if positions]
        return min(firsts, default=None)

    @property
    def held_up(self) -> bool:
        """Whether new messages wait because it is blocked; under backoff nobody minds that."""
        return self.blocked and self.strategy != BACKOFF

    def is_pending(self, position: int) -> bool:
        """Whether it is still to have this message."""
        return position in self.waiting or position in self.retries

    def pending(self) -> BitMap64:
        """All that it has not had."""
        return self.waiting | self._failed

    # ------------------------------------------------------------------ intentions

    def start(self, now_ms: int, room: int) -> list[tuple[int, int]]:
        """(position, number of the attempt) of at most ``room`` messages to be sent out now; they are under way from
        here on, until a fact says how it went, or :meth:`given_back`.
        """
        started: list[tuple[int, int]] = []
        if self.paused:
            return started
        choose = self._next_in_order if self.strategy == BACKOFF else self._next_of_any
        while len(started) < room:
            position = choose(now_ms)
            if position is None:
                break
            retry = self.retries.get(position)
            if retry is None:
                self._unsent.remove(position)
                attempt = 1
            else:
                self._hurried.discard(position)
                attempt = retry.attempts + 1
            self.under_way[position] = attempt
            started.append((position, attempt))
        return started

    def begin(self, position: int) -> None:
        """A message that was published just now was tried at once; what is pending had no part in it."""
        self._unsent.remove(position)
        self.under_way[position] = 1

    def given_back(self, position: int) -> None:
        """It was started and is not tried after all (or nobody waits for it any more): as if never started."""
        if self.under_way.pop(position, None) is None:
            return
        if position in self.retries:
            # It was due, by its time or because it was hurried; the heap may know no more of it.
            self._hurried.add(position)
            # The probe that it took along may be out still: then the next retry takes none.
            self._probes_owed = max(self._probes_owed - 1, -len(self._probes))
        elif position in self.waiting:
            self._unsent.add(position)
            if position in self._probes:
                self._probes_owed += self.blocked
        self._probes.discard(position)

    def upcoming(self, most: int) -> list[int]:
        """The oldest messages never tried and not under way: what is likely to be started next."""
        return list(islice(self._unsent, most))

    def judge(self, position: int, started_ms: int, now_ms: int, jitter_ms: int) -> tuple[int, int | None]:
        """The attempt under way failed: (attempts that failed by now, when the next is due), with 0 if the message is
        exhausted and None if it is dropped. Changes nothing; the record of it does.
        """
        attempts = self.under_way[position]
        if self.strategy == BACKOFF:
            return attempts, now_ms + jitter_ms if attempts < BACKOFF_ATTEMPTS else None
        if attempts >= DECAY_ATTEMPTS:
            return attempts, 0
        return attempts, max(started_ms + gap_ms(attempts), now_ms)

    def retry_now(self) -> int:
        """An operator wants all in retry to be due at once, exhausted ones once more; how many that are. An attempt
        that is under way is not followed by another.
        """
        hurried = self._failed - BitMap64(self.under_way)
        self._hurried |= hurried
        return len(hurried)

    def published(self) -> None:
        """There was another publish to the topic, so exhausted ones are tried once more. That is forgotten in a
        restart; to lose none, call it after recovery too.
        """
        if self.exhausted:
            self._hurried |= self.exhausted - BitMap64(self.under_way)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When :meth:`start` would bring something if there is room, ``now_ms`` or less for at once; None = not by time
        alone.
        """
        if self.paused:
            return None
        if self.strategy == BACKOFF:
            position = self._head()
            return None if position is None else self._due_ms(position, now_ms)
        if self._hurried or (self._may_probe() if self.blocked else self._may_try_new()):
            return now_ms
        scheduled = self._first_scheduled()
        return None if scheduled is None else scheduled[0]

    def _head(self) -> int | None:
        """Under backoff: the only one that may go out; None while one is under way."""
        if self.under_way:
            return None
        if not self._failed:
            return self._unsent.min() if self._unsent else None
        first = self._failed.min()
        return min(first, self._unsent.min()) if self._unsent else first

    def _due_ms(self, position: int, now_ms: int) -> int:
        if position in self._hurried or position not in self.retries:
            return now_ms
        # 0 for an exhausted one, so its turn is at once.
        return self.retries[position].next_ms

    def _next_in_order(self, now_ms: int) -> int | None:
        position = self._head()
        return None if position is None or self._due_ms(position, now_ms) > now_ms else position

    def _next_of_any(self, now_ms: int) -> int | None:
        # A probe that is owed goes before the next retry: with room for one at a time, retries would leave none to it.
        if self.blocked and self._may_probe():
            self._probes_owed = max(self._probes_owed - 1, 0)
            probe = self._unsent.min()
            self._probes.add(probe)
            return probe
        position = self._next_retry(now_ms)
        if position is not None:
            if self.blocked and self._may_try_new():
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
        """Whether there is one never tried, and memory to know of its failure."""
        if not self._unsent:
            return False
        known = len(self.retries)
        if known + len(self.under_way) < self.max_known:
            return True
        return known + sum(attempt == 1 for attempt in self.under_way.values()) < self.max_known

    def _may_probe(self) -> bool:
        """Of a blocked subscriber. One with no retry to come (they were dropped, exhausted, or their life ended) would
        stay blocked for ever, so then a probe goes out alone.
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

    def retry_parts(self, size: int) -> Iterator[list[tuple[int, int, int]]]:
        """(position, attempts, next time or 0) of all in ``retries`` as they are now, ``size`` at a time."""
        entries = list(self.retries.items())
        return (
            [(position, retry.attempts, retry.next_ms) for position, retry in entries[at : at + size]]
            for at in range(0, len(entries), size)
        )

    def load_retries(self, part: Iterable[tuple[int, int, int]]) -> None:
        """Take back a part that :meth:`retry_parts` gave; ``exhausted`` follows from it."""
        for position, attempts, next_ms in part:
            self._note(position, Retry(attempts, next_ms))

    def load(
        self,
        waiting: BitMap64,
        *,
        blocked: bool,
        delivered: int,
        dropped: int,
        last_error: str,
        last_error_ms: int,
    ) -> None:
        """Take back, into new ones, what the fields of these names were; the retries follow."""
        self.waiting = waiting
        self._unsent = waiting.copy()
        self.blocked = blocked
        self.delivered = delivered
        self.dropped = dropped
        self.last_error = last_error
        self.last_error_ms = last_error_ms

    def check_invariants(self) -> None:
        """What holds after each call; for tests."""
        under_way = BitMap64(self.under_way)
        assert self._failed == BitMap64(self.retries)
        assert not self.waiting & self._failed
        assert self.exhausted == BitMap64([position for position, retry in self.retries.items() if not retry.next_ms])
        assert self._unsent == self.waiting - under_way
        assert self._hurried <= self._failed
        assert not self._hurried & under_way
        entries = set(self._heap)
        for position, retry in self.retries.items():
            assert retry.attempts >= 1
            known = (retry.next_ms, position) in entries or not retry.next_ms
            assert known or position in self._hurried or position in self.under_way, position
            assert self.under_way.get(position, retry.attempts + 1) == retry.attempts + 1
        for position in self.waiting & under_way:
            assert self.under_way[position] == 1


def gap_ms(attempts: int) -> int:
    """Exponential decay: from the start of the failed attempt of this number to the next one."""
    return min(1000 << (attempts - 1), LONGEST_GAP_MS)


def _within(positions: BitMap64, start: int, stop: int) -> list[int]:
    found: list[int] = []
    for position in positions.iter_equal_or_larger(start):
        if position >= stop:
            break
        found.append(position)
    return found
