"""The interface of an engine: lead, append, prove the lead, read rows, checkpoint, trim, accounts, import.

    try_lead ─► take ─► rows, newest_checkpoint, load_accounts ─► append, prove ─► release
    rows                                              a standby copies rows before it leads
    put_checkpoint, trim, store_accounts, store_standing_pins
                                                      changes beside the rows, fenced like rows
    import_log, retire                                a log moves in, or out

Contract, checked by ``tests/engine/`` for every implementation:

- A row for which ``append`` has returned is on two machines, and no failure of one machine loses it.
- Rows have contiguous LSNs. No LSN is used twice, and a stored row never changes.
- Each leader has an *epoch*: the LSN of its *fence*, an empty row. All rows between two fences have the epoch of the
  lower fence; rows below the first fence were imported, and have epoch 0. From a fence on, no call of an earlier
  leader changes anything: it raises ``Fenced``.
- Rows, accounts and checkpoints that a read returns are on two machines too: no failure of one machine takes them back.

``try_lead``, ``take``, ``append``, ``prove`` and ``release`` belong to a single thread; the other calls to any thread,
in turn on a connection of their own. A single ``append`` is outstanding at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, Protocol, TypeAlias
from zlib import crc32

import msgspec

from cmqd.log.values import EngineView

Buffer: TypeAlias = bytes | memoryview

NO_LEADER = 0
"""Epoch of rows that were imported: no leader of the engine wrote them."""

_FIXED = Struct("<QQ")


class Row(Protocol):
    """The columns of a row of the log; ``cmqd_segment.rows`` describes them."""

    @property
    def lsn(self) -> int:
        """Number of the row."""
        ...

    @property
    def time_ms(self) -> int:
        """Broker time of the row."""
        ...

    @property
    def messages(self) -> int:
        """Number of messages in the row."""
        ...

    @property
    def queues(self) -> Buffer:
        """Summary of the positions by queue."""
        ...

    @property
    def meta(self) -> Buffer:
        """The records."""
        ...

    @property
    def data(self) -> Buffer:
        """The bodies."""
        ...


class EngineRow(NamedTuple):
    """A row of the log as the engine has it: its columns, and the epoch of the leader that wrote it."""

    lsn: int
    epoch: int
    time_ms: int
    messages: int
    queues: bytes
    meta: bytes
    data: bytes

    @property
    def is_fence(self) -> bool:
        """Return whether the row is a fence: empty, with its own LSN as epoch."""
        return self.lsn == self.epoch


def checksum_of(row: Row) -> int:
    """CRC-32 over all columns but the LSN, to compare a local copy of a row with the engine's row."""
    fixed = _FIXED.pack(row.time_ms, row.messages)
    return crc32(row.data, crc32(row.meta, crc32(row.queues, crc32(fixed))))


class StampedRow(NamedTuple):
    """The time of a row, by the clock of its broker and by the clock of the engine."""

    lsn: int
    epoch: int
    time_ms: int
    """Broker time of the row."""
    stamp_ms: int | None
    """The engine's clock when the row was stored. None = the row has no stamp: it was imported, or an older broker
    stored it, or the engine has no stamps."""


class Taken(msgspec.Struct, frozen=True):
    """The result of ``take``."""

    epoch: int
    """The epoch of the new leader."""
    last_lsn: int
    """LSN of the newest row, the fence of the new leader: equal to ``epoch``."""
    log_id: str
    stamp_ms: int | None = None
    """The engine's clock when the fence was stored; None = the engine has no stamps."""
    newest: StampedRow | None = None
    """The newest row that is no fence; None = the log has fences only. A fence has no broker time."""


class StoredCheckpoint(msgspec.Struct, frozen=True):
    """The newest checkpoint of the log."""

    lsn: int
    """Rows up to this LSN are in the checkpoint."""
    data: bytes


class StoredAccounts(msgspec.Struct, frozen=True):
    """The accounts of the broker."""

    version: int
    """Counts from 1 with each change."""
    data: bytes


class News(NamedTuple):
    """Numbers that a standby compares with its own copy, to see whether the engine has newer rows or accounts."""

    lsn: int
    """LSN of the newest row; 0 = the log has no row."""
    epoch: int
    """Epoch of the newest row; 0 = the log has no row."""
    accounts_version: int
    """Version of the accounts; 0 = the engine has none."""


class ImportedLog(msgspec.Struct, frozen=True):
    """A log for an empty database."""

    log_id: str
    last_lsn: int
    """LSN of the last row that the log had, reclaimed or not; 0 without rows."""
    batches: Callable[[], Iterable[Sequence[Row]]]
    """Yields the rows, ascending, in batches of a few MiB; called again for each attempt. Missing LSNs were reclaimed,
    and are not above the checkpoint's."""
    checkpoint: StoredCheckpoint | None
    accounts: bytes
    standing_pins: bytes = b""
    """As ``Engine.store_standing_pins`` takes them; empty = there are none."""


