"""The shape of a segment: one SQLite database file in WAL mode, and the rules for opening it.

One connection at a time writes to a file (SEGMENTS 2). Readers open read-only: a segment that is *sealed* in the
manifest as ``immutable`` (no locks, works on any file system), every other segment as plain ``mode=ro`` (an immutable
open would miss the rows in the WAL). Normative text: ``protocol/SEGMENTS.md``.
"""

import sqlite3
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from cmqd_types.actors import Actor

APPLICATION_ID = 0x434D5144
"""``CMQD`` in the header of every segment, so that a stray database is not mistaken for a segment."""
SEGMENT_FORMAT = 1
"""``user_version`` of a segment. A reader refuses a higher number."""
PAGE_BYTES = 4096
"""Page size of a segment for small commits."""
LARGE_PAGE_BYTES = 16384
"""Page size of a segment for large rows. Readers read any page size that SQLite knows."""
LARGEST_PAGE_BYTES = 65536
"""Page size of a segment for rows of several hundred KiB: SQLite's largest."""
READER_CACHE_KIB = 256

TABLES = (
    # `meta` comes before `data`: SQLite follows the overflow chain of a row only as far as the requested columns, so
    # recovery and filters never read a body.
    "CREATE TABLE log("
    "lsn INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, messages INTEGER NOT NULL, queues BLOB NOT NULL,"
    " meta_crc INTEGER NOT NULL, data_crc INTEGER NOT NULL, meta BLOB NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE segment(key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE sparse("
    "queue_id INTEGER PRIMARY KEY, first_position INTEGER NOT NULL, stop_position INTEGER NOT NULL,"
    " messages INTEGER NOT NULL, bytes INTEGER NOT NULL, positions BLOB NOT NULL, lsns BLOB NOT NULL)",
)

NAMES_TABLE = (
    "CREATE TABLE IF NOT EXISTS names("
    "id INTEGER PRIMARY KEY, account TEXT NOT NULL, name TEXT NOT NULL, is_topic INTEGER NOT NULL,"
    " messages INTEGER NOT NULL, bytes INTEGER NOT NULL)"
)
"""Made at the seal, by versions that write format 2."""

ACTORS_TABLE = (
    "CREATE TABLE IF NOT EXISTS actors("
    "number INTEGER PRIMARY KEY, account TEXT NOT NULL, secret_id TEXT NOT NULL, name TEXT NOT NULL,"
    " host TEXT NOT NULL, stated_by TEXT NOT NULL)"
)
"""Made at the seal, by versions that write format 4."""


class SegmentFormatError(Exception):
    """The file is not a segment, or has a format that this version does not know."""


def read_only_uri(path: Path, *, sealed: bool) -> str:
    """Return the URI that opens a segment for reading; ``sealed`` as in the manifest, never guessed."""
    return f"file:{quote(str(path))}?mode=ro" + ("&immutable=1" if sealed else "")


def open_read_only(path: Path, *, sealed: bool) -> sqlite3.Connection:
    """Open a reading connection in autocommit, usable from one thread at a time.

    Raises sqlite3.Error, SegmentFormatError.
    """
    connection = sqlite3.connect(
        read_only_uri(path, sealed=sealed), uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        # A row is read once and decoded rows are cached elsewhere: SQLite's own 2 MiB per file would be wasted.
        connection.execute(f"PRAGMA cache_size=-{READER_CACHE_KIB}")
        check_format(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Check that a file is a segment that this version can read. Raises SegmentFormatError."""
    application_id = pragma(connection, "application_id")
    version = pragma(connection, "user_version")
    if application_id != APPLICATION_ID:
        raise SegmentFormatError(f"{path.name} is not a cmqd segment (application id {application_id:#x})")
    if not 1 <= version <= SEGMENT_FORMAT:
        raise SegmentFormatError(f"{path.name} has segment format {version}; this version knows up to {SEGMENT_FORMAT}")


def create_tables(connection: sqlite3.Connection, page_bytes: int = PAGE_BYTES) -> None:
    """Make an empty file a segment in WAL mode. The connection must be in autocommit (isolation_level None).

    Raises:
        sqlite3.Error: the file could not be written; it is no segment.
    """
    connection.execute(f"PRAGMA page_size={page_bytes}")
    # SQLite reports a failed change of the mode by its answer alone. The rows of a segment in another mode would be
    # durable, but the start after a crash would refuse the folder, because the segment has no WAL.
    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        failed = sqlite3.OperationalError("the segment could not be brought into WAL mode")
        failed.sqlite_errorcode, failed.sqlite_errorname = sqlite3.SQLITE_IOERR, "SQLITE_IOERR"
        raise failed
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SEGMENT_FORMAT}")
    connection.execute("BEGIN")
    for statement in TABLES:
        connection.execute(statement)
    connection.execute("COMMIT")


def read_names(connection: sqlite3.Connection) -> list[tuple[int, str, str, bool]]:
    """Return (id, account, name, whether the id is a topic's) of the table ``names``; empty without the table.

    Unsealed segments, and segments sealed by format 1, do not have the table.
    """
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'names'").fetchall():
        return []
    rows = connection.execute("SELECT id, account, name, is_topic FROM names").fetchall()
    return [(number, account, name, bool(is_topic)) for number, account, name, is_topic in rows]


def read_actors(connection: sqlite3.Connection) -> dict[int, Actor]:
    """Return the table ``actors`` of a sealed segment: clients by the numbers in its records; empty without the table.

    Unsealed segments, and segments sealed by format 2 and earlier, do not have the table.
    """
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'actors'").fetchall():
        return {}
    rows = connection.execute("SELECT number, account, secret_id, name, host, stated_by FROM actors").fetchall()
    return {number: Actor(*fields) for number, *fields in rows}


class Origin(NamedTuple):
    """The log that a segment was made for, in its table ``segment``: more than the manifest can lose."""

    log_id: str = ""
    """Empty if it was not known, as in segments of earlier versions."""
    shard: int | None = None
    """Shard of the engine that has the log, in a segment of a cache; None in a folder that is the log."""


def write_origin(connection: sqlite3.Connection, origin: Origin) -> None:
    """Add the origin to the table ``segment``."""
    connection.executemany(
        "INSERT INTO segment VALUES (?, ?)",
        [("log_id", origin.log_id), ("cache_of_shard", origin.shard)],
    )


def read_origin(connection: sqlite3.Connection) -> Origin:
    """Return the origin of a segment. Raises sqlite3.Error."""
    values = dict(connection.execute("SELECT key, value FROM segment WHERE key IN ('log_id', 'cache_of_shard')"))
    return Origin(values.get("log_id", ""), values.get("cache_of_shard"))


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return the integer that a pragma answers."""
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)
