"""Files of a data folder: manifest, checkpoints and segments, as seen by readers outside the broker."""

import sqlite3
from pathlib import Path

import pytest

from cmqd_segment.checkpoint import CheckpointEnd, CheckpointHeader
from cmqd_segment.checkpoint_file import MAGIC, CheckpointError, encode_part, frame, read_payloads, verify_checkpoint
from cmqd_segment.manifest import (
    CacheOf,
    LossEntry,
    Manifest,
    ManifestError,
    SegmentEntry,
    SegmentState,
    current_format,
    merge_ranges,
    read_manifest,
    write_manifest,
)
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.scan import RowError, scan_segment
from cmqd_segment.schema import SegmentFormatError, create_tables, open_read_only
from support.storage.log_rig import NOW_MS, OpenProcess, body
from support.storage.verified import verify_folder


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    manifest = Manifest(
        clean=True,
        segments=[SegmentEntry(1, SegmentState.SEALED, 1, 2, 3, 4, 5, 6, 7, "ab")],
        dropped=[(1, 2)],
        losses=[LossEntry(3, 4, "why")],
    )

    write_manifest(tmp_path, manifest)

    assert read_manifest(tmp_path) == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["manifest"]


def test_a_manifest_of_a_newer_format_says_so(tmp_path: Path) -> None:
    (tmp_path / "manifest").write_text('{"format": 6, "unknown": {}}')

    with pytest.raises(NewerFormatError, match=r"format 6; this version knows up to 5: use a newer cmqd"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(("cache_of", "number"), [(None, 4), (CacheOf("a" * 32, 0), 5)])
def test_a_version_of_formats_2_and_3_refuses_the_folders_of_this_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_of: CacheOf | None, number: int
) -> None:
    """Its rule is the rule of today, with 3 as the highest format that it knows."""
    write_manifest(tmp_path, Manifest(format=current_format(cache_of), cache_of=cache_of))
    assert read_manifest(tmp_path).format == number

    monkeypatch.setattr("cmqd_segment.manifest.CACHE_FORMAT", 3)

    with pytest.raises(NewerFormatError, match=rf"format {number}; this version knows up to 3: use a newer cmqd"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("mask", [0xFF, 0x80, 0x02])
def test_a_manifest_with_a_wrong_byte_is_damaged(tmp_path: Path, mask: int) -> None:
    """Also in a key: readers would ignore an unknown key."""
    write_manifest(tmp_path, Manifest(boot_id="abc", segments=[SegmentEntry(1, SegmentState.SEALED, 1, 2)]))
    whole = (tmp_path / "manifest").read_bytes()
    for offset in range(len(whole) - 1):
        (tmp_path / "manifest").write_bytes(whole[:offset] + bytes([whole[offset] ^ mask]) + whole[offset + 1 :])
        with pytest.raises(ManifestError, match="cannot be read"):
            read_manifest(tmp_path)


def test_a_manifest_of_format_1_has_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "manifest").write_text('{"format": 1, "clean": true}')

    assert read_manifest(tmp_path).clean


def test_ranges_merge_where_they_touch() -> None:
    assert merge_ranges([(5, 6), (1, 2), (3, 3), (9, 9), (5, 5)]) == [(1, 3), (5, 6), (9, 9)]


def checkpoint_bytes() -> bytes:
    parts = [CheckpointHeader(3, NOW_MS, 1, 1, 1), CheckpointEnd(4, 1)]
    return MAGIC + b"".join(frame(encode_part(part)) for part in parts)


def test_a_whole_checkpoint_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "1.ckpt"
    path.write_bytes(checkpoint_bytes())

    header, end = verify_checkpoint(path)

    assert (header.lsn, end.lsn) == (3, 4)
    assert len(list(read_payloads(path))) == 2


def test_a_checkpoint_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "1.ckpt"
    whole = checkpoint_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            verify_checkpoint(path)


def test_a_checkpoint_is_refused_wherever_a_bit_flips(tmp_path: Path) -> None:
    path = tmp_path / "1.ckpt"
    whole = checkpoint_bytes()
    for offset in range(len(whole)):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x40]) + whole[offset + 1 :])
        with pytest.raises(CheckpointError):
            verify_checkpoint(path)


def test_a_stray_database_is_not_taken_for_a_segment(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "stray.db")
    raw.execute("CREATE TABLE log(lsn)")
    raw.close()

    with pytest.raises(SegmentFormatError, match="not a cmqd segment"):
        open_read_only(tmp_path / "stray.db", sealed=False)


def test_a_segment_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
    create_tables(raw)
    raw.execute("PRAGMA user_version=2")
    raw.close()

    with pytest.raises(SegmentFormatError, match="format 2"):
        open_read_only(tmp_path / "new.db", sealed=False)


@pytest.mark.system
async def test_an_outsider_reads_live_and_sealed_rows_while_the_broker_works(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    for index in range(600):
        rig.send(1, index, 1)
        rig.log.close_row()
    await rig.commit()
    await rig.log.seal_now()
    await rig.store(1, 600, 2)
    manifest = read_manifest(folder)

    rows = [
        row
        for entry in manifest.segments
        for row in scan_segment(folder / entry.file, sealed=entry.state is SegmentState.SEALED, above=10)
    ]

    assert [row.lsn for row in rows] == list(range(11, 602))
    assert rows[-1].data == body(1, 600) + body(1, 601)
    assert verify_folder(folder) == []


@pytest.mark.system
async def test_verify_finds_a_flipped_bit(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, index, 1, 3000)
    await rig.checkpoint()
    await rig.log.close()
    path = folder / "segments" / "00000001.db"
    path.chmod(0o644)
    content = path.read_bytes().replace(body(1, 1, 30), body(1, 2, 30), 1)
    path.write_bytes(content)

    problems = verify_folder(folder)

    assert "does not match its checksum in the manifest" in problems[0]
    assert "row 2 of 00000001.db is damaged: its bodies do not match their checksum" in problems
    with pytest.raises(RowError) as raised:
        list(scan_segment(path, sealed=True))
    assert raised.value.lsn == 2
    assert [row.lsn for row in scan_segment(path, sealed=True, bodies=False)] == [1, 2, 3]
