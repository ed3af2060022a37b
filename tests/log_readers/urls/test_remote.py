"""A log by URL: fetched through a real file system of fsspec, over real sockets, and checked before its use."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingModuleSource=false

import json
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem
from msgspec import structs

from cmq_cli.app import run
from cmq_cli.exitcodes import ExitCode
from cmqd_log.data_folder.folder import Folder
from cmqd_log.errors import DataLossError, FolderError, OptionError
from cmqd_log.options import parse_options
from cmqd_log.reading.arrow_batches import arrow_type
from cmqd_log.reading.planning import plan_batch
from cmqd_log.reading.tasks import read_task
from cmqd_segment.manifest import Manifest, SegmentEntry, SegmentState, read_manifest, write_manifest
from support.spark.log_folder import add_checkpoint, forget_names, queue_created, sends, write_folder
from support.spark.log_store import LogStore, serving
from support.storage.log_rig import NOW_MS, body

if TYPE_CHECKING:
    from cmqd_log.data_folder.plan import Task

pytestmark = [pytest.mark.spark, pytest.mark.system]

SCHEMA = pa.schema([pa.field("lsn", arrow_type("lsn")), pa.field("body", arrow_type("body"))])
HOUR_MS = 3_600_000
BODIES = [body(7, position, 1_000) for position in range(300)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three sealed segments with a hundred messages per segment."""
    folder = tmp_path / "store" / "data"
    folder.parent.mkdir()
    created = ([queue_created(7, "orders")], [], NOW_MS)
    write_folder(
        folder,
        [[created, sends(7, 0, 100, size=1_000)], [sends(7, 100, 100, size=1_000)], [sends(7, 200, 100, size=1_000)]],
    )
    return folder


@pytest.fixture
def store(folder: Path) -> Iterator[LogStore]:
    with serving(folder.parent) as store:
        yield store


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def plan(url: str, cache: Path, **options: str) -> "list[Task]":
    return plan_batch(parse_options({"path": url, "cacheFolder": str(cache), **options}), SCHEMA.names)


def bodies(tasks: "list[Task]") -> list[bytes]:
    return [text for task in tasks for batch in read_task(task, SCHEMA) for text in batch.column("body").to_pylist()]


def flip(file: Path) -> None:
    file.chmod(0o644)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("kind", ["file", "memory", "http"])
def test_kinds_of_urls(kind: str, folder: Path, store: LogStore, cache: Path) -> None:
    import fsspec

    url = {"file": f"file://{folder}", "memory": "memory://data", "http": store.url}[kind]
    if kind == "memory":
        memory: Any = fsspec.filesystem("memory")
        memory.put(str(folder), "/data", recursive=True)

    assert bodies(plan(url, cache, queue="orders")) == BODIES


def test_a_flipped_bit_is_refused(folder: Path, store: LogStore, cache: Path) -> None:
    first, second, _ = plan(store.url, cache, queue="orders")
    flip(folder / second.piece.extent.file)

    assert bodies([first]) == BODIES[:100]
    # By now the copy of the plan exists here; a second executor has no copy.
    other = [task for task in plan_with(cache.with_name("other"), [first, second]) if task.piece == second.piece]
    with pytest.raises(FolderError, match="checksum"):
        bodies(other)
    assert [path.name for path in cache.with_name("other").iterdir()] == []


def plan_with(cache: Path, tasks: "list[Task]") -> "list[Task]":
    """Tasks as an executor on a second machine gets them."""
    from dataclasses import replace

    return [replace(task, options=replace(task.options, cache_folder=str(cache))) for task in tasks]


def test_a_file_that_breaks_off_is_never_taken_for_a_whole_one(store: LogStore, folder: Path, cache: Path) -> None:
    tasks = plan_with(cache.with_name("other"), plan(store.url, cache, queue="orders"))
    store.breaks_off = True

    with pytest.raises(FolderError, match=r"segment .* cannot be read"):
        bodies(tasks)
    assert list(cache.with_name("other").iterdir()) == []

    store.breaks_off = False
    assert bodies(tasks) == BODIES


