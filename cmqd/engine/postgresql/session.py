"""A session with a PostgreSQL server: each method is a step of ``cmqd.engine.database.Session``."""

import time
from collections.abc import Sequence
from struct import pack
from typing import TYPE_CHECKING

from cmqd.engine.database import SLOW_SECONDS, Commit, ConnectionLost, Newest
from cmqd.engine.interface import EngineRow, News, Row, StampedRow, StoredAccounts, StoredCheckpoint
from cmqd.engine.postgresql import statements
from cmqd.engine.postgresql.added_columns import STANDING_PINS
from cmqd.engine.postgresql.binary_values import bigints, byte_strings, int_of, int_or_none, ints, text_array, value_of
from cmqd.engine.postgresql.connection import Connection
from cmqd.engine.postgresql.named_standby import IS_SAFE, LOOK_BEHIND, NAMED_STANDBY, is_safe
from cmqd.engine.postgresql.stamps import STAMP_MS, STAMPS
from cmqd.engine.postgresql.tables import CREATE_TABLES, LOCK_CLASS
from cmqd.engine.postgresql.unsafe_settings import READ_SETTINGS, UnsafeSetting, find_unsafe
from cmqd.log.values import BrokerSeen, CopyLag

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult


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
        return self._committed(statements.BARRIER, ())

    def append(self, epoch: int, rows: Sequence[Row]) -> Commit:
        """See ``Session``."""
        if len(rows) == 1:
            return self._committed(statements.APPENDS[statements.ROW, self.has_stamps()], self._values(epoch, rows[0]))
        return self._committed(statements.APPENDS[statements.ROWS, self.has_stamps()], self._columns(epoch, rows))

    def _committed(self, query: bytes, values: Sequence[bytes]) -> Commit:
        """Run a statement with its own commit, and look at the names behind its end."""
        self._connection.take_notices()
        began = time.monotonic()
        result, look = self._connection.ask_prepared_twice(query, values, LOOK_BEHIND)
        is_slow = time.monotonic() - began > SLOW_SECONDS
        return Commit(result.command_tuples or 0, self._connection.take_notices(), is_safe(look), is_slow)

    def standby_has_all(self) -> bool:
        """See ``Session``."""
        return value_of(self._ask(statements.STANDBY_HAS_ALL), 0, 0) == b"\1"

    def try_lock(self) -> bool:
        """See ``Session``."""
        result = self._ask(b"SELECT pg_try_advisory_lock($1, $2)", b"%d" % LOCK_CLASS, self._shard)
        return value_of(result, 0, 0) == b"\1"

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
        self._ask(statements.ANNOUNCE, begin, b"%d" % wall_ms, b" " + address.encode())

    def brokers(self) -> list[BrokerSeen]:
        """See ``Session``."""
        result = self._ask(statements.BROKERS, self._shard, b"%d" % LOCK_CLASS)
        return [
            BrokerSeen(
                value_of(result, row, 0).decode(),
                value_of(result, row, 1).decode(),
                int_of(result, row, 2),
                value_of(result, row, 4) == b"\1",
                int_or_none(result, row, 3),
            )
            for row in range(result.ntuples)
        ]

    def copies(self) -> list[CopyLag]:
        """See ``Session``."""
        result = self._ask(statements.COPIES)
        copies: list[CopyLag] = []
        for row in range(result.ntuples):
            name, bytes_behind = value_of(result, row, 0).decode(), int_of(result, row, 2)
            lag = (None, None) if bytes_behind < 0 else (bytes_behind, int_of(result, row, 3))
            copies.append(CopyLag(name, value_of(result, row, 1) == b"\1", *lag))
        return copies

    # ------------------------------------------------------------------ reads

    def newest(self) -> Newest | None:
        """See ``Session``."""
        query = b"SELECT lsn, epoch FROM cmqd_rows WHERE shard = $1 ORDER BY lsn DESC LIMIT 1"
        result = self._read(query, self._shard)
        return None if result is None else Newest(int_of(result, 0, 0), int_of(result, 0, 1))

    def newest_stamped(self) -> StampedRow | None:
        """See ``Session``."""
        if not self._tables_are_there():
            return None
        query = statements.NEWEST_STAMPED.format(stamp=STAMP_MS if self.has_stamps() else "NULL::bigint")
        result = self._ask(query.encode(), self._shard)
        if not result.ntuples:
            return None
        lsn, epoch, time_ms = (int_of(result, 0, column) for column in range(3))
        return StampedRow(lsn, epoch, time_ms, int_or_none(result, 0, 3))

    def news(self) -> News:
        """See ``Session``."""
        if not self._tables_are_there():
            return News(0, 0, 0)
        result = self._connection.ask_prepared(statements.NEWS, (self._shard_in_binary,))
        return News(*(int_of(result, 0, column) for column in range(3)))

    def empty_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """See ``Session``."""
        firsts, lasts = ([ends[side] for ends in ranges] for side in (0, 1))
        result = self._read(statements.EMPTY_RANGES, self._shard, text_array(firsts), text_array(lasts))
        return (
            []
            if result is None
            else [(int_of(result, row, 0), int_of(result, row, 1)) for row in range(result.ntuples)]
        )

    def epochs(self, lsns: Sequence[int]) -> dict[int, int]:
        """See ``Session``."""
        query = b"SELECT lsn, epoch FROM cmqd_rows WHERE shard = $1 AND lsn = ANY ($2::bigint[])"
        result = self._read(query, self._shard, text_array(lsns))
        return (
            {} if result is None else {int_of(result, row, 0): int_of(result, row, 1) for row in range(result.ntuples)}
        )

    def rows(self, above: int, *, with_data: bool) -> list[EngineRow]:
        """See ``Session``."""
        result = self._read(
            statements.ROWS_WITH_DATA if with_data else statements.ROWS_WITHOUT_DATA, self._shard, b"%d" % above
        )
        if result is None:
            return []
        return [
            EngineRow(
                lsn=int_of(result, row, 0),
                epoch=int_of(result, row, 1),
                time_ms=int_of(result, row, 2),
                messages=int_of(result, row, 3),
                queues=value_of(result, row, 4),
                meta=value_of(result, row, 5),
                data=value_of(result, row, 6),
            )
            for row in range(result.ntuples)
        ]

    def checkpoint(self, *, with_data: bool) -> StoredCheckpoint | None:
        """See ``Session``."""
        data = b"checkpoint" if with_data else b"''::bytea"
        query = b"SELECT checkpoint_lsn, %s FROM cmqd_shards WHERE shard = $1 AND checkpoint IS NOT NULL" % data
        result = self._read(query, self._shard)
        return None if result is None else StoredCheckpoint(int_of(result, 0, 0), value_of(result, 0, 1))

    def accounts(self) -> StoredAccounts | None:
        """See ``Session``."""
        query = b"SELECT accounts_version, accounts FROM cmqd_shards WHERE shard = $1 AND accounts IS NOT NULL"
        result = self._read(query, self._shard)
        return None if result is None else StoredAccounts(int_of(result, 0, 0), value_of(result, 0, 1))

    def standing_pins(self) -> bytes | None:
        """See ``Session``."""
        if not self._is_true(STANDING_PINS.exists):
            return None
        query = b"SELECT standing_pins FROM cmqd_shards WHERE shard = $1 AND standing_pins IS NOT NULL"
        result = self._read(query, self._shard)
        return b"" if result is None else value_of(result, 0, 0)

    def log_id(self) -> str | None:
        """See ``Session``."""
        result = self._read(b"SELECT log_id FROM cmqd_shards WHERE shard = $1 AND log_id IS NOT NULL", self._shard)
        return None if result is None else value_of(result, 0, 0).decode()

    # ------------------------------------------------------------------ transactions

    def begin(self) -> None:
        """See ``Session``."""
        self._connection.run_script(b"BEGIN")
        if not self._tables_are_there():
            self._connection.run_script(CREATE_TABLES)
        # A line that is there is found without a write, and is not locked before the next statement.
        self._ask(b"INSERT INTO cmqd_shards (shard) VALUES ($1) ON CONFLICT DO NOTHING", self._shard)
        self._ask(b"SELECT FROM cmqd_shards WHERE shard = $1 FOR UPDATE", self._shard)

    def standby_is_named(self) -> bool:
        """See ``Session``."""
        return is_safe(self._ask(LOOK_BEHIND))

    def insert_fence(self, lsn: int) -> int | None:
        """See ``Session``."""
        has_stamps = self.has_stamps()
        result = self._ask(statements.FENCE if has_stamps else statements.FENCE_UNSTAMPED, self._shard, b"%d" % lsn)
        return int_of(result, 0, 0) if has_stamps else None

    def insert(self, epoch: int, rows: Sequence[Row]) -> None:
        """See ``Session``."""
        self._connection.ask_prepared(statements.INSERT, self._columns(epoch, rows))

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
        self._ask(query, self._shard, text_array(firsts), text_array(lasts))

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
        settings = self._ask(query, text_array(READ_SETTINGS))
        slots = self._ask(b"SELECT slot_name::text FROM pg_replication_slots ORDER BY 1")
        return find_unsafe(
            {
                value_of(settings, row, 0).decode(): value_of(settings, row, 1).decode()
                for row in range(settings.ntuples)
            },
            [value_of(slots, row, 0).decode() for row in range(slots.ntuples)],
            is_primary=self.is_primary,
        )

    def named_standby(self) -> str:
        """Return the name of the synchronous standby of a primary; empty if the names are not safe."""
        query = f"SELECT CASE WHEN {IS_SAFE} THEN {NAMED_STANDBY} ELSE '' END".encode()
        return value_of(self._ask(query), 0, 0).decode()

    def own_name(self) -> str:
        """Return the name by which a primary knows this standby; empty if the role may not read the name."""
        return value_of(self._ask(statements.OWN_NAME), 0, 0).decode()

    def lock_holder(self) -> str:
        """Describe the session that holds the lock of the shard; empty while no session holds the lock."""
        result = self._ask(statements.LOCK_HOLDER, self._shard, b"%d" % LOCK_CLASS)
        return value_of(result, 0, 0).decode() if result.ntuples else ""

    def has_fence(self) -> bool:
        """Return whether the tables are there with the primary key that fences leaders, or not there yet."""
        if not self._tables_are_there():
            return True
        query = b"""
            SELECT count(*) FROM pg_constraint
            WHERE conrelid = 'cmqd_rows'::regclass AND pg_get_constraintdef(oid) = 'PRIMARY KEY (shard, lsn)'
        """
        return int_of(self._ask(query), 0, 0) == 1

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
        """Return the values of ``ROW``."""
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
        """Return the values of ``ROWS``."""
        return (
            self._shard_in_binary,
            epoch.to_bytes(8, "big"),
            bigints([row.lsn for row in rows]),
            bigints([row.time_ms for row in rows]),
            ints([row.messages for row in rows]),
            byte_strings([row.queues for row in rows]),
            byte_strings([row.meta for row in rows]),
            byte_strings([row.data for row in rows]),
        )

    def _ask(self, query: bytes, *values: bytes) -> "PGresult":
        return self._connection.ask(query, values)

    def _is_true(self, condition: str) -> bool:
        return value_of(self._ask(f"SELECT {condition}".encode()), 0, 0) == b"\1"

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
        return value_of(self._ask(b"SELECT to_regclass('cmqd_rows') IS NOT NULL"), 0, 0) == b"\1"
