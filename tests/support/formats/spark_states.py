"""The rows that Spark is given of a folder, in the modes that tell what became of messages."""

# pyarrow tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from pathlib import Path
from typing import Any

import msgspec

from cmqd_log.options import parse_options
from cmqd_log.reading.arrow_batches import schema_of
from cmqd_log.reading.planning import plan_batch
from cmqd_log.reading.tasks import read_task

COLUMNS = (
    "lsn",
    "row_index",
    "event",
    "queue",
    "topic",
    "msg_id",
    "body",
    "tags",
    "routing_key",
    "headers",
    "enqueue_ts",
    "visible_ts",
    "deleted_ts",
    "receive_count",
    "origin",
)
MODES = ("events", "all", "backlog", "consumed", "dead")


def spark_rows(folder: Path) -> dict[str, Any]:
    """By mode and by whether rows that are not sealed are read."""
    found: dict[str, Any] = {}
    schema = schema_of(COLUMNS)
    for mode in MODES:
        for active in ("true", "false"):
            options = parse_options({"path": str(folder), "mode": mode, "includeActive": active})
            tasks = plan_batch(options, COLUMNS)
            rows: list[dict[str, Any]] = [
                row for task in tasks for batch in read_task(task, schema) for row in batch.to_pylist()
            ]
            rows.sort(key=lambda row: (row["lsn"], row["row_index"], row["queue"] or ""))
            found[f"{mode}, includeActive={active}"] = msgspec.json.decode(msgspec.json.encode(rows))
    return found
