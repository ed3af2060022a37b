"""Recovery: the checkpoint and the rows behind it, applied to a new broker. A standby recovers until it leads."""

import time
from typing import Final

from cmqd.core.broker import Broker
from cmqd.log.interface import Log
from cmqd.log.values import RecoveryReport
from cmqd.server.broker_logger import get_logger
from cmqd.server.loop.clock import BrokerClock, LastTime, start_offset
from cmqd.server.monitoring.status import RecoveryFinding, RecoveryStatus
from cmqd.server.part import part
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd
from cmqd_segment.records import AnyRecord, LogRestored

_log = get_logger()

PROGRESS_EVERY_S: Final = 1.0


@part
class Recovery:
    """Applies the content of a log to a broker, once."""

    broker: Broker
    log: Log
    report: RecoveryReport
    """The report on the log, made when it was opened."""

    def __post_init__(self) -> None:
        self.last_time = LastTime()
        self.applied_lsn = 0
        """Last row that was applied."""
        self.is_replayed = False
        """The rows that the folder had at the start are applied."""
        self.seconds = 0.0
        """Duration of the recovery; 0 before its end."""
        # Without a checkpoint there is no part to wait for.
        self._is_loaded = not self.report.checkpoint_lsn
        self._rows = self._records = self._parts = 0

    async def run(self) -> None:
        """Apply all parts and rows, and log the result."""
        started = time.monotonic()
        broker, report = self.broker, self.report
        for finding in report.findings:
            _log.warning("recovery_finding", kind=finding.kind, text=finding.text)
        self.applied_lsn = report.checkpoint_lsn
        if report.numbers_jump:
            broker.begin_salvage()
        report_at = started + PROGRESS_EVERY_S
        self._note_progress()
        async for batch in self.log.recover():
            for item in batch:
                if isinstance(item, tuple):
                    self._apply_row(*item)
                else:
                    self._load(item)
            self._note_progress()
            # Not while a standby follows: its rows come as they come.
            if self.applied_lsn < report.last_lsn and time.monotonic() >= report_at:
                report_at += PROGRESS_EVERY_S
                of_rows = report.last_lsn - report.checkpoint_lsn
                _log.info("recovering", parts=self._parts, rows=self._rows, of_rows=of_rows)
        if self.applied_lsn < report.last_lsn:
            # Up to this many rows may be missing at the end; the earlier start may have ended before its numbers leapt.
            broker.begin_salvage()
        self.seconds = time.monotonic() - started
        self._log_result()

    @property
    def resumed_ms(self) -> int | None:
        """Broker time behind a restore; None if the log was not restored since its last start."""
        return None if self.report.restored is None else self.report.restored.time_ms

    def append_first_records(self, clock: BrokerClock, *, always: bool = False) -> bool:
        """Append the records of the start before any deadline is planned; return True if there are any.

        ``always``: a record also of an offset of the clock that the log has.
        """
        broker, report = self.broker, self.report
        offsets = start_offset(broker, clock, always=always)
        restored = None if report.restored is None else LogRestored(clock.now_ms(), report.restored.aged_ms)
        if restored is not None:
            _log.warning(
                "log_restored",
                aged_ms=restored.aged_ms,
                text=f"the log {report.restored}: broker time goes on from its last row",
            )
        records = [*offsets, *broker.recovered(lost=report.numbers_jump, restored=restored)]
        if records:
            self.log.append(records, (), clock.now_ms())
        return bool(records)

    def status(self) -> RecoveryStatus:
        """Return the result for the status of the server."""
        report = self.report
        return RecoveryStatus(
            clean=report.clean,
            created=report.created,
            checkpoint_lsn=report.checkpoint_lsn,
            last_lsn=report.last_lsn,
            log_id=report.log_id,
            seconds=round(self.seconds, 3),
            findings=[RecoveryFinding(finding.kind, finding.text) for finding in report.findings],
        )

    def _apply_row(self, lsn: int, time_ms: int, facts: list[AnyRecord]) -> None:
        broker = self.broker
        if lsn > self.applied_lsn + 1:
            # A loss that an earlier start was told to accept, and that no checkpoint records yet.
            broker.begin_salvage()
        self.applied_lsn = max(self.applied_lsn, lsn)
        self._rows += 1
        self._records += len(facts)
        self.last_time.row(time_ms, facts)
        for fact in facts:
            broker.replay(fact, lsn)

    def _load(self, checkpoint_part: AnyPart) -> None:
        self._parts += 1
        self.last_time.part(checkpoint_part)
        self.broker.load(checkpoint_part)
        self._is_loaded = self._is_loaded or isinstance(checkpoint_part, CheckpointEnd)

    def _note_progress(self) -> None:
        self.is_replayed = self._is_loaded and self.applied_lsn >= self.report.last_lsn

    def _log_result(self) -> None:
        broker, report = self.broker, self.report
        if broker.records_not_applied:
            _log.warning(
                "records_not_applied",
                records=broker.records_not_applied,
                text="these records refer, in part or whole, to queues and messages that were lost",
            )
        _log.info(
            "recovered",
            clean=report.clean,
            created=report.created,
            checkpoint_lsn=report.checkpoint_lsn,
            last_lsn=report.last_lsn,
            log_id=report.log_id,
            rows=self._rows,
            records=self._records,
            queues=len(broker.queues),
            topics=len(broker.topics),
            subscriptions=len(broker.subscriptions),
            schedules=len(broker.schedules),
            findings=len(report.findings),
            seconds=round(self.seconds, 3),
        )
