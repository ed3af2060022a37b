"""Folders of stopped brokers whose logs move into an engine and out of it."""

import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from cmqd.server.access.accounts_file import AccountsFile, new_document
from cmqd_segment.manifest import StandingPinEntry
from support.engine.memory_engine import Fault, MemoryDatabase
from support.storage.damage import crash
from support.storage.log_rig import NOW_MS, ForkedPlace, LogRig

PINS = [StandingPinEntry("hourly", NOW_MS, 3_600_000), StandingPinEntry("nightly", NOW_MS - 1000, 86_400_000)]


class Killed(BaseException):
    """The process of the command was killed."""


@contextmanager
def killed_at(database: MemoryDatabase, number: int, last: Fault) -> Generator[None]:
    """Kill the command before the step with this number; ``last`` is the fate of the step before it."""
    steps = 0

    def on_step(_server: str, _step: str) -> Fault:
        nonlocal steps
        steps += 1
        if steps > number:
            raise Killed
        return last if steps == number else Fault.NONE

    database.on_step = on_step
    try:
        yield
    finally:
        database.on_step = lambda _server, _step: Fault.NONE
        database.deliver_late()
        for session in list(database.sessions):
            session.end_at_server()
        database.settle()


def files(folder: Path) -> dict[Path, bytes]:
    """Return the files of a folder that a refused command must not change."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock" and not path.name.endswith("-shm")
    }


async def write_folder(folder: Path, *, ends: bool = True, reclaims: bool = True) -> None:
    """Write a log with a message in each of its 7 rows, and accounts.

    Args:
        folder: to be made.
        ends: the broker stops in order; otherwise its last row is in a WAL.
        reclaims: rows 3 and 4 are reclaimed, below two checkpoints.

    The log has standing pins.
    """
    rig = LogRig(ForkedPlace(folder).log())
    await rig.open()
    for index in range(6):
        await rig.store(1, index, 1)
        if index % 2:
            await rig.log.seal_now()
    if reclaims:
        await rig.checkpoint()
        await rig.checkpoint()
        _first, second, *_ = rig.log.closed_segments()
        assert await rig.log.drop_segments([second.number], rig.log.last_lsn) == [second.number]
    await rig.store(1, 6, 1)
    await rig.log.keep_standing_pins(PINS)
    if ends:
        await rig.log.close()
    else:
        await crash(rig)
    AccountsFile(folder).write(new_document(NOW_MS))


def copied(folder: Path, target: Path) -> Path:
    """Copy a folder for a test that changes it."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(exist_ok=True)
    shutil.copytree(folder, target)
    return target


def copy_servers(database: MemoryDatabase, target: MemoryDatabase) -> None:
    """Give the servers of an empty database the logs of another database."""
    for name, server in database.servers.items():
        target.servers[name].log = list(server.log)
    for name in database.servers:
        target.restart(name)


Run = Callable[..., None]


def is_killed(run: Run, *arguments: object) -> bool:
    """Run a command; return whether it was killed."""
    try:
        run(*arguments)
    except Killed:
        return True
    return False
