"""The way of a checkpoint to the disk: chunks of frames between the processes, small steps in the file."""

import asyncio
import os
import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import IO, Any

import pytest

from cmqd.storage import ipc
from cmqd.storage.durable_lsn import DurableLsn
from cmqd.storage.loop_side.checkpoint_chunks import CHUNK_BYTES, CheckpointChunks
from cmqd.storage.writing.checkpoint_writer import (
    HURRIED_STEP_BYTES,
    PAUSE_SECONDS,
    STEP_BYTES,
    Checkpoints,
    publish,
    write_in_steps,
)
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader, HistorySlice
from cmqd_segment.checkpoint_file import MAGIC, CheckpointError, encode_part, frame, verify_checkpoint
from cmqd_segment.manifest import CheckpointEntry

HEADER = CheckpointHeader(7, 1_000, 1, 1, 1)


def part(size: int = 1000) -> AnyPart:
    return HistorySlice(1, [(0, bytes(size))])


def chunks_of(chunks: CheckpointChunks, *parts: AnyPart) -> list[tuple[ipc.CheckpointParts, bytes]]:
    return [chunk for each in parts if (chunk := chunks.take(each)) is not None]


def file_of(*parts: AnyPart) -> bytes:
    return b"".join(frame(encode_part(each)) for each in parts)


def test_small_parts_share_chunks_and_the_end_sends_the_rest() -> None:
    parts = [HEADER, *[part()] * 100, CheckpointEnd(9, 101)]

    sent = chunks_of(CheckpointChunks(), *parts)

    assert b"".join(frames for _, frames in sent) == file_of(*parts)
    assert [head.first for head, _ in sent] == [True, False, False, False]
    assert [head.end_lsn for head, _ in sent] == [0, 0, 0, 9]
    assert all(head.size == len(frames) < CHUNK_BYTES + 1100 for head, frames in sent)


def test_a_header_drops_the_parts_of_an_unfinished_checkpoint() -> None:
    chunks = CheckpointChunks()
    assert chunks_of(chunks, HEADER, part()) == []

    ((head, frames),) = chunks_of(chunks, HEADER, CheckpointEnd(9, 1))

    assert (head.first, frames) == (True, file_of(HEADER, CheckpointEnd(9, 1)))


@pytest.mark.parametrize("hurried", [False, True])
def test_each_step_is_synced_before_the_next_and_followed_by_a_pause_unless_hurried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hurried: bool
) -> None:
    sizes: list[int] = []
    pauses: list[float] = []

    def fdatasync(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(time, "sleep", pauses.append)
    data = os.urandom(2 * HURRIED_STEP_BYTES + 5)

    with (tmp_path / "file").open("wb") as file:
        write_in_steps(file, data, hurried=hurried)

    step = HURRIED_STEP_BYTES if hurried else STEP_BYTES
    assert sizes == [*range(step, len(data), step), len(data)]
    assert pauses == ([] if hurried else [PAUSE_SECONDS] * len(sizes))
    assert (tmp_path / "file").read_bytes() == data


def test_a_file_is_read_back_before_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    whole = MAGIC + file_of(HEADER, part(), CheckpointEnd(9, 2))
    written = tmp_path / "unfinished.tmp"
    flipped = bytearray(whole)
    flipped[100] ^= 1
    for damaged in (whole[:-1], bytes(flipped), MAGIC + file_of(HEADER, CheckpointEnd(9, 2)), MAGIC, b""):
        written.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            publish(written, tmp_path, 3)

    written.write_bytes(whole)
    entry = publish(written, tmp_path, 3)

    assert (entry.number, entry.lsn, entry.end_lsn, entry.bytes) == (3, 7, 9, len(whole))
    assert verify_checkpoint(tmp_path / entry.file) == (HEADER, CheckpointEnd(9, 2))


async def test_a_file_that_is_being_opened_at_the_end_is_closed(tmp_path: Path) -> None:
    begun, may_open = asyncio.Event(), Event()
    loop = asyncio.get_running_loop()
    files: list[IO[Any]] = []

    class SlowPath(type(tmp_path)):
        def open(self, mode: str = "r") -> IO[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
            loop.call_soon_threadsafe(begun.set)
            may_open.wait()
            files.append(super().open(mode))
            return files[0]

    catalog: Any = SimpleNamespace(folder=SimpleNamespace(checkpoints=SlowPath(tmp_path)))
    nothing: Any = None
    checkpoints = Checkpoints(
        catalog,
        kept=1,
        durable=DurableLsn(0),
        on_done=print,
        on_full=print,
        is_hurried=lambda: True,
        rounds=nothing,
        start=nothing,
    )
    running = asyncio.create_task(checkpoints.run())
    checkpoints.write(True, 0, file_of(HEADER))
    await begun.wait()
    running.cancel()
    await asyncio.sleep(0)
    may_open.set()

    with pytest.raises(asyncio.CancelledError):
        await running
    # The thread of the file, too, has ended by then.
    await loop.shutdown_default_executor()
    (file,) = files
    assert file.closed


async def test_a_round_that_a_stop_ended_keeps_its_older_checkpoint_from_the_last_checkpoint() -> None:
    listed = [CheckpointEntry(number, number * 10, number * 10, 0, 0, "") for number in (1, 2, 3, 4)]
    older, *_ = listed
    catalog: Any = SimpleNamespace(
        checkpoints=listed[:3], outcomes_upto=older, folder=SimpleNamespace(checkpoints=Path("none"))
    )

    async def stopped(*_: object) -> bool:
        return False

    def needed(*_: object) -> bool:
        return False

    rounds: Any = SimpleNamespace(moves=needed, run=stopped)
    checkpoints = Checkpoints(
        catalog,
        kept=2,
        durable=DurableLsn(0),
        on_done=print,
        on_full=print,
        is_hurried=lambda: True,
        rounds=rounds,
        start=asyncio.create_task,
    )
    checkpoints.begin_rounds()
    await checkpoints.rounds_ended()
    catalog.checkpoints = listed

    newest = checkpoints.hold()
    assert newest is not None
    assert checkpoints.release(newest.number) == []
    assert older in catalog.checkpoints


async def test_a_file_that_is_replaced_behind_the_manifest_stays_until_the_next(tmp_path: Path) -> None:
    replaced: list[Path] = [tmp_path / "1"]
    removed: list[Path] = []

    class Scene:
        """Stands in for the rounds, and for a catalog of which a round ends while the manifest is written."""

        folder = SimpleNamespace(path=tmp_path, checkpoints=tmp_path)

        async def save(self) -> None:
            replaced.append(tmp_path / "2")

        def take_replaced(self) -> list[Path]:
            taken = list(replaced)
            replaced.clear()
            return taken

        async def remove(self, paths: list[Path]) -> None:
            removed.extend(paths)

    scene: Any = Scene()
    checkpoints = Checkpoints(
        scene,
        kept=2,
        durable=DurableLsn(0),
        on_done=print,
        on_full=print,
        is_hurried=lambda: True,
        rounds=scene,
        start=asyncio.create_task,
    )
    await checkpoints.remove_superseded([])
    assert removed == [tmp_path / "1"]

    await checkpoints.remove_superseded([])
    assert removed == [tmp_path / "1", tmp_path / "2"]
