"""Plan of a read: fix the view, name the queues, check for loss, and hand out tasks."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from cmqd_log.data_folder.actors import CLIENT_COLUMNS
from cmqd_log.data_folder.catalog import Catalog, checkpointed, complete, name_ids
from cmqd_log.data_folder.folder import Folder, open_folder
from cmqd_log.data_folder.plan import (
    TIME_SLACK_MS,
    Piece,
    Task,
    View,
    alike,
    bounds,
    describe,
    is_choosing,
    is_sealed,
    pieces_of,
    sources_of,
    split,
    wanted_ids,
)
from cmqd_log.data_folder.rows import summaries
from cmqd_log.errors import DataLossError, FolderError, OptionError, UnknownNameError, UnknownOutcomeError, masked
from cmqd_log.options import LAST_LSN, LATEST, Mode, Options
from cmqd_segment.manifest import SegmentEntry

if TYPE_CHECKING:
    from cmqd_reading.states import QueueStates

_log = logging.getLogger("cmqd_log")

_Planned = TypeVar("_Planned")

ATTEMPTS = 5
"""Attempts to make a plan while the broker reclaims segments."""


def plan_batch(options: Options, columns: Sequence[str], *, asked: Options | None = None) -> list[Task]:
    """Plan the tasks of a batch.

    Args:
        options: the options, narrowed by pushed-down filters.
        columns: names of the requested columns.
        asked: the options without the filters; missing rows are an error by these options alone. A filter selects from
            the rows that are left, pushed down or applied by Spark, so its result must not depend on the push-down.

    Raises:
        CmqdSourceError: an option, the folder or requested rows cannot be used.
    """
    asked = asked or options

    def planned(folder: Folder, view: View, above: int, upto: int) -> list[Task]:
        return plan_range(folder, view, options, columns, above, upto)

    tasks = planned_now(options, asked, planned)
    return [replace(task, may_be_reclaimed=not has_beginning(asked)) for task in tasks]


def planned_now(options: Options, asked: Options, plan: Callable[[Folder, View, int, int], _Planned]) -> _Planned:
    """Return the plan of the requested rows of this moment; ``plan`` gets folder, view and ``above < lsn <= upto``.

    Raises:
        CmqdSourceError: as for :func:`plan_batch`.
    """
    with open_folder(options) as folder:
        for attempt in range(ATTEMPTS):
            view = folder.view(include_active=options.include_active)
            check_start(folder, view, asked)
            above, upto = bounds(view, options)
            check_loss(view, options, missing_rows(view, asked))
            try:
                return plan(folder, view, above, upto)
            except UnknownOutcomeError:
                raise
            except DataLossError:
                # A segment was reclaimed during the planning. The requested messages may be in other segments.
                if attempt == ATTEMPTS - 1:
                    raise
    raise AssertionError("unreachable")


def check_start(folder: Folder, view: View, options: Options) -> None:
    """Check that the first row is at most the row to be written next, and log a first time after the newest row.

    A row number from another log, or with a digit too many, would read as a log without news. A time is no error: an
    hourly job asks for an hour in which a quiet log may have no row.

    Raises:
        OptionError: no reader could have read the row before ``startingLsn``.
    """
    starting = options.starting_lsn
    if isinstance(starting, int) and starting > view.hi + 1:
        unsealed = unsealed_rows(folder, view, replace(options, ending_lsn=LAST_LSN, ending_ms=None))
        newest = view.hi if unsealed is None else unsealed[1]
        if starting > newest + 1:
            raise OptionError(
                "startingLsn",
                starting,
                f"the newest readable row of {options.path} is row {newest}; give at most {newest + 1}, the row that "
                "is written next",
            )
    newest_ms = max((extent.last_ms for extent in view.extents), default=0)
    if options.starting_ms is not None and 0 < newest_ms < options.starting_ms:
        _log.warning(
            "the newest readable row of %s, row %d, is of %s, and 'startingTimestamp' is %s",
            masked(options.path),
            view.hi,
            time_of(newest_ms),
            time_of(options.starting_ms),
        )


def time_of(milliseconds: int) -> str:
    """Return a time for a log line or an error: ISO 8601 in UTC."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError):
        return f"{milliseconds} ms since 1970"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def has_beginning(options: Options) -> bool:
    """True if the options name a first row or time; rows missing from there on are an error."""
    return isinstance(options.starting_lsn, int) or options.starting_ms is not None


