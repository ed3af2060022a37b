"""Comparison of messages of two releases: SPEC.md allows additions between releases of one protocol version."""

from typing import Any, cast

from cmqd_protocol.messages import Error, HandlesDone, TransactionsEnded
from support.protocol.plain_msgpack import unpack

_ERROR_TEXT = 4
_WITH_FAILURES = frozenset(kind.__struct_config__.tag for kind in (HandlesDone, TransactionsEnded))
_FAILURES = 2
"""Place of the refused entries of a batch in its reply: id or handle, code, text."""
_OF_THE_MACHINE = frozenset({"address"})
"""Names in maps with values that differ between servers."""


def frames(stream: bytes) -> list[list[Any]]:
    """The decoded payloads of a stream of whole frames, without heartbeats."""
    payloads: list[list[Any]] = []
    while stream:
        stop = 4 + int.from_bytes(stream[:4], "big")
        if stop > 4:
            payloads.append(unpack(stream[4:stop]))
        stream = stream[stop:]
    return payloads


def extends(newer: object, older: object) -> bool:
    """Return whether ``newer`` holds every element of ``older`` in its old place.

    An array of arrays is a list, and keeps its length; any other array may have elements appended.
    """
    if isinstance(older, list) and isinstance(newer, list):
        new_items, old_items = cast("list[object]", newer), cast("list[object]", older)
        is_list = bool(old_items) and all(isinstance(item, list) for item in old_items)
        if len(new_items) < len(old_items) or (is_list and len(new_items) != len(old_items)):
            return False
        return all(extends(new, old) for new, old in zip(new_items, old_items, strict=False))
    if isinstance(older, dict) and isinstance(newer, dict):
        new_map, old_map = cast("dict[str, object]", newer), cast("dict[str, object]", older)
        return all(
            name in new_map and (name in _OF_THE_MACHINE or extends(new_map[name], value))
            for name, value in old_map.items()
        )
    return isinstance(newer, bool) is isinstance(older, bool) and newer == older


def says_the_same(newer: list[Any], older: list[Any]) -> bool:
    """Return whether a message has the content that an older release sent; the text of an error may change."""
    if older[0] in _WITH_FAILURES:
        newer, older = (
            [*message[:_FAILURES], [[*failed[:2], ""] for failed in message[_FAILURES]], *message[_FAILURES + 1 :]]
            for message in (newer, older)
        )
    if older[0] == Error.__struct_config__.tag:
        newer, older = ([*message[:_ERROR_TEXT], "", *message[_ERROR_TEXT + 1 : 7]] for message in (newer, older))
    return extends(newer, older)
