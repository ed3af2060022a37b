"""Calls of the core that no request makes: time passes, pages and results of pushes arrive, the wall clock is
corrected."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from cmqd.core.broker import Broker
from cmqd.core.outcome import MissedFiring, Outcome, PushResult, UnusedQueue
from cmqd.server.admission.request_admission import Admission
from cmqd.server.broker_logger import get_logger
from cmqd.server.handlers.publishing import Publishes
from cmqd.server.loop.reachable_time import ListeningTime
from cmqd.server.monitoring.counters import Counters
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd_segment.records import PublishedMessage, Runs, StoredMessage

_log = get_logger()
_R = TypeVar("_R")


@part
class BrokerEvents:
    """Hands events to the core; see the module."""

    broker: Broker
    answering: Answering
    publishes: Publishes
    admission: Admission
    counters: Counters
    listening_time: ListeningTime
    now_ms: Callable[[], int]
    schedule: Callable[[], None]
    """Begins an I/O batch: its end flushes the log and sets the timer."""

    def __post_init__(self) -> None:
        self._is_quiet = False

    def fall_quiet(self) -> None:
        """Ignore time and pages from now on; the work is left to the next start.

        A move of messages would otherwise not end in a drain: every page that arrives makes the move ask for the next.
        """
        self._is_quiet = True

    def tick(self, now_ms: int) -> None:
        """Do a slice of the work that is due."""
        if self.publishes.lines and not self.publishes.go_on():
            due_ms = self.broker.next_deadline_ms()
            if due_ms is None or due_ms > now_ms:
                # The slice changed nothing, so an I/O batch would find nothing to write.
                return
        if self._is_quiet:
            return
        self.listening_time.pass_time(now_ms)
        self.broker.gates.is_log_behind = self.admission.is_log_behind
        for event in self._call("tick", lambda: self.broker.tick(now_ms), now_ms) or ():
            match event:
                case UnusedQueue():
                    self._queue_deleted(event)
                case MissedFiring():
                    self.counters.schedules_missed += 1
                    _log.warning(
                        "schedule_missed",
                        account=event.account,
                        schedule=event.schedule,
                        queue=event.queue,
                        reason=event.error,
                    )

    def _queue_deleted(self, unused: UnusedQueue) -> None:
        self.counters.queues_auto_deleted += 1
        self.counters.messages_auto_deleted += unused.messages
        _log.info(
            "queue_auto_deleted",
            account=unused.account,
            queue=unused.queue,
            queue_id=unused.queue_id,
            messages=unused.messages,
            unused_ms=unused.unused_ms,
        )

    def clock_offset_changed(self, offset_ms: int) -> None:
        """Record how far the wall clock is ahead of broker time."""
        now_ms = self.now_ms()
        self._call("set_clock_offset", lambda: self.broker.set_clock_offset(offset_ms, now_ms), now_ms)

    def page_arrived(self, read_id: int, messages: Sequence[StoredMessage], missing: Runs) -> None:
        """Hand over bodies that the core asked for."""
        if self._is_quiet:
            return
        now_ms = self.now_ms()
        damaged = self._call("pages_read", lambda: self.broker.pages_read(read_id, messages, missing, now_ms), now_ms)
        if damaged:
            self.counters.damaged += damaged
            _log.error("messages_damaged", count=damaged, read_id=read_id)

    def published_arrived(self, read_id: int, message: PublishedMessage | None) -> None:
        """Hand over a published message that the core asked for."""
        if self._is_quiet:
            return
        now_ms = self.now_ms()
        self._call("published_read", lambda: self.broker.published_read(read_id, message, now_ms), now_ms)

    def pushes_ended(self, results: list[PushResult]) -> None:
        """Record results of pushes; in a drain too, so that no delivered message is posted again."""
        if self.answering.is_halted:
            return
        failed = sum(result.error is not None for result in results)
        self.counters.pushes_failed += failed
        self.counters.pushes_delivered += len(results) - failed
        now_ms = self.now_ms()
        self._call("pushes_ended", lambda: self.broker.pushes_ended(results, now_ms), now_ms)

    def _call(self, name: str, call: Callable[[], Outcome[_R]], now_ms: int) -> _R | None:
        """Call the core and carry out the outcome; an exception is a bug."""
        if self.answering.is_halted:
            return None
        try:
            outcome = call()
            self.answering.carry_out(outcome, now_ms)
        except Exception as bug:
            self.answering.broke(bug, name)
            self.schedule()
            return None
        self.schedule()
        return outcome.reply
