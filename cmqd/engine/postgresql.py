"""The steps of ``cmqd.engine.database`` over PostgreSQL, from version 14 (decision 0195).

    cmqd_shards   a line per shard: id of the log, newest checkpoint, accounts, standing pins
    cmqd_rows     the rows of all shards; the primary key (shard, lsn) is the fence

A broker needs a role that may create these two tables, once, and no other right. All of its sessions have the settings
of ``_SESSION_SETTINGS``, whatever the role, the database or the URL say: with ``synchronous_commit = local``, for
example, a commit would be answered before the standby has it, and with ``client_min_messages = error`` the only sign of
a cancelled commit would be missing.

The module needs the extra ``ha`` and is imported by a broker with ``redundancy = "postgresql"`` alone.
"""

import re
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct, pack
from typing import TYPE_CHECKING, Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from cmqd.engine.added_columns import STANDING_PINS
from cmqd.engine.database import (
    CONNECT_SECONDS,
    ONE_NAMED_STANDBY,
    SLOW_SECONDS,
    Commit,
    ConnectionLost,
    KeepWaiting,
    Newest,
    Session,
)
from cmqd.engine.interface import Buffer, EngineRow, News, Row, StampedRow, StoredAccounts, StoredCheckpoint
from cmqd.engine.poolers import Pooler, find_pooler, invented_id
from cmqd.engine.postgresql_connection import Connection
from cmqd.engine.stamps import STAMP_MS, STAMPS
from cmqd.engine.unsafe_settings import READ_SETTINGS, UnsafeSetting, find_unsafe
from cmqd.log.values import BrokerSeen, CopyLag

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_LOCK_CLASS: Final = 0x636D7164
"""First key of the advisory locks ("cmqd"); the second is the shard."""
_DEFAULT_PORT: Final = 5432
_PAGE_BYTES: Final = 4 << 20
_PAGE_ROWS: Final = 2048

_SESSION_SETTINGS: Final = {
    "synchronous_commit": "on",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    # No timeout of the server may cancel a statement: a cancelled commit is reported as a success.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",  # since PostgreSQL 17
    "idle_session_timeout": "0",
    # A broker that hangs in a transaction holds the line of its shard.
    "idle_in_transaction_session_timeout": "5s",
    # The server ends the session of a broker whose machine is silent, and with it the advisory lock.
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "4000",
    "client_connection_check_interval": "1s",
}
_CONNECTION_PARAMETERS: Final = {
    "application_name": "cmqd",
    "keepalives": "1",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "4000",
}
"""Defaults of libpq's parameters; the URL overrules them."""

_NAMES: Final = re.compile(ONE_NAMED_STANDBY, re.IGNORECASE)
_WAIT_FOR_STANDBY: Final = (b"on", b"remote_apply")
_IS_SAFE: Final = (
    f"current_setting('synchronous_standby_names') ~* '{ONE_NAMED_STANDBY}'"
    " AND current_setting('synchronous_commit') IN ('on', 'remote_apply')"
)
_NAMED_STANDBY: Final = rf"""
    btrim(regexp_replace(current_setting('synchronous_standby_names'), '{ONE_NAMED_STANDBY}', '\3', 'i'), '"')
"""
"""The name itself, of a value that is safe."""

_ADOPT: Final = f"""
SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_walfile_name(pg_current_wal_lsn()) END,
       (SELECT count(set_config(name, value, false))
        FROM unnest($1::text[], $2::text[]) AS wanted (name, value) JOIN pg_settings USING (name)),
       to_regclass('cmqd_rows') IS NOT NULL, {STAMPS.exists}, pg_backend_pid()
""".encode()
"""Settles the settings that this version knows. Answers: the name of the file of the log that is being written, which
begins with the timeline, or NULL of a standby; a count; whether the tables are there; whether rows have stamps;
the id of the backend."""

_TABLES: Final = (
    b"""
SELECT pg_advisory_xact_lock(%d, -1);
CREATE TABLE IF NOT EXISTS cmqd_shards (
    shard int PRIMARY KEY,
    log_id text,
    checkpoint_lsn bigint,
    checkpoint bytea,
    accounts_version bigint,
    accounts bytea,
    standing_pins bytea
);
CREATE TABLE IF NOT EXISTS cmqd_rows (
    shard int NOT NULL,
    lsn bigint NOT NULL,
    epoch bigint NOT NULL,
    time_ms bigint NOT NULL,
    messages int NOT NULL,
    queues bytea NOT NULL,
    meta bytea NOT NULL,
    data bytea NOT NULL,
    stored_at timestamptz,
    PRIMARY KEY (shard, lsn)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000);
ALTER TABLE cmqd_shards ALTER checkpoint SET STORAGE EXTERNAL, ALTER accounts SET STORAGE EXTERNAL;
ALTER TABLE cmqd_rows ALTER queues SET STORAGE EXTERNAL, ALTER meta SET STORAGE EXTERNAL,
                      ALTER data SET STORAGE EXTERNAL;
"""
    % _LOCK_CLASS
)
"""EXTERNAL: values are stored as they are. The server would spend more time on an attempt to compress them than on all
else. The advisory lock, with no shard's number, keeps two brokers from creating the tables at once."""

