"""``cmq segment``: over folders that a real storage made."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cmq_cli.exitcodes import ExitCode
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_segment import scan
from cmqd_segment.manifest import CACHE_FORMAT, Manifest, SegmentState, read_manifest, write_manifest
from support.client.cmq_runs import Cmq, ThreadedServer
from support.storage.log_rig import ForkedPlace, LogRig
from support.storage.verified import verify_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sealed segments with three messages per segment, and a checkpoint."""
    place = ForkedPlace(tmp_path / "data")

    async def fill() -> None:
        rig = LogRig(place.log())
        await rig.open()
        for first in (0, 3):
            await rig.store(1, first, 3)
            await rig.log.seal_now()
        await rig.checkpoint()
        await rig.log.close()

    asyncio.run(fill())
    return place.folder


def test_the_segments_of_a_folder_are_listed(cmq: Cmq, folder: Path) -> None:
    table = cmq("segment", "list", "--path", str(folder)).out.splitlines()
    assert table[0].split() == ["segment", "state", "first", "row", "last", "row", "messages", "size", "from", "to"]
    assert table[1].split()[:5] == ["1", "sealed", "1", "1", "3"]
    assert table[1].split()[-2:] == ["2023-11-14", "22:13:20"]
    assert len(table) == 3

    found = cmq("segment", "list", "--path", str(folder), "--output", "json").json
    assert found["clean"] is True
    assert [one["last_lsn"] for one in found["segments"]] == [1, 2]
    assert found["segments"][0]["file"] == "segments/00000001.db"


def test_counts_of_a_segment_have_separators_and_rows_have_none(cmq: Cmq, folder: Path) -> None:
    manifest = read_manifest(folder)
    large = msgspec.structs.replace(manifest.segments[0], messages=1_461_173, first_lsn=1_200, last_lsn=1_300)
    write_manifest(folder, msgspec.structs.replace(manifest, segments=[large, *manifest.segments[1:]]))

    table = cmq("segment", "list", "--path", str(folder)).out.splitlines()

    # A row number is shown in the form that options take.
    assert table[1].split()[:5] == ["1", "sealed", "1200", "1300", "1,461,173"]


def test_a_folder_without_a_manifest_is_not_found(cmq: Cmq, tmp_path: Path) -> None:
    for command in ("list", "verify"):
        ran = cmq("segment", command, "--path", str(tmp_path))
        assert ran.code == ExitCode.NOT_FOUND
        assert "has no manifest" in ran.err
    (tmp_path / "manifest").write_text("{}")
    assert cmq("segment", "list", "--path", str(tmp_path)).code == ExitCode.FAILED


def test_a_folder_of_a_newer_version_is_not_called_damaged(cmq: Cmq, folder: Path) -> None:
    write_manifest(folder, msgspec.structs.replace(read_manifest(folder), format=CACHE_FORMAT + 1))

    for command in ("list", "verify"):
        ran = cmq("segment", command, "--path", str(folder))
        assert ran.code == ExitCode.FAILED
        assert "use a newer cmqd" in ran.err


def test_a_sound_folder_is_verified(cmq: Cmq, folder: Path) -> None:
    ran = cmq("segment", "verify", "--path", str(folder))

    assert (ran.code, ran.out, ran.err) == (ExitCode.OK, "", "5 files are sound\n")


def test_damage_is_told_and_fails(cmq: Cmq, folder: Path) -> None:
    path = folder / "segments" / "00000002.db"
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    at = content.index(b"1/4/1/4/")
    content[at] ^= 1
    path.write_bytes(content)

    ran = cmq("segment", "verify", "--path", str(folder), "--output", "json")

    assert ran.code == ExitCode.FAILED
    assert ran.json["checked"] == 5
    assert list(ran.json["wrong"]) == ["segments/00000002.db"]
    assert "row 2 of 00000002.db is damaged: its bodies do not match their checksum" in ran.err


def test_a_side_file_that_is_missing_or_damaged_is_a_warning(cmq: Cmq, folder: Path) -> None:
    listed = cmq("segment", "list", "--path", str(folder), "--output", "json").json["segments"]
    first, second = (folder / entry["side_file"] for entry in listed)
    first.unlink()
    second.chmod(0o644)
    second.write_bytes(second.read_bytes()[:-1])

    ran = cmq("segment", "verify", "--path", str(folder))
    document = cmq("segment", "verify", "--path", str(folder), "--output", "json").json

    assert ran.code == ExitCode.OK
    assert "side file segments/00000001.side is missing\n" in ran.err
    assert "side file segments/00000002.side does not match its checksum in the manifest" in " ".join(ran.err.split())
    assert "2 of 5 files are side files to be made anew" in ran.err
    assert (document["checked"], document["wrong"]) == (5, {})
    assert list(document["warnings"]) == ["segments/00000001.side", "segments/00000002.side"]


def test_a_segment_that_goes_while_it_is_verified_is_no_damage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def verify_segment(folder: Path, entry: Any) -> list[str]:
        manifest = read_manifest(folder)
        segments = [msgspec.structs.replace(one, state=SegmentState.DROPPING) for one in manifest.segments]
        write_manifest(folder, Manifest(segments=segments, checkpoints=manifest.checkpoints))
        return ["is missing"]

    monkeypatch.setattr(scan, "verify_segment", verify_segment)

    assert verify_folder(folder) == []


def test_sealing_is_asked_of_the_server(cmq_at: Cmq, server: ThreadedServer) -> None:
    last_lsn = server.do(server.local.status, "durable_lsn")
    assert cmq_at("segment", "seal").err == f"sealed up to row {last_lsn}\n"
    assert cmq_at("segment", "seal", "--output", "json").json["last_lsn"] >= last_lsn

    server.do(server.local.link.refuse, wire.SealSegments, ErrorCode.PERMISSION_DENIED)
    assert cmq_at("segment", "seal").code == ExitCode.REFUSED


def test_the_segments_of_the_server_tell_what_keeps_them(cmq_at: Cmq, server: ThreadedServer) -> None:
    cmq_at("queue", "create", "parcels", "--rewind", "1h")
    cmq_at("send", "parcels", "one")
    cmq_at("receive", "parcels", "--delete")
    cmq_at("send", "parcels", "two")
    cmq_at("segment", "seal")
    cmq_at("send", "parcels", "three")

    table = cmq_at("segment", "list").out.splitlines()
    found = cmq_at("segment", "list", "--output", "json").json
    first = cmq_at("segment", "list", "--limit", "1")

    assert table[0].split() == ["segment", "state", "messages", "size", "from", "to", "kept", "for", "needed", "by"]
    sealed, active = found["segments"]
    assert (sealed["state"], sealed["live"], sealed["rewindable"]) == ("sealed", 1, 1)
    assert (active["state"], active["live"], active["kept_for"]) == ("active", 1, ["rows", "messages"])
    assert found["next"] is None
    assert found["log_bytes"] >= 0
    text = " ".join(" ".join(table).split())
    assert "1 message, 1 rewindable" in text
    assert "new rows, 1 message admin/parcels 1" in text
    assert first.err == f"1 of 2 segments; --after {sealed['number']} shows the next ones\n"
    assert cmq_at("segment", "list", "--after", str(sealed["number"]), "--output", "json").json["segments"] == [active]

    server.do(server.local.link.refuse, wire.ListSegments, ErrorCode.PERMISSION_DENIED)
    assert cmq_at("segment", "list").code == ExitCode.REFUSED
