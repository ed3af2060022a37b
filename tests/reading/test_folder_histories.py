"""Histories from the files of a folder, with and without side files: equal to the lives from all rows."""

from pathlib import Path

import pytest
from msgspec import structs

from cmqd_log.data_folder.histories import HistoryReader, NoMessageError
from cmqd_reading.births import births_in
from cmqd_reading.life import Life
from cmqd_segment.records import Administered, MessagesMoved, MessagesSent, RedriveStarted
from cmqd_types.actors import Actor
from cmqd_types.audit import AuditEntry
from cmqd_types.histories import LifeEvent, LifeKind
from cmqd_types.messages import Origin
from support.core.busy_rig import busy_rig
from support.spark.log_folder import queue_created, rows_of, write_folder
from support.storage.log_rig import NOW_MS

SEGMENTS = 6
MESSAGE_ID = 4_000

pytestmark = pytest.mark.system
"""Segments are written by a storage process."""


def untimed(event: LifeEvent) -> LifeEvent:
    """Rows on disk have a time of their own; only events with the time of their row differ."""
    return structs.replace(event, time_ms=0)


@pytest.mark.parametrize("seed", [1, 2])
def test_histories_of_a_folder_are_the_lives_from_all_rows(tmp_path: Path, seed: int) -> None:
    rig, _ = busy_rig(seed, 150)
    rows = rows_of(rig)
    size = len(rows) // SEGMENTS + 1
    write_folder(tmp_path / "data", [rows[first : first + size] for first in range(0, len(rows), size)])
    parents = {birth.message_id: birth.parent_id for records in rig.log.rows for birth in births_in(records)}
    opened = 0
    checked = sorted(parents)[::4]
    for message_id in checked:
        path = [message_id]
        while parent := parents[path[0]]:
            path.insert(0, parent)
        life = Life(path)
        for lsn, records in enumerate(rig.log.rows, 1):
            life.feed(lsn, NOW_MS, records)
        expected = life.result(len(rows), NOW_MS)
        reader = HistoryReader(str(tmp_path / "data"))

        found = reader.history(message_id)

        assert list(map(untimed, found.events)) == list(map(untimed, expected.events))
        assert [place.state for place in found.places] == [place.state for place in expected.places]
        opened += reader.opened
    assert opened < len(checked) * SEGMENTS


def test_a_redrive_names_its_key_from_a_segment_of_its_own(tmp_path: Path) -> None:
    """A redrive with a limit moves messages long after its start."""
    entry = AuditEntry(1, NOW_MS, "owner", "owner", "AKIDkey", "10.0.0.7:41000", "start_redrive", "dead")
    origin = Origin("dead", MESSAGE_ID, NOW_MS, 0, "redrive")
    moved = MessagesSent(2, 0, MESSAGE_ID + 100, NOW_MS, [4], origins=[origin])
    write_folder(
        tmp_path / "data",
        [
            [
                ([queue_created(1, "dead"), queue_created(2, "orders")], [], NOW_MS),
                ([MessagesSent(1, 0, MESSAGE_ID, NOW_MS, [4])], [b"body"], NOW_MS),
            ],
            [([RedriveStarted(1, "", 1, 1, NOW_MS), Administered(entry)], [], NOW_MS)],
            [([MessagesMoved(1, [0, 1], redriven=True), moved], [b"body"], NOW_MS)],
        ],
    )

    found = HistoryReader(str(tmp_path / "data")).history(MESSAGE_ID)

    assert [(event.kind, event.actor) for event in found.events] == [
        (LifeKind.SENT, None),
        (LifeKind.REDRIVEN, Actor("owner", "AKIDkey", host="10.0.0.7")),
    ]


def test_a_log_without_messages_is_told(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [[([queue_created(1, "orders")], [], NOW_MS)]])

    with pytest.raises(NoMessageError, match=r"data has no message$"):
        HistoryReader(str(tmp_path / "data")).history(MESSAGE_ID)
