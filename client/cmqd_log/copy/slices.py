"""The slices of a run as requests: each slice is planned when its turn comes, and read piece by piece."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from cmqd_log.copy.counting import row_checks
from cmqd_log.copy.journal import Journal, JournalError, Slice, states_file
from cmqd_log.copy.requests import Request, requests_of
from cmqd_log.data_folder.folder import open_folder
from cmqd_log.data_folder.plan import Task, describe, pieces_of, split
from cmqd_log.data_folder.positions import check_position, start_at
from cmqd_log.errors import DataLossError, FolderError, OtherLogError, SegmentReclaimedError
from cmqd_log.message_states.states_at import StatesBySegment, read_states
from cmqd_log.options import Mode, Options, parse_options
from cmqd_log.reading.planning import check_loss, plan_batch, shows_any
from cmqd_log.reading.tasks import Stretch, read_stretches

CHUNK_REQUESTS = 8
"""Requests that are made at a time: half of the requests under way."""

_log = logging.getLogger("cmqd_log")


def check_log(journal: Journal) -> None:
    """Check that the log is the log of the run, and note its id in a journal without an id.

    Raises:
        JournalError: the log is a different log.
        DataLossError: the log lost rows of the remaining slices.
    """
    options = parse_options(journal.source)
    folder = open_folder(options)
    view = folder.view(include_active=options.include_active)
    path = options.path
    if view.hi < journal.position:
        raise JournalError(f"{path} does not hold the log of the run: its rows end before row {journal.position}")
    try:
        is_proven = check_position(view, journal.position, journal.log_id, journal.start, path)
    except OtherLogError as error:
        raise JournalError(f"{path} does not hold the log of the run: {error}") from error
    if journal.is_done:
        return
    one = journal.next_slice
    missing = view.gaps(one.first_lsn, one.last_lsn)
    if missing and not journal.allow_data_loss:
        raise DataLossError(
            f"{path} no longer has {describe(missing)}, which the run sends next: reclaimed, or lost to damage"
        )
    found = row_checks(folder, view, [one.first_lsn]).get(one.first_lsn)
    if found is not None and found != one.check:
        raise JournalError(f"{path} does not hold the log of the run: row {one.first_lsn} has other content")
    if not is_proven and view.log_id:
        _log.warning(
            "the journal of run %s names no log, because an older version of cmqd wrote it; the run continues with %s",
            journal.run,
            path,
        )
        journal.log_id, journal.start = view.log_id, start_at(view, journal.position)


class Chunk(NamedTuple):
    """Requests of a slice."""

    requests: list[Request]
    is_last: bool
    """True if the slice has no further requests."""


class SliceReader:
    """Reads the remaining slices of a run. Names are looked up once: rows above the count are not part of a run."""

    def __init__(self, journal: Journal, file: Path, cache_folder: str = "") -> None:
        """Plan the run.

        Args:
            journal: the run.
            file: of the journal.
            cache_folder: for files of a URL, if other processes read them too; this process fetches a file once for the
                run.

        Raises:
            CmqdSourceError: the log, or the file of states, cannot be read.
        """
        self._journal = journal
        options = parse_options({**journal.source, "endingLsn": str(journal.position)})
        options = replace(
            options,
            starting_ms=journal.starting_ms,
            ending_ms=journal.ending_ms,
            fail_on_data_loss=not journal.allow_data_loss,
            cache_folder=cache_folder or options.cache_folder,
        )
        self._options: Options = options
        self._folder = open_folder(options)
        self._states: StatesBySegment = {}
        if options.mode is not Mode.EVENTS:
            self._states = _states_of(journal, file)
        # The states are of the count, and the rows that are missing are checked slice by slice.
        asked = replace(options, mode=Mode.EVENTS, starting_ms=None, ending_ms=None)
        columns = ("body", "headers", "queue", "topic", "tags", "routing_key")
        self._planned: dict[int, Task] = {
            task.piece.extent.number: replace(task, options=options)
            for task in plan_batch(replace(asked, only_lsns=(journal.next_slice.first_lsn, journal.position)), columns)
        }

    def chunks(self, slices: list[Slice], most: int) -> Iterator[Chunk]:
        """Yield the requests of the slices in order; each slice has at least one chunk.

        Args:
            slices: planned one by one, when their turn comes.
            most: maximum number of messages of a request.

        Raises:
            DataLossError: rows of a slice are missing.
            FolderError: a row is damaged, or a segment cannot be read.
        """
        for one in slices:
            yield from chunks_of(self._tasks(one), self._journal, most)

    def parts(self, one: Slice, count: int) -> list[list[Task]]:
        """Return a slice as at most ``count`` ranges of rows, in order: each as tasks, in order.

        Raises:
            DataLossError: rows of the slice are missing.
        """
        tasks = list(self._tasks(one, count))
        count = min(count, len(tasks))
        cuts = [len(tasks) * number // max(count, 1) for number in range(count + 1)]
        return [tasks[first:stop] for first, stop in pairwise(cuts)]

    def _tasks(self, one: Slice, least: int = 1) -> Iterator[Task]:
        options = self._options
        view = self._folder.view(include_active=options.include_active)
        check_loss(view, options, view.gaps(one.first_lsn, one.last_lsn))
        for piece in split(pieces_of(view, options, one.first_lsn - 1, one.last_lsn), least):
            number = piece.extent.number
            planned = self._planned.get(number)
            if planned is None:
                continue
            states = self._states.get(number, {})
            if options.mode in (Mode.EVENTS, Mode.ALL) or shows_any(states, options.mode):
                yield replace(planned, piece=piece, states=states)


def chunks_of(tasks: Iterable[Task], journal: Journal, most: int) -> Iterator[Chunk]:
    """Yield the requests of tasks in order, at least one chunk.

    Args:
        tasks: as of :meth:`SliceReader.parts`.
        journal: the run.
        most: maximum number of messages of a request.
    """
    requests = requests_of(_stretches(tasks, journal.allow_data_loss), journal, most)
    # A request ahead, to know the last chunk.
    ahead = next(requests, None)
    while ahead is not None:
        made = [ahead, *islice(requests, CHUNK_REQUESTS - 1)]
        ahead = next(requests, None)
        yield Chunk(made, ahead is None)
        if ahead is None:
            return
    yield Chunk([], True)


def _stretches(tasks: Iterable[Task], allow_data_loss: bool) -> Iterator[Stretch]:
    for task in tasks:
        try:
            yield from read_stretches(task, bodies=True)
        except SegmentReclaimedError as error:
            # The segment is opened before its first row is read, so it is read whole or not at all.
            if not allow_data_loss:
                raise
            _log.warning("%s", error)


def _states_of(journal: Journal, file: Path) -> StatesBySegment:
    try:
        return read_states(states_file(file))
    except FolderError as error:
        sent = journal.slices[: journal.done]
        rows = f"{describe([(sent[0].first_lsn, sent[-1].last_lsn)])} were sent" if sent else "no row was sent"
        raise JournalError(
            f"{error}; of this run {rows} ({journal.sent:,} messages). A new run sends the rows from "
            f"{journal.next_slice.first_lsn} on, with --from-lsn"
        ) from error
