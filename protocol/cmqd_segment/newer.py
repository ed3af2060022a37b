"""Data of a newer version, told apart from damage.

The checksum of a row or of a checkpoint part proves that its bytes are as written. An unknown tag under a right
checksum is therefore the work of a newer version: the data is sound, and must not be given up.
"""

from collections.abc import Iterable
from typing import Final, get_args

import msgspec

_LONG_ARRAY: Final = 0xDC
_raw_items = msgspec.msgpack.Decoder(list[msgspec.Raw])


class NewerFormatError(Exception):
    """A newer version of cmqd wrote the data. The data is sound."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text}: use a newer cmqd")


def tag_of(packed: "bytes | memoryview") -> int:
    """Return the tag of an encoded record or checkpoint part without decoding it.

    The tag is a small number behind the head of an array. The head has one byte, or three if the array has more than 15
    fields.
    """
    return packed[3] if packed[0] == _LONG_ARRAY else packed[1]


def tag_number(record: type[msgspec.Struct]) -> int:
    """Return the tag of a kind of record or checkpoint part."""
    tag = record.__struct_config__.tag
    assert isinstance(tag, int)
    return tag


def known_tags(union: object) -> frozenset[int]:
    """Return the tags of a union of Structs."""
    return frozenset(member.__struct_config__.tag for member in get_args(union))


def raise_if_newer(holder: str, items: "Iterable[bytes | memoryview]", known: frozenset[int]) -> None:
    """Raise NewerFormatError if an encoded item has a tag that this version does not know."""
    unknown = {tag_of(item) for item in items if len(item) > 1} - known
    if unknown:
        text = f"the {holder} of kind {min(unknown)}, which this version does not know"
        raise NewerFormatError(text) from None


def raw_items(packed: "bytes | memoryview") -> list[msgspec.Raw]:
    """Return the items of an encoded array. Raises msgspec.MsgspecError."""
    return _raw_items.decode(packed)