_LOOK_BEHIND: Final = b"SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')"
"""Compared here: a comparison by the server would cost the server more than the rest of this statement."""
_STANDBY_HAS_ALL: Final = b"""
SELECT count(*) > 0 FROM pg_stat_replication
WHERE lower(application_name) = lower(%s) AND flush_lsn >= pg_current_wal_flush_lsn()
""" % _NAMED_STANDBY.encode()
_BARRIER: Final = f"SELECT pg_logical_emit_message(true, 'cmqd', '') WHERE {_IS_SAFE}".encode()
_COLUMNS: Final = "shard, lsn, epoch, time_ms, messages, queues, meta, data"
_ROW: Final = "$1::int, $3::bigint, $2::bigint, $4::bigint, $5::int, $6::bytea, $7::bytea, $8::bytea"
"""Values of a single row, as most appends of a quiet broker have. Arrays of one value cost the server 15-40 us more."""
_ROWS: Final = """$1::int, unnest($3::bigint[]), $2::bigint, unnest($4::bigint[]), unnest($5::int[]),
       unnest($6::bytea[]), unnest($7::bytea[]), unnest($8::bytea[])"""
"""Values of rows, in arrays of one length. In FROM, the server would write a table of the values and read it again."""


def _insert(values: str, *, with_stamps: bool) -> str:
    column, stamp = (f", {STAMPS.name}", ", clock_timestamp()") if with_stamps else ("", "")
    return f"INSERT INTO cmqd_rows ({_COLUMNS}{column}) SELECT {values}{stamp}"


_INSERT: Final = _insert(_ROWS, with_stamps=False).encode()
_APPENDS: Final = {
    (values, with_stamps): f"{_insert(values, with_stamps=with_stamps)} WHERE {_IS_SAFE}".encode()
    for values in (_ROW, _ROWS)
    for with_stamps in (True, False)
}
_FENCE_UNSTAMPED: Final = f"INSERT INTO cmqd_rows ({_COLUMNS}) VALUES ($1, $2, $2, 0, 0, '', '', '')".encode()
_FENCE: Final = (
    f"INSERT INTO cmqd_rows ({_COLUMNS}, {STAMPS.name}) VALUES ($1, $2, $2, 0, 0, '', '', '', clock_timestamp())"
    f" RETURNING {STAMP_MS}"
).encode()
_NEWEST_STAMPED: Final = """
SELECT lsn, epoch, time_ms, {stamp} FROM cmqd_rows WHERE shard = $1 AND lsn <> epoch ORDER BY lsn DESC LIMIT 1
"""
_ANNOUNCE: Final = b"""
SELECT set_config('application_name', $1 || '/' || round(ahead_ms / 100) || $3, false)
FROM (SELECT $2::bigint - 1000 * extract(epoch FROM clock_timestamp())) AS clock (ahead_ms)
"""
"""Sets ``cmqd SHARD LSN PROCESS/OFFSET ADDRESS``. The offset, in tenths of a second, is behind the process, where older
versions read no number."""
_BROKERS: Final = b"""
SELECT split_part(application_name, ' ', 5), split_part(split_part(application_name, ' ', 4), '/', 1),
       split_part(application_name, ' ', 3)::bigint,
       100 * substring(split_part(application_name, ' ', 4) FROM '/(-?[0-9]{1,13})$')::bigint, pid IN (
    SELECT pid FROM pg_locks
    WHERE locktype = 'advisory' AND classid = $2::bigint::oid AND objid = $1::bigint::oid AND objsubid = 2 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name ~ ('^cmqd ' || $1 || ' [0-9]{1,18} ')
ORDER BY 1
"""
_LOCK_HOLDER: Final = b"""
SELECT format('session %s of PostgreSQL, from %s, named "%s", connected for %s s', pid,
              coalesce(host(client_addr), 'this machine'), coalesce(application_name, ''),
              coalesce(round(extract(epoch FROM clock_timestamp() - backend_start)), 0))
FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND classid = $2::bigint::oid AND objid = $1::bigint::oid AND objsubid = 2 AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_OWN_NAME: Final = rb"""
SELECT coalesce(substring(setting FROM 'application_name\s*=\s*''?([^'' ]+)'),
                nullif(current_setting('cluster_name'), ''), 'walreceiver')
