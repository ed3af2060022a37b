"""Reading segments outside the broker: rows in order, and a check of all checksums.

For readers such as the Spark connector and ``verify``. A live folder may be read while its broker works, under two
rules that this module follows: an unsealed segment is opened as plain ``mode=ro``, and no statement stays open between
two batches of rows (a reader with an old snapshot keeps the broker from sealing).
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from cmqd_segment.checkpoint_file import CheckpointError, verify_checkpoint
from cmqd_segment.manifest import Manifest, SegmentEntry, SegmentState
from cmqd_segment.outcomes import OutcomesError, check_outcomes
from cmqd_segment.records import AnyRecord
from cmqd_segment.rows import data_checksum, decode_records, meta_checksum
from cmqd_segment.schema import SegmentFormatError, open_read_only
from cmqd_segment.side import SideError, check_segment, decode_side

ROWS_PER_STATEMENT = 256
LAST_LSN = (1 << 63) - 1


class ScannedRow(NamedTuple):
    """A row with correct checksums."""

    lsn: int
    time_ms: int
    messages: int
    records: list[AnyRecord]
    data: bytes
    """The bodies side by side, in the order of the records (see ``rows.sent_runs``); empty if not asked for."""


class VerifiedFile(NamedTuple):
    """The result of the check of a file."""

    file: str
    problems: list[str]
    """Damage: data is lost."""
    warnings: list[str]
    """Faults of a side file, which the broker makes anew, or of outcomes: some messages left in an unknown way."""


class RowError(Exception):
    """A row cannot be used; the scan may go on above its LSN."""

    def __init__(self, lsn: int, text: str) -> None:
        super().__init__(text)
        self.lsn = lsn


def readable_segments(manifest: Manifest) -> list[SegmentEntry]:
    """The segments of a folder that may hold rows, ascending by LSN."""
    states = (SegmentState.SEALED, SegmentState.RETIRED, SegmentState.ACTIVE, SegmentState.PREPARED)
    return [entry for entry in manifest.segments if entry.state in states]


def sealed_segments(manifest: Manifest) -> list[SegmentEntry]:
    """The segments that a copy of the folder holds."""
    return [entry for entry in manifest.segments if entry.state is SegmentState.SEALED]


def scan_segment(
    path: Path, *, sealed: bool, above: int = 0, upto: int = LAST_LSN, bodies: bool = True
) -> Iterator[ScannedRow]:
    """Yield the rows with ``above < lsn <= upto``, in order.

    Raises:
        RowError: a row is damaged; scan again with ``above=error.lsn`` to continue behind it.
        NewerFormatError: a newer version wrote the row.
        SegmentFormatError, sqlite3.Error: the file cannot be read.
    """
    data = "data" if bodies else "x''"
    with contextlib.closing(open_read_only(path, sealed=sealed)) as raw:
        while rows := raw.execute(
            f"SELECT lsn, time_ms, messages, queues, meta_crc, data_crc, meta, {data} FROM log"
            " WHERE lsn > ? AND lsn <= ? ORDER BY lsn LIMIT ?",
            (above, upto, ROWS_PER_STATEMENT),
        ).fetchall():
            for row in rows:
                yield _checked(path, row, bodies)
            above = rows[-1][0]


def _checked(path: Path, row: tuple[int, int, int, bytes, int, int, bytes, bytes], bodies: bool) -> ScannedRow:
    lsn, time_ms, messages, queues, meta_crc, data_crc, meta, data = row
    if meta_checksum(lsn, time_ms, messages, queues, meta) != meta_crc:
        raise RowError(lsn, f"row {lsn} of {path.name} is damaged: its records do not match their checksum")
    if bodies and data_checksum(data) != data_crc:
        raise RowError(lsn, f"row {lsn} of {path.name} is damaged: its bodies do not match their checksum")
    try:
        records = decode_records(meta)
    except msgspec.MsgspecError as error:
        raise RowError(lsn, f"row {lsn} of {path.name} cannot be decoded: {error}") from error
    return ScannedRow(lsn, time_ms, messages, records, data)


def verify_each(
    manifest: Callable[[], Manifest],
    placed: Callable[[str], contextlib.AbstractContextManager[Path]],
    segments: Callable[[Manifest], list[SegmentEntry]],
) -> Iterator[VerifiedFile]:
    """Yield each file with its faults, of a folder that may be on another machine.

    Args:
        manifest: reads the manifest as it is now.
        placed: makes a file of the folder readable on this machine, and returns its local folder.
        segments: the segments of a manifest that must be present.
    """
    listed = manifest()
    for checkpoint in listed.checkpoints:
        problems: list[str] = []
        try:
            with placed(checkpoint.file) as folder:
                verify_checkpoint(folder / checkpoint.file)
        except (CheckpointError, OSError) as error:
            if checkpoint in manifest().checkpoints:
                problems = [f"checkpoint {checkpoint.file}: {error}"]
        yield VerifiedFile(checkpoint.file, problems, [])
    for segment in segments(listed):
        try:
            with placed(segment.file) as folder:
                problems = list(verify_segment(folder, segment))
        except OSError as error:
            problems = [f"segment {segment.file}: {error}"]
        if problems and not any(kept.number == segment.number for kept in segments(manifest())):
            problems = []
        yield VerifiedFile(segment.file, problems, [])
        if segment.outcomes_file:
            yield _verified_outcomes(manifest, placed, segment)
        if segment.side is None:
            continue
        try:
            with placed(segment.side_file) as folder:
                warning = verify_side(folder, segment)
        except FileNotFoundError:
            warning = f"side file {segment.side_file} is missing"
        except OSError as error:
            warning = f"side file {segment.side_file}: {error}"
        if warning and segment not in manifest().segments:
            # The segment was dropped, or its side file made anew.
            warning = ""
        yield VerifiedFile(segment.side_file, [], [warning] if warning else [])


def _verified_outcomes(
    manifest: Callable[[], Manifest],
    placed: Callable[[str], contextlib.AbstractContextManager[Path]],
    segment: SegmentEntry,
) -> VerifiedFile:
    """Check the outcomes of a segment. A fault costs what they told, and no message."""
    file, listed = segment.outcomes_file, segment.outcomes
    assert listed is not None
    warning = ""
    try:
        with placed(file) as folder:
            check_outcomes(folder / file, segment.number, segment.first_lsn, listed.generation, listed.sha256)
    except FileNotFoundError:
        warning = f"{file} is missing"
    except (OutcomesError, OSError) as error:
        warning = f"{file}: {error}"
    if warning and not any(entry.outcomes_file == file for entry in manifest().segments):
        # The segment was dropped, or its outcomes replaced.
        warning = ""
    return VerifiedFile(file, [], [warning] if warning else [])


def verify_side(folder: Path, entry: SegmentEntry) -> str:
    """Check the side file of a segment; return its fault, empty = none. Raises NewerFormatError, OSError."""
    data = (folder / entry.side_file).read_bytes()
    if entry.side is None or hashlib.sha256(data).hexdigest() != entry.side.sha256:
        return f"side file {entry.side_file} does not match its checksum in the manifest"
    try:
        plan, _ = decode_side(data)
        check_segment(plan, entry.number, entry.sha256)
    except SideError as error:
        return f"side file {entry.side_file}: {error}"
    return ""


def verify_segment(folder: Path, entry: SegmentEntry) -> Iterator[str]:
    """Check the file against its entry in the manifest, and every row against its checksums."""
    path = folder / entry.file
    sealed = entry.state is SegmentState.SEALED
    if not path.exists():
        yield f"segment {entry.file} is missing"
        return
    if sealed:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                yield f"segment {entry.file} does not match its checksum in the manifest"
    above = 0
    rows = 0
    while True:
        try:
            for row in scan_segment(path, sealed=sealed, above=above):
                if rows and row.lsn != above + 1:
                    yield f"segment {entry.file} has no rows between {above} and {row.lsn}"
                above = row.lsn
                rows += 1
            break
        except RowError as error:
            yield str(error)
            above = error.lsn
            rows += 1
        except (sqlite3.Error, SegmentFormatError) as error:
            yield f"segment {entry.file} cannot be read above row {above}: {error}"
            return
    if sealed and rows != entry.rows:
        yield f"segment {entry.file} has {rows} rows instead of {entry.rows}"
