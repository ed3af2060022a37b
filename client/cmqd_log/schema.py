"""The columns of the source. Pure: names and Spark's DDL; pyspark and pyarrow make types of it elsewhere."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

COLUMNS: dict[str, str] = {
    "lsn": "bigint",
    "row_index": "int",
    "segment": "string",
    "event": "string",
    "queue": "string",
    "topic": "string",
    "msg_id": "string",
    "body": "binary",
    "tags": "array<string>",
    "routing_key": "string",
    "headers": "map<string,string>",
    "enqueue_ts": "timestamp",
    "visible_ts": "timestamp",
    "deleted_ts": "timestamp",
    "receive_count": "int",
    "origin": (
        "struct<queue:string,msg_id:string,enqueue_ts:timestamp,receive_count:int,reason:string,rejection:string>"
    ),
    "account": "string",
    "subscription": "string",
    "copy_of": "struct<msg_id:string,publish_ts:timestamp>",
    "dedup_id": "string",
    "position": "bigint",
    "as_of_lsn": "bigint",
    "sent_by": "string",
    "received_by": "string",
    "left_by": "string",
    "queue_id": "bigint",
    "ended_ts": "timestamp",
}
"""Name and type, in order; new columns are appended. All columns may be null, so that any narrower or reordered
``.schema(...)`` can be given.

``lsn`` and ``row_index`` together are the identity of a stored message: the row of the log, and the number of the
message among all messages of the row, in the selection of a query or not. ``queue_id`` and ``position`` are another
identity; a queue that is created again under its name has another id.
"""

RECEIVES: dict[str, str] = {
    "account": "string",
    "queue": "string",
    "queue_id": "bigint",
    "position": "bigint",
    "msg_id": "string",
    "enqueue_ts": "timestamp",
    "lsn": "bigint",
    "row_index": "int",
    "lease": "bigint",
    "from_ts": "timestamp",
    "until_ts": "timestamp",
    "ended_ts": "timestamp",
    "how": "string",
    "from_lsn": "bigint",
    "ended_lsn": "bigint",
    "received_by": "string",
    "ended_by": "string",
    "as_of_lsn": "bigint",
}
"""Columns of a receive, in order; new columns are appended. ``lease`` is the identity. The message has the two
identities of ``COLUMNS``: its ``queue_id`` and ``position``, and ``lsn`` and ``row_index`` of the row that stored it.
"""


QUEUES: dict[str, str] = {
    "account": "string",
    "queue": "string",
    "queue_id": "bigint",
    "created_ts": "timestamp",
    "deleted_ts": "timestamp",
    "is_deleted": "boolean",
    "messages": "bigint",
}
"""Columns of a queue in SQL; ``cmqd_log.queues`` has their values."""


class Table(StrEnum):
    """Option ``table``: what a row is."""

    LOG = "log"
    """A stored message, or in a mode a message with its state."""
    RECEIVES = "receives"
    """A receive of a message."""


COLUMNS_OF: Final[Mapping[Table, Mapping[str, str]]] = {Table.LOG: COLUMNS, Table.RECEIVES: RECEIVES}

OF_THE_LOG = {"cmqd": "log"}
"""Metadata of the column ``dedup_id``. The sink uses the dedup ids of a log for its own rows only on request. A
producer may use an id again after some minutes, so over the length of a log different messages can have the same id,
and the broker would drop all but the first.
"""

LOG_ID = "cmqd.log_id"
"""Metadata of the column ``lsn``: the id of the log, without which rows of several logs have the same names."""

DDL = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
