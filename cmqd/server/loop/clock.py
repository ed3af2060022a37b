"""Broker time: milliseconds that never step, never run backwards, and are the only time that is stored.

Leases, delays, retention, the order of messages, enqueue times and the times in the log are broker time. The wall clock
is read for times that are compared with clocks outside: signatures and ``publishTime`` of pushes to URLs, and
``time_ms`` of the status. The difference is the *offset*::

    wall clock = broker time + offset

While the broker runs:

- Broker time follows the monotonic clock. A difference of up to ``JUMP_MS`` is closed by a slew of 0.5 %, in both
  directions, so no timeout is off by more than a fraction of a percent.
- A jump of the wall clock by more than ``JUMP_MS``, or several smaller jumps forward that add up to that, go into the
  offset. Neither a mistaken ``date -s`` nor a suspended machine makes messages expire: the monotonic clock stands still
  during a suspend, so leases go on afterwards where they stopped, and to the broker the suspend looks like a jump of
  the wall clock. A jump back cancels it.
- A positive offset (the wall clock is ahead) that has lasted for ``FORWARD_WAIT_MS`` is closed by the same slew: by
  then the jump counts as the true time, and slightly faster time is harmless. A negative offset stays: slower time
  could close the offset too, but an offset of a year would take two hundred years.

At a start:

- Broker time is the wall clock less the recorded offset, because downtime counts, but at least the last time in the
  log. If the wall clock is too far back, the difference goes into the offset. A broker that was once started with a
  clock a year ahead therefore has an offset of minus a year from the next start on, and is right to the outside.
- A negative offset ends at a start at which the wall clock has passed the last time in the log. Two causes are possible
  then: the broker was ahead and was stopped for longer than that, or the wall clock was wrong before and is right now,
  as on a machine without a battery for its clock. In the second case the recorded offset would let everything expire;
  in the first case, offset 0 only makes messages wait longer.
- A log without a record of an offset has offset 0. After a crash between a jump and its record, the start uses the
  offset from before. If the jump was back, the last time in the log corrects the start; a jump forward cannot be told
  from downtime.
- At a takeover with redundancy, broker time is not read from the wall clock (``takeover_time``), and the
  difference is the new offset.
- ``adopt`` ends an offset: broker time is set to the wall clock, even to a time before the last time in the log. This
  is the only step. It precedes every other use of the time, and its record says ``stepped`` (decision 0070).

The server alone reads the time, once per I/O batch of the loop; the rooms below get it as ``now_ms``.
"""

import time
from collections.abc import Callable, Sequence

from cmqd.core.broker import Broker
from cmqd.server.broker_logger import get_logger
from cmqd_segment.checkpoint import AnyPart, CheckpointHeader
from cmqd_segment.records import AnyRecord, ClockOffset

SLEW_MS_PER_S = 5
"""0.5 %: ten times the slew of NTP, so a drifting crystal (at most some 200 ppm) is always caught up with."""

JUMP_MS = 60_000
"""The largest difference that is followed: more than any leap second or NTP step of a working machine."""

FORWARD_WAIT_MS = 3_600_000
"""Time that the wall clock must be ahead before broker time runs faster to reach it: time to correct a mistake."""

CHECK_EVERY_MS = 1_000

RECORD_EVERY_MS = 10_000
"""At most a record of the offset in this time, regardless of the number of jumps of the wall clock."""

REMIND_EVERY_MS = 3_600_000
"""Interval of the log lines about a lasting offset."""

OFFSET_OVER = "broker time and the wall clock differ by less than a minute"

_log = get_logger()