class Engine(Protocol):
    """The calls of every engine; see the module.

    A call that meets a silent or unsafe database waits until the database serves again, and raises
    ``EngineUnavailable`` if the broker is stopped before. Every call raises ``LogIdMismatch`` if the log in the
    database is not the log of the calls before. After ``Fenced`` or an interrupted ``append`` every call that changes
    the log raises again.
    """

    @property
    def proved_at(self) -> float:
        """Monotonic time at which this engine is known to have led: the begin of the last ``append`` or ``prove`` that
        succeeded, else of ``take``; minus infinity before.

        The begin and not the end: while the answer was late, a different broker may have led.
        """
        ...

    @property
    def waiting_for(self) -> str:
        """Name the cause of the wait of a call under way, for status and logs; empty while no call waits. For any
        thread."""
        ...

    def announce(self, lsn: int, process: str, address: str) -> None:
        """List this broker, with its last row, its process, its address and the offset of its wall clock, in ``view``
        until ``close``.

        Does not wait: the next call of the thread of ``append`` brings the announcement to the engine, and so does each
        new connection. To be repeated, because clocks change.
        """
        ...

    def try_lead(self) -> bool:
        """Try to get the advisory lock of the shard, without waiting for it; return whether this engine has it.

        The lock keeps two brokers from taking turns as leader. No guarantee depends on it.
        """
        ...

    def take(self) -> Taken:
        """Become the leader: store a fence behind the newest row. To be called while ``try_lead`` returns True.

        From then on no earlier leader can change anything. The first ``take`` of a database gives its log an id.
        """
        ...

    def append(self, rows: Sequence[Row]) -> None:
        """Store rows; on return they are durable on two machines.

        Args:
            rows: a row or more, with contiguous LSNs that begin behind the last row of the previous ``append``, or
                behind the fence. All are stored, or none.

        Raises:
            Fenced: a newer leader exists. The rows are not stored, and never will be; or, if the engine was silent when
                the newer leader was seen, the outcome is unknown.
            EngineUnavailable: the broker is being stopped. Whether the rows are stored is unknown.
        """
        ...

    def prove(self) -> None:
        """Prove that this engine leads, without a row. Raises Fenced, EngineUnavailable."""
        ...

    def rows(self, above: int, *, with_data: bool = True) -> Iterator[EngineRow]:
        """Yield the rows above an LSN in ascending order, up to the newest row of the moment.

        LSNs that are left out were trimmed. Fences are among the rows and are never trimmed. For the leader the rows
        reach at least to its fence. Without ``with_data`` the column ``data`` is empty and is not transferred.
        """
        ...

    def news(self) -> News:
        """Return the numbers that the server shows now, as a hint: a read without a barrier, for polls.

        The numbers prove no change. Only rows from ``rows`` and accounts from ``load_accounts`` are on two machines.
        """
        ...

    def reclaimed(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the given ranges of LSNs, both ends included, that have no row left but fences.

        A range above the stored checkpoint is never returned.
        """
        ...

    def newest_checkpoint(self) -> StoredCheckpoint | None:
        """Return the stored checkpoint; None before the first."""
        ...

    def put_checkpoint(self, lsn: int, data: bytes) -> None:
        """Store a checkpoint, unless the stored checkpoint has a higher LSN; on return it is durable on two machines.

        Raises Fenced, EngineUnavailable.
        """
        ...

    def trim(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Remove the rows in these ranges of LSNs, both ends included.

        Rows above the stored checkpoint, the newest row that is no fence, and fences stay, whatever the ranges say: a
        fence stops a former leader, also after years, and the next leader reads broker time from that row.

        Raises Fenced, EngineUnavailable.
        """
        ...

    def load_accounts(self) -> StoredAccounts | None:
        """Return the stored accounts; None before the first."""
        ...

    def store_accounts(self, data: bytes, *, expected_version: int) -> int:
        """Replace the accounts; return their new version, durable on two machines.

        Args:
            data: the new accounts.
            expected_version: version of the accounts that the caller has changed; 0 = none were stored.

        Raises:
            AccountsConflict: the stored version differs. The accounts are unchanged.
            Fenced: a newer leader exists.
            EngineUnavailable: the broker is being stopped. The outcome is unknown.
        """
        ...

    def load_standing_pins(self) -> bytes | None:
        """Return the stored standing pins; empty before the first.

        None: the tables are of an older version, and the role of this broker may not change them.
        """
        ...

    def store_standing_pins(self, data: bytes) -> None:
        """Replace the standing pins; on return they are durable on two machines. ``load_standing_pins`` did not return
        None. Raises Fenced, EngineUnavailable.
        """
        ...

    def log_id(self) -> str | None:
        """Return the id of the log; None before the first ``take``. Raises LogRetired."""
        ...

    # A log that moves in or out, by commands of an operator. The caller needs no lead.

    def import_log(self, log: ImportedLog) -> None:
        """Store a whole log in a database that is empty, and a fence behind its last row; all or nothing.

        Before the commit no broker sees a row, so an interrupted import has left no trace. A repeat finds its own log,
        stores the standing pins anew, and returns, as long as no broker has led.

        Raises:
            NotEmpty: the database has a different log, or a broker has led this log.
            NoPinsColumn: the log has standing pins, and the tables have no column for them. Nothing was stored.
            EngineUnavailable: the caller is being stopped. The outcome is unknown.
        """
        ...

    def retire(self, last_lsn: int) -> None:
        """End the log in the database: from then on ``take`` and ``log_id`` raise ``LogRetired``. Rows, checkpoint and
        accounts stay and can be read. A repeat returns.

        Args:
            last_lsn: LSN of the newest row, a fence, whose leader has ended.

        Raises:
            RowsBehind: the newest row has a different LSN. The log is unchanged.
            EngineUnavailable: the caller is being stopped. The outcome is unknown.
        """
        ...

    def view(self) -> EngineView:
        """Return the state of the log for status and metrics, as a single primary sees it: without a barrier, and no
        proof."""
        ...

    def release(self) -> None:
        """Give up the lead in order: ``try_lead`` of the next broker returns True from then on. Later calls that change
        the log raise ``Fenced``.
        """
        ...

    def close(self) -> None:
        """End the connections. To be called when no other call is under way."""
        ...
