"""The stamps of rows in PostgreSQL: the server's clock when a row was stored, in a column of ``cmqd_rows``.

A new leader reads from the stamps the time since the newest row, without the clocks of brokers (decision 0207). The
column has no default: ``clock_timestamp()`` as default would rewrite the table, and ``now()`` is the begin of the
transaction.
"""

from typing import Final

from cmqd.engine.postgresql.added_columns import AddedColumn

STAMPS: Final = AddedColumn("cmqd_rows", "stored_at", "timestamptz")
STAMP_MS: Final = f"(1000 * extract(epoch FROM {STAMPS.name}))::bigint"
"""A stamp as milliseconds since the Unix epoch."""
