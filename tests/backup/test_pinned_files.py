"""The files that a pin holds, as a backup takes them from the manifest of a live folder."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cmqd_backup.live import held_by
from cmqd_client.pins import LogPin
from cmqd_segment.manifest import CheckpointEntry, Manifest, SegmentEntry, SegmentState


def segment(number: int, first: int, last: int, state: SegmentState = SegmentState.SEALED) -> SegmentEntry:
    return SegmentEntry(number, state, first, last, rows=last - first + 1)


def checkpoint(number: int, lsn: int) -> CheckpointEntry:
    return CheckpointEntry(number, lsn, lsn, 1, 1, "")


def test_a_backup_takes_the_segments_and_the_checkpoint_of_its_pin_and_no_others() -> None:
    """The broker may replace or drop every other file while the copy is made."""
    pin = LogPin(1, "a" * 32, 25, "", datetime.now(UTC), 8, 12, timedelta(minutes=5), 1)
    manifest = Manifest(
        segments=[
            segment(1, 1, 9),
            segment(2, 10, 19),
            segment(3, 20, 29),
            segment(4, 30, 39),
            segment(5, 40, 40, SegmentState.ACTIVE),
        ],
        checkpoints=[checkpoint(7, 5), checkpoint(8, 12), checkpoint(9, 28)],
    )

    held = held_by(pin, {2, 3}, Path("data"), manifest)

    assert held.last_lsn == 29
    assert [(entry.number, entry.state.value) for entry in held.manifest.segments] == [
        (1, "dropping"),
        (2, "sealed"),
        (3, "sealed"),
    ]
    assert [entry.number for entry in held.manifest.checkpoints] == [8]


def test_a_pin_without_a_checkpoint_is_copied_without_one() -> None:
    pin = LogPin(1, "a" * 32, 5, "", datetime.now(UTC), 0, 0, timedelta(minutes=5), 1)
    manifest = Manifest(segments=[segment(1, 1, 5)], checkpoints=[checkpoint(1, 5)])

    held = held_by(pin, {1}, Path("data"), manifest)

    assert held.manifest.checkpoints == []
    assert held.last_lsn == 5