FROM pg_settings WHERE name = 'primary_conninfo'
UNION ALL SELECT '' LIMIT 1
"""
"""``primary_conninfo`` is hidden from a role without ``pg_monitor``. Its default name is the cluster's."""
_COPIES: Final = b"""
SELECT application_name, coalesce(sync_state = 'sync', lower(application_name) = lower(%s)),
       coalesce(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), flush_lsn), -1)::bigint,
       (1000 * extract(epoch FROM coalesce(flush_lag, '0')))::bigint
FROM pg_stat_replication WHERE NOT coalesce(state = 'backup', false) ORDER BY 1
""" % _NAMED_STANDBY.encode()
"""Without the role ``pg_monitor``, the names are all that PostgreSQL tells: the named standby is taken for the second
copy as long as it is connected."""
_NEWS: Final = b"""
SELECT coalesce(newest.lsn, 0), coalesce(newest.epoch, 0), coalesce(accounts_version, 0)
FROM (VALUES ($1::int)) AS asked (shard)
LEFT JOIN cmqd_shards USING (shard)
LEFT JOIN LATERAL (
    SELECT lsn, epoch FROM cmqd_rows WHERE cmqd_rows.shard = asked.shard ORDER BY lsn DESC LIMIT 1
) AS newest ON true
"""
_EMPTY_RANGES: Final = b"""
SELECT first, last
FROM unnest($2::bigint[], $3::bigint[]) AS asked (first, last) JOIN cmqd_shards ON shard = $1
WHERE last <= checkpoint_lsn AND NOT EXISTS (
    SELECT FROM cmqd_rows WHERE shard = $1 AND lsn BETWEEN asked.first AND asked.last AND lsn <> epoch
)
"""
_PAGE: Final = b"""
SELECT lsn, epoch, time_ms, messages, queues, meta, %s
FROM (SELECT *, sum(octet_length(meta) + octet_length(queues) + %s) OVER (ORDER BY lsn) AS bytes
      FROM (SELECT * FROM cmqd_rows WHERE shard = $1 AND lsn > $2 ORDER BY lsn LIMIT %d) AS next) AS sized
WHERE bytes <= %d OR lsn = (SELECT min(lsn) FROM cmqd_rows WHERE shard = $1 AND lsn > $2)
ORDER BY lsn
"""
_ROWS_WITH_DATA: Final = _PAGE % (b"data", b"octet_length(data)", _PAGE_ROWS, _PAGE_BYTES)
_ROWS_WITHOUT_DATA: Final = _PAGE % (b"''::bytea", b"0", _PAGE_ROWS, _PAGE_BYTES)


