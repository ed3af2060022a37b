"""Repeats: bodies with a remembered dedup id, and numbered sends that were stored before."""

from collections.abc import Sequence
from typing import TypeVar

from cmqd.core.errors import InvalidArgument, SequenceTooOld, shown
from cmqd.core.facts.dedup import DedupIds
from cmqd.core.limits import Limits

T = TypeVar("T")


def unrepeated(
    known: DedupIds, dedup_ids: list[str | None], count: int, now_ms: int, limits: Limits
) -> tuple[list[int], list[int]]:
    """Return the places of the bodies to store, and an answer for every body.

    The answer is the id of the message that the body repeats, or ``-1 - n`` for the n-th stored body. A body can repeat
    an earlier body of the same batch, and message ids are not given yet: hence numbers.
    """
    if len(dedup_ids) != count:
        raise InvalidArgument(
            f"there are {len(dedup_ids)} dedup ids for {count} bodies; give one entry for each body, or null",
            field="dedup_ids",
            value=len(dedup_ids),
            limit=f"null, or {count} entries",
        )
    max_bytes = limits.max_dedup_id_bytes
    new: list[int] = []
    answer: list[int] = []
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
            repeated = in_batch.get(dedup_id)
            if repeated is None:
                repeated = known.find(dedup_id, now_ms)
            if repeated is not None:
                answer.append(repeated)
                continue
            in_batch[dedup_id] = -1 - len(new)
        answer.append(-1 - len(new))
        new.append(place)
    return new, answer


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


def answered(answer: list[int], first_id: int) -> list[int]:
    """Return the message ids for an answer of ``unrepeated``; ``first_id`` is the id of the first stored message."""
    return [id_or_number if id_or_number >= 0 else first_id - 1 - id_or_number for id_or_number in answer]
