"""The engine of a log, by the settings."""

import time
from collections.abc import Callable

from cmqd.engine.fencing import FencedEngine
from cmqd.engine.interface import Engine
from cmqd.log.log_errors import LogError
from cmqd.log.values import Redundancy
from cmqd.storage.folder.log_identity import new_log_id
from cmqd.storage.storage_settings import StorageSettings


def open_engine(settings: StorageSettings, is_stopping: Callable[[], bool]) -> Engine | None:
    """Make the engine that the settings name; None without redundancy. The first call of the engine connects.

    Args:
        settings: of the storage process.
        is_stopping: ends a wait for the engine when it returns True; called by the threads that wait.

    Raises:
        LogError: the libraries of the engine are not installed, or the URL is none.
    """
    if settings.redundancy is Redundancy.NONE:
        return None
    # Here: a broker without redundancy needs no driver.
    try:
        from cmqd.engine.postgresql.servers import PostgresDatabase

        database = PostgresDatabase(settings.engine_url, settings.shard)
    except ImportError as missing:
        raise LogError(f"redundancy = {settings.redundancy} needs: pip install 'cmqd[ha]' ({missing})") from missing
    except ValueError as error:
        raise LogError(f"engine_url cannot be used: {error}") from error
    return FencedEngine(
        database,
        monotonic=time.monotonic,
        sleep=time.sleep,
        stopping=is_stopping,
        new_log_id=new_log_id,
        wall_ms=lambda: time.time_ns() // 1_000_000,
    )
