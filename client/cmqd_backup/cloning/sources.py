"""The source of a clone: a data folder, stopped or live, or a backup, which is restored into a folder of the clone."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cmqd_backup.follower import stopped_cache
from cmqd_backup.holds import Held, manifest_of, stopped_folder
from cmqd_backup.live import connected, pinned_folder
from cmqd_backup.moments import wall_ms
from cmqd_backup.refusals import Refused
from cmqd_backup.restores.restoring import Restoring, restore
from cmqd_backup.runs import RUNS
from cmqd_backup.stores import open_store
from cmqd_segment.folder_lock import shared_lock
from cmqd_segment.manifest import MANIFEST_NAME


def require_source(source: str, target: Path) -> None:
    """Refuse a source that is neither a data folder nor a backup, before a file is written. Raises Refused, OSError."""
    if "://" in source:
        if not open_store(source).sizes(RUNS):
            raise Refused(f"{source} has no backup")
        return
    folder = Path(source)
    if not folder.is_dir() or (not (folder / MANIFEST_NAME).exists() and not open_store(source).sizes(RUNS)):
        raise Refused(f"{source} is neither a data folder nor a backup")
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(folder)):
        raise Refused(f"{target} is within {source}: name a folder outside of it")


@contextlib.contextmanager
def held_source(source: str, work: Path, complain: Callable[[str], object]) -> Generator[Held]:
    """Keep the files of a source from changing. Raises Refused, OSError.

    Args:
        source: a folder or URL.
        work: a folder for the files of a backup, or of a cache.
        complain: gets warnings.
    """
    folder = Path(source)
    if "://" in source or not (folder / MANIFEST_NAME).exists():
        restored = work / "source"
        restore(Restoring(open_store(source), restored, None, None, wall_ms(), _silent, _silent))
        yield stopped_folder(restored)
        return
    # Shared: tests that run at the same time clone the same folder.
    with shared_lock(folder) as is_free:
        if is_free and manifest_of(folder).cache_of is not None:
            cache = work / "source"
            cache.mkdir()
            with stopped_cache(folder, cache) as held:
                complain(f"{folder} is a cache: the engine may have rows behind row {held.last_lsn}, its last")
                yield held
            return
        if is_free:
            yield stopped_folder(folder)
            return
    with _live_folder(folder) as held:
        yield held


@contextlib.contextmanager
def _live_folder(folder: Path) -> Generator[Held]:
    """Hold the folder of a live broker by a pin, whose event loop runs in a thread. Raises Refused, OSError.

    The clone itself is written in the main thread: a Ctrl-C ends it at once, before its folder is removed.
    """
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None] | None]] = Future()
    held: Future[Held] = Future()

    async def hold() -> None:
        loop = asyncio.get_running_loop()
        begun.set_result((loop, asyncio.current_task()))
        async with connected(folder) as client, pinned_folder(client, folder) as (files, _):
            held.set_result(files)
            await loop.create_future()

    def run() -> None:
        try:
            asyncio.run(hold())
        except BaseException as failure:
            if not begun.done():
                begun.set_exception(failure)
            if not held.done():
                held.set_exception(failure)

    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(run)
        try:
            yield held.result()
        finally:
            # The loop may have ended, by an error of its own.
            with contextlib.suppress(RuntimeError):
                loop, task = begun.result()
                if task is not None:
                    loop.call_soon_threadsafe(task.cancel)


def _silent(_: str) -> None:
    """Take a line of the report of a restore, which is about a folder that is removed."""
