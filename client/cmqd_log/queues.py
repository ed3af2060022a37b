"""The queues that a log names: when each was created and deleted, and how many messages of it the log still has."""

import msgspec

from cmqd_log.data_folder.catalog import read_catalog
from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.plan import View
from cmqd_log.data_folder.rows import decoded, metas
from cmqd_log.message_states.states_at import held_by, held_in_rows
from cmqd_segment.checkpoint import QueueSlice
from cmqd_segment.checkpoint_file import CheckpointError, decode_part, read_payloads
from cmqd_segment.manifest import CheckpointEntry
from cmqd_segment.newer import tag_of
from cmqd_segment.records import QueueCreated, QueueDeleted

_QUEUE_SLICE = 2
"""Tag of QueueSlice."""


class LogQueue(msgspec.Struct):
    """A queue that the log names."""

    id: int
    account: str
    name: str
    created_ms: int | None = None
    """None if the row of the creation was reclaimed, and no checkpoint has the queue."""
    deleted_ms: int | None = None
    """None if the queue exists, or if the row of the delete was reclaimed."""
    exists: bool = False
    messages: int = 0
    """Messages with rows in the log, in any state."""


def queues_of(folder: Folder, view: View) -> list[LogQueue]:
    """Return the queues of a view by id. Every row is read, because a row of a delete can be anywhere.

    A view may end before the last row of its segments. It then has the queues that rows, or its checkpoints, name.

    Raises:
        FolderError, DataLossError: a segment cannot be read.
    """
    catalog = read_catalog(folder, view)
    found = {
        source.id: LogQueue(source.id, source.account, source.name)
        for source in catalog.sources.values()
        if not source.is_topic
    }
    # Of two checkpoints the newer counts: the queue of the older may be deleted since. A checkpoint that cannot be read
    # is passed over, because the rows above the checkpoint before have its facts.
    checkpointed_lsn = 0
    named: set[int] = set()
    for entry in view.checkpoints:
        created = _created_in(folder, entry)
        if created is None:
            continue
        checkpointed_lsn = entry.lsn
        named |= created.keys()
        for queue in found.values():
            queue.exists = queue.id in created
            queue.created_ms = created.get(queue.id, queue.created_ms)
    for extent in view.extents:
        if extent.first_lsn > view.hi:
            break
        with folder.opened(extent) as raw:
            for lsn, time_ms, meta in metas(folder, raw, extent, 0, view.hi):
                for record in decoded(extent, lsn, meta):
                    if isinstance(record, QueueCreated):
                        named.add(record.queue_id)
                        # No checkpoint names a queue that was deleted before, and no segment one without messages.
                        created = LogQueue(record.queue_id, record.account, record.name)
                        found.setdefault(record.queue_id, created).created_ms = record.created_ms
                        # The checkpoint tells of the rows below, also if the row of a delete was reclaimed.
                        found[record.queue_id].exists |= lsn > checkpointed_lsn
                    elif isinstance(record, QueueDeleted) and record.queue_id in found:
                        named.add(record.queue_id)
                        found[record.queue_id].deleted_ms = time_ms
                        found[record.queue_id].exists = False
            held = held_in_rows(raw, extent, view.hi) if extent.last_lsn > view.hi else None
        for number, first, stop in held_by(folder, extent, view.hi) if held is None else held:
            if number in found:
                named.add(number)
                found[number].messages += stop - first
    is_cut = any(extent.last_lsn > view.hi for extent in view.extents)
    return [found[number] for number in sorted(found.keys() & named if is_cut else found)]


def _created_in(folder: Folder, entry: CheckpointEntry) -> dict[int, int] | None:
    """Return the times of creation of a checkpoint's queues by id; None if its file was replaced, or is damaged."""
    created: dict[int, int] = {}
    try:
        for payload in read_payloads(folder.checkpoint_path(entry)):
            part = decode_part(payload) if tag_of(payload) == _QUEUE_SLICE else None
            if isinstance(part, QueueSlice):
                created[part.queue_id] = part.created_ms
    except (CheckpointError, msgspec.MsgspecError, OSError):
        return None
    return created