def wall_ms() -> int:
    """The wall clock, in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


class BrokerClock:
    """Broker time out of two clocks; see the module.

    Invariant: ``now_ms()`` never returns less than it did before.
    """

    __slots__ = (
        "_checked_ms",
        "_distance_ms",
        "_forward_since_ms",
        "_from_monotonic_ms",
        "_last_ms",
        "_monotonic_ns",
        "_on_jump",
        "_wall",
        "has_stepped",
        "lasting_offset_ms",
    )

    def __init__(
        self,
        *,
        not_before_ms: int = 0,
        offset_ms: int = 0,
        resumed_ms: int | None = None,
        adopt: bool = False,
        wall: Callable[[], int] = wall_ms,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        on_jump: Callable[[int], None] = lambda jump_ms: None,
    ) -> None:
        """Start the clock.

        Args:
            not_before_ms: the last time in the log.
            offset_ms: the offset that the log records.
            resumed_ms: broker time at a takeover; None: the wall clock less the offset.
            adopt: end an offset of more than ``JUMP_MS`` by a step to the wall clock.
            wall: milliseconds since the epoch, may jump.
            monotonic_ns: nanoseconds since any moment, never jumps.
            on_jump: called with the milliseconds of a jump of the wall clock that is not followed.
        """
        self._wall = wall
        self._monotonic_ns = monotonic_ns
        self._on_jump = on_jump
        wall_start_ms = wall()
        if resumed_ms is not None or (offset_ms < 0 and wall_start_ms >= not_before_ms):
            offset_ms = 0
        start_ms = max(wall_start_ms - offset_ms if resumed_ms is None else resumed_ms, not_before_ms)
        self.has_stepped: bool = adopt and abs(wall_start_ms - start_ms) > JUMP_MS
        """Broker time was set to the wall clock at the start, forward or back."""
        if self.has_stepped:
            start_ms, offset_ms = wall_start_ms, 0
        self._checked_ms = monotonic_ns() // 1_000_000
        self._from_monotonic_ms = start_ms - self._checked_ms
        self._last_ms = start_ms
        self.lasting_offset_ms: int = offset_ms
        """The part of the offset that the slew does not close (yet), as the log records it: 0, or more than ``JUMP_MS``
        in either direction. Broker time slews to the wall clock less this.
        """
        self._distance_ms = wall_start_ms - offset_ms - start_ms
        """The other part of the offset, as of the last check."""
        self._forward_since_ms = self._checked_ms
        """Monotonic time of the last jump, or of the start."""
        if abs(self._distance_ms) > JUMP_MS:
            self._keep(self._distance_ms)
        self._take_in_small()

    def now_ms(self) -> int:
        """Broker time."""
        now = self._monotonic_ns() // 1_000_000 + self._from_monotonic_ms
        if now < self._last_ms:
            return self._last_ms
        self._last_ms = now
        return now

    def wall_ms(self) -> int:
        """Return the time of the wall clock, for comparison with other machines; never to be stored."""
        return self._wall()

    @property
    def offset_ms(self) -> int:
        """Return the lead of the wall clock over broker time (negative: behind), the part being closed included."""
        return self._wall() - self.now_ms()

    def check(self) -> bool:
        """Compare with the wall clock and move a little towards it; to be called about once a second.

        Returns False if the last comparison is too recent for another.
        """
        monotonic = self._monotonic_ns() // 1_000_000
        elapsed = monotonic - self._checked_ms
        if elapsed < CHECK_EVERY_MS:
            return False
        self._checked_ms = monotonic
        distance = self._wall() - self.lasting_offset_ms - (monotonic + self._from_monotonic_ms)
        jump = distance - self._distance_ms
        self._distance_ms = distance
        if abs(jump) > JUMP_MS:
            self._keep(jump)
            self._take_in_small()
            self._forward_since_ms = monotonic
            self._on_jump(jump)
        elif self._distance_ms > JUMP_MS:
            # Smaller jumps forward can add up faster than the slew closes them. Unless they are recorded as an offset,
            # the next start steps over all of them.
            if self.lasting_offset_ms <= 0:
                self._forward_since_ms = monotonic
            self._keep(self._distance_ms)
            self._take_in_small()
        limit = max(1, elapsed * SLEW_MS_PER_S // 1000)
        if self.lasting_offset_ms > 0 and monotonic - self._forward_since_ms >= FORWARD_WAIT_MS:
            self._keep(-min(self.lasting_offset_ms, limit))
            self._take_in_small()
        step = max(-limit, min(limit, self._distance_ms))
        self._from_monotonic_ms += step
        self._distance_ms -= step
        return True

    def _keep(self, change_ms: int) -> None:
        """Move a part of the distance into the lasting offset, or out of it."""
        self.lasting_offset_ms += change_ms
        self._distance_ms -= change_ms

    def _take_in_small(self) -> None:
        # The rest that a jump back leaves is closed like any small difference, or it would last forever.
        if abs(self.lasting_offset_ms) <= JUMP_MS:
            self._keep(-self.lasting_offset_ms)


class LastTime:
    """The last time in the log, gathered while the log is replayed: broker time must not start below it."""

    __slots__ = ("ms",)

    def __init__(self) -> None:
        self.ms: int = 0

    def part(self, part: AnyPart) -> None:
        """Take note of a part of a checkpoint. No row that it covers is later than the checkpoint."""
        if isinstance(part, CheckpointHeader):
            self.ms = max(self.ms, part.time_ms)

    def row(self, time_ms: int, records: Sequence[AnyRecord]) -> None:
        """Take note of a row. Where broker time stepped back, the rows before it do not count."""
        has_stepped = any(isinstance(record, ClockOffset) and record.stepped for record in records)
        self.ms = time_ms if has_stepped else max(self.ms, time_ms)


def start_offset(broker: Broker, clock: BrokerClock, *, always: bool = False) -> Sequence[AnyRecord]:
    """Records of the offset that a start found, if the log does not have it; logs it. Before ``Broker.recovered``.

    ``always``: a record also of an offset that the log has.
    """
    offset_ms = clock.lasting_offset_ms
    if clock.has_stepped:
        _log.warning("clock_adopted", time_ms=clock.now_ms(), text="broker time was set to the wall clock")
    elif offset_ms:
        _log.warning("clock_offset", offset_ms=clock.offset_ms, text=offset_text(clock))
    elif broker.facts.clock_offset_ms:
        _log.info("clock_offset_over", text=OFFSET_OVER)
    if not always and not clock.has_stepped and offset_ms == broker.facts.clock_offset_ms:
        return ()
    return broker.set_clock_offset(offset_ms, clock.now_ms(), stepped=clock.has_stepped).records


class OffsetWatch:
    """Has the lasting offset recorded and logged when it changes, at a bounded rate.

    The next start computes broker time from the record. While an offset is being closed it changes every second; a
    record that is off by a minute is then good enough, since the next start closes the rest by the same slew.
    """

    __slots__ = ("_clock", "_logged_at_ms", "_record", "_recorded_at_ms", "_recorded_ms")

    def __init__(self, clock: BrokerClock, record: Callable[[int], None]) -> None:
        """``record`` appends a record of an offset to the log, which has one of the offset of the start."""
        self._clock = clock
        self._record = record
        self._recorded_ms = clock.lasting_offset_ms
        self._recorded_at_ms = clock.now_ms() - RECORD_EVERY_MS
        self._logged_at_ms = clock.now_ms()

    def check(self) -> None:
        """Compare the clock with the wall clock, and record and log the result; to be called about once a second."""
        clock = self._clock
        if not clock.check():
            return
        now_ms = clock.now_ms()
        offset_ms = clock.lasting_offset_ms
        change_ms = abs(offset_ms - self._recorded_ms)
        is_over = not offset_ms and change_ms
        if (change_ms >= JUMP_MS or is_over) and now_ms - self._recorded_at_ms >= RECORD_EVERY_MS:
            self._recorded_ms = offset_ms
            self._recorded_at_ms = now_ms
            self._record(offset_ms)
            if is_over:
                _log.info("clock_offset_over", text=OFFSET_OVER)
        if abs(clock.offset_ms) > JUMP_MS and now_ms - self._logged_at_ms >= REMIND_EVERY_MS:
            self._logged_at_ms = now_ms
            _log.warning("clock_offset", offset_ms=clock.offset_ms, text=offset_text(clock))


def offset_text(clock: BrokerClock) -> str:
    """Return the offset and its further course, for the operator."""
    if clock.lasting_offset_ms > 0:
        return "broker time is behind the wall clock and runs 0.5 % faster once that has lasted an hour"
    if not clock.lasting_offset_ms:
        return "broker time is ahead of the wall clock and runs 0.5 % slower until they agree"
    return "broker time is ahead of the wall clock and stays so; cmqd serve --adopt-wall-clock ends it"
