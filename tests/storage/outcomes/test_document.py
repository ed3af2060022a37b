"""A file of outcomes, read by SEGMENTS.md alone: no module of this project decodes here."""

import json
import struct
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.core.builders import START_MS, Rig
from support.storage.outcome_rig import OutcomeRig

pytestmark = pytest.mark.system


def frames(data: bytes) -> Iterator[list[Any]]:
    """Section 3.4: the form of a checkpoint (section 5), with the magic CMQDOUT1."""
    assert data[:8] == b"CMQDOUT1"
    place = 8
    while place < len(data):
        length, checksum = struct.unpack_from("<II", data, place)
        payload = data[place + 8 : place + 8 + length]
        assert zlib.crc32(payload) == checksum
        yield msgspec.msgpack.decode(payload)
        place += 8 + length


def entries_in(folder: Path, segment: dict[str, Any]) -> list[list[Any]]:
    """The entries of a segment of the manifest."""
    listed = segment["outcomes"]
    if listed["generation"] == 0:
        return []
    path = folder / "segments" / f"{segment['number']:08d}.{listed['generation']}.outcomes"
    data = path.read_bytes()
    assert (len(data), sha256(data).hexdigest()) == (listed["bytes"], listed["sha256"])
    header, *parts, end = frames(data)
    assert header == [1, segment["number"], segment["first_lsn"], listed["generation"]]
    assert end == [3, 1 + len(parts)]
    assert {part[0] for part in parts} == {2}
    entries = [entry for part in parts for entry in part[1]]
    assert entries == sorted(entries, key=lambda entry: (entry[1], entry[2]))
    return entries


def numbers_of(runs: list[int]) -> list[int]:
    """Section 4: *runs*, ``[first, count, gap, count, ...]``."""
    found: list[int] = []
    place = 0
    for gap, count in zip(runs[::2], runs[1::2], strict=True):
        place += gap
        found += range(place, place + count)
        place += count
    return found


def counts_of(counts: list[int], messages: int) -> list[int]:
    """A single number for all positions, or runs ``[messages, receives, ...]``."""
    if len(counts) == 1:
        return counts * messages
    return [receives for number, receives in zip(counts[::2], counts[1::2], strict=True) for _ in range(number)]


async def test_the_document_is_enough_to_read_outcomes(tmp_path: Path) -> None:
    core = Rig()
    core.create("q", rewind_ms=3_600_000)
    core.create("stuck")
    core.send(*[b"x"] * 40)
    core.send(b"stuck", name="stuck")
    rig = OutcomeRig(tmp_path / "data", core)
    await rig.start()
    await rig.segment()
    await rig.checkpoint()
    # Receives: 8 messages twice, the others once.
    core.receive(most=8)
    core.settle(60_000)
    while handles := core.handles(most=16):
        core.delete(*handles)
    deleted_ms = core.now_ms
    core.settle(1_000)
    assert core.rewind(START_MS).messages == 40
    core.delete(*core.handles(most=3))
    await rig.segment()
    await rig.leave_behind()
    await rig.drop_behind_first()
    await rig.rig.log.close()

    text = (rig.folder / "manifest").read_bytes()
    manifest = json.loads(text)
    (first,) = (segment for segment in manifest["segments"] if segment["number"] == 1)
    assert first["outcomes"]["known_from"] <= manifest["dropped"][0][0]
    assert first["outcomes"]["upto"] >= manifest["dropped"][-1][1]
    entries = entries_in(rig.folder, first)

    last: dict[int, tuple[str, int, int]] = {}
    for queue_id, lsn, record, reason, time_ms, positions, receives in entries:
        assert queue_id == 1
        assert record >= 0
        assert manifest["dropped"][0][0] <= lsn <= manifest["dropped"][-1][1]
        for position, count in zip(numbers_of(positions), counts_of(receives, len(numbers_of(positions))), strict=True):
            last[position] = reason, time_ms, count
    assert [last[position] for position in range(40)] == [
        *[("deleted", deleted_ms + 1_000, 1)] * 3,
        *[("returned", deleted_ms + 1_000, 0)] * 37,
    ]
    deletes = [entry for entry in entries if entry[3] == "deleted"]
    twice = {
        position
        for entry in deletes
        for position, count in zip(numbers_of(entry[5]), counts_of(entry[6], len(numbers_of(entry[5]))), strict=True)
        if count == 2
    }
    assert twice == set(range(8))