def test_a_segment_that_goes_between_plan_and_read(store: LogStore, folder: Path, cache: Path) -> None:
    tasks = plan_with(cache.with_name("other"), plan(store.url, cache, queue="orders", startingLsn="1"))
    manifest = read_manifest(folder)
    second = tasks[1].piece.extent
    (folder / second.file).unlink()

    with pytest.raises(FolderError, match="cannot be read"):
        bodies(tasks)

    left = [entry for entry in manifest.segments if entry.number != second.number]
    dropped = [(second.first_lsn, second.last_lsn)]
    write_manifest(folder, Manifest(clean=True, next_number=9, segments=left, dropped=dropped))
    with pytest.raises(DataLossError, match="the broker reclaimed row 3 before"):
        bodies(tasks)
    lenient = plan(store.url, cache.with_name("third"), queue="orders", failOnDataLoss="false", startingLsn="1")
    assert bodies(lenient) == BODIES[:100] + BODIES[200:]


def test_two_that_fetch_the_same_file_at_once(store: LogStore, folder: Path, cache: Path) -> None:
    extent = Folder(store.url, str(cache)).view(include_active=False).extents[1]
    store.meeting = (".db", threading.Barrier(2))

    def fetch(_: int) -> int:
        with Folder(store.url, str(cache)).opened(extent) as raw:
            return raw.execute("SELECT count(*) FROM log").fetchone()[0]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fetch, range(2))) == [1, 1]
    assert store.fetched() == 2, "both had begun"
    assert [path.name for path in cache.iterdir()] == [f"{extent.sha256}.db"]


def test_the_first_unsealed_segment_ends_the_log_of_a_url(store: LogStore, folder: Path, cache: Path) -> None:
    manifest = read_manifest(folder)
    segments = [one if one.first_lsn < 4 else type(one)(one.number, SegmentState.ACTIVE) for one in manifest.segments]
    write_manifest(folder, Manifest(next_number=9, segments=segments))

    assert bodies(plan(store.url, cache, queue="orders")) == BODIES[:200]


@pytest.mark.parametrize("named", [True, False])
def test_a_plan_fetches_no_segment_that_is_not_read(store: LogStore, folder: Path, cache: Path, named: bool) -> None:
    """Fetched segments: none if the manifest has the names; otherwise the segments with ids to be named."""
    later = [NOW_MS + hour * HOUR_MS for hour in range(1, 4)]
    write_folder(folder, [[sends(7, 300 + 100 * hour, 100, at, size=1_000)] for hour, at in enumerate(later)])
    if not named:
        forget_names(folder)
    add_checkpoint(folder, read_manifest(folder).segments[-1].last_lsn, {7: "orders"})
    hour = {"startingTimestamp": str(later[1]), "endingTimestamp": str(later[2] - 60_000)}

    def fetched(columns: list[str], **options: str) -> int:
        store.asked.clear()
        given = {"path": store.url, "cacheFolder": str(cache / str(len(list(cache.iterdir())))), **options}
        assert plan_batch(parse_options(given), columns)
        return store.fetched()

    cache.mkdir()
    assert fetched(["lsn", "body"], **hour) == 0
    assert fetched(["lsn", "body"]) == 0
    assert fetched(["queue"], **hour) == (0 if named else 1)
    assert fetched(["lsn"], queue="orders", **hour) == (0 if named else 1)
    assert fetched(["lsn"], account="owner", **hour) == (0 if named else 1)
    assert fetched(["lsn"], queue="orders") == (0 if named else 6)


def test_a_store_that_is_not_there(cache: Path, store: LogStore, folder: Path) -> None:
    with pytest.raises(FolderError, match="no manifest"):
        plan(store.url.replace("/data", "/other"), cache)
    with pytest.raises(FolderError, match="manifest of"):
        plan("http://127.0.0.1:9/data", cache)


