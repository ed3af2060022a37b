"""Message ids: printed form and number."""

import re
from typing import NewType

from cmqd_types import messages

MessageId = NewType("MessageId", str)
"""A message's id in printed form: ``Msg-`` and 16 hex digits, the first three of them its shard. Unique in a region."""


def printed_id(number: int) -> MessageId:
    """Return the printed form of a message id."""
    return MessageId(messages.printed_id(number))


_SHOWN_CHARACTERS = 64
"""Characters of a wrong id in its error."""
_PRINTED = re.compile(r"Msg-([0-9a-f]{16})")


def id_number(printed: str) -> int:
    """Return the number of a printed message id.

    Raises:
        ValueError: the string is not a message id.
    """
    match = _PRINTED.fullmatch(printed)
    if match is None:
        raise ValueError(f"{printed[:_SHOWN_CHARACTERS]!r} is not a message id; an id looks like Msg-0000000000000001")
    return int(match[1], 16)
