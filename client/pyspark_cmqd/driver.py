"""What the driver does: fix the view, name the queues, check for loss, and hand out tasks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark_cmqd.catalog import Catalog, read_catalog
from pyspark_cmqd.errors import DataLossError, OptionError
from pyspark_cmqd.folder import Folder
from pyspark_cmqd.options import Mode, Options
from pyspark_cmqd.plan import Task, View, bounds, describe, pieces_of, split, wanted_ids

if TYPE_CHECKING:
    from pyspark_cmqd.states import QueueStates

ATTEMPTS = 5
"""How often a plan is made while the broker reclaims segments."""


def plan_batch(options: Options, columns: Sequence[str]) -> list[Task]:
    """The tasks of a batch. Raises CmqdSourceError."""
    folder = open_folder(options)
    for attempt in range(ATTEMPTS):
        view = folder.view(include_active=options.include_active)
        above, upto = bounds(view, options)
        if isinstance(options.starting_lsn, int):
            check_loss(view, options, above, upto)
        try:
            return plan_range(folder, view, options, columns, above, upto)
        except DataLossError:
            # A segment went while we planned; what is asked for may still be there.
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def open_folder(options: Options) -> Folder:
    """Raises FolderError, OptionError."""
    folder = Folder(options.path, options.cache_folder)
    if folder.is_remote and options.include_active:
        raise OptionError("includeActive", "true", "only for a folder of the same machine, not for a URL")
    return folder


def check_loss(view: View, options: Options, above: int, upto: int) -> None:
    """Raises DataLossError if rows ``above < lsn <= upto`` are not there any more, unless that is allowed."""
    missing = view.gaps(above + 1, upto)
    if missing and options.fail_on_data_loss:
        raise DataLossError(
            f"rows {describe(missing)} of {options.path} were asked for and are gone (reclaimed, or lost to damage); "
            f"the first row that is left is {view.extents[0].first_lsn if view.extents else view.hi + 1}, "
            f"and failOnDataLoss=false reads what there is"
        )


def plan_range(
    folder: Folder, view: View, options: Options, columns: Sequence[str], above: int, upto: int
) -> list[Task]:
    """The tasks that read rows ``above < lsn <= upto`` of a view."""
    pieces = pieces_of(view, options, above, upto)
    if not pieces:
        return []
    catalog = read_catalog(folder, view)
    wanted = wanted_ids(catalog.sources, options)
    check_names(options, catalog)
    if wanted is not None and not wanted:
        return []
    states: dict[int, dict[int, QueueStates]] = {}
    if options.mode is not Mode.EVENTS:
        from pyspark_cmqd.folding import states_at, states_of

        states = states_of(folder, pieces, states_at(folder, replace(view, hi=upto), wanted, options.mode))
    return [
        Task(
            piece,
            options.path,
            options.cache_folder,
            tuple(columns),
            catalog.sources,
            wanted,
            frozenset(catalog.queue_subscriptions),
            frozenset(options.tags),
            options.starting_ms,
            options.ending_ms,
            options.mode,
            options.batch_rows,
            options.fail_on_data_loss,
            states.get(piece.extent.number, {}),
        )
        for piece in split(pieces, options.min_partitions)
    ]


def check_names(options: Options, catalog: Catalog) -> None:
    """Raises OptionError for a queue or topic that the log does not know."""
    for option, names, is_topic in (("queue", options.queues, False), ("topic", options.topics, True)):
        known = {source.name for source in catalog.sources.values() if source.is_topic is is_topic}
        for name in names:
            if name not in known:
                raise OptionError(option, name, f"the log of {options.path} knows no {option} of that name")
