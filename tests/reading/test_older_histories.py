"""Histories from the folders of earlier formats: each stored message has a life, which ends as Spark was told."""

import tempfile
from pathlib import Path

from cmqd_log.data_folder.histories import HistoryReader
from cmqd_reading.births import births_in
from cmqd_segment.manifest import SegmentState, read_manifest
from cmqd_segment.scan import readable_segments, scan_segment
from cmqd_types.histories import LifeKind
from support.cases import each_case
from support.formats.archives import ARCHIVES, unpack

BY_OPERATORS = {LifeKind.CLEARED, LifeKind.QUEUE_DELETED, LifeKind.REDRIVEN, LifeKind.REWOUND}


@each_case("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_a_folder_of_an_earlier_format_has_histories(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as target:
        folder, expected = unpack(archive, Path(target))
        ids = {
            birth.message_id
            for entry in readable_segments(read_manifest(folder))
            for row in scan_segment(folder / entry.file, sealed=entry.state is SegmentState.SEALED, bodies=False)
            for birth in births_in(row.records)
        }
        reader = HistoryReader(str(folder))
        states: dict[str, str] = {}
        for message_id in sorted(ids):
            history = reader.history(message_id)
            assert history.events
            # The audit trail names the keys of operators; the rows of earlier formats name no other client.
            named = {event.kind for event in history.events if event.actor is not None}
            assert named <= BY_OPERATORS
            for place in history.places:
                if place.message_id == message_id and place.is_certain:
                    states[f"Msg-{message_id:016x}"] = place.state
        told = {row["msg_id"]: row["event"] for row in expected.spark["all, includeActive=true"]}
        assert len(states) > 10
        assert {each: state for each, state in states.items() if told.get(each, state) != state} == {}
