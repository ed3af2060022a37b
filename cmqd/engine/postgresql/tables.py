"""The script that creates the two tables, and the class of the locks of a shard."""

from typing import Final

LOCK_CLASS: Final = 0x636D7164
"""First key of the advisory locks ("cmqd"); the second is the shard."""

CREATE_TABLES: Final = (
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
    % LOCK_CLASS
)
"""EXTERNAL: values are stored as they are. The server would spend more time on an attempt to compress them than on all
else. The advisory lock, with no shard's number, keeps two brokers from creating the tables at once."""
