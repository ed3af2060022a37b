"""A checkpoint file: a magic, then a frame for each checkpoint part, with a CRC.

    file  = magic frame*
    frame = u32 length of the payload | u32 CRC-32 of the payload | payload (msgpack)      both little-endian

The first part is a ``CheckpointHeader``, the last a ``CheckpointEnd`` with the number of parts before it. A short file,
a flipped bit and an unfinished file are all detected.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import BinaryIO

import msgspec

from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader
from cmqd_segment.checksums import crc32
from cmqd_segment.newer import known_tags, raise_if_newer

MAGIC = b"CMQDCKP1"
MAX_PART_BYTES = 256 * 1024 * 1024
"""Limit of a length. A larger value is damage, and must not allocate memory."""

_FRAME = Struct("<II")
FRAME_HEAD_BYTES = _FRAME.size
_parts = msgspec.msgpack.Decoder(AnyPart)
_PART_TAGS = known_tags(AnyPart)
_encoder = msgspec.msgpack.Encoder()

encode_part = _encoder.encode


class CheckpointError(Exception):
    """The file is not a whole, undamaged checkpoint."""


def decode_part(payload: bytes | memoryview) -> AnyPart:
    """Decode a part with a correct checksum.

    Raises:
        NewerFormatError: the part has a tag that this version does not know.
        msgspec.MsgspecError: the bytes are not part of any version.
    """
    try:
        return _parts.decode(payload)
    except msgspec.ValidationError:
        raise_if_newer("checkpoint holds parts", [payload], _PART_TAGS)
        raise


def frame(payload: bytes | memoryview) -> bytes:
    """Frame a payload for the file."""
    return _FRAME.pack(len(payload), crc32(payload)) + payload


def read_payloads(path: Path, magic: bytes = MAGIC) -> Iterator[bytes]:
    """Yield the payloads of a checkpoint file in order, each checked. Raises CheckpointError, OSError.

    ``magic``: of another kind of file with the same frames.
    """
    with path.open("rb") as file:
        check_magic(file, path, magic)
        while (payload := read_payload(file, path)) is not None:
            yield payload


def check_magic(file: BinaryIO, path: Path, magic: bytes) -> None:
    """Read the begin of a file. Raises CheckpointError, OSError."""
    if file.read(len(magic)) != magic:
        raise CheckpointError(f"{path.name} does not begin with {magic.decode()}")


def read_payload(file: BinaryIO, path: Path) -> bytes | None:
    """Read the next frame; None at the end of the file. Raises CheckpointError, OSError."""
    head = file.read(_FRAME.size)
    if not head:
        return None
    length, checksum = _FRAME.unpack(head) if len(head) == _FRAME.size else (MAX_PART_BYTES + 1, 0)
    payload = file.read(length) if length <= MAX_PART_BYTES else b""
    if len(payload) != length:
        raise CheckpointError(f"{path.name} ends inside a frame")
    if crc32(payload) != checksum:
        raise CheckpointError(f"{path.name} is damaged near byte {file.tell()}")
    return payload


def read_ends(path: Path) -> tuple[CheckpointHeader, CheckpointEnd]:
    """Read the whole file, and return its first and last part; only these are decoded. Raises as
    ``verify_checkpoint``.
    """
    parts = 0
    first = last = b""
    for payload in read_payloads(path):
        first = first or payload
        last = payload
        parts += 1
    try:
        header, end = (decode_part(payload) if payload else None for payload in (first, last))
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{path.name} holds a part that cannot be read: {error}") from error
    return _checked_ends(path, header, end, parts)


def verify_checkpoint(path: Path) -> tuple[CheckpointHeader, CheckpointEnd]:
    """Read the whole file and return its first and last part. Raises CheckpointError, NewerFormatError, OSError."""
    header: AnyPart | None = None
    part: AnyPart | None = None
    parts = 0
    try:
        for payload in read_payloads(path):
            if isinstance(part, CheckpointEnd):
                raise CheckpointError(f"{path.name} has parts behind its end")
            part = decode_part(payload)
            header = header or part
            parts += 1
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{path.name} holds a part that cannot be read: {error}") from error
    return _checked_ends(path, header, part, parts)


def _checked_ends(
    path: Path, header: AnyPart | None, end: AnyPart | None, parts: int
) -> tuple[CheckpointHeader, CheckpointEnd]:
    if not isinstance(header, CheckpointHeader):
        raise CheckpointError(f"{path.name} has no header")
    if not isinstance(end, CheckpointEnd):
        raise CheckpointError(f"{path.name} has no end: it was not finished")
    if end.parts != parts - 1:
        raise CheckpointError(f"{path.name} has {parts - 1} parts before its end, which counts {end.parts}")
    return header, end
