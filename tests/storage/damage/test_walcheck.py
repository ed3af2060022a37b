"""Telling a torn tail from damage, on write-ahead logs that SQLite wrote."""

import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from cmqd.storage.recovery.torn_tail import Verdict, find_lack, judge, read_index, walk
from support.storage.wals import FRAME_BYTES, cut, end_of_frames, fill_ahead

COMMITS = 12

WRITER = f"""
import os, sqlite3, sys
raw = sqlite3.connect(sys.argv[1], isolation_level=None)
raw.execute("PRAGMA journal_mode=WAL")
raw.execute("PRAGMA wal_autocheckpoint=0")
raw.execute("CREATE TABLE log(lsn INTEGER PRIMARY KEY, data BLOB)")
raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
for lsn in range({COMMITS}):
    raw.execute("INSERT INTO log VALUES (?, ?)", (lsn, bytes([lsn]) * 9000))
os._exit(0)
"""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a writer that died without a close."""
    path = tmp_path_factory.mktemp("wal") / "log.db"
    subprocess.run([sys.executable, "-c", WRITER, str(path)], check=True)
    return path


@pytest.fixture(params=["as written", "filled ahead"])
def database(crashed: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    for suffix in ("", "-wal"):
        (tmp_path / f"log.db{suffix}").write_bytes(crashed.with_name(crashed.name + suffix).read_bytes())
    if request.param == "filled ahead":
        fill_ahead(tmp_path / "log.db-wal")
    return tmp_path / "log.db"


@pytest.fixture
def left_behind(crashed: Path, database: Path) -> Path:
    """The same database with the WAL-index as the writer left it."""
    index = database.with_name("log.db-shm")
    index.write_bytes(crashed.with_name("log.db-shm").read_bytes())
    return database


def lack_of(database: Path) -> str | None:
    """The part that is missing in the WAL, by the index of the dead writer."""
    index = read_index(database.with_name("log.db-shm"))
    assert index is not None
    wal = wal_of(database)
    return find_lack(wal, walk(wal) if wal.exists() else None, index)


def wal_of(database: Path) -> Path:
    return database.with_name("log.db-wal")


def accepted_of(database: Path) -> tuple[int | None, int]:
    """Frames and rows that SQLite takes."""
    raw = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    (rows,) = raw.execute("SELECT count(*) FROM log").fetchone()
    raw.close()
    index = read_index(database.with_name("log.db-shm"))
    return None if index is None else index.frames, rows


def test_a_whole_wal_is_accepted_to_its_end(database: Path) -> None:
    found = walk(wal_of(database))
    accepted, rows = accepted_of(database)

    assert (len(found.commits), rows) == (COMMITS, COMMITS)
    assert accepted == found.frames == found.commits[-1]
    assert judge(found, accepted or 0) == (0, 0)


def test_looking_changes_nothing(database: Path) -> None:
    before = wal_of(database).read_bytes(), database.read_bytes()

    walk(wal_of(database))
    accepted_of(database)

    assert (wal_of(database).read_bytes(), database.read_bytes()) == before


@pytest.mark.parametrize("eighths", range(1, 9))
def test_a_wal_cut_anywhere_in_its_last_commit_is_a_torn_tail(database: Path, eighths: int) -> None:
    found = walk(wal_of(database))
    last_commit = found.commits[-1] - found.commits[-2]
    wal = wal_of(database)
    cut(wal, end_of_frames(wal) - eighths * last_commit * FRAME_BYTES // 8)

    cut_walk = walk(wal)
    accepted, rows = accepted_of(database)

    assert rows == COMMITS - 1
    assert accepted == found.commits[-2]
    assert not judge(cut_walk, accepted or 0).damaged


@pytest.mark.parametrize("commit", range(COMMITS))
def test_a_flipped_bit_before_the_last_commit_is_damage(database: Path, commit: int) -> None:
    wal = wal_of(database)
    frame = walk(wal).commits[commit]
    content = bytearray(wal.read_bytes())
    content[32 + (frame - 1) * FRAME_BYTES + 24 + 100] ^= 1
    wal.write_bytes(content)

    found = walk(wal)
    accepted, rows = accepted_of(database)

    assert rows == commit
    assert accepted is not None
    # The commit with the flipped bit and all later commits; the last commit alone may as well have been torn.
    assert judge(found, accepted).commits_beyond == COMMITS - commit
    assert judge(found, accepted).damaged == (commit < COMMITS - 1)


@pytest.mark.parametrize("offset", range(0, 32, 3))
def test_a_flipped_bit_in_the_header_of_the_wal_is_damage(database: Path, offset: int) -> None:
    wal = wal_of(database)
    content = bytearray(wal.read_bytes())
    content[offset] ^= 1
    wal.write_bytes(content)

    found = walk(wal)
    accepted, rows = accepted_of(database)

    assert rows == 0
    assert judge(found, accepted or 0).damaged


def test_frames_of_an_earlier_use_of_the_file_are_not_damage(tmp_path: Path) -> None:
    """After a restart of the WAL the salts differ, and the frames behind the newest commit are old."""
    path = tmp_path / "log.db"
    script = WRITER.replace("os._exit(0)", "")
    script += 'raw.execute("PRAGMA wal_checkpoint(RESTART)")\nraw.execute("INSERT INTO log VALUES (99, x\'01\')")\n'
    subprocess.run([sys.executable, "-c", script + "os._exit(0)", str(path)], check=True)

    found = walk(wal_of(path))
    accepted, rows = accepted_of(path)

    assert rows == COMMITS + 1
    assert accepted is not None
    assert wal_of(path).stat().st_size > 32 + accepted * FRAME_BYTES
    assert judge(found, accepted) == Verdict(commits_beyond=0, frames_beyond=0)


@pytest.mark.parametrize("seed", range(40))
def test_any_sectors_of_a_torn_commit_are_no_damage(database: Path, seed: int) -> None:
    """As after a loss of power in the last commit, in a WAL that had zeros in its place or had no bytes there."""
    wal = wal_of(database)
    whole = wal.read_bytes()
    begin = 32 + walk(wal).commits[-2] * FRAME_BYTES
    end = end_of_frames(wal)
    chance = random.Random(seed)
    content = bytearray(whole)
    content[begin:end] = bytes(end - begin)
    for sector in range(begin // 512, -(-end // 512)):
        if chance.random() < 0.7:
            start, stop = max(begin, 512 * sector), min(end, 512 * (sector + 1))
            content[start:stop] = whole[start:stop]
    wal.write_bytes(content)

    found = walk(wal)
    accepted, rows = accepted_of(database)

    assert rows in ((COMMITS, COMMITS - 1) if content == whole else (COMMITS - 1,))
    assert not judge(found, accepted or 0).damaged
    assert 0 <= judge(found, accepted or 0).frames_beyond <= found.commits[-1]


def test_a_wal_of_zeros_alone_is_empty(tmp_path: Path) -> None:
    """A prepared segment that was filled ahead: its tables are in the main file."""
    path = tmp_path / "log.db"
    script = WRITER.split("for lsn")[0] + "os._exit(0)"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    fill_ahead(wal_of(path))
    index = read_index(path.with_name("log.db-shm"))
    found = walk(wal_of(path))

    assert (found.frames, found.commits) == (0, [])
    assert index is not None
    assert find_lack(wal_of(path), found, index) is None
    assert accepted_of(path) == (0, 0)


def test_an_empty_wal_has_nothing_in_it(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    found = walk(tmp_path / "empty")

    assert (found.frames, found.commits) == (0, [])


def test_a_missing_or_unfinished_wal_index_tells_nothing(tmp_path: Path) -> None:
    assert read_index(tmp_path / "none") is None
    (tmp_path / "zero").write_bytes(bytes(32768))
    assert read_index(tmp_path / "zero") is None


def test_a_whole_wal_lacks_nothing_that_its_index_names(left_behind: Path) -> None:
    index = read_index(left_behind.with_name("log.db-shm"))

    assert index is not None
    assert index.frames == walk(wal_of(left_behind)).frames
    assert lack_of(left_behind) is None


@pytest.mark.parametrize("lost", [1, FRAME_BYTES - 24, FRAME_BYTES, 5 * FRAME_BYTES, 20 * FRAME_BYTES])
def test_a_wal_that_is_shorter_than_its_index_says_lacks_something(left_behind: Path, lost: int) -> None:
    wal = wal_of(left_behind)
    is_filled = wal.stat().st_size > end_of_frames(wal)
    cut(wal, end_of_frames(wal) - lost)

    # In a WAL that was filled ahead a frame without a part of its page has a header still.
    is_torn = is_filled and lost < FRAME_BYTES
    assert ("is damaged before frame" if is_torn else "ends after frame") in (lack_of(left_behind) or "")


def test_a_wal_that_is_empty_or_missing_although_its_index_has_frames_lacks_something(left_behind: Path) -> None:
    cut(wal_of(left_behind), 0)
    assert "is empty" in (lack_of(left_behind) or "")

    wal_of(left_behind).unlink()
    assert "is missing" in (lack_of(left_behind) or "")


@pytest.mark.parametrize("frames_back", range(4))
@pytest.mark.parametrize("offset", [0, 4, 8, 12, 16, 20, 24, 24 + 100, 24 + 4095])
def test_a_flipped_bit_in_the_last_commits_is_damage(left_behind: Path, frames_back: int, offset: int) -> None:
    """Found by the index; or else by two commit frames beyond those that SQLite accepts, again at every start."""
    wal = wal_of(left_behind)
    before = walk(wal)
    content = bytearray(wal.read_bytes())
    content[32 + (before.frames - 1 - frames_back) * FRAME_BYTES + offset] ^= 1
    wal.write_bytes(content)

    if lack_of(left_behind) is None:
        accepted, _ = accepted_of(left_behind)
        assert judge(walk(wal), accepted or 0).damaged


def test_an_index_of_another_use_of_the_file_says_nothing(left_behind: Path) -> None:
    wal = wal_of(left_behind)
    index = read_index(left_behind.with_name("log.db-shm"))
    assert index is not None

    assert find_lack(wal, walk(wal), index._replace(salts=bytes(8), frames=10_000)) is None


def test_an_index_whose_two_copies_differ_is_not_believed(left_behind: Path) -> None:
    shm = left_behind.with_name("log.db-shm")
    content = bytearray(shm.read_bytes())
    content[48 + 16] ^= 1
    shm.write_bytes(content)

    assert read_index(shm) is None


def test_an_emptied_wal_leaves_an_index_without_frames(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    script = WRITER.replace("os._exit(0)", 'raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")\nos._exit(0)')
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)

    assert wal_of(path).stat().st_size == 0
    index = read_index(path.with_name("log.db-shm"))
    assert index is not None
    assert index.frames == 0