def missing_rows(view: View, options: Options) -> list[tuple[int, int]]:
    """Return the missing rows at or above the first row, or time, that the options ask for."""
    if isinstance(options.starting_lsn, int):
        above, upto = bounds(view, options)
        return view.gaps(above + 1, upto)
    if options.starting_ms is not None:
        return view.gaps_between(options.starting_ms, options.ending_ms)
    return []


def check_loss(view: View, options: Options, missing: Sequence[tuple[int, int]]) -> None:
    """Check that no requested row is missing, unless the options allow missing rows.

    Raises:
        DataLossError: requested rows are missing.
    """
    if missing and options.fail_on_data_loss:
        raise DataLossError(
            f"{options.path} no longer has {describe(missing)}: reclaimed, or lost to damage. The first remaining row "
            f"is {view.extents[0].first_lsn if view.extents else view.hi + 1}; "
            f"failOnDataLoss=false reads the remaining rows"
        )


def plan_range(
    folder: Folder,
    view: View,
    options: Options,
    columns: Sequence[str],
    above: int,
    upto: int,
    *,
    known: Catalog | None = None,
) -> list[Task]:
    """Plan the tasks that read rows ``above < lsn <= upto`` of a view.

    ``known``: the names that a stream knows so far; None = a batch, which refuses unknown queues (a stream waits for
    them). A repeated batch of a stream gets the same tasks, even if segments were sealed meanwhile, because the sink
    names messages by partition: other tasks would store repeated messages under new names, a second time.
    """
    pieces = pieces_of(view, options, above, upto)
    changes = known is not None and options.include_active
    if changes:
        pieces = [alike(piece) for piece in pieces]
    # A batch checks the names also if no segment is in its range: a misspelt name must not read as a quiet hour.
    if not pieces and (known is not None or not (is_choosing(options) and view.extents)):
        return []
    catalog = known if known is not None else Catalog()
    if folder.is_remote:
        shows_states = options.mode is not Mode.EVENTS
        asked = pieces if shows_states or needs_names(options, columns) else []
        folder.sides.read_ahead(piece.extent for piece in asked if shows_states or sources_of(piece.extent) is None)
    if needs_names(options, columns):
        if known is None:
            catalog = checkpointed(folder, view)
        name_ids(catalog, folder, view, pieces)
        if known is None and unknown_name(options, catalog):
            complete(catalog, folder, view)
            check_names(options, catalog, folder, view)
    wanted = wanted_ids(catalog.sources, options)
    if wanted is not None and not wanted:
        return []
    shares: dict[int, float] = {}
    if wanted is not None and not changes:
        shares = {piece.extent.number: share_of(folder, piece.extent, wanted, known is not None) for piece in pieces}
        pieces = [piece for piece in pieces if shares[piece.extent.number]]
    states: dict[int, dict[int, QueueStates]] = {}
    as_of_lsn = None
    if options.mode is not Mode.EVENTS:
        from cmqd_log.message_states.states_at import check_untold, states_at, states_of

        as_of_lsn = upto
        at_end = replace(view, hi=upto)
        fails = options.fail_on_data_loss
        results = states_at(folder, at_end, wanted, options.mode, with_callers=options.clients, fail_on_loss=fails)
        states = states_of(folder, pieces, results)
        if options.mode is Mode.CONSUMED:
            check_untold(options.path, at_end, pieces, states, fail=fails)
        if options.mode is not Mode.ALL:
            pieces = [piece for piece in pieces if shows_any(states.get(piece.extent.number, {}), options.mode)]
    if not CLIENT_COLUMNS.isdisjoint(columns):
        catalog.clients.follow(folder, view, all_rows=bool(states) and options.clients)
    actors = catalog.clients.texts
    return [
        Task(
            piece=piece,
            options=options,
            columns=tuple(columns),
            sources=catalog.sources,
            wanted=wanted,
            states=states.get(piece.extent.number, {}),
            actors=_needed(actors, piece, states.get(piece.extent.number, {})),
            weight=int(piece.weight * shares.get(piece.extent.number, 1.0)) + 1,
            as_of_lsn=as_of_lsn,
        )
        for piece in split(pieces, options.min_partitions)
    ]


