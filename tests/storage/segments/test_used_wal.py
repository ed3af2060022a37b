"""The WAL of a dropped segment under a new segment: no old frame is a row of the new one, in SQLite or at a start."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cmqd.storage.recovery.torn_tail import Walk, walk
from cmqd.storage.segments.used_wal import MARK, take_over
from cmqd.storage.segments.wal_gauge import used_bytes

PAGE_BYTES = 4096
FRAME_BYTES = 24 + PAGE_BYTES
ROWS = 40


def connect(path: Path) -> sqlite3.Connection:
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA wal_autocheckpoint=0")
    return raw


def create(path: Path) -> None:
    """Make a database whose table is in the main file, with no WAL."""
    with closing(connect(path)) as raw:
        raw.execute(f"PRAGMA page_size={PAGE_BYTES}")
        raw.execute("PRAGMA journal_mode=WAL")
        raw.execute("CREATE TABLE log(lsn INTEGER PRIMARY KEY, data BLOB)")


def rows(path: Path) -> list[tuple[int, bytes]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as raw:
        return raw.execute("SELECT lsn, data FROM log ORDER BY lsn").fetchall()


def insert(raw: sqlite3.Connection, lsn: int, data: bytes) -> None:
    raw.execute("INSERT INTO log VALUES (?, ?)", (lsn, data))


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """The WAL of a database with rows of one and of several pages. No connection is open."""
    path = tmp_path / "used.db"
    create(path)
    with closing(connect(path)) as raw:
        for lsn in range(1, ROWS + 1):
            insert(raw, lsn, b"old" * (100 if lsn % 2 else 5_000))
        # The last close of a connection would copy and remove the WAL.
        shutil.copyfile(f"{path}-wal", tmp_path / "copy-wal")
    return (tmp_path / "copy-wal").rename(tmp_path / "used.db-wal")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new.db"
    create(path)
    return path


@pytest.fixture
def wal(used: Path, new: Path) -> Path:
    """The new database's WAL, which was used before."""
    size = used.stat().st_size
    path = new.with_name("new.db-wal")
    assert take_over(used, path) == size == path.stat().st_size
    assert not used.exists()
    return path


@pytest.fixture
def writer(wal: Path, new: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect(new)) as raw:
        yield raw


def copied(new: Path, target: Path) -> Path:
    """Return the copy of database and WAL as a loss of power leaves them: without the index of the WAL."""
    target.mkdir()
    for name in ("new.db", "new.db-wal"):
        shutil.copyfile(new.with_name(name), target / name)
    return target / "new.db"


def test_a_used_wal_has_no_rows_before_the_first_commit(wal: Path, new: Path, tmp_path: Path) -> None:
    assert wal.read_bytes()[:32] == MARK
    assert walk(wal) == Walk(0, [])
    assert used_bytes(str(wal)) == 0
    assert rows(copied(new, tmp_path / "copy")) == []


def test_a_wal_with_zeros_for_its_header_is_no_used_wal(used: Path) -> None:
    """The frames of a WAL that has lost its header are told from those of a WAL that is used again."""
    with used.open("r+b") as file:
        file.write(bytes(32))

    assert len(walk(used).commits) >= ROWS


def test_each_commit_ends_the_log_before_the_old_frames(
    writer: sqlite3.Connection, wal: Path, new: Path, tmp_path: Path
) -> None:
    """Frames of the old rows begin where those of the new end, at the same offsets."""
    size = wal.stat().st_size
    expected: list[tuple[int, bytes]] = []
    frames = 0
    for lsn in range(1, 2 * ROWS + 1):
        expected.append((lsn, b"new" * (100 if lsn % 3 else 5_000)))
        insert(writer, *expected[-1])

        seen = walk(wal)
        assert len(seen.commits) == lsn
        assert seen.frames == seen.commits[-1] > frames
        frames = seen.frames
        assert used_bytes(str(wal)) == 32 + frames * FRAME_BYTES
        if lsn % 10 == 1:
            assert rows(copied(new, tmp_path / str(lsn))) == expected
    assert 32 + frames * FRAME_BYTES > size, "the frames went beyond the end of the used WAL"
    assert rows(new) == expected


def test_a_torn_commit_leaves_the_commits_before_it(
    writer: sqlite3.Connection, wal: Path, new: Path, tmp_path: Path
) -> None:
    """After a loss of power each block of the last commit is the new or the old."""
    old = wal.read_bytes()
    insert(writer, 1, b"new" * 5_000)
    before = used_bytes(str(wal))
    insert(writer, 2, b"new" * 5_000)
    stop = used_bytes(str(wal))
    frames = (stop - before) // FRAME_BYTES
    assert frames >= 4
    for lost in range(frames):
        database = copied(new, tmp_path / str(lost))
        start = before + lost * FRAME_BYTES
        with database.with_name("new.db-wal").open("r+b") as file:
            file.seek(start)
            file.write(old[start : start + FRAME_BYTES])

        assert walk(database.with_name("new.db-wal")).commits in ([walk(wal).commits[0]], walk(wal).commits)
        assert rows(database) == [(1, b"new" * 5_000)]


def test_a_used_wal_can_be_cut_to_nothing(writer: sqlite3.Connection, wal: Path, new: Path) -> None:
    """As the zeros of a WAL, where room becomes short."""
    os.truncate(wal, used_bytes(str(wal)))

    insert(writer, 1, b"new")

    assert rows(new) == [(1, b"new")]
    assert used_bytes(str(wal)) == wal.stat().st_size


def test_a_wal_that_a_reader_has_open_is_not_used(used: Path, new: Path) -> None:
    content = used.read_bytes()
    with used.open("rb") as reader:
        assert take_over(used, new.with_name("new.db-wal")) == 0

        assert reader.read() == content
    assert not new.with_name("new.db-wal").exists()


def test_a_wal_with_another_name_is_not_used(used: Path, new: Path, tmp_path: Path) -> None:
    content = used.read_bytes()
    backup = tmp_path / "backup"
    backup.hardlink_to(used)

    assert take_over(used, new.with_name("new.db-wal")) == 0

    assert backup.read_bytes() == content
    assert not new.with_name("new.db-wal").exists()


def test_a_segment_that_a_reader_has_open_gets_no_used_wal(used: Path, new: Path) -> None:
    content = used.read_bytes()
    with closing(connect(new)) as reader:
        insert(reader, 1, b"a")
        own = new.with_name("new.db-wal").read_bytes()

        assert take_over(used, new.with_name("new.db-wal")) == 0

        assert new.with_name("new.db-wal").read_bytes() == own
    assert used.read_bytes() == content


@pytest.mark.parametrize("failing", ["pwrite", "fsync"])
def test_a_full_disk_leaves_no_used_wal(used: Path, new: Path, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)

    assert take_over(used, new.with_name("new.db-wal")) == 0

    assert not used.exists()
    assert not new.with_name("new.db-wal").exists()


def test_a_failed_sync_is_raised(used: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(OSError, match="Input/output"):
        take_over(used, new.with_name("new.db-wal"))
