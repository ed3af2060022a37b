"""The moments at which a queue with ``auto_delete_after_ms`` may have been deleted because it was unused.

The deletion has no request. The answer ``queue_not_found`` shows the deletion, and is true only if the queue can have
been unused for its time within a single life of the broker. Only answered operations count as uses: operations without
an answer may not have happened.
"""

from collections.abc import Iterator, Sequence

from support.crash.promises.broker_time.bounds import CLOCK_MARGIN_MS
from support.crash.promises.history import (
    Clear,
    CreateQueue,
    DeleteQueue,
    HandleOperation,
    History,
    Operation,
    Outcome,
    Receive,
    Send,
    SetAttributes,
    Unused,
)

MS = 1_000_000


def deletion_of_unused(history: History, queue: str, after_ms: int, shown_by: Operation) -> Unused | None:
    """Return the deletion that an answer ``queue_not_found`` shows, from its earliest moment on; None: too early."""
    present_ns, used_ns = _last_known(history, queue, shown_by.called_ns)
    for began_ns, ended_ns in _lives(history):
        earliest_ns = int(max(began_ns, used_ns) + (after_ms - CLOCK_MARGIN_MS) * MS)
        if ended_ns > present_ns and earliest_ns <= min(ended_ns, shown_by.answered_ns):
            called_ns = int(max(earliest_ns, present_ns))
            return Unused(queue=queue, called_ns=called_ns, answered_ns=shown_by.answered_ns)
    return None


def all_deletions(history: History) -> Iterator[Unused]:
    """Yield the deletions of unused queues that took messages along."""
    created: dict[str, dict[str, int | str | bool]] = {}
    shown: set[str] = set()
    for operation in sorted(history.operations, key=lambda operation: operation.called_ns):
        if isinstance(operation, CreateQueue) and operation.possible:
            created[operation.queue] = dict(operation.attributes)
            shown.discard(operation.queue)
        attributes = created.get(operation.queue, {})
        after_ms = int(attributes.get("auto_delete_after_ms", 0))
        if operation.error != "queue_not_found" or not after_ms or operation.queue in shown:
            continue
        if attributes.get("auto_delete_only_empty", True):
            continue
        deletion = deletion_of_unused(history, operation.queue, after_ms, operation)
        if deletion is not None:
            shown.add(operation.queue)
            yield deletion


def _lives(history: History) -> Iterator[tuple[float, float]]:
    """Yield every life of the broker: from the kill before at the earliest, to the answer of the next at the latest."""
    breaks: Sequence[float] = history.breaks_ns
    began = [float("-inf"), *breaks[1::2]]
    ended = [*breaks[2::2], float("inf")]
    yield from zip(began, ended, strict=False)


def _last_known(history: History, queue: str, before_ns: int) -> tuple[float, float]:
    """Return (a time at which the queue was there, a time until which the queue was in use): the latest that follow
    from the operations answered before a time.
    """
    present_ns = used_ns = float("-inf")
    operations = sorted(
        (one for one in history.operations if one.queue == queue and one.answered_ns <= before_ns),
        key=lambda one: one.called_ns,
    )
    last_clear_ns = max((one.called_ns for one in operations if isinstance(one, Clear) and one.possible), default=-1)
    settled = {handle for one in operations if isinstance(one, HandleOperation) for handle in one.handles}
    for operation in operations:
        if operation.outcome is not Outcome.DONE or isinstance(operation, DeleteQueue):
            continue
        present_ns = max(present_ns, operation.called_ns)
        until_ns = float("-inf")
        match operation:
            case Send():
                until_ns = operation.called_ns + operation.delay_ms * MS
            case Receive():
                held = [one.next_visible_ms for one in operation.deliveries if one.handle not in settled]
                until_ns = max([history.at_ns(ms) for ms in held], default=operation.called_ns)
            case HandleOperation() | CreateQueue() | SetAttributes():
                until_ns = operation.called_ns
            case _:
                pass
        if operation.called_ns <= last_clear_ns:
            # A clear ends the use by messages in flight and delayed messages.
            until_ns = min(until_ns, last_clear_ns)
        used_ns = max(used_ns, until_ns)
    return present_ns, used_ns
