"""The steps of ``cmqd.engine.database`` over PostgreSQL, from version 14 (decision 0195).

    cmqd_shards   a line per shard: id of the log, newest checkpoint, accounts, standing pins
    cmqd_rows     the rows of all shards; the primary key (shard, lsn) is the fence

A broker needs a role that may create these two tables, once, and no other right.

The package needs the extra ``ha`` and is imported by a broker with ``redundancy = "postgresql"`` alone.
"""
