"""Runs of ``cmqd backup``: one, or one after the other at an interval.

    stopped broker:  lock of the folder ─► run
    live broker:     connect ─► pin ─► run, in a thread ─► release
    at an interval:  the same, and the row of the run becomes the standing pin, under the name of the backup

A standing pin is set after the document of the run is written: a failed run leaves the row of the run before.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from cmqd_backup.accounts_content import accounts_of
from cmqd_backup.backing_up import Copied, back_up
from cmqd_backup.copying import Pace, in_thread
from cmqd_backup.holds import Held, manifest_of, stopped_folder
from cmqd_backup.keeping import remove_old
from cmqd_backup.listing import shown_size
from cmqd_backup.live import connected, pinned_folder
from cmqd_backup.moments import shown_time, wall_ms
from cmqd_backup.refusals import Refused, sentence_of
from cmqd_backup.standing import Ended, Standing
from cmqd_backup.stores import Store
from cmqd_segment.folder_lock import try_lock
from cmqd_types.sentences import counted

Out = Callable[[str], object]

RENEWALS: Final = 4
"""Attempts to copy the files of a standby, which may drop some for ten seconds behind the begin of a pin."""


class Wanted(NamedTuple):
    """The backup that was asked for."""

    folder: Path
    store: Store
    every_ms: int | None = None
    """Interval of the runs; None: a single run."""
    keep_ms: int | None = None
    rate: int = 0
    with_secrets: bool = True
    config: Path | None = None
    """Settings of the broker: with redundancy the engine of the settings has the accounts."""


async def make_runs(wanted: Wanted, out: Out, complain: Out) -> None:
    """Make runs at an interval, until the standing pin of the backup is deleted.

    A run that fails is reported, and the next run comes in its time.

    Raises Refused, OSError: the folder has no runs at an interval.
    """
    assert wanted.every_ms is not None
    standing = Standing(wanted.store)
    out(
        f"the standing pin of this backup is {standing.name}: the broker keeps the rows between two runs, for up to"
        " 24 hours"
    )
    while True:
        began_s = time.monotonic()
        try:
            await make_run(wanted, out, standing)
        except Ended as ended:
            out(f"{ended}: no more runs are made")
            return
        except (Refused, OSError) as refusal:
            reason = sentence_of(refusal) if isinstance(refusal, OSError) else str(refusal)
            complain(f"{shown_time(wall_ms())}: no run was made: {reason}")
        await asyncio.sleep(max(0.0, wanted.every_ms / 1000 - (time.monotonic() - began_s)))


async def make_run(wanted: Wanted, out: Out, standing: Standing | None = None) -> None:
    """Make a run, and remove the runs that are not kept.

    ``standing``: the standing pin of runs at an interval.

    Raises Refused, OSError.
    """
    began_s, began_ms = time.monotonic(), wall_ms()
    # Before the store is made: a folder that is refused leaves no trace.
    manifest = manifest_of(wanted.folder)
    if manifest.cache_of is not None and wanted.with_secrets and wanted.config is None:
        raise Refused(
            f"{wanted.folder} is a cache of {manifest.cache_of} in an engine, which has the accounts: name the settings"
            " of its broker with --config, or leave the accounts out with --without-secrets"
        )
    with wanted.store.locked():
        copied = await _copied(wanted, standing, began_ms, out)
        run = copied.run
        seconds = time.monotonic() - began_s
        out(
            f"run {run.number} is complete and verified in {wanted.store.place}: rows up to {run.last_lsn}, of"
            f" {shown_time(run.wall_ms)}; {counted(copied.new_files, 'new file')}, {shown_size(copied.new_bytes)},"
            f" in {seconds:.1f} s"
        )
        if wanted.keep_ms is not None:
            removed = remove_old(wanted.store, wall_ms() - wanted.keep_ms)
            if removed:
                out(f"removed {counted(removed, 'older run')}")


async def _copied(wanted: Wanted, standing: Standing | None, began_ms: int, out: Out) -> Copied:
    """Make a run of a stopped or of a live folder. Raises Refused, OSError."""
    with try_lock(wanted.folder, "cmqd backup") as is_free:
        if is_free and standing is None:
            return await _back_up(wanted, stopped_folder(wanted.folder), began_ms, out)
    if is_free:
        # A run would keep the broker from its start. The standing pin keeps the rows until the next run.
        raise Refused(f"no broker works on {wanted.folder}: start it, or make a single run, without --every")
    async with connected(wanted.folder) as client, pinned_folder(client, wanted.folder) as (held, pin):
        try:
            copied = await _back_up_renewed(wanted, held, began_ms, out)
        except FileNotFoundError as missing:
            raise Refused(
                f"{missing.filename} was removed while it was copied: the broker ended the pin, at its own end or for"
                " lack of space. Repeat the command"
            ) from None
        if standing is not None:
            assert wanted.every_ms is not None
            told = await standing.tell(client, pin, copied, wanted.every_ms)
            for first, last in told.gaps:
                out(f"gap: rows {first} to {last} were reclaimed before a run had them")
        return copied


async def _back_up_renewed(wanted: Wanted, held: Held, began_ms: int, out: Out) -> Copied:
    """Make a run, again if a standby has dropped a file meanwhile. Raises Refused, OSError."""
    for _ in range(RENEWALS):
        try:
            return await _back_up(wanted, held, began_ms, out)
        except (Refused, FileNotFoundError):
            found = None if held.renew is None else await in_thread(partial(held.renew, held))
            if found is None:
                raise
            held = found._replace(renew=held.renew)
    return await _back_up(wanted, held, began_ms, out)


async def _back_up(wanted: Wanted, held: Held, began_ms: int, out: Out) -> Copied:
    """Make a run in a thread, which a cancellation ends at its next chunk. Raises Refused, OSError."""
    pace = Pace(wanted.rate)
    work = partial(
        back_up,
        held,
        wanted.store,
        read_accounts=partial(accounts_of, held, wanted.config) if wanted.with_secrets else None,
        pace=pace,
        began_ms=began_ms,
        wall_ms=wall_ms,
        out=out,
    )
    return await in_thread(work, stop=pace.stop)


async def end_standing_pin(wanted: Wanted) -> None:
    """Delete the standing pin of a backup. Raises Refused."""
    async with connected(wanted.folder) as client:
        await Standing(wanted.store).end(client)