class PostgresSession:
    """A connection to one primary; the steps are those of ``cmqd.engine.database.Session``."""

    def __init__(
        self,
        connection: Connection,
        server: str,
        timeline: int,
        shard: int,
        *,
        has_tables: bool = False,
        has_stamps: bool = False,
    ) -> None:
        self._connection = connection
        self._server = server
        self._timeline = timeline
        self._shard = b"%d" % shard
        self._shard_in_binary = shard.to_bytes(4, "big")
        self._has_tables = has_tables
        self._has_stamps = has_stamps if has_tables else None
        """None: not known, because there were no tables."""

    @property
    def server(self) -> str:
        """See ``Session``."""
        return self._server

    @property
    def timeline(self) -> int:
        """See ``Session``."""
        return self._timeline

    @property
    def is_primary(self) -> bool:
        """False of a standby, which only ``PostgresDatabase.servers`` returns."""
        return self._timeline > 0

    # ------------------------------------------------------------------ steps with a commit of their own

    def barrier(self) -> Commit:
        """See ``Session``."""
        return self._committed(_BARRIER, ())

    def append(self, epoch: int, rows: Sequence[Row]) -> Commit:
        """See ``Session``."""
        if len(rows) == 1:
            return self._committed(_APPENDS[_ROW, self.has_stamps()], self._values(epoch, rows[0]))
        return self._committed(_APPENDS[_ROWS, self.has_stamps()], self._columns(epoch, rows))

    def _committed(self, query: bytes, values: Sequence[bytes]) -> Commit:
        """Run a statement with its own commit, and look at the names behind its end."""
        self._connection.take_notices()
        began = time.monotonic()
        result, look = self._connection.ask_prepared_twice(query, values, _LOOK_BEHIND)
        is_slow = time.monotonic() - began > SLOW_SECONDS
        return Commit(result.command_tuples or 0, self._connection.take_notices(), _is_safe(look), is_slow)

    def standby_has_all(self) -> bool:
        """See ``Session``."""
        return _value(self._ask(_STANDBY_HAS_ALL), 0, 0) == b"\1"

    def try_lock(self) -> bool:
        """See ``Session``."""
        result = self._ask(b"SELECT pg_try_advisory_lock($1, $2)", b"%d" % _LOCK_CLASS, self._shard)
        return _value(result, 0, 0) == b"\1"

    def unlock(self) -> None:
        """See ``Session``."""
        # Each ``try_lock`` of a session that has the lock counts.
        self._ask(b"SELECT pg_advisory_unlock_all()")

    def add_columns(self) -> None:
        """See ``Session``."""
        if not self._tables_are_there():
            return
        for column in (STAMPS, STANDING_PINS):
            # Without the rights, the attempt would fail at once, but only its error would say so.
            if self._is_true(f"NOT {column.exists} AND {column.may_add}"):
                self._connection.run_script(column.add)
                self._has_stamps = None

    # ------------------------------------------------------------------ status

    def announce(self, lsn: int, process: str, address: str, wall_ms: int) -> None:
        """See ``Session``. The name of the session is the place: it writes nothing, and ends with the session."""
        # The server keeps 63 bytes: the address is last.
        begin = b"cmqd %s %d %s" % (self._shard, lsn, process.encode())
        self._ask(_ANNOUNCE, begin, b"%d" % wall_ms, b" " + address.encode())

    def brokers(self) -> list[BrokerSeen]:
        """See ``Session``."""
        result = self._ask(_BROKERS, self._shard, b"%d" % _LOCK_CLASS)
        return [
            BrokerSeen(
                _value(result, row, 0).decode(),
                _value(result, row, 1).decode(),
                _int(result, row, 2),
                _value(result, row, 4) == b"\1",
                _int_or_none(result, row, 3),
            )
            for row in range(result.ntuples)
        ]

    def copies(self) -> list[CopyLag]:
        """See ``Session``."""
        result = self._ask(_COPIES)
        copies: list[CopyLag] = []
        for row in range(result.ntuples):
            name, bytes_behind = _value(result, row, 0).decode(), _int(result, row, 2)
            lag = (None, None) if bytes_behind < 0 else (bytes_behind, _int(result, row, 3))
            copies.append(CopyLag(name, _value(result, row, 1) == b"\1", *lag))
        return copies

    # ------------------------------------------------------------------ reads

    def newest(self) -> Newest | None:
        """See ``Session``."""
        query = b"SELECT lsn, epoch FROM cmqd_rows WHERE shard = $1 ORDER BY lsn DESC LIMIT 1"
        result = self._read(query, self._shard)
        return None if result is None else Newest(_int(result, 0, 0), _int(result, 0, 1))

    def newest_stamped(self) -> StampedRow | None:
        """See ``Session``."""
        if not self._tables_are_there():
            return None
        query = _NEWEST_STAMPED.format(stamp=STAMP_MS if self.has_stamps() else "NULL::bigint")
        result = self._ask(query.encode(), self._shard)
        if not result.ntuples:
            return None
        lsn, epoch, time_ms = (_int(result, 0, column) for column in range(3))
        return StampedRow(lsn, epoch, time_ms, _int_or_none(result, 0, 3))

    def news(self) -> News:
        """See ``Session``."""
        if not self._tables_are_there():
            return News(0, 0, 0)
        result = self._connection.ask_prepared(_NEWS, (self._shard_in_binary,))
        return News(*(_int(result, 0, column) for column in range(3)))

    def empty_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """See ``Session``."""
        firsts, lasts = ([ends[side] for ends in ranges] for side in (0, 1))
        result = self._read(_EMPTY_RANGES, self._shard, _array(firsts), _array(lasts))
        return [] if result is None else [(_int(result, row, 0), _int(result, row, 1)) for row in range(result.ntuples)]

    def epochs(self, lsns: Sequence[int]) -> dict[int, int]:
        """See ``Session``."""
        query = b"SELECT lsn, epoch FROM cmqd_rows WHERE shard = $1 AND lsn = ANY ($2::bigint[])"
        result = self._read(query, self._shard, _array(lsns))
        return {} if result is None else {_int(result, row, 0): _int(result, row, 1) for row in range(result.ntuples)}

    def rows(self, above: int, *, with_data: bool) -> list[EngineRow]:
        """See ``Session``."""
        result = self._read(_ROWS_WITH_DATA if with_data else _ROWS_WITHOUT_DATA, self._shard, b"%d" % above)
        if result is None:
            return []
        return [
            EngineRow(
                lsn=_int(result, row, 0),
                epoch=_int(result, row, 1),
                time_ms=_int(result, row, 2),
                messages=_int(result, row, 3),
                queues=_value(result, row, 4),
                meta=_value(result, row, 5),
                data=_value(result, row, 6),
            )
            for row in range(result.ntuples)
        ]

    def checkpoint(self, *, with_data: bool) -> StoredCheckpoint | None:
        """See ``Session``."""
        data = b"checkpoint" if with_data else b"''::bytea"
        query = b"SELECT checkpoint_lsn, %s FROM cmqd_shards WHERE shard = $1 AND checkpoint IS NOT NULL" % data
        result = self._read(query, self._shard)
        return None if result is None else StoredCheckpoint(_int(result, 0, 0), _value(result, 0, 1))

    def accounts(self) -> StoredAccounts | None:
        """See ``Session``."""
        query = b"SELECT accounts_version, accounts FROM cmqd_shards WHERE shard = $1 AND accounts IS NOT NULL"
        result = self._read(query, self._shard)
        return None if result is None else StoredAccounts(_int(result, 0, 0), _value(result, 0, 1))

    def standing_pins(self) -> bytes | None:
        """See ``Session``."""
        if not self._is_true(STANDING_PINS.exists):
            return None
        query = b"SELECT standing_pins FROM cmqd_shards WHERE shard = $1 AND standing_pins IS NOT NULL"
        result = self._read(query, self._shard)
        return b"" if result is None else _value(result, 0, 0)

    def log_id(self) -> str | None:
        """See ``Session``."""
        result = self._read(b"SELECT log_id FROM cmqd_shards WHERE shard = $1 AND log_id IS NOT NULL", self._shard)
        return None if result is None else _value(result, 0, 0).decode()

    # ------------------------------------------------------------------ transactions

    def begin(self) -> None:
        """See ``Session``."""
        self._connection.run_script(b"BEGIN")
        if not self._tables_are_there():
            self._connection.run_script(_TABLES)
        # A line that is there is found without a write, and is not locked before the next statement.
        self._ask(b"INSERT INTO cmqd_shards (shard) VALUES ($1) ON CONFLICT DO NOTHING", self._shard)
        self._ask(b"SELECT FROM cmqd_shards WHERE shard = $1 FOR UPDATE", self._shard)

    def standby_is_named(self) -> bool:
        """See ``Session``."""
        return _is_safe(self._ask(_LOOK_BEHIND))

    def insert_fence(self, lsn: int) -> int | None:
        """See ``Session``."""
        has_stamps = self.has_stamps()
        result = self._ask(_FENCE if has_stamps else _FENCE_UNSTAMPED, self._shard, b"%d" % lsn)
        return _int(result, 0, 0) if has_stamps else None

    def insert(self, epoch: int, rows: Sequence[Row]) -> None:
        """See ``Session``."""
        self._connection.ask_prepared(_INSERT, self._columns(epoch, rows))

    def put_log_id(self, log_id: str) -> None:
        """See ``Session``."""
        self._ask(b"UPDATE cmqd_shards SET log_id = $2 WHERE shard = $1", self._shard, log_id.encode())

    def put_checkpoint(self, lsn: int, data: bytes) -> None:
        """See ``Session``."""
        query = b"UPDATE cmqd_shards SET checkpoint_lsn = $2::bigint, checkpoint = $3::bytea WHERE shard = $1::int"
        self._connection.ask(query, (self._shard_in_binary, lsn.to_bytes(8, "big"), data), binary_values=True)

    def put_accounts(self, version: int, data: bytes) -> None:
        """See ``Session``."""
        query = b"UPDATE cmqd_shards SET accounts_version = $2::bigint, accounts = $3::bytea WHERE shard = $1::int"
        self._connection.ask(query, (self._shard_in_binary, version.to_bytes(8, "big"), data), binary_values=True)

    def put_standing_pins(self, data: bytes) -> None:
        """See ``Session``."""
        query = b"UPDATE cmqd_shards SET standing_pins = $2::bytea WHERE shard = $1::int"
        self._connection.ask(query, (self._shard_in_binary, data), binary_values=True)

    def remove(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See ``Session``."""
        query = b"""
            DELETE FROM cmqd_rows USING unnest($2::bigint[], $3::bigint[]) AS removed (first, last)
            WHERE shard = $1 AND lsn BETWEEN removed.first AND removed.last AND lsn <> epoch
        """
        firsts, lasts = ([ends[side] for ends in ranges] for side in (0, 1))
        self._ask(query, self._shard, _array(firsts), _array(lasts))

    def commit(self) -> Commit:
        """See ``Session``."""
        self._connection.take_notices()
        result = self._ask(b"COMMIT")
        # PostgreSQL answers a commit of a failed transaction with a success called ROLLBACK.
        if result.command_status != b"COMMIT":
            self.kill()
            raise ConnectionLost("the transaction had failed")
        self._has_tables = True
        return Commit(1, self._connection.take_notices())

    def rollback(self) -> None:
        """See ``Session``."""
        self._connection.run_script(b"ROLLBACK")

    # ------------------------------------------------------------------ for ``cmqd ha check``

    def unsafe_settings(self) -> list[UnsafeSetting]:
        """Return the settings of the server with which the log is not safe, or less safe than it could be."""
        query = b"SELECT name, reset_val FROM pg_settings WHERE name = ANY ($1::text[])"
        settings = self._ask(query, _array(READ_SETTINGS))
        slots = self._ask(b"SELECT slot_name::text FROM pg_replication_slots ORDER BY 1")
        return find_unsafe(
            {_value(settings, row, 0).decode(): _value(settings, row, 1).decode() for row in range(settings.ntuples)},
            [_value(slots, row, 0).decode() for row in range(slots.ntuples)],
            is_primary=self.is_primary,
        )

    def named_standby(self) -> str:
        """Return the name of the synchronous standby of a primary; empty if the names are not safe."""
        query = f"SELECT CASE WHEN {_IS_SAFE} THEN {_NAMED_STANDBY} ELSE '' END".encode()
        return _value(self._ask(query), 0, 0).decode()

    def own_name(self) -> str:
        """Return the name by which a primary knows this standby; empty if the role may not read the name."""
        return _value(self._ask(_OWN_NAME), 0, 0).decode()

    def lock_holder(self) -> str:
        """Describe the session that holds the lock of the shard; empty while no session holds the lock."""
        result = self._ask(_LOCK_HOLDER, self._shard, b"%d" % _LOCK_CLASS)
        return _value(result, 0, 0).decode() if result.ntuples else ""

    def has_fence(self) -> bool:
        """Return whether the tables are there with the primary key that fences leaders, or not there yet."""
        if not self._tables_are_there():
            return True
        query = b"""
            SELECT count(*) FROM pg_constraint
            WHERE conrelid = 'cmqd_rows'::regclass AND pg_get_constraintdef(oid) = 'PRIMARY KEY (shard, lsn)'
        """
        return _int(self._ask(query), 0, 0) == 1

    def has_stamps(self) -> bool:
        """Return whether rows have stamps; the tables are there."""
        if self._has_stamps is None:
            self._has_stamps = self._is_true(STAMPS.exists)
        return self._has_stamps

    def lacks_stamps(self) -> bool:
        """Return whether the tables are there without stamps."""
        return self._tables_are_there() and not self.has_stamps()

    def lacks_standing_pins(self) -> bool:
        """Return whether the tables are there without a column for standing pins."""
        return self._tables_are_there() and not self._is_true(STANDING_PINS.exists)

    # ------------------------------------------------------------------ the end

    def kill(self) -> None:
        """See ``Session``."""
        self._connection.kill()

    def close(self) -> None:
        """See ``Session``."""
        self._connection.close()

    # ------------------------------------------------------------------ helpers

    def _values(self, epoch: int, row: Row) -> tuple[bytes, ...]:
        """Return the values of ``_ROW``."""
        return (
            self._shard_in_binary,
            epoch.to_bytes(8, "big"),
            pack(">q", row.lsn),
            pack(">q", row.time_ms),
            pack(">i", row.messages),
            bytes(row.queues),
            bytes(row.meta),
            bytes(row.data),
        )

    def _columns(self, epoch: int, rows: Sequence[Row]) -> tuple[bytes, ...]:
        """Return the values of ``_ROWS``."""
        return (
            self._shard_in_binary,
            epoch.to_bytes(8, "big"),
            _bigints([row.lsn for row in rows]),
            _bigints([row.time_ms for row in rows]),
            _ints([row.messages for row in rows]),
            _byte_strings([row.queues for row in rows]),
            _byte_strings([row.meta for row in rows]),
            _byte_strings([row.data for row in rows]),
        )

    def _ask(self, query: bytes, *values: bytes) -> "PGresult":
        return self._connection.ask(query, values)

    def _is_true(self, condition: str) -> bool:
        return _value(self._ask(f"SELECT {condition}".encode()), 0, 0) == b"\1"

    def _read(self, query: bytes, *values: bytes) -> "PGresult | None":
        """Run a query of the tables; None if there is no line, or no table yet."""
        if not self._tables_are_there():
            return None
        result = self._ask(query, *values)
        return result if result.ntuples else None

    def _tables_are_there(self) -> bool:
        if self._has_tables:
            return True
        # Another broker may have created them since the last look. Seen inside of a transaction they may be its own,
        # which a rollback takes back, so that only ``commit`` ends the looks.
        return _value(self._ask(b"SELECT to_regclass('cmqd_rows') IS NOT NULL"), 0, 0) == b"\1"


class PostgresDatabase:
    """A group of PostgreSQL servers with the log of a shard.

    Args:
        url: of libpq, with all servers: ``postgresql://role@first,second,third/database``. A server without a port has
            port 5432.
        shard: number of the shard.

    Raises:
        ValueError: the URL is not one of libpq.
    """

    def __init__(self, url: str, shard: int = 0) -> None:
        self._servers = list(_servers_of(url))
        self._shard = shard
        self._unreached: Mapping[str, str] = {}
        self._direct: set[str] = set()
        """Servers that no pooler was found at, by an examination that needs a second session."""
        self._refusal = ""

    @property
    def refusal(self) -> str:
        """See ``Database``."""
        return self._refusal

    @property
    def unreached(self) -> Mapping[str, str]:
        """See ``Database``."""
        return self._unreached

    def primaries(self, keep_waiting: KeepWaiting) -> list[Session]:
        """See ``Database``."""
        return [*self._reached(keep_waiting, with_standbys=False)]

    def servers(self, keep_waiting: KeepWaiting) -> list[PostgresSession]:
        """Return a session with each server that answers within ``CONNECT_SECONDS``, standbys too."""
        return self._reached(keep_waiting, with_standbys=True)

    def _reached(self, keep_waiting: KeepWaiting, *, with_standbys: bool) -> list[PostgresSession]:
        deadline = time.monotonic() + CONNECT_SECONDS
        attempts = [
            _Attempt(parameters, self._shard, keep_waiting, deadline, self._direct, with_standbys=with_standbys)
            for parameters in self._servers
        ]
        # A thread for each server: looking up a name has no limit of time.
        for attempt in attempts:
            attempt.start()
        sessions: list[PostgresSession] = []
        unreached: dict[str, str] = {}
        for attempt in attempts:
            result = attempt.result()
            if isinstance(result, str):
                unreached[attempt.server] = result
                if isinstance(result, Pooler):
                    self._refusal = f"{attempt.server}: {result}"
            else:
                sessions.append(result)
        self._unreached = unreached
        return sessions


class _Attempt:
    """An attempt to reach a server, in a thread of its own."""

    def __init__(
        self,
        parameters: Mapping[str, str],
        shard: int,
        keep_waiting: KeepWaiting,
        deadline: float,
        direct: set[str],
        *,
        with_standbys: bool,
    ) -> None:
        self._with_standbys = with_standbys
        self._parameters = parameters
        self._shard = shard
        self._keep_waiting = keep_waiting
        self._deadline = deadline
        self._direct = direct
        self.server = f"{parameters['host']}:{parameters['port']}"
        self._result: PostgresSession | str = f"no answer within {CONNECT_SECONDS:g} s"
        self._lock = threading.Lock()
        self._is_late = False
        self._thread = threading.Thread(target=self._reach, name="reach a database", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def result(self) -> PostgresSession | str:
        """Return the session, or the reason why there is none."""
        self._thread.join(max(self._deadline - time.monotonic(), 0))
        with self._lock:
            self._is_late = True
            return self._result

    def _reach(self) -> None:
        try:
            result = self._adopt()
        except ConnectionLost as error:
            # libpq's text can have several lines.
            result = " ".join(str(error).split())
        with self._lock:
            if not self._is_late:
                self._result = result
                return
        if isinstance(result, PostgresSession):
            result.close()

    def _adopt(self) -> PostgresSession | str:
        parameters = _resolved(self._parameters)

        def connect() -> Connection:
            return Connection(parameters, lambda: time.monotonic() < self._deadline)

        connection = connect()
        names = [_array(texts) for texts in (_SESSION_SETTINGS.keys(), _SESSION_SETTINGS.values())]
        answer = connection.ask(_ADOPT, names)
        file_name = answer.get_value(0, 0)
        if file_name is None and not self._with_standbys:
            connection.close()
            return "a standby"
        pooler = invented_id(connection, _int(answer, 0, 4))
        if pooler is None and self.server not in self._direct:
            pooler = find_pooler(connection, connect, names[0])
        if pooler is not None:
            connection.close()
            return pooler
        self._direct.add(self.server)
        timeline = 0 if file_name is None else int(file_name[:8], 16)
        connection.keep_waiting = lambda: self._keep_waiting(timeline)
        has_tables, has_stamps = (_value(answer, 0, column) == b"\1" for column in (2, 3))
        return PostgresSession(
            connection, self.server, timeline, self._shard, has_tables=has_tables, has_stamps=has_stamps
        )


def _resolved(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """Look up the name of the server, for which libpq would keep all threads of the process waiting.

    Raises:
        ConnectionLost: the name has no address.
    """
    host, port = parameters["host"], parameters["port"]
    if not host or host.startswith(("/", "@")) or "hostaddr" in parameters:
        return parameters
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionLost(str(error)) from error
    addresses = [str(address[4][0]) for address in found]
    return {**parameters, "host": ",".join([host] * len(addresses)), "hostaddr": ",".join(addresses)}


_URL_HELP: Final = (
    "it is no URL of libpq, postgresql://role:password@first,second:5433/database with % codes for special characters"
    " of the password, and no name=value pairs"
)


def _servers_of(url: str) -> Iterable[dict[str, str]]:
    """Yield libpq's parameters for each server of a URL. Raises ValueError."""
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except ProgrammingError:
        # Without libpq's text, which quotes the piece that it could not read: the piece may be part of a password.
        raise ValueError(_URL_HELP) from None
    hosts = given.pop("host", "").split(",")
    addresses = given.pop("hostaddr", "").split(",")
    ports = given.pop("port", "").split(",")
    # The engine itself looks for the primary.
    given.pop("target_session_attrs", None)
    given.pop("load_balance_hosts", None)
    for number, host in enumerate(hosts):
        port = ports[number % len(ports)] or str(_DEFAULT_PORT)
        if not (port.isascii() and port.isdigit()):
            # A ``/`` or ``@`` in a password moves its rest to the place of the port.
            raise ValueError(_URL_HELP)
        parameters = _CONNECTION_PARAMETERS | given | {"host": host, "port": port}
        if addresses[number % len(addresses)]:
            parameters["hostaddr"] = addresses[number % len(addresses)]
        yield parameters


# ---------------------------------------------------------------- values of PostgreSQL

_ARRAY_HEADER: Final = Struct(">5i")
_ONE_DIMENSION: Final = 1
_WITHOUT_NULLS: Final = 0
_FIRST_INDEX: Final = 1
_INT8_OID: Final = 20
_INT4_OID: Final = 23
_BYTEA_OID: Final = 17


def _array(values: Iterable[object]) -> bytes:
    """Return an array of numbers or simple words as text."""
    return "{{{}}}".format(",".join(f'"{value}"' for value in values)).encode()


def _header(oid: int, count: int) -> bytes:
    return _ARRAY_HEADER.pack(_ONE_DIMENSION, _WITHOUT_NULLS, oid, count, _FIRST_INDEX)


def _bigints(values: Sequence[int]) -> bytes:
    """Return an array of ``bigint`` in binary."""
    return _header(_INT8_OID, len(values)) + b"".join([pack(">iq", 8, value) for value in values])


def _ints(values: Sequence[int]) -> bytes:
    """Return an array of ``int`` in binary."""
    return _header(_INT4_OID, len(values)) + b"".join([pack(">ii", 4, value) for value in values])


def _byte_strings(values: Sequence[Buffer]) -> bytes:
    """Return an array of ``bytea`` in binary."""
    pieces: list[Buffer] = [_header(_BYTEA_OID, len(values))]
    for value in values:
        pieces += (len(value).to_bytes(4, "big"), value)
    return b"".join(pieces)


def _is_safe(look: "PGresult") -> bool:
    """Compare the settings of ``_LOOK_BEHIND`` as ``_IS_SAFE`` does."""
    return _value(look, 0, 1) in _WAIT_FOR_STANDBY and _is_one_standby(_value(look, 0, 0))


@lru_cache(maxsize=16)
def _is_one_standby(names: bytes) -> bool:
    """Compare ``synchronous_standby_names``. Behind each commit comes the value that was behind the commit before."""
    return _NAMES.match(names.decode(errors="replace")) is not None


def _value(result: "PGresult", row: int, column: int) -> bytes:
    value = result.get_value(row, column)
    assert value is not None, "no column of the queries above can be NULL"
    return value


def _int(result: "PGresult", row: int, column: int) -> int:
    return int.from_bytes(_value(result, row, column), "big", signed=True)


def _int_or_none(result: "PGresult", row: int, column: int) -> int | None:
    return None if result.get_value(row, column) is None else _int(result, row, column)
