"""The status of the server as typed values, for the reply to ``get_server_status``, for metrics and for a console.

``server_figures`` fills the values; the running totals are kept in ``cmqd.server.monitoring.counters``.
"""

from typing import Any

import msgspec

from cmqd.log.values import EngineStatus
from cmqd.server.monitoring.counters import Counters
from cmqd_types.metrics import ReplicationMetrics
from cmqd_types.pins import StandingPinInfo


class PublicStatus(msgspec.Struct, frozen=True):
    """Facts for every account."""

    version: str
    region: str
    durability: str
    uptime_ms: int
    time_ms: int
    """Wall clock."""
    broker_time_ms: int
    clock_offset_ms: int
    stalled_ms: int
    """Time for which the log has not answered an append or a proof, or the storage a read; 0 = every answer came."""
    address: str
    """``host:port`` for clients, as in the attributes of queues."""
    tls: bool
    """Clients need TLS at the address."""


class RecoveryFinding(msgspec.Struct, frozen=True):
    """A finding of the recovery at the start."""

    kind: str
    text: str


class RecoveryStatus(msgspec.Struct, frozen=True):
    """The recovery at the start."""

    clean: bool
    """The run before ended in order."""
    created: bool
    """The data folder was new."""
    checkpoint_lsn: int
    last_lsn: int
    log_id: str
    seconds: float
    findings: list[RecoveryFinding]


class StorageProcessStatus(msgspec.Struct, frozen=True):
    """The storage process and the recovery at the start."""

    storage_pid: int | None = None
    storage_rss_bytes: int = 0
    recovery: RecoveryStatus | None = None


class ReplicationStatus(msgspec.Struct, frozen=True):
    """The lead and the second copy of a broker with redundancy."""

    shard: int
    epoch: int
    proof_age_ms: int
    """Age of the last proof that this broker leads; replies without a row wait for a proof younger than a second."""
    engine: EngineStatus

    def as_metrics(self) -> ReplicationMetrics:
        """Return the status for monitoring systems."""
        view = self.engine.view
        standbys = [] if view is None else view.standbys
        second = None if view is None else view.second_copy
        return ReplicationMetrics(
            shard=self.shard,
            epoch=self.epoch,
            proof_age_ms=self.proof_age_ms,
            waiting_ms=self.engine.waiting_ms,
            waiting_ms_total=self.engine.waiting_ms_total,
            standbys=None if view is None else len(standbys),
            standby_rows_behind=view.rows_behind(standbys[0]) if view is not None and standbys else None,
            second_copies=None if view is None else int(second is not None),
            second_copy_bytes_behind=None if second is None else second.bytes_behind,
            second_copy_ms_behind=None if second is None else second.ms_behind,
            clock_offsets_ms={}
            if view is None
            else {seen.address: seen.clock_offset_ms for seen in view.brokers if seen.clock_offset_ms is not None},
        )

    def as_reply(self) -> dict[str, Any]:
        """Return the status as a table by names."""
        view = self.engine.view
        return {
            "shard": self.shard,
            "epoch": self.epoch,
            "proof_age_ms": self.proof_age_ms,
            "waiting_for": self.engine.waiting_for,
            "waiting_ms": self.engine.waiting_ms,
            "waiting_ms_total": self.engine.waiting_ms_total,
        } | ({} if view is None else view.as_table())


class LoopStatus(msgspec.Struct, frozen=True):
    """The loop process: connections, the index, the log, memory."""

    pid: int
    connections: int
    waiting_receives: int
    held_replies: int
    checkers: int
    """Registrations as checker."""
    queues: int
    topics: int
    subscriptions: int
    schedules: int
    pushes_under_way: int
    last_lsn: int
    durable_lsn: int
    pending_bytes: int
    pending_records: int
    log_bytes: int
    segments: int
    history_bytes: int
    free_bytes: int
    sends_refused: bool
    sends_refused_reason: str | None
    pins: int
    """Copies of the log that are being made."""
    standing_pins: list[StandingPinInfo]
    memory_budget_bytes: int
    memory_held_bytes: int
    memory_promised_bytes: int
    rss_bytes: int
    counters: Counters


class Status(msgspec.Struct, frozen=True):
    """The status for ``admin``: the public part, the loop process, the storage process."""

    public: PublicStatus
    loop: LoopStatus
    storage: StorageProcessStatus
    replication: ReplicationStatus | None = None
    """None without redundancy."""

    def as_reply(self) -> dict[str, Any]:
        """Return the status as ``get_server_status`` replies it to ``admin``: one flat table."""
        reply = public_reply(self.public) | _builtins(self.loop) | _builtins(self.storage)
        if self.replication is not None:
            reply["replication"] = self.replication.as_reply()
        return reply


def public_reply(public: PublicStatus) -> dict[str, Any]:
    """Return the status as ``get_server_status`` replies it to accounts other than ``admin``."""
    return _builtins(public)


def _builtins(part: msgspec.Struct) -> dict[str, Any]:
    table: dict[str, Any] = msgspec.to_builtins(part)
    return table
