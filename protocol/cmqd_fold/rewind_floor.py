"""The rewind floor of a queue: deleted messages below the floor cannot be rewound.

A deleted message stays rewindable until its rewind window or its retention has passed. The broker decides by whole time
steps, and each record that depends on the decision carries the decision as ``rewind_floor``. Replay applies the floor
and decides nothing.

Versions before the field left the decision to replay. Their records are replayed by the same rule, which needs the time
steps exactly as the broker had them; see SEGMENTS.md, section 4.1.
"""

from cmqd_fold.time_steps import TimeSteps
from cmqd_segment.records import QueueAttributesSet, QueueRewound
from cmqd_types.attributes import QueueAttributes


def passed_floor(attributes: QueueAttributes, steps: TimeSteps, now_ms: int, next_position: int) -> int:
    """Return the position below which every message has passed its rewind window or its retention.

    Messages above the floor may have passed too: a time step counts as passed when its last message has.
    """
    passed_ms = max(now_ms - attributes.rewind_ms - 1, now_ms - attributes.retention_ms)
    return steps.floor_at(passed_ms, next_position)


def rewind_floor_of(
    record: QueueRewound | QueueAttributesSet, attributes: QueueAttributes, steps: TimeSteps, next_position: int
) -> int:
    """Return the rewind floor that a record sets; ``attributes`` are in force before the record.

    For a record of a version before the field the rule gives the floor. Changed attributes apply the rule with the old
    and with the new attributes, because a message that was past a shorter window must not return with a longer window.
    """
    if record.rewind_floor >= 0:
        return record.rewind_floor
    if isinstance(record, QueueRewound):
        return passed_floor(attributes, steps, record.rewound_ms, next_position)
    if not record.attributes.rewind_ms:
        return next_position
    return max(
        passed_floor(attributes, steps, record.modified_ms, next_position),
        passed_floor(record.attributes, steps, record.modified_ms, next_position),
    )
