"""The columns of the source. Pure: names and Spark's DDL; pyspark and pyarrow make types of it elsewhere."""

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
}
"""Name and type, in order; new columns are appended. All columns may be null, so that any narrower or reordered
``.schema(...)`` can be given.

``lsn`` and ``row_index`` together are the identity of a stored message: the row of the log, and the number of the
message among all messages of the row, in the selection of a query or not. ``queue_id`` and ``position`` are another
identity; a queue that is created again under its name has another id.
"""

OF_THE_LOG = {"cmqd": "log"}
"""Metadata of the column ``dedup_id``. The sink uses the dedup ids of a log for its own rows only on request. A
producer may use an id again after some minutes, so over the length of a log different messages can have the same id,
and the broker would drop all but the first.
"""

LOG_ID = "cmqd.log_id"
"""Metadata of the column ``lsn``: the id of the log, without which rows of several logs have the same names."""

DDL = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
