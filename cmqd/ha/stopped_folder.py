"""The data folder of a stopped broker: its rows, with their checksums checked, and its newest checkpoint."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cmqd.core.facts.numbers import Numbers
from cmqd.engine.interface import StoredCheckpoint
from cmqd.log.values import Durability
from cmqd.storage.folder.data_folder import DataFolder, boot_id
from cmqd.storage.recovery.folder_inspection import inspect
from cmqd.storage.segments.row_inserts import LogRow
from cmqd.storage.storage_errors import DamagedError
from cmqd_segment.checkpoint_file import verify_checkpoint
from cmqd_segment.manifest import CacheOf, Manifest
from cmqd_segment.records import NumbersReserved
from cmqd_segment.rows import data_checksum, decode_records, meta_checksum
from cmqd_segment.schema import SegmentFormatError, open_read_only

BATCH_ROWS = 512
BATCH_BYTES = 4 * 1024 * 1024


class StoppedFolder:
    """A folder without damage; the caller holds its lock. Only WAL-indexes of unsealed segments are written."""

    def __init__(self, path: Path, engine: CacheOf | None = None) -> None:
        """Inspect the folder.

        Args:
            path: of the folder.
            engine: the log of which the folder must be a cache, if it has rows; None of a folder of its own.

        Raises:
            LogError: as ``inspect``; also for losses that an earlier start has accepted.
        """
        recovered = inspect(
            DataFolder(path), accept_loss=False, durability=Durability.FSYNC, boot_id=boot_id(), engine=engine
        )
        problems = [finding.text for finding in recovered.findings if finding.kind in _PROBLEMS]
        problems += [f"rows {loss.first_lsn} to {loss.last_lsn}: {loss.reason}" for loss in recovered.losses]
        if problems:
            raise DamagedError(f"{path} is damaged or has losses, and nothing was changed: " + "; ".join(problems))
        self.path = path
        self.manifest: Manifest = recovered.manifest
        self.last_lsn = recovered.last_lsn
        """LSN of the last row, reclaimed or not."""
        self.reclaimed = recovered.reclaimed
        self.restored = recovered.restored
        """The restore or clone of the log, if no broker has started since."""
        self._checkpoint = recovered.checkpoint
        files = [(file.entry.first_lsn, file.path, True) for file in recovered.sealed]
        files += [(leftover.first_lsn, leftover.path, False) for leftover in recovered.leftovers]
        self._files = sorted(files)

    def batches(self) -> Iterator[list[LogRow]]:
        """Yield the rows, ascending, in batches of a few MiB. Raises DamagedError."""
        batch: list[LogRow] = []
        size = 0
        for row in self._rows():
            batch.append(row)
            size += len(row.meta) + len(row.data)
            if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _rows(self) -> Iterator[LogRow]:
        above = 0
        for _, path, sealed in self._files:
            try:
                with contextlib.closing(open_read_only(path, sealed=sealed)) as raw:
                    for lsn, time_ms, messages, queues, meta_crc, data_crc, meta, data in raw.execute(
                        "SELECT lsn, time_ms, messages, queues, meta_crc, data_crc, meta, data FROM log"
                        " WHERE lsn > ? ORDER BY lsn",
                        # Earlier versions could store a commit in two segments; see ``recovery_stream``.
                        (above,),
                    ):
                        if (meta_checksum(lsn, time_ms, messages, queues, meta), data_checksum(data)) != (
                            meta_crc,
                            data_crc,
                        ):
                            raise DamagedError(f"row {lsn} of {path} does not match its checksums")
                        yield LogRow(lsn, time_ms, messages, queues, meta, data)
                        above = lsn
            except (sqlite3.Error, SegmentFormatError) as error:
                raise DamagedError(f"{path} cannot be read: {error}") from error

    def checkpoint(self) -> StoredCheckpoint | None:
        """Return the newest checkpoint. Raises DamagedError if the log had another id when the checkpoint was made."""
        entry = self._checkpoint
        if entry is None:
            return None
        path = self.path / entry.file
        header, _ = verify_checkpoint(path)
        if header.log_id not in ("", self.manifest.log_id):
            raise DamagedError(
                f"{path} is of the log's former id {header.log_id}: start the broker once without"
                " redundancy, until it has written a checkpoint"
            )
        return StoredCheckpoint(entry.lsn, path.read_bytes())

    def numbers(self) -> Numbers:
        """Return the counters of the log, by the checkpoint and the rows behind it. Raises DamagedError."""
        numbers = Numbers()
        if self._checkpoint is not None:
            header, _ = verify_checkpoint(self.path / self._checkpoint.file)
            numbers.message_id_until = header.message_id_until
        lsn = 0 if self._checkpoint is None else self._checkpoint.lsn
        for batch in self.batches():
            for row in batch:
                if row.lsn > lsn:
                    self._apply_numbers(numbers, row)
        return numbers

    def _apply_numbers(self, numbers: Numbers, row: LogRow) -> None:
        try:
            records = decode_records(row.meta)
        except msgspec.MsgspecError as error:
            raise DamagedError(f"row {row.lsn} of {self.path} cannot be read: {error}") from error
        for record in records:
            if isinstance(record, NumbersReserved):
                numbers.apply(record)


_PROBLEMS = ("damaged", "lost", "checkpoint_damaged")
"""Findings of the inspection that name data which is gone."""