def test_the_cache_of_another_user_is_not_used(
    store: LogStore, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_names(folder)
    cache.mkdir()
    monkeypatch.setattr("os.getuid", lambda: 12345)

    with pytest.raises(FolderError, match="another user"):
        plan(store.url, cache, queue="orders")


class NeedsToken(LocalFileSystem):
    """Files of this machine, for readers that bring the token."""

    protocol = "needs-token"

    def __init__(self, token: str = "", **options: Any) -> None:
        if token != "open-sesame":
            raise PermissionError(f"token {token!r} is wrong; options {options}")
        super().__init__()


fsspec.register_implementation("needs-token", NeedsToken)


@pytest.fixture
def guarded(folder: Path) -> str:
    """A URL of the folder in a file system that needs a token."""
    return f"needs-token://{folder}"


def test_storage_options_reach_the_file_system_wherever_the_folder_is_opened(guarded: str, cache: Path) -> None:
    tasks = plan(guarded, cache, queue="orders", mode="all", storageOptions='{"token": "open-sesame"}')

    copied = pickle.loads(pickle.dumps(tasks))
    assert bodies(copied) == BODIES
    assert "sesame" not in repr(tasks)


def test_no_error_tells_a_key_of_the_storage_options(guarded: str, cache: Path) -> None:
    with pytest.raises(FolderError, match="cannot be opened: PermissionError: token '…' is wrong") as caught:
        plan(guarded, cache, storageOptions='{"token": "wrong-sesame", "more": [{"secret": "hush-hush"}]}')
    assert "hush" not in str(caught.value)
    with pytest.raises(OptionError, match="a JSON object") as refused:
        plan(guarded, cache, storageOptions="open-sesame")
    assert "sesame" not in str(refused.value)


def test_storage_options_are_for_urls(folder: Path, cache: Path) -> None:
    with pytest.raises(OptionError, match="for a URL that fsspec opens"):
        plan(str(folder), cache, storageOptions="{}")


def test_segments_are_listed_and_verified_by_url(
    store: LogStore, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_checkpoint(folder, 3, {7: "orders"})
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)

    def cmq(command: str, *more: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(["segment", command, "--path", store.url, *more])
        out, err = capfd.readouterr()
        return code, out, err

    code, out, _ = cmq("list", "--output", "json")
    assert (code, [one["last_lsn"] for one in json.loads(out)["segments"]]) == (ExitCode.OK, [2, 3, 4])
    assert cmq("verify") == (ExitCode.OK, "", "7 files are sound\n")
    # No file is left behind or counts as cached.
    assert list((tmp_path / "tmp").iterdir()) == []

    entries = read_manifest(folder).segments
    damaged = folder / entries[1].file
    damaged.chmod(0o644)
    content = bytearray(damaged.read_bytes())
    content[-100] ^= 1
    damaged.write_bytes(content)
    (folder / entries[2].file).unlink()
    code, out, err = cmq("verify", "--output", "json")
    assert (code, sorted(json.loads(out)["wrong"])) == (ExitCode.FAILED, [entries[1].file, entries[2].file])
    assert f"{entries[1].file} does not match its checksum" in err
    assert f"segment {entries[2].file}: " in err

    (folder / "manifest").unlink()
    code, _, err = cmq("list")
    assert (code, "it has no manifest" in err) == (ExitCode.NOT_FOUND, True)


def test_what_is_not_sealed_is_no_part_of_a_copy(
    store: LogStore, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest = read_manifest(folder)
    unsealed = SegmentEntry(99, SegmentState.ACTIVE)
    write_manifest(folder, structs.replace(manifest, segments=[*manifest.segments, unsealed], next_number=100))

    assert run(["segment", "verify", "--path", store.url]) == ExitCode.OK
    assert capfd.readouterr().err == "6 files are sound\n"


def test_names_are_learnt_without_fetching_segments(tmp_path: Path, cache: Path):
    """Of four segments only the segment with messages of the queue is fetched."""
    folder = tmp_path / "store" / "data"
    folder.parent.mkdir()
    made = [queue_created(7, "orders"), queue_created(8, "bills"), queue_created(9, "debts")]
    write_folder(folder, [[(made, [], NOW_MS)], *([sends(number, 0, 5)] for number in (7, 8, 9))])
    with serving(folder.parent) as store:
        options = {"path": store.url, "cacheFolder": str(cache), "queue": "bills"}
        (task,) = plan_batch(parse_options(options), ["lsn", "queue", "body"])
        assert store.fetched() == 0
        assert sum(len(batch) for batch in read_task(task, SCHEMA)) == 5
        assert store.fetched() == 1
