"""Power failures around the writes of the manifest: a folder is never half of one format and half of another.

The broker is traced; from the trace the data folder is rebuilt as a loss of power may have left the folder.
"""

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cmqd_segment.manifest import MANIFEST_FORMAT, MANIFEST_NAME, StartEntry, read_manifest
from support.crash.broker import CrashingBroker
from support.crash.traces.disk import Unsynced, disk_after
from support.crash.traces.trace import AnyEvent, Renamed, read_trace
from support.formats.archives import OWN_LOGS, Expected, differences, format_of, unpack
from support.formats.questions import interrogate

pytestmark = pytest.mark.system

SEED = 12
ARCHIVE = OWN_LOGS[-1]
"""A folder of the format before."""


@dataclass
class TracedRaise:
    """The first start of this version on a folder of the version before."""

    events: Sequence[AnyEvent]
    """The trace."""
    old_files: set[str]
    """Names of the files of the segments before the start."""
    old_starts: list[StartEntry]
    expected: Expected
    """Answers of the folder, however the power failed."""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> TracedRaise:
    life = tmp_path_factory.mktemp("life")
    folder, expected = unpack(ARCHIVE, life)
    old_files = {path.name for path in (folder / "segments").iterdir()}
    old_starts = read_manifest(folder).starts
    broker = CrashingBroker(life)
    try:
        broker.start(trace_file=life / "trace")
        broker.stop()
    finally:
        broker.clean_up()
    return TracedRaise(read_trace(life / "trace"), old_files, old_starts, expected)


def cuts_around_manifests(events: Sequence[AnyEvent]) -> list[int]:
    """Moments just before and just after the first four replacements: those of a start, before serving."""
    renames = [at for at, event in enumerate(events) if isinstance(event, Renamed) and event.new_path == MANIFEST_NAME]
    assert len(renames) >= 4
    return sorted({at + step for at in renames[:4] for step in (-1, 0, 1, 2)})


async def test_the_raise_of_the_format_happens_whole_or_not_at_all(tmp_path: Path, traced: TracedRaise) -> None:
    old_files = traced.old_files | {"00000003.db-wal", "00000003.db-shm"}
    events = traced.events
    chance = random.Random(SEED)
    formats: set[int] = set()

    for cut in cuts_around_manifests(events):
        for unsynced in Unsynced:
            rebuilt = tmp_path / f"{cut}-{unsynced.name}"
            disk_after(events[:cut], unsynced, chance).write_to(rebuilt)
            manifest = read_manifest(rebuilt)
            formats.add(manifest.format)
            if manifest.format < MANIFEST_FORMAT:
                # A folder with the old format number has no data of the new format.
                assert {path.name for path in (rebuilt / "segments").iterdir()} <= old_files
                assert manifest.starts == traced.old_starts
            else:
                assert len(manifest.starts) == len(traced.old_starts) + 1
            shutil.rmtree(rebuilt)

    assert formats == {format_of(ARCHIVE), MANIFEST_FORMAT}


@pytest.mark.parametrize("unsynced", list(Unsynced))
async def test_a_folder_opens_with_all_its_messages_wherever_the_power_failed_in_the_raise(
    tmp_path: Path, traced: TracedRaise, unsynced: Unsynced
) -> None:
    events = traced.events
    chance = random.Random(SEED)
    cuts = cuts_around_manifests(events)

    for cut in chance.sample(cuts, 4):
        rebuilt = tmp_path / str(cut)
        disk_after(events[:cut], unsynced, chance).write_to(rebuilt)
        answers = await interrogate(rebuilt, traced.expected.kept)
        assert differences(traced.expected.answers, answers) == [], f"cut {cut} of {len(events)}"
