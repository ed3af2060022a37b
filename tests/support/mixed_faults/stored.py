"""Checks of stored rows: leaders one after the other, no hole, and a folder that has no row of its own."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from support.postgresql.servers import PostgresServer

_ROWS = """
SELECT lsn, epoch, octet_length(meta) + octet_length(data) = 0,
       (SELECT coalesce(max(checkpoint_lsn), 0) FROM cmqd_shards WHERE shard = 0)
FROM cmqd_rows WHERE shard = 0 ORDER BY lsn
"""
_DIGEST = """
SELECT count(*), md5(string_agg(concat_ws(' ', lsn, epoch, time_ms, messages, md5(queues), md5(meta), md5(data)), ','
                                ORDER BY lsn))
FROM cmqd_rows WHERE shard = 0
"""
_CONTENT = "SELECT lsn, time_ms, messages, queues, meta, data FROM "


class StoredRow(NamedTuple):
    lsn: int
    epoch: int
    is_empty: bool
    checkpoint_lsn: int


def stored_rows(server: PostgresServer) -> list[StoredRow]:
    """Return the rows of a server, at one moment."""
    return [StoredRow(*row) for row in server.ask(_ROWS)]


def digest(server: PostgresServer) -> tuple[int, str]:
    """Return the number of rows of a server, and a checksum of all."""
    ((count, checksum),) = server.ask(_DIGEST)
    return count, checksum


def broken_rows(rows: list[StoredRow]) -> Iterator[str]:
    """Yield a line for each row that breaks a promise of the engine: an epoch begins with its fence, ends before the
    next fence and never comes back, and above the newest checkpoint no number is missing.
    """
    epoch, last_lsn = 0, 0
    for row in rows:
        if row.epoch != epoch:
            if not (row.lsn == row.epoch and row.is_empty and row.epoch > epoch):
                yield f"row {row.lsn} has epoch {row.epoch} behind epoch {epoch}, and is not its fence"
            epoch = row.epoch
        elif row.is_empty:
            yield f"row {row.lsn} is empty, and not the fence of its epoch {row.epoch}"
        if row.lsn != last_lsn + 1 and row.lsn > row.checkpoint_lsn + 1:
            yield f"rows {last_lsn + 1} to {row.lsn - 1} are missing above the checkpoint of row {row.checkpoint_lsn}"
        last_lsn = row.lsn


def foreign_rows(folder: Path, server: PostgresServer) -> Iterator[str]:
    """Yield a line for each row in the data folder of a broker that is not the row of the server.

    A leader writes rows into its folder once they are durable, and a standby copies them. So a row with another content
    was written by two brokers, or was taken back. Rows that the server has no more are covered by the checkpoint.
    """
    stored = {lsn: content for lsn, *content in server.ask(_CONTENT + "cmqd_rows WHERE shard = 0")}
    fences = {row.lsn: row.checkpoint_lsn for row in stored_rows(server) if row.is_empty}
    checkpoint_lsn = max(fences.values(), default=0)
    for segment in sorted((folder / "segments").glob("*.db")):
        with closing(sqlite3.connect(segment)) as connection:
            for lsn, *content in connection.execute(_CONTENT + "log ORDER BY lsn"):
                if lsn not in stored and lsn > checkpoint_lsn:
                    yield f"row {lsn} in {segment} is not on the server"
                elif lsn in stored and lsn not in fences and stored[lsn] != content:
                    yield f"row {lsn} in {segment} has another content"
