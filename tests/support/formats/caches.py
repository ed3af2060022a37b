"""Folders that are caches of an engine, with an engine in memory that has their rows."""

import shutil
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from cmqd.ha.importing import import_folder
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.storage_settings import StorageSettings
from cmqd_segment.manifest import MANIFEST_FORMAT, read_manifest, write_manifest
from support.engine.replicas import LogToTheEnd, Replicas

OpenLog = Callable[[StorageSettings], StorageProcessLog]


def become_cache(folder: Path, replicas: Replicas) -> None:
    """Make the folder of a stopped broker a cache of the empty engine, as ``cmqd ha import`` does."""
    engine = replicas.engine()
    try:
        import_folder(folder, engine, 0, lambda _line: None)
    finally:
        engine.close()


def engine_of(cache: Path, place: Path) -> Replicas:
    """Make an engine that has the rows of a cache, from a copy of the cache below ``place``."""
    replicas = Replicas(place)
    own = shutil.copytree(cache, place / "imported")
    write_manifest(own, structs.replace(read_manifest(own), format=MANIFEST_FORMAT, cache_of=None))
    become_cache(own, replicas)
    shutil.rmtree(own)
    return replicas


def log_over(replicas: Replicas) -> OpenLog:
    """Return a maker of logs over an engine, for ``open_folder``."""
    return lambda settings: LogToTheEnd(replicas, Path(settings.folder))
