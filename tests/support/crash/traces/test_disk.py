"""Possible contents of the disk after a power failure, rule by rule."""

import random

import pytest

from support.crash.traces.disk import SECTOR_BYTES, Disk, TraceUnusableError, Unsynced, disk_after
from support.crash.traces.syscalls import ARCHITECTURES, filter_program
from support.crash.traces.trace import (
    AllSynced,
    AnyEvent,
    Created,
    FolderCreated,
    FolderSynced,
    Linked,
    Present,
    Removed,
    Renamed,
    Resized,
    Synced,
    SyncStarted,
    Unfollowed,
    Written,
)

_MODE = 0o100644


def rebuilt(*events: AnyEvent, unsynced: Unsynced = Unsynced.DROPPED, seed: int = 0) -> Disk:
    root = Present(0, "", 0, 0o40755, True, b"")
    return disk_after([root, *events], unsynced, random.Random(seed))


def contents(disk: Disk) -> dict[str, bytes]:
    return {path: data for path, (_, data) in disk.files.items()}


CREATED = (Created(0, "a", 1, _MODE), SyncStarted(0, 1), FolderSynced(0, 1, ""))


def test_synced_data_is_there_and_later_data_is_not() -> None:
    disk = rebuilt(*CREATED, Written(0, 1, 0, b"kept"), SyncStarted(0, 2), Synced(0, 2, 1), Written(0, 1, 4, b"lost"))

    assert contents(disk) == {"a": b"kept"}


def test_data_written_while_a_sync_runs_is_not_promised_by_it() -> None:
    disk = rebuilt(*CREATED, SyncStarted(0, 2), Written(0, 1, 0, b"late"), Synced(0, 2, 1))

    assert contents(disk) == {"a": b""}


def test_a_sync_that_has_not_returned_promises_nothing() -> None:
    assert contents(rebuilt(*CREATED, Written(0, 1, 0, b"x"), SyncStarted(0, 2))) == {"a": b""}


def test_a_sync_of_another_file_promises_nothing() -> None:
    disk = rebuilt(*CREATED, Written(0, 1, 0, b"x"), SyncStarted(0, 2), Synced(0, 2, 7))

    assert contents(disk) == {"a": b""}


def test_a_synchronous_write_is_durable_by_itself() -> None:
    assert contents(rebuilt(*CREATED, Written(0, 1, 0, b"x", synced=True))) == {"a": b"x"}


def test_a_synced_file_whose_name_is_not_synced_is_lost() -> None:
    disk = rebuilt(Created(0, "a", 1, _MODE), Written(0, 1, 0, b"x"), SyncStarted(0, 1), Synced(0, 1, 1))

    assert contents(disk) == {}


def test_a_synced_name_whose_data_is_not_synced_is_an_empty_file() -> None:
    assert contents(rebuilt(Written(0, 1, 0, b"x"), *CREATED)) == {"a": b""}


def test_a_file_in_a_folder_that_was_never_synced_is_lost() -> None:
    disk = rebuilt(
        FolderCreated(0, "sub", 0o40755),
        Created(0, "sub/a", 1, _MODE),
        SyncStarted(0, 1),
        FolderSynced(0, 1, "sub"),
    )

    assert contents(disk) == {}
    assert disk.folders == {"": 0o40755}


def test_an_unsynced_rename_and_removal_are_undone() -> None:
    old = Present(0, "b", 2, _MODE, False, b"old")
    disk = rebuilt(old, *CREATED, Renamed(0, "a", "b"), Removed(0, "b"))

    assert contents(disk) == {"a": b"", "b": b"old"}


def test_a_synced_rename_replaces_its_target() -> None:
    old = Present(0, "b", 2, _MODE, False, b"old")
    disk = rebuilt(old, *CREATED, Renamed(0, "a", "b"), SyncStarted(0, 2), FolderSynced(0, 2, ""))

    assert contents(disk) == {"b": b""}


def test_a_renamed_folder_takes_its_files_along() -> None:
    disk = rebuilt(
        FolderCreated(0, "sub", 0o40755),
        Created(0, "sub/a", 1, _MODE),
        Linked(0, "sub/a", "sub/b"),
        Renamed(0, "sub", "other"),
        unsynced=Unsynced.KEPT,
    )

    assert contents(disk) == {"other/a": b"", "other/b": b""}
    assert set(disk.folders) == {"", "other"}


def test_an_unsynced_truncation_can_be_undone() -> None:
    disk = rebuilt(Present(0, "a", 1, _MODE, False, b"content"), Resized(0, 1, 0))

    assert contents(disk) == {"a": b"content"}


def test_a_sync_of_everything_covers_names_and_data() -> None:
    disk = rebuilt(Created(0, "a", 1, _MODE), Written(0, 1, 0, b"x"), SyncStarted(0, 1), AllSynced(0, 1))

    assert contents(disk) == {"a": b"x"}


def test_scrambling_tears_writes_at_sectors_and_keeps_what_was_synced() -> None:
    synced, torn = b"s" * SECTOR_BYTES, b"t" * (4 * SECTOR_BYTES)
    events = (
        *CREATED,
        Written(0, 1, 0, synced),
        SyncStarted(0, 2),
        Synced(0, 2, 1),
        Written(0, 1, SECTOR_BYTES, torn),
    )

    seen = {contents(rebuilt(*events, unsynced=Unsynced.SCRAMBLED, seed=seed))["a"] for seed in range(200)}

    assert all(data.startswith(synced) for data in seen)
    sectors = {data[start : start + SECTOR_BYTES] for data in seen for start in range(0, len(data), SECTOR_BYTES)}
    assert sectors == {synced, torn[:SECTOR_BYTES], bytes(SECTOR_BYTES)}
    assert len(seen) > 8
    assert {synced, synced + torn} < seen


def test_scrambling_keeps_name_changes_in_order() -> None:
    events = (Created(0, "a", 1, _MODE), Renamed(0, "a", "b"), Removed(0, "b"))

    seen = {tuple(contents(rebuilt(*events, unsynced=Unsynced.SCRAMBLED, seed=seed))) for seed in range(50)}

    assert seen == {(), ("a",), ("b",)}


def test_a_trace_with_something_unfollowed_is_refused() -> None:
    with pytest.raises(TraceUnusableError, match="writable mapping"):
        rebuilt(Unfollowed(0, "writable mapping of x"))


@pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
def test_the_filter_of_each_architecture_is_well_formed(machine: str) -> None:
    program = filter_program(ARCHITECTURES[machine])

    instructions = [program[at : at + 8] for at in range(0, len(program), 8)]
    assert len(program) % 8 == 0
    assert len(instructions) < 4096  # BPF_MAXINSNS
    jumps = [(at, code) for at, code in enumerate(instructions) if code[0] & 0x07 == 0x05]
    assert jumps
    assert all(at + 1 + max(code[2], code[3]) < len(instructions) for at, code in jumps)
    assert instructions[-1][0] & 0x07 == 0x06  # ends in a return
