"""The figures of the server, read from its parts: the status, and the metrics for monitoring systems."""

import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import cmqd
from cmqd.core.broker import Broker
from cmqd.log.interface import Log
from cmqd.server.access.accounts_file import ADMIN
from cmqd.server.admission.memory_budget import MemoryBudget
from cmqd.server.clients.connections import Connections
from cmqd.server.clients.transaction_checkers import TransactionCheckers
from cmqd.server.log_upkeep.checkpoints import KeptCheckpoints
from cmqd.server.log_upkeep.disk_state import DiskState
from cmqd.server.log_upkeep.pins import Pins
from cmqd.server.log_upkeep.reclaim import Reclaim
from cmqd.server.log_upkeep.storage_watch import StorageWatch
from cmqd.server.loop.clock import BrokerClock
from cmqd.server.monitoring.counters import Counters, cpu_us, rss_bytes
from cmqd.server.monitoring.status import (
    LoopStatus,
    PublicStatus,
    ReplicationStatus,
    Status,
    StorageProcessStatus,
    public_reply,
)
from cmqd.server.part import part
from cmqd.server.push.outbox import Outbox
from cmqd.server.replies.reply_gate import ReplyGate
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.operations import Location
from cmqd.settings import Settings
from cmqd_types.metrics import Histogram, ServerMetrics, copy_of


class HasReplicationStatus(Protocol):
    """The lead over the log, as the figures see the lead."""

    def status(self) -> ReplicationStatus:
        """Return the figures of the lead."""
        ...


@part
class ServerFigures:
    """Reads the figures of the parts; see the module."""

    settings: Settings
    broker: Broker
    log: Log
    clock: BrokerClock
    location: Location
    storage_status: Callable[[], StorageProcessStatus]
    """Returns the status of the storage process and of the recovery."""
    leadership: HasReplicationStatus | None
    """None without redundancy."""
    stalled_s: Callable[[], float]
    """Returns the time for which the lead has had no answer; 0 without redundancy."""
    counters: Counters
    connections: Connections
    waiting_requests: WaitingRequests
    replies: ReplyGate
    checkers: TransactionCheckers
    outbox: Outbox
    budget: MemoryBudget
    reclaim: Reclaim
    pins: Pins
    kept_checkpoints: KeptCheckpoints
    disk_state: DiskState
    storage_watch: StorageWatch
    loop_lag_us: Histogram

    def __post_init__(self) -> None:
        self._started = time.monotonic()

    def unanswered_s(self) -> float:
        """Return the time for which the storage, or the engine behind it, has not answered."""
        return max(self.storage_watch.stuck_s, self.stalled_s())

    def public_status(self) -> PublicStatus:
        """Return the status for every account."""
        return PublicStatus(
            version=cmqd.__version__,
            region=self.settings.region,
            durability=self.settings.durability_text,
            uptime_ms=int((time.monotonic() - self._started) * 1000),
            time_ms=self.clock.wall_ms(),
            broker_time_ms=self.clock.now_ms(),
            clock_offset_ms=self.clock.offset_ms,
            stalled_ms=int(self.unanswered_s() * 1000),
            address=self.location["address"],
            tls=self.settings.uses_tls,
        )

    def status(self) -> Status:
        """Return the whole status."""
        log, state, broker = self.log, self.disk_state.state, self.broker
        loop = LoopStatus(
            pid=os.getpid(),
            held_replies=len(self.replies),
            queues=len(broker.queues),
            topics=len(broker.topics),
            subscriptions=len(broker.subscriptions),
            pending_records=log.pending.records,
            sends_refused_reason=state.reason if state.sends_refused else None,
            rss_bytes=rss_bytes(),
            counters=self.counters,
            **self._shared(),
        )
        return Status(self.public_status(), loop, self.storage_status(), self.replication_status())

    def replication_status(self) -> ReplicationStatus | None:
        """Return the status of the lead and the second copy; None without redundancy."""
        return None if self.leadership is None else self.leadership.status()

    def metrics(self) -> ServerMetrics:
        """Return the figures of the server for monitoring systems."""
        log, counters = self.log, self.counters
        figures, storage_pid = log.figures, self.storage_status().storage_pid
        return ServerMetrics(
            version=cmqd.__version__,
            uptime_ms=int((time.monotonic() - self._started) * 1000),
            requests_total=counters.requests,
            errors_total=dict(counters.errors),
            # Copies, because the reply waits for the disk, and later values are counted in place.
            commit_us=copy_of(figures.commit_us),
            fsync_us=copy_of(figures.fsync_us),
            commit_records=copy_of(figures.records),
            committed_bytes_total=figures.bytes,
            loop_commits_total=figures.in_loop,
            loop_lag_us=copy_of(self.loop_lag_us),
            connections_accepted_total=counters.connections_accepted,
            connections_refused_total=counters.connections_refused,
            authentications_failed_total=counters.authentications_failed,
            slow_readers_closed_total=counters.slow_readers_closed,
            memory_closed_total=counters.dropped_for_memory,
            bytes_in_total=counters.bytes_in,
            bytes_out_total=counters.bytes_out,
            given_back_total=counters.given_back,
            unmatched_total=counters.unmatched,
            damaged_total=counters.damaged,
            schedules_missed_total=counters.schedules_missed,
            pushes_delivered_total=counters.pushes_delivered,
            pushes_failed_total=counters.pushes_failed,
            checkpoints_total=self.kept_checkpoints.count,
            checkpoint_ms=self.kept_checkpoints.last_ms,
            outcome_rounds_skipped_total=self.disk_state.state.rounds_skipped,
            pages_read_total=log.pages_answered,
            loop_rss_bytes=rss_bytes(),
            storage_rss_bytes=rss_bytes(storage_pid) if storage_pid else 0,
            loop_cpu_us_total=cpu_us(),
            storage_cpu_us_total=cpu_us(storage_pid) if storage_pid else 0,
            replication=None if (replication := self.replication_status()) is None else replication.as_metrics(),
            **self._shared(),
        )

    def _shared(self) -> dict[str, Any]:
        """Return the figures that status and metrics share."""
        log, state = self.log, self.disk_state.state
        return {
            "connections": len(self.connections),
            "waiting_receives": len(self.waiting_requests),
            "checkers": len(self.checkers),
            "schedules": len(self.broker.schedules),
            "pushes_under_way": self.outbox.under_way,
            "segments": state.segments,
            "log_bytes": state.log_bytes,
            "history_bytes": self.reclaim.history_bytes,
            "free_bytes": state.free_bytes,
            "sends_refused": state.sends_refused,
            "pins": len(self.pins),
            "standing_pins": self.pins.infos(),
            "pending_bytes": log.pending.bytes,
            "last_lsn": log.last_lsn,
            "durable_lsn": log.durable_lsn,
            "memory_budget_bytes": self.budget.total_bytes,
            "memory_held_bytes": self.budget.held_bytes,
            "memory_promised_bytes": self.broker.facts.promises.memory.total_bytes,
        }

    def status_reply(self, account: str) -> dict[str, Any]:
        """Return the status that an account may see: the whole for ``admin``, the public part for other accounts."""
        return self.status().as_reply() if account == ADMIN else public_reply(self.public_status())
