"""The stamps of rows in PostgreSQL: the server's clock when a row was stored, in a column of ``cmqd_rows``.

A new leader reads from the stamps the time since the newest row, without the clocks of brokers (decision 0207). The
column is nullable and has no default: ``clock_timestamp()`` as default would rewrite the table, and ``now()`` is the
begin of the transaction. Statements name the column where the catalogue has it. Tables of older versions get the column
from the next leader whose role owns them. A broker leads without the column too, and an older broker goes on beside a
newer broker.
"""

from typing import Final

COLUMN: Final = "stored_at"
STAMP_MS: Final = f"(1000 * extract(epoch FROM {COLUMN}))::bigint"
"""A stamp as milliseconds since the Unix epoch."""
HAS_STAMPS: Final = (
    "EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('cmqd_rows')"
    f" AND attname = '{COLUMN}' AND NOT attisdropped)"
)
MAY_ADD: Final = (
    "EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('cmqd_rows') AND pg_has_role(relowner, 'USAGE'))"
    " AND EXISTS (SELECT FROM pg_language WHERE lanname = 'plpgsql' AND has_language_privilege(oid, 'USAGE'))"
)
"""The role owns the table, and may run the block of ``ADD_STAMPS``: some administrators take its language away, and the
block cannot catch the error of its own refusal."""
ADD_COLUMN: Final = f"ALTER TABLE cmqd_rows ADD COLUMN IF NOT EXISTS {COLUMN} timestamptz"

ADD_STAMPS: Final = f"""
BEGIN;
SET LOCAL lock_timeout = '1s';
DO $$ BEGIN {ADD_COLUMN}; EXCEPTION WHEN OTHERS THEN NULL; END $$;
COMMIT
""".encode()
"""``ALTER`` waits for all transactions with the table, and every later statement of all shards waits behind it: for a
second at most. The block catches its own error: an uncaught error would cost the connection, and the lock of the
shard."""
