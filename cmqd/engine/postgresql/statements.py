"""Statements of a session that are longer than a line: appends, fence, status and reads."""

from typing import Final

from cmqd.engine.postgresql.named_standby import IS_SAFE, NAMED_STANDBY
from cmqd.engine.postgresql.stamps import STAMP_MS, STAMPS

_PAGE_BYTES: Final = 4 << 20
_PAGE_ROWS: Final = 2048

STANDBY_HAS_ALL: Final = b"""
SELECT count(*) > 0 FROM pg_stat_replication
WHERE lower(application_name) = lower(%s) AND flush_lsn >= pg_current_wal_flush_lsn()
""" % NAMED_STANDBY.encode()
BARRIER: Final = f"SELECT pg_logical_emit_message(true, 'cmqd', '') WHERE {IS_SAFE}".encode()
_COLUMNS: Final = "shard, lsn, epoch, time_ms, messages, queues, meta, data"
ROW: Final = "$1::int, $3::bigint, $2::bigint, $4::bigint, $5::int, $6::bytea, $7::bytea, $8::bytea"
"""Values of a single row, as most appends of a quiet broker have. Arrays of one value cost the server 15-40 us more."""
ROWS: Final = """$1::int, unnest($3::bigint[]), $2::bigint, unnest($4::bigint[]), unnest($5::int[]),
       unnest($6::bytea[]), unnest($7::bytea[]), unnest($8::bytea[])"""
"""Values of rows, in arrays of one length. In FROM, the server would write a table of the values and read it again."""


def _insert(values: str, *, with_stamps: bool) -> str:
    column, stamp = (f", {STAMPS.name}", ", clock_timestamp()") if with_stamps else ("", "")
    return f"INSERT INTO cmqd_rows ({_COLUMNS}{column}) SELECT {values}{stamp}"


INSERT: Final = _insert(ROWS, with_stamps=False).encode()
APPENDS: Final = {
    (values, with_stamps): f"{_insert(values, with_stamps=with_stamps)} WHERE {IS_SAFE}".encode()
    for values in (ROW, ROWS)
    for with_stamps in (True, False)
}
FENCE_UNSTAMPED: Final = f"INSERT INTO cmqd_rows ({_COLUMNS}) VALUES ($1, $2, $2, 0, 0, '', '', '')".encode()
FENCE: Final = (
    f"INSERT INTO cmqd_rows ({_COLUMNS}, {STAMPS.name}) VALUES ($1, $2, $2, 0, 0, '', '', '', clock_timestamp())"
    f" RETURNING {STAMP_MS}"
).encode()
NEWEST_STAMPED: Final = """
SELECT lsn, epoch, time_ms, {stamp} FROM cmqd_rows WHERE shard = $1 AND lsn <> epoch ORDER BY lsn DESC LIMIT 1
"""
ANNOUNCE: Final = b"""
SELECT set_config('application_name', $1 || '/' || round(ahead_ms / 100) || $3, false)
FROM (SELECT $2::bigint - 1000 * extract(epoch FROM clock_timestamp())) AS clock (ahead_ms)
"""
"""Sets ``cmqd SHARD LSN PROCESS/OFFSET ADDRESS``. The offset, in tenths of a second, is behind the process, where older
versions read no number."""
BROKERS: Final = b"""
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
LOCK_HOLDER: Final = b"""
SELECT format('session %s of PostgreSQL, from %s, named "%s", connected for %s s', pid,
              coalesce(host(client_addr), 'this machine'), coalesce(application_name, ''),
              coalesce(round(extract(epoch FROM clock_timestamp() - backend_start)), 0))
FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND classid = $2::bigint::oid AND objid = $1::bigint::oid AND objsubid = 2 AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
OWN_NAME: Final = rb"""
SELECT coalesce(substring(setting FROM 'application_name\s*=\s*''?([^'' ]+)'),
                nullif(current_setting('cluster_name'), ''), 'walreceiver')
FROM pg_settings WHERE name = 'primary_conninfo'
UNION ALL SELECT '' LIMIT 1
"""
"""``primary_conninfo`` is hidden from a role without ``pg_monitor``. Its default name is the cluster's."""
COPIES: Final = b"""
SELECT application_name, coalesce(sync_state = 'sync', lower(application_name) = lower(%s)),
       coalesce(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), flush_lsn), -1)::bigint,
       (1000 * extract(epoch FROM coalesce(flush_lag, '0')))::bigint
FROM pg_stat_replication WHERE NOT coalesce(state = 'backup', false) ORDER BY 1
""" % NAMED_STANDBY.encode()
"""Without the role ``pg_monitor``, the names are all that PostgreSQL tells: the named standby is taken for the second
copy as long as it is connected."""
NEWS: Final = b"""
SELECT coalesce(newest.lsn, 0), coalesce(newest.epoch, 0), coalesce(accounts_version, 0)
FROM (VALUES ($1::int)) AS asked (shard)
LEFT JOIN cmqd_shards USING (shard)
LEFT JOIN LATERAL (
    SELECT lsn, epoch FROM cmqd_rows WHERE cmqd_rows.shard = asked.shard ORDER BY lsn DESC LIMIT 1
) AS newest ON true
"""
EMPTY_RANGES: Final = b"""
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
ROWS_WITH_DATA: Final = _PAGE % (b"data", b"octet_length(data)", _PAGE_ROWS, _PAGE_BYTES)
ROWS_WITHOUT_DATA: Final = _PAGE % (b"''::bytea", b"0", _PAGE_ROWS, _PAGE_BYTES)