def _needed(actors: Mapping[int, str], piece: Piece, states: "Mapping[int, QueueStates]") -> Mapping[int, str]:
    """Return the clients that a task needs: a sealed segment has a table of the clients of its rows."""
    if not is_sealed(piece.extent):
        return actors
    numbers = {number for queue in states.values() for number in queue.clients()}
    return {number: actors[number] for number in numbers & actors.keys()}


def shows_any(states: "Mapping[int, QueueStates]", mode: Mode) -> bool:
    """True if the mode shows at least one message with these states."""
    from cmqd_log.message_states.shown import SHOWN

    return any(not SHOWN[mode].isdisjoint(queue.sets) for queue in states.values())


def unsealed_rows(folder: Folder, view: View, options: Options) -> "tuple[int, int] | None":
    """Return the first and last row above a view that are not sealed and may hold wanted messages; None = no row."""
    if options.include_active or folder.is_remote or options.ending_lsn < view.hi:
        return None
    try:
        live = folder.view(include_active=True)
    except FolderError:
        return None  # perhaps another machine's, or another user's
    new = [extent for extent in live.extents if extent.last_lsn > view.hi]
    if not new or (options.ending_ms is not None and new[0].first_ms - TIME_SLACK_MS >= options.ending_ms):
        return None
    return view.hi + 1, live.hi


def unsealed_now(options: Options) -> "tuple[int, int] | None":
    """Return the first and last unsealed row of the log now, as :func:`unsealed_rows` does.

    Raises:
        FolderError: the folder cannot be read.
    """
    with open_folder(options) as folder:
        return unsealed_rows(folder, folder.view(include_active=options.include_active), options)


def warn_unsealed(options: Options) -> None:
    """Log the unsealed rows that an empty query passed over."""
    unsealed = unsealed_now(options)
    if unsealed is not None:
        _log.warning(
            "the sealed segments of %s have no requested message, and the query did not read the unsealed %s: "
            "includeActive=true reads unsealed rows, and 'cmq segment seal' seals them",
            masked(options.path),
            describe([unsealed]),
        )


def share_of(folder: Folder, extent: SegmentEntry, wanted: frozenset[int], is_stream: bool = False) -> float:
    """Return the wanted share of a segment: 0 = no message; 1 = all messages, or only reading would tell.

    A stream from a URL gets the same answer before and after the segment has a side file, because the answer is a part
    of its tasks.
    """
    held = sources_of(extent)
    if held is None and not (is_stream and folder.is_remote):
        contents = folder.sides.contents(extent)
        if contents is not None:
            held = {number: each.bytes for number, each in contents.held.items()}
    if held is not None:
        pass
    elif not is_sealed(extent) or folder.is_remote:
        # Only the segment has the figures, and fetching it would cost as much as reading it.
        return 1.0
    else:
        with folder.opened(extent) as raw:
            held = dict(raw.execute("SELECT queue_id, bytes FROM sparse").fetchall())
    found = held.keys() & wanted
    if not found:
        return 0.0
    # Bytes of bodies stand for all bytes of a segment, because the rest grows with the bodies.
    return max(sum(held[number] for number in found), 1) / max(sum(held.values()), 1)


