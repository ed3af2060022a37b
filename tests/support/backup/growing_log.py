"""A log that grows between backups: rows at chosen times, by the storage of a broker that stops in order."""

import contextlib
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from cmqd.server.access.accounts_file import AccountsFile, new_document
from cmqd_backup.command import main
from cmqd_segment.checkpoint import CheckpointEnd, CheckpointHeader
from cmqd_segment.records import AnyRecord, ClockOffset
from support.storage.log_rig import NOW_MS, ForkedPlace, LogRig, sent

QUEUE_ID = 1
SECOND_MS = 1000


class Ended(NamedTuple):
    """A command that ended."""

    code: int
    lines: str
    """Standard output."""
    error: str


def command(*arguments: object) -> Ended:
    """Run ``cmqd backup`` or ``cmqd restore`` in this process, in a thread: it has an event loop of its own."""
    out, error = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
        ThreadPoolExecutor(max_workers=1) as thread,
    ):
        code = thread.submit(main, [str(argument) for argument in arguments]).result()
    return Ended(code, out.getvalue(), error.getvalue())


class GrowingLog:
    """A data folder with a message in each row; the n-th row has the time ``NOW_MS`` plus n seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._place = ForkedPlace(folder)
        self.rows = 0
        """Messages so far: the n-th row has position n - 1 of queue ``QUEUE_ID``."""
        if not folder.exists():
            folder.mkdir(parents=True)
            AccountsFile(folder).write(new_document(NOW_MS))

    async def grow(
        self, rows: int, *, seal_every: int = 2, offset_ms: int | None = None, checkpoint: bool = False
    ) -> None:
        """Start, store messages, and stop.

        Args:
            rows: number of messages and rows.
            seal_every: rows of a segment.
            offset_ms: of the wall clock, recorded in the first of the rows.
            checkpoint: write two checkpoints behind the rows.
        """
        rig = LogRig(self._place.log())
        await rig.open()
        assert rig.log.last_lsn == self.rows
        for index in range(1, rows + 1):
            position = self.rows
            self.rows += 1
            now_ms = NOW_MS + self.rows * SECOND_MS
            message, bodies = sent(QUEUE_ID, position, 1)
            records: list[AnyRecord] = [message]
            if offset_ms is not None and index == 1:
                records.insert(0, ClockOffset(offset_ms, now_ms))
            rig.log.append(records, bodies, now_ms)
            await rig.commit()
            if index % seal_every == 0:
                await rig.log.seal_now()
        for _ in range(2 if checkpoint else 0):
            await self._write_checkpoint(rig)
        await rig.log.close()

    async def _write_checkpoint(self, rig: LogRig) -> None:
        """Write an empty checkpoint that covers all rows, of the time of the last one."""
        lsn, done = rig.log.last_lsn, len(rig.checkpoints_done)
        for part in (CheckpointHeader(lsn, NOW_MS + self.rows * SECOND_MS, 1, 1, 1), CheckpointEnd(lsn, 1)):
            rig.log.write_checkpoint(part)
        await rig.until(lambda: len(rig.checkpoints_done) > done)

    async def drop(self, first_lsn: int) -> None:
        """Start, reclaim the segment that begins with a row, and stop."""
        rig = LogRig(self._place.log())
        await rig.open()
        (segment,) = [each for each in rig.log.closed_segments() if each.first_lsn == first_lsn]
        assert await rig.log.drop_segments([segment.number], rig.log.last_lsn) == [segment.number]
        await rig.log.close()


async def read_log(folder: Path) -> LogRig:
    """Open the log of a folder; the caller closes it."""
    rig = LogRig(ForkedPlace(folder).log())
    await rig.open()
    return rig
