"""Folders of earlier versions are opened, with the answers of the earlier version."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.storage_errors import FolderFormatError
from cmqd_protocol import messages as wire
from cmqd_segment.manifest import CACHE_FORMAT, MANIFEST_FORMAT, read_manifest, write_manifest
from support.formats.archives import ARCHIVES, Expected, differences, format_of, is_cache, unpack
from support.formats.broker import open_folder
from support.formats.caches import OpenLog, engine_of, log_over
from support.formats.questions import interrogate

pytestmark = pytest.mark.system


def test_there_is_a_folder_of_every_earlier_format() -> None:
    assert [format_of(archive) for archive in ARCHIVES] == list(range(1, MANIFEST_FORMAT))


async def unpack_to_open(archive: Path, place: Path) -> tuple[Path, Expected, OpenLog]:
    """Unpack a folder; a cache gets an engine with its rows."""
    folder, expected = unpack(archive, place)
    if not is_cache(archive):
        return folder, expected, StorageProcessLog
    return folder, expected, log_over(await asyncio.to_thread(engine_of, folder, place))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
async def test_a_folder_of_an_earlier_format_answers_as_it_did(archive: Path, tmp_path: Path) -> None:
    folder, expected, open_log = await unpack_to_open(archive, tmp_path)

    answers = await interrogate(folder, expected.kept, open_log)

    assert differences(expected.answers, answers) == []
    assert set(answers) == set(expected.answers)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
async def test_the_first_start_raises_the_format_and_says_so(archive: Path, tmp_path: Path) -> None:
    folder, expected, open_log = await unpack_to_open(archive, tmp_path)
    assert read_manifest(folder).format == format_of(archive)

    rig = await open_folder(folder, expected.kept.crashed_ms, open_log)

    assert read_manifest(folder).format == (CACHE_FORMAT if is_cache(archive) else MANIFEST_FORMAT)
    assert not (folder / "set-aside").exists()
    assert [finding.kind for finding in rig.report.findings].count("format_raised") == 1
    await rig.stop()
    again = await open_folder(folder, expected.kept.crashed_ms, open_log)
    assert "format_raised" not in [finding.kind for finding in again.report.findings]
    await again.stop()


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
async def test_a_refused_start_leaves_the_folder_in_its_format(archive: Path, tmp_path: Path) -> None:
    folder, expected, open_log = await unpack_to_open(archive, tmp_path)
    write_manifest(folder, structs.replace(read_manifest(folder), format=99))
    before = (folder / "manifest").read_bytes()

    with pytest.raises(FolderFormatError, match="use a newer cmqd"):
        await open_folder(folder, expected.kept.crashed_ms, open_log)
    assert (folder / "manifest").read_bytes() == before


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
async def test_the_lives_of_messages_in_a_folder_of_an_earlier_format_are_told(archive: Path, tmp_path: Path) -> None:
    folder, expected, open_log = await unpack_to_open(archive, tmp_path)
    rig = await open_folder(folder, expected.kept.crashed_ms, open_log)
    client = await rig.client()
    committed, _, undecided, _ = expected.kept.sent["half"]
    (first, second) = expected.kept.receipts["orders"]

    async def told(**asked: int) -> wire.MessageHistory:
        reply = await rig.answer(client, wire.GetMessageHistory(client.next_id(), **asked))
        assert isinstance(reply, wire.MessageHistory), reply
        return reply

    assert [event.kind for event in (await told(message_id=committed)).events] == ["half", "committed"]
    assert [event.kind for event in (await told(message_id=undecided)).events] == ["half", "checked", "undecided"]
    lives = [await told(receipt_handle=handle) for handle in (first, second)]
    for life in lives:
        assert {event.queue for event in life.events} == {"orders"}
        assert [(place.queue, place.state) for place in life.places] == [("orders", "in_flight")]
    assert lives[0].message_id != lives[1].message_id
    published = await told(message_id=expected.kept.sent["published"][0])
    assert (published.events[0].kind, published.events[0].queue) == ("published", "news")
    assert [event.queue for event in published.events if event.kind == "copied"] == ["inbox"]
    await rig.stop()