def needs_names(options: Options, columns: Sequence[str]) -> bool:
    """True if the options or columns need the names of queues and topics."""
    return is_choosing(options) or not {"account", "queue", "topic"}.isdisjoint(columns)


def unknown_name(options: Options, catalog: Catalog) -> "tuple[str, str] | None":
    """Return the first account, queue, id, topic or pattern that the catalog does not know, as option and value.

    With the option ``account`` a queue of another account does not count, even if it has the same name.
    """
    account = options.account
    sources = [source for source in catalog.sources.values() if not account or source.account == account]
    if account and not sources:
        return "account", account
    for option, names, is_topic in (("queue", options.queues, False), ("topic", options.topics, True)):
        known = {source.name for source in sources if source.is_topic is is_topic}
        for name in names:
            if name not in known:
                return option, name
    if options.queue_id and options.queue_id not in catalog.nameless:
        named = catalog.sources.get(options.queue_id)
        if named is None or named not in sources or (named.is_topic and options.is_of_queues):
            return "queueId", str(options.queue_id)
    if options.queue_pattern:
        pattern = re.compile(options.queue_pattern)
        if not any(pattern.fullmatch(source.name) for source in sources if not source.is_topic):
            return "queuePattern", options.queue_pattern
    return None


def check_names(options: Options, catalog: Catalog, folder: Folder, view: View) -> None:
    """Check that the log knows all accounts, queues and topics: a misspelt name must not read as an empty queue.

    A queue is known from the row of its creation on, so a read that ends before that row does not know the queue; the
    error names the last row read.

    Raises:
        UnknownNameError: the log has no record of a name.
    """
    unknown = unknown_name(options, catalog)
    if unknown is None:
        return
    extent = f"up to row {view.hi}"
    if not options.include_active and not folder.is_remote:
        extent += ", the last sealed row; includeActive=true reads later rows"
    option, name = unknown
    where = f" in account {options.account!r}" if options.account and option != "account" else ""
    missing = {"queuePattern": "queue whose whole name matches", "queueId": "queue of this id"}.get(
        option, f"{option} of this name"
    )
    raise UnknownNameError(option, name, f"the log of {options.path} has no {missing}{where} {extent}")


# ---------------------------------------------------------------------- positions of a stream


def first_offset(view: View, options: Options) -> int:
    """Return the row after which a new stream begins."""
    starting = options.starting_lsn
    if starting == LATEST:
        return view.hi
    if isinstance(starting, int):
        return max(starting - 1, 0)
    first = view.extents[0].first_lsn if view.extents else view.hi + 1
    if options.starting_ms is not None:
        for extent in view.extents:
            if extent.last_ms >= options.starting_ms:
                return extent.first_lsn - 1
        return view.hi
    return first - 1


def limited_offset(
    folder: Folder, view: View, wanted: "frozenset[int] | None", above: int, most: int, messages: int, size: int
) -> int:
    """Return the last row of a batch of at most this number of messages, and of bytes of bodies (0 = no limit).

    Rows are read whole. The batch has at least one row with wanted messages, even if the row exceeds the limit: else
    the stream would stop there forever.
    """
    counted = counted_bytes = 0
    last = above
    for extent in view.extents:
        if extent.last_lsn <= above or extent.first_lsn > most:
            continue
        with folder.opened(extent) as raw:
            for lsn, queues in summaries(raw, extent, above, most):
                of_wanted = [queue for queue in queues if wanted is None or queue[0] in wanted]
                held = sum(stop - start for _, start, stop, _ in of_wanted)
                counted += held
                counted_bytes += sum(size for *_, size in of_wanted)
                is_over = (messages and counted > messages) or (size and counted_bytes > size)
                if is_over and counted > held:
                    return last
                last = lsn
                if is_over:
                    return last
    return most
