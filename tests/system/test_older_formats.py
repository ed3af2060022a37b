"""Folders of earlier versions are opened, with the answers of the earlier version."""

import shutil
from pathlib import Path

import pytest

from cmqd.storage.storage_errors import FolderFormatError
from cmqd_segment.manifest import MANIFEST_FORMAT, read_manifest
from support.formats.archives import ARCHIVES, differences, format_of, unpack
from support.formats.broker import open_folder
from support.formats.questions import interrogate

pytestmark = pytest.mark.system


def test_there_is_a_folder_of_every_earlier_format() -> None:
    assert [format_of(archive) for archive in ARCHIVES] == list(range(1, MANIFEST_FORMAT))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
async def test_a_folder_of_an_earlier_format_answers_as_it_did(archive: Path, tmp_path: Path) -> None:
    folder, expected = unpack(archive, tmp_path)

    answers = await interrogate(folder, expected.kept)

    assert differences(expected.answers, answers) == []
    assert set(answers) == set(expected.answers)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
async def test_the_first_start_raises_the_format_and_says_so(archive: Path, tmp_path: Path) -> None:
    folder, expected = unpack(archive, tmp_path)
    assert read_manifest(folder).format == format_of(archive)

    rig = await open_folder(folder, expected.kept.crashed_ms)

    assert read_manifest(folder).format == MANIFEST_FORMAT
    assert [finding.kind for finding in rig.report.findings].count("format_raised") == 1
    await rig.stop()
    again = await open_folder(folder, expected.kept.crashed_ms)
    assert "format_raised" not in [finding.kind for finding in again.report.findings]
    await again.stop()


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
async def test_a_refused_start_leaves_the_folder_in_its_format(archive: Path, tmp_path: Path) -> None:
    folder, expected = unpack(archive, tmp_path)
    manifest = (folder / "manifest").read_bytes()
    newer = shutil.copytree(folder, tmp_path / "newer")
    (newer / "manifest").write_bytes(manifest.replace(b'"format": 1', b'"format": 99'))

    with pytest.raises(FolderFormatError, match="use a newer cmqd"):
        await open_folder(newer, expected.kept.crashed_ms)
    assert b'"format": 99' in (newer / "manifest").read_bytes()
