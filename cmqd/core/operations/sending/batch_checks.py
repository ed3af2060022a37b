"""Batches: the new messages of a send, checked before anything changes; for sends and half messages alike.

A repeat of a numbered send is recognized before all checks. If a limit was lowered since the first send, a refusal of
the repeat would tell the producer that stored messages are not stored. Dedup ids are examined after the batch is
checked and before the backlog limit: repeats need no room, so a batch of repeats succeeds in a full queue. With
``all_or_none`` a batch of repeats and new messages is refused there, before any promise is looked at.

Whether the account may have another session or dedup id is asked last but for the backlog, because a promise can be
refused only before it is made: recovery applies records without asking.
"""

from collections.abc import Sequence

import msgspec

from cmqd.core.domain_errors import BacklogFull
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import checked_sizes
from cmqd.core.operations.sending.repeats import Repeats, at_places, check_all_or_none, stored_before, unrepeated
from cmqd.core.outcome import BatchRequest
from cmqd_types.messages import Headers


class Batch(msgspec.Struct, gc=False):
    """The bodies of a request that are to be stored."""

    bodies: list[bytes]
    sizes: list[int]
    headers: list[Headers | None] | None
    """None if no message has headers."""
    dedup_ids: list[str | None] | None
    """None if no message has a dedup id."""
    repeats: Repeats | None
    """None = the request has no dedup ids, and all its bodies are stored."""

    def message_ids(self, first_id: int) -> Sequence[int]:
        """Return the ids of all bodies of the request, given that the stored bodies have ids from ``first_id`` on."""
        repeats = self.repeats
        return range(first_id, first_id + len(self.sizes)) if repeats is None else repeats.message_ids(first_id)


class Batches:
    """Checks batches for queues."""

    def __init__(self, facts: Facts) -> None:
        self._limits = facts.limits
        self._promises = facts.promises
        self._sessions = facts.promises.sessions

    def stored_before(self, queue: Queue, request: BatchRequest, now_ms: int) -> Sequence[int] | None:
        """Return the ids of a numbered send that was stored before; None if the send is new, or has no number.

        Raises:
            SequenceTooOld: the answer is forgotten.
        """
        session, sequence = request.session, request.sequence
        stored = self._sessions.find(queue.account, session, sequence) if session and sequence else None
        if stored is None:
            return None
        dedup_ids, count = request.dedup_ids, len(request.bodies)
        return stored_before(queue.dedup_ids, stored, sequence, count, dedup_ids, now_ms, self._limits)

    def check(self, queue: Queue, request: BatchRequest, now_ms: int) -> Batch:
        """Return the bodies to store; none of them if all are repeats.

        Raises:
            InvalidArgument, MessageTooLarge, BatchTooLarge, TooManyRemembered, BacklogFull.
        """
        index, limits = queue.index, self._limits
        attributes = index.attributes
        bodies, headers, dedup_ids, repeats = request.bodies, request.headers, request.dedup_ids, None
        sizes = checked_sizes(queue.name, bodies, headers, attributes.max_message_bytes, limits)
        if dedup_ids is not None:
            repeats = unrepeated(queue.dedup_ids, dedup_ids, len(sizes), now_ms, limits)
            if request.all_or_none:
                check_all_or_none("queue", queue.name, len(sizes), len(repeats.stored), len(repeats.new))
            sizes, bodies = at_places(sizes, repeats.new), at_places(bodies, repeats.new)
            headers = None if headers is None else at_places(headers, repeats.new)
            dedup_ids = at_places(dedup_ids, repeats.new) if any(dedup_ids) else None
        # An absent list takes a byte of the record, a list of nulls takes a byte for each message.
        if headers is not None and not any(headers):
            headers = None
        if sizes:
            if request.session and request.sequence:
                self._promises.check_session(queue.account, request.session, (), now_ms)
            if dedup_ids is not None:
                self._promises.check_dedup_ids(queue.account, now_ms)
            if index.live_count + len(sizes) > attributes.max_backlog:
                raise BacklogFull(queue.name, index.live_count, len(sizes), attributes.max_backlog)
        return Batch(bodies, sizes, headers, dedup_ids, repeats)
