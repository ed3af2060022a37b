"""The standing pins of backups as an engine keeps them: JSON, and no bytes where there are none."""

from collections.abc import Sequence

import msgspec

from cmqd_segment.manifest import StandingPinEntry


def encode_standing_pins(pins: Sequence[StandingPinEntry]) -> bytes:
    """Return the bytes that ``Engine.store_standing_pins`` takes."""
    return msgspec.json.encode(list(pins)) if pins else b""


def decode_standing_pins(data: bytes) -> list[StandingPinEntry]:
    """Return the standing pins of the bytes that ``Engine.load_standing_pins`` returned."""
    return msgspec.json.decode(data, type=list[StandingPinEntry]) if data else []
