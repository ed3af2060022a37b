"""A backup at a URL: the same runs, over a file system of fsspec."""

from collections.abc import Generator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cmqd_backup.runs import Runs
from cmqd_backup.stores import open_store
from cmqd_segment.manifest import read_manifest
from support.backup.growing_log import GrowingLog, command
from support.storage.log_rig import NOW_MS

fsspec: Any = pytest.importorskip("fsspec")
memory: Any = pytest.importorskip("fsspec.implementations.memory")
PLACE = "bucket://bucket/orders"


class Bucket(memory.MemoryFileSystem):
    """A file system of its own kind: a backup in the memory of a process is refused."""

    protocol = ("bucket",)
    store: ClassVar[dict[str, Any]] = {}


@pytest.fixture(autouse=True)
def bucket() -> Generator[Any]:
    """Yield the file system, whose files are in the memory of this process."""
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    files = fsspec.filesystem("bucket")
    files.store.clear()
    yield files
    files.store.clear()


async def test_a_backup_at_a_url_is_restored(tmp_path: Path):
    log = GrowingLog(tmp_path / "data")
    await log.grow(4, checkpoint=True)
    first = command("backup", log.folder, "--to", PLACE)
    await log.grow(2)
    second = command("backup", log.folder, "--to", PLACE)

    listed = command("backup", "list", PLACE)
    restored = command("restore", PLACE, tmp_path / "restored")

    assert [ended.code for ended in (first, second, listed, restored)] == [0, 0, 0, 0], restored.error
    # A segment, and no checkpoint of before.
    assert " 1 new file," in second.lines
    assert f"backup of log {read_manifest(log.folder).log_id} in {PLACE}: 2 runs" in listed.lines
    assert [entry.last_lsn for entry in read_manifest(tmp_path / "restored").segments] == [2, 4, 6]


async def test_a_part_of_an_object_is_not_used(tmp_path: Path, bucket: Any):
    log = GrowingLog(tmp_path / "data")
    await log.grow(4)
    command("backup", log.folder, "--to", PLACE)
    (segment, other) = sorted(name for name in bucket.store if "/segments/" in name)
    (run,) = [name for name in bucket.store if "/runs/" in name]
    bucket.rm(run)
    for name, kept in ((segment, 100), (other, None)):
        content = bucket.cat_file(name)
        bucket.pipe_file(name, content[:kept] if kept else content[:-1] + b"?")

    ended = command("backup", log.folder, "--to", PLACE)

    assert " 2 new files" in ended.lines
    assert command("restore", PLACE, tmp_path / "restored").code == 0


async def test_old_runs_are_removed_from_a_url(tmp_path: Path, bucket: Any):
    log = GrowingLog(tmp_path / "data")
    for _ in range(3):
        await log.grow(2, checkpoint=True)
        command("backup", log.folder, "--to", PLACE, "--keep", f"{NOW_MS}ms")

    command("backup", log.folder, "--to", PLACE, "--keep", "1d")

    assert [name.number for name in Runs(open_store(PLACE)).names] == [4]
    # Those of the newest run, whose broker was stopped within a round.
    kept = {entry.sha256[:16] for entry in read_manifest(log.folder).checkpoints}
    assert {name.split(".")[-2] for name in bucket.store if "/checkpoints/" in name} == kept


def test_a_url_without_its_library_is_refused(tmp_path: Path):
    ended = command("backup", "list", "nosuchkind://bucket/orders")

    assert ended.code == 4
    assert "the file system of nosuchkind URLs cannot be used" in ended.error


@pytest.mark.parametrize("call", ["ls", "open", "cat_file"])
async def test_an_error_of_a_library_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str):
    class CredentialsError(Exception):
        pass

    def refuse(*_arguments: object, **_options: object) -> None:
        raise CredentialsError("no credentials")

    log = GrowingLog(tmp_path / "data")
    await log.grow(2)
    command("backup", log.folder, "--to", PLACE)
    await log.grow(2)
    with monkeypatch.context() as patched:
        patched.setattr(f"fsspec.implementations.memory.MemoryFileSystem.{call}", refuse)

        ended = command("backup", log.folder, "--to", PLACE)

    assert ended.code == 4
    assert f"{PLACE} cannot be used: CredentialsError: no credentials" in ended.error
    assert command("backup", log.folder, "--to", PLACE).code == 0


def test_a_password_of_a_url_is_not_shown():
    assert open_store("bucket://me:secret@host/orders").place == "bucket://...@host/orders"


@pytest.mark.parametrize("place", ["memory://orders", "simplecache::memory://orders"])
def test_the_memory_of_a_process_is_no_place(tmp_path: Path, place: str):
    ended = command("backup", tmp_path / "data", "--to", place)

    assert (ended.code, f"{place} is lost with the process that writes it" in ended.error) == (4, True)


def test_a_url_with_a_slash_at_its_end_is_the_same_place():
    assert open_store(PLACE + "/").identity == open_store(PLACE).identity == PLACE


async def test_folders_are_made_only_where_a_file_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A library makes the bucket of a mistyped name with the folders."""
    log, made = GrowingLog(tmp_path / "data"), set[str]()
    await log.grow(2)

    def makedirs(_files: Any, path: str, exist_ok: bool = False) -> None:
        made.add(path)

    monkeypatch.setattr(Bucket, "makedirs", makedirs)
    assert command("backup", log.folder, "--to", PLACE).code == 0
    assert made == set()
    real = Bucket.open

    def strict(files: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        parent = path.rpartition("/")[0]
        if "w" in mode and parent not in made:
            raise FileNotFoundError(parent)
        return real(files, path, mode, **options)

    monkeypatch.setattr(Bucket, "open", strict)
    assert command("backup", log.folder, "--to", PLACE).code == 0
    assert [path.rpartition("bucket/")[2] for path in made] == ["orders/runs"]
