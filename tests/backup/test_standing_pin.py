"""The standing pin of runs at an interval: its name, and its end while runs are made."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cmqd_backup import making
from cmqd_backup.live import connected, standing_name
from cmqd_backup.making import Wanted, end_standing_pin, make_run, make_runs
from cmqd_backup.runs import Runs
from cmqd_backup.standing import Ended, Standing
from cmqd_backup.stores import FolderStore
from cmqd_client import connect
from support.backup.growing_log import GrowingLog
from support.eventually import eventually
from support.processes.environment import plain_environment
from support.processes.running_server import RunningServer


async def pins_of(folder: Path) -> set[str]:
    async with connected(folder) as client:
        return {pin["name"] for pin in (await client.status())["standing_pins"]}


async def set_pin(folder: Path, name: str) -> None:
    """Set a standing pin as a run of an earlier version did."""
    async with connected(folder) as client:
        pin = await client.pins.make()
        await client.pins.set_standing(
            name, log_id=pin.log_id, lsn=pin.lsn, start=pin.start, time=pin.time, every=60, after=None
        )


@pytest.mark.system
async def test_the_pin_is_of_the_place_and_its_end_is_the_end_of_the_runs(tmp_path: Path):
    place, link = tmp_path / "backup", tmp_path / "link"
    place.mkdir()
    link.symlink_to(place)
    store = FolderStore(link)
    standing, lines = Standing(store), list[object]()
    with RunningServer(tmp_path) as server:
        wanted = Wanted(server.data, store, every_ms=60_000)
        async with connect(server.url) as client:
            await (await client.ensure_queue("orders")).send(b"order 1")
        await set_pin(server.data, standing_name(str(link)))

        await make_run(wanted, lines.append, standing)
        after_a_run = await pins_of(server.data)
        await end_standing_pin(Wanted(server.data, FolderStore(place / ".." / "backup")))
        with pytest.raises(Ended, match="was deleted"):
            await make_run(wanted, lines.append, standing)
        after_the_end = await pins_of(server.data)
        # A command that is started again begins anew.
        await make_run(wanted, lines.append, Standing(store))

        assert (after_a_run, after_the_end) == ({standing_name(str(place))}, set())
        assert await pins_of(server.data) == after_a_run
    assert f"run 1 is complete and verified in {link}: " in str(lines[0])
    assert [name.number for name in Runs(store).names] == [1, 2, 3]


async def test_runs_end_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log, lines = GrowingLog(tmp_path / "data"), list[object]()
    await log.grow(2)

    async def ended(*_arguments: object) -> None:
        raise Ended("the standing pin backup-1 was deleted")

    monkeypatch.setattr(making, "make_run", ended)
    await make_runs(Wanted(log.folder, FolderStore(tmp_path / "backup"), every_ms=1000), lines.append, lines.append)

    assert lines[-1] == "the standing pin backup-1 was deleted: no more runs are made"


@pytest.mark.system
@pytest.mark.parametrize("kind", ["closed", "full"])
async def test_runs_go_on_without_standard_output(tmp_path: Path, kind: str):
    """Its reader has ended, or its disk is full."""
    reading, writing = os.pipe()
    os.close(reading)
    if kind == "full":
        os.close(writing)
        writing = os.open("/dev/full", os.O_WRONLY)
    with RunningServer(tmp_path) as server:
        async with connect(server.url) as client:
            await (await client.ensure_queue("orders")).send(b"order 1")
        store = FolderStore(tmp_path / "backup")
        runs = subprocess.Popen(
            [sys.executable, "-m", "cmqd", "backup", str(server.data), "--to", store.place, "--every", "1s"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            env=plain_environment(),
        )
        os.close(writing)
        try:
            await eventually(lambda: len(Runs(store).names) >= 2)
            pins = await pins_of(server.data)
        finally:
            runs.send_signal(signal.SIGINT)
            _, told = await asyncio.to_thread(runs.communicate)

    assert (runs.returncode, pins) == (130, {standing_name(store.place)})
    reason = "was closed" if kind == "closed" else "cannot be written (No space left on device)"
    assert told == f"cmqd: standard output {reason}: the work goes on without its report\n"
