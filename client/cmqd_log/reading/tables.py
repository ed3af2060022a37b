"""Tables of the log: the plan of a read and the batches of a task, by the option ``table``."""

# pyarrow tells pyright little of its types.
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from cmqd_log.data_folder.plan import Task
from cmqd_log.options import Options
from cmqd_log.reading.planning import plan_batch
from cmqd_log.reading.receives import ReceivesTask, plan_receives, read_receives
from cmqd_log.reading.tasks import read_task
from cmqd_log.schema import Table

if TYPE_CHECKING:
    import pyarrow as pa

AnyTask: TypeAlias = Task | ReceivesTask


def plan_table(options: Options, columns: Sequence[str], *, asked: Options | None = None) -> list[AnyTask]:
    """Plan a read of the table of the options; arguments and errors as for ``planning.plan_batch``."""
    if options.table is Table.RECEIVES:
        return [*plan_receives(options, columns, asked=asked)]
    return [*plan_batch(options, columns, asked=asked)]


def batches_of(task: AnyTask, schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    """Return the batches of a task; errors as for ``tasks.read_task`` and ``receives.read_receives``."""
    return read_receives(task, schema) if isinstance(task, ReceivesTask) else read_task(task, schema)
