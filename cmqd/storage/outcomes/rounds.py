"""Rounds: before the oldest checkpoint goes, the outcomes of its rows are written beside the segments that stay.

    older checkpoint .. newer checkpoint       the rows in between may be dropped once the older checkpoint is gone
      no message of a segment that stays left or came back: the known rows of all segments go up to the newer header
      else: a child reads the rows and writes files; the manifest lists them as the checkpoint goes
      without room, after an error or after ten minutes: the known rows begin anew at the end of the newer checkpoint

Dropping wins over outcomes: only a disk with room is made to wait. A segment that has the end of the newer checkpoint,
or later rows, is left out: what happened to its messages until then stands in its own rows, which stay as long as the
segment.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec

from cmqd.child_python import child_python
from cmqd.storage.folder.catalog import Catalog, SealedFile, Segment
from cmqd.storage.outcomes.round import RoundFile, RoundJob, RoundSegment
from cmqd.storage.standard_error import complain
from cmqd_segment.manifest import CheckpointEntry, OutcomesEntry, outcomes_file

ROUND_SECONDS: Final = 600.0
"""Time after which a round is ended: segments that could be dropped wait for it."""
LOOK_SECONDS: Final = 0.1
"""Interval at which the disk is looked at during a round."""
MAX_ERROR_CHARS: Final = 500


class Changes(msgspec.Struct, array_like=True, frozen=True):
    """What the loop process tells with a checkpoint about segments that take no more rows."""

    changed: list[int]
    """Segments of which messages left their queues, or came back, since the checkpoint before."""
    unwanted: list[int]
    """Segments without a wanted message, which will be dropped."""
    counted: int | None = None
    """Newest segment that the loop process knew to take no more rows: it cannot tell of changes of later segments.
    None = it knew all."""


class Rounds:
    """Decides about rounds, and runs them one at a time; see the module."""

    def __init__(
        self,
        catalog: Catalog,
        catch_up: Callable[[], Awaitable[object]],
        is_short: Callable[[], bool],
        is_stopping: Callable[[], bool],
        on_skipped: Callable[[], None],
    ) -> None:
        """Take the parts.

        Args:
            catalog: of the folder.
            on_skipped: called when a round has failed or was ended.
            catch_up: counts the rows that the loop process has committed: a segment that is behind lacks positions.
            is_short: whether the disk is nearly full.
            is_stopping: whether the broker stops.
        """
        self._catch_up = catch_up
        self._catalog = catalog
        self._is_short = is_short
        self._is_stopping = is_stopping
        self._on_skipped = on_skipped
        self._changes: dict[int, Changes] = {}
        """By the number of the checkpoint, of the checkpoints of this life."""
        self._told = Changes([], [])
        """Changes of the next checkpoint."""
        self._one = asyncio.Lock()
        self._replaced: list[Path] = []
        """Files of generations that the next manifest does not list."""

    def tell(self, changes: Changes) -> None:
        """Take changes that belong to the next checkpoint."""
        changed = [*dict.fromkeys([*self._told.changed, *changes.changed])]
        self._told = Changes(changed, changes.unwanted, changes.counted)

    def note(self, number: int) -> None:
        """Keep the told changes with a checkpoint."""
        self._changes[number], self._told = self._told, Changes([], [])
        kept = {entry.number for entry in self._catalog.checkpoints} | {number}
        # A round over checkpoints that went, during a hold or a longer round, needs their changes: the next has them.
        gone: list[int] = []
        changes: dict[int, Changes] = {}
        for each, told in self._changes.items():
            if each >= min(kept):
                gone += told.changed
                if each in kept:
                    changes[each] = Changes([*dict.fromkeys(gone)], told.unwanted, told.counted)
                    gone = []
        self._changes = changes

    def staying(self, newer: CheckpointEntry, unwanted: Iterable[int] = ()) -> list[Segment]:
        """Return the segments that a round to this checkpoint is about."""
        without = set(unwanted)
        return [
            segment
            for segment in self._catalog.segments()
            if 0 < segment.last_lsn < newer.end_lsn
            and (isinstance(segment, SealedFile) or segment.rows)
            and segment.number not in without
        ]

    def moves(self, older: CheckpointEntry | None, newer: CheckpointEntry) -> bool:
        """Move the known rows to the newer checkpoint if no outcome is needed for that; else return False."""
        told = self._between(older, newer)
        if told is None:
            is_changed = bool(self.staying(newer))
        else:
            unwanted = set(told.unwanted)
            changed = set(told.changed)
            is_changed = any(
                # The storage can close a segment before the loop process hears of it, which counts it next time.
                segment.number in changed or (told.counted is not None and segment.number > told.counted)
                for segment in self.staying(newer, unwanted)
            )
        if is_changed:
            return False
        self._cover(older, newer, [], () if told is None else told.unwanted)
        return True

    def _between(self, older: CheckpointEntry | None, newer: CheckpointEntry) -> Changes | None:
        """Return the changes from the older to the newer checkpoint; None = unknown."""
        first = 0 if older is None else older.number
        numbers = [entry.number for entry in self._catalog.checkpoints if first <= entry.number <= newer.number]
        if not self._changes.keys() >= set(numbers):
            # Of the life before, or copied from an engine.
            return None
        told = [changes for number, changes in self._changes.items() if first <= number <= newer.number]
        newest = max(self._changes, default=0)
        unwanted = self._changes[newest].unwanted if newest else []
        counted = self._changes[newer.number].counted if newer.number in self._changes else None
        return Changes([number for changes in told for number in changes.changed], unwanted, counted)

    async def run(self, older: CheckpointEntry | None, newer: CheckpointEntry) -> bool:
        """Make the outcomes up to the newer checkpoint, or give them up; return False if the broker stops.

        On return the catalog has the new state, which the next manifest lists together with the end of the older
        checkpoint.
        """
        async with self._one:
            return await self._run(older, newer)

    async def _run(self, older: CheckpointEntry | None, newer: CheckpointEntry) -> bool:
        await self._catch_up()
        told = self._between(older, newer)
        unwanted = [] if told is None else told.unwanted
        staying = self.staying(newer, unwanted)
        if not staying:
            self._cover(older, newer, [], unwanted)
            return True
        catalog = self._catalog
        problem = ""
        if older is None and (catalog.dropped or catalog.losses):
            problem = "the first rows are gone"
        else:
            job = RoundJob(str(catalog.folder.path), older, newer, [self._describe(segment) for segment in staying])
            try:
                files = await self._run_child(job)
                if self._is_stopping():
                    # The older checkpoint stays listed, and the next start makes this round.
                    return False
                self._cover(older, newer, files, unwanted)
            except (OSError, TimeoutError, RuntimeError, msgspec.MsgspecError) as error:
                problem = str(error)
        if self._is_stopping():
            return False
        if problem:
            complain(f"how messages left up to row {newer.end_lsn} is not kept beside the segments: {problem}")
            self._give_up(newer)
            self._on_skipped()
        return True

    def _describe(self, segment: Segment) -> RoundSegment:
        report = segment.report()
        outcomes = self._catalog.outcomes.get(segment.number)
        return RoundSegment(
            segment.number, report.first_lsn, 0 if outcomes is None else outcomes.generation, report.queues
        )

    async def _run_child(self, job: RoundJob) -> list[RoundFile]:
        mask = os.umask(0)
        os.umask(mask)
        process = await asyncio.create_subprocess_exec(
            *child_python(),
            "-m",
            "cmqd.storage.outcomes.round",
            str(os.getpid()),
            str(mask),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        answer = asyncio.ensure_future(process.communicate(msgspec.msgpack.encode(job)))
        stop_at = monotonic() + ROUND_SECONDS
        try:
            while not answer.done():
                if self._is_short():
                    raise TimeoutError("the disk is nearly full")
                if self._is_stopping():
                    raise TimeoutError("the broker stops")
                if monotonic() >= stop_at:
                    raise TimeoutError(f"the rows were not read within {ROUND_SECONDS:.0f} s")
                await asyncio.wait({answer}, timeout=LOOK_SECONDS)
            output, errors = answer.result()
        finally:
            if not answer.done():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                # Its files are on the way to their names until it is gone.
                await asyncio.shield(answer)
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines()
            raise RuntimeError((lines or [f"exit code {process.returncode}"])[-1][:MAX_ERROR_CHARS])
        return msgspec.msgpack.decode(output, type=list[RoundFile])

    def _cover(
        self,
        older: CheckpointEntry | None,
        newer: CheckpointEntry,
        files: Iterable[RoundFile],
        unwanted: Iterable[int],
    ) -> None:
        """Let the outcomes of all segments cover the rows up to the newer checkpoint."""
        catalog = self._catalog
        written = {file.number: file for file in files}
        first = 0 if older is None else older.end_lsn
        left_out = set(unwanted)
        for segment in self.staying(newer):
            number = segment.number
            before = catalog.outcomes.get(number)
            file = written.get(number)
            if before is None or (file is not None and file.is_new):
                before = OutcomesEntry(0 if before is None else before.generation, first, newer.lsn)
            if number in left_out:
                # Its drop was expected. If it stays, for a pin, the rows of this round are not covered.
                catalog.outcomes[number] = msgspec.structs.replace(before, known_from=newer.end_lsn, upto=newer.lsn)
            elif file is None:
                catalog.outcomes[number] = msgspec.structs.replace(before, upto=newer.lsn)
            else:
                self._replace(number)
                catalog.outcomes[number] = OutcomesEntry(
                    file.generation, before.known_from, newer.lsn, file.bytes, file.sha256
                )
        catalog.outcomes_upto = newer

    def _give_up(self, newer: CheckpointEntry) -> None:
        catalog = self._catalog
        # Also segments whose drop was expected: they may stay, and later rounds move only the end of their rows.
        for segment in self.staying(newer):
            before = catalog.outcomes.get(segment.number, OutcomesEntry(0, 0, 0))
            # Not the header of the checkpoint: its slices are newer.
            catalog.outcomes[segment.number] = msgspec.structs.replace(before, known_from=newer.end_lsn, upto=newer.lsn)
        catalog.outcomes_upto = newer

    def _replace(self, number: int) -> None:
        before = self._catalog.outcomes.get(number)
        if before is not None and before.generation:
            self._replaced.append(self._catalog.folder.path / outcomes_file(number, before.generation))

    def take_replaced(self) -> list[Path]:
        """Return the files that manifests written from now on do not list, for ``remove``."""
        replaced, self._replaced = self._replaced, []
        return replaced

    async def remove(self, replaced: Iterable[Path]) -> None:
        """Remove the files of ``take_replaced``, once a manifest was written."""
        for path in replaced:
            await asyncio.to_thread(path.unlink, missing_ok=True)
