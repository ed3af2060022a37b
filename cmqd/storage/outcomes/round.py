"""A round: the outcomes of the rows between two checkpoints, written beside the segments. Runs as a child process.

The child reads the job from standard input, and writes the result to standard output, both as msgpack. It holds no
lock: the storage process, its parent, keeps the checkpoints and the rows of the job until the child ends, and lists the
files.

Order: each file by temporary file, fsync, rename; fsync of the folder; result. A crash leaves files that the manifest
does not list, which the next start removes. The generation before stays until the manifest lists the next.

A child with the lowest priority takes the time that commits leave. It dies with its parent: a child that outlived it
would write under the names of the next broker.
"""

import contextlib
import ctypes
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator
from hashlib import sha256
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import Final

import msgspec

from cmqd_reading.outcome_fold import OutcomeFold, Stretch
from cmqd_segment.checkpoint_file import decode_part, read_payloads
from cmqd_segment.manifest import CheckpointEntry, SegmentState, outcomes_file, read_manifest, sync_folder
from cmqd_segment.outcomes import (
    EncodedEntries,
    Outcome,
    OutcomesError,
    OutcomesHeader,
    outcome_chunks,
    read_outcomes,
)
from cmqd_segment.scan import ScannedRow, readable_segments, scan_segment
from cmqd_segment.schema import SegmentFormatError

PR_SET_PDEATHSIG: Final = 1
NICE: Final = 19
ATTEMPTS: Final = 600
"""Attempts to find the next row: a segment may be sealed at the moment, which takes seconds."""
PAUSE_SECONDS: Final = 0.1


class RoundSegment(msgspec.Struct, array_like=True, frozen=True):
    """A segment that stays."""

    number: int
    first_lsn: int
    generation: int
    """Of its file; 0 = none."""
    queues: list[tuple[int, int, int]]
    """Positions of its messages: (queue or topic id, first position, stop position)."""


class RoundJob(msgspec.Struct, array_like=True, frozen=True):
    """The work of a round."""

    folder: str
    older: CheckpointEntry | None
    """None = the log begins with row 1, which is there."""
    newer: CheckpointEntry
    segments: list[RoundSegment]


class RoundFile(msgspec.Struct, array_like=True, frozen=True):
    """A file that the round wrote."""

    number: int
    """Of the segment."""
    generation: int
    bytes: int
    sha256: str
    is_new: bool
    """The file before could not be read, so what it told is lost."""


class RowMissing(Exception):
    """A row of the round is lost, so its outcomes cannot be told."""


def run_round(job: RoundJob) -> list[RoundFile]:
    """Write the files that gain entries. Blocks.

    Raises:
        RowMissing: see there.
        CheckpointError, msgspec.MsgspecError, NewerFormatError: a checkpoint or a row cannot be read.
        OSError, sqlite3.Error: the disk failed, or is full.
    """
    stretches: dict[int, list[Stretch]] = {}
    for segment in job.segments:
        for queue_id, first, stop in segment.queues:
            stretches.setdefault(queue_id, []).append(Stretch(first, stop, segment.number))
    fold = OutcomeFold({queue_id: sorted(held) for queue_id, held in stretches.items()})
    folder = Path(job.folder)
    if job.older is not None:
        for payload in read_payloads(folder / job.older.file):
            fold.load_older(decode_part(payload))
    for payload in read_payloads(folder / job.newer.file):
        fold.load_newer(decode_part(payload))
    gained: dict[int, EncodedEntries] = {}
    for row in rows_between(folder, 0 if job.older is None else job.older.lsn, job.newer.end_lsn):
        for number, entry in fold.apply(row.lsn, row.time_ms, row.records):
            gained.setdefault(number, EncodedEntries()).add(entry)
    files = [_write(folder, segment, gained[segment.number]) for segment in job.segments if segment.number in gained]
    if files:
        sync_folder(folder / "segments")
    return files


def _write(folder: Path, segment: RoundSegment, gained: EncodedEntries) -> RoundFile:
    before = folder / outcomes_file(segment.number, segment.generation)
    is_new = False
    if segment.generation:
        try:
            for _ in read_outcomes(before, segment.number, segment.first_lsn, segment.generation):
                pass
        except (OutcomesError, FileNotFoundError):
            is_new = True
    entries: Iterable[Outcome] = gained
    if segment.generation and not is_new:
        # Slices of a checkpoint have rows of their own: of two queues, the entries of two rounds can overlap.
        old = read_outcomes(before, segment.number, segment.first_lsn, segment.generation)
        entries = merge(old, gained, key=attrgetter("lsn", "record"))
    generation = segment.generation + 1
    path = folder / outcomes_file(segment.number, generation)
    temporary = path.with_name(f"{path.name}.tmp")
    digest = sha256()
    try:
        with temporary.open("wb") as file:
            for chunk in outcome_chunks(OutcomesHeader(segment.number, segment.first_lsn, generation), entries):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o444)
            os.fsync(file.fileno())
            size = file.tell()
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return RoundFile(segment.number, generation, size, digest.hexdigest(), is_new)


def rows_between(folder: Path, above: int, upto: int) -> Iterator[ScannedRow]:
    """Yield the rows with ``above < lsn <= upto`` of a live folder, without their bodies.

    Raises as ``run_round``.
    """
    for _ in range(ATTEMPTS):
        progress = -1
        while progress < above < upto:
            progress = above
            for entry in readable_segments(read_manifest(folder)):
                is_sealed = entry.state is SegmentState.SEALED
                if is_sealed and not entry.first_lsn <= above + 1 <= entry.last_lsn:
                    continue
                # A segment may be sealed or dropped since the manifest was read: read the manifest again.
                with contextlib.suppress(sqlite3.Error, SegmentFormatError, FileNotFoundError):
                    for row in scan_segment(
                        folder / entry.file, sealed=is_sealed, above=above, upto=upto, bodies=False
                    ):
                        if row.lsn != above + 1:
                            break
                        above = row.lsn
                        yield row
        if above >= upto:
            return
        time.sleep(PAUSE_SECONDS)
    raise RowMissing(f"row {above + 1} is not there")


def main() -> None:
    """Do the job of standard input."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent, mask = int(sys.argv[1]), int(sys.argv[2])
    if os.getppid() != parent:
        return  # the parent died before the signal was asked for
    os.nice(NICE)
    # The modes of the files are those of the folder.
    os.umask(mask)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=RoundJob)
    sys.stdout.buffer.write(msgspec.msgpack.encode(run_round(job)))


if __name__ == "__main__":
    main()
