"""Repeats: bodies with a remembered dedup id, and numbered sends that were stored before."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from cmqd.core.domain_errors import InvalidArgument, SequenceTooOld, shown
from cmqd.core.facts.dedup import DedupIds
from cmqd.core.limits import Limits

T = TypeVar("T")


class Repeats(msgspec.Struct, gc=False):
    """The bodies of a batch with dedup ids: new, or repeats of a stored message or of a body in front of them.

    A body can repeat a body of the same batch, which has no message id yet. Two tables keep ids of stored messages
    apart from numbers of new messages: every place of the batch is in exactly one of them.
    """

    new: list[int] = []
    """Places of the bodies to store."""
    stored: dict[int, int] = {}
    """By place: the id of the stored message that the body repeats."""
    numbers: dict[int, int] = {}
    """By place: the number, among the new messages, of the message that the body becomes or repeats."""

    def message_ids(self, first_id: int) -> list[int]:
        """Return an id for every body, given that the new messages have ids from ``first_id`` on."""
        stored, numbers = self.stored, self.numbers
        places = range(len(stored) + len(numbers))
        return [stored[place] if place in stored else first_id + numbers[place] for place in places]


def unrepeated(known: DedupIds, dedup_ids: list[str | None], count: int, now_ms: int, limits: Limits) -> Repeats:
    """Sort the bodies of a batch into new bodies and repeats.

    Raises:
        InvalidArgument: too few or too many dedup ids, or an id of an illegal length.
    """
    if len(dedup_ids) != count:
        raise InvalidArgument(
            f"there are {len(dedup_ids)} dedup ids for {count} bodies; give one entry for each body, or null",
            field="dedup_ids",
            value=len(dedup_ids),
            limit=f"null, or {count} entries",
        )
    max_bytes = limits.max_dedup_id_bytes
    repeats = Repeats()
    in_batch: dict[str, int] = {}
    for place, dedup_id in enumerate(dedup_ids):
        if dedup_id is not None:
            if not 1 <= len(dedup_id.encode()) <= max_bytes:
                raise InvalidArgument(
                    f"a dedup id has 1 to {max_bytes} bytes of UTF-8; {shown(dedup_id)} has {len(dedup_id.encode())}",
                    field="dedup_ids",
                    value=dedup_id,
                    limit=f"1 to {max_bytes} bytes of UTF-8",
                )
            if dedup_id in in_batch:
                repeats.numbers[place] = in_batch[dedup_id]
                continue
            stored_id = known.find(dedup_id, now_ms)
            if stored_id is not None:
                repeats.stored[place] = stored_id
                continue
            in_batch[dedup_id] = len(repeats.new)
        repeats.numbers[place] = len(repeats.new)
        repeats.new.append(place)
    return repeats


def check_all_or_none(noun: str, name: str, count: int, remembered: int, new: int) -> None:
    """Check that a batch with ``all_or_none`` is new, or was stored before, as a whole.

    The check belongs to the step that stores the batch. Any earlier look at the ids could be overtaken: two requests
    could both find an id new.

    Args:
        noun: ``queue`` or ``topic``.
        name: its name.
        count: messages of the batch.
        remembered: messages of the batch with a dedup id of a message that is stored, or is stored in front.
        new: messages that would be stored.

    Raises:
        InvalidArgument: some messages are remembered and others are new.
    """
    if remembered and new:
        raise InvalidArgument(
            f"{noun} {name!r} got {remembered} of the {count} messages of this batch before, under the same"
            " dedup ids, and not the others; the batch asks for all or none, and no message was stored",
            field="all_or_none",
            value=remembered,
            limit="a batch with remembered dedup ids alone, or with new messages alone",
        )


def stored_before(
    known: DedupIds,
    stored: range,
    sequence: int,
    count: int,
    dedup_ids: list[str | None] | None,
    now_ms: int,
    limits: Limits,
    may_be_new: bool = False,
) -> Sequence[int]:
    """Return the ids for a repeat of a numbered send of ``count`` bodies that was stored as ``stored``.

    Without repeated dedup ids the stored ids are the answer. Otherwise the bodies of the first send were partly repeats
    themselves, and their ids are found again by dedup id. ``may_be_new``: an unknown dedup id may belong to a new
    message that matched no subscription; such ids are not remembered.

    Raises:
        SequenceTooOld: some bodies were repeats under a dedup id that is forgotten by now.
    """
    if dedup_ids is None or len(stored) == count:
        return stored
    ids: list[int] = []
    following = stored.start
    for dedup_id in dedup_ids:
        message_id = following if dedup_id is None else known.find(dedup_id, now_ms)
        if message_id is None and may_be_new:
            message_id = following
        if message_id is None or message_id > following:
            break
        following += message_id == following
        ids.append(message_id)
    if len(ids) < count or following != stored.stop:
        raise SequenceTooOld(sequence, limits.session_answers)
    return ids


def at_places(items: list[T], places: list[int]) -> list[T]:
    """Return the items at these places."""
    return [items[place] for place in places]
