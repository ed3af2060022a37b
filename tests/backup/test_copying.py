"""Copies of files: how they are read from a disk that the broker's commits share."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from cmqd_backup.copying import Pace, copy_in
from cmqd_backup.runs import StoredFile
from cmqd_backup.stores import FolderStore


def test_source_and_copy_are_read_without_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    advice: list[tuple[str, int]] = []

    def posix_fadvise(descriptor: int, offset: int, length: int, kind: int) -> None:
        assert (offset, length) == (0, 0), "a part of the file alone"
        advice.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, kind))

    monkeypatch.setattr(os, "posix_fadvise", posix_fadvise)
    content = os.urandom(200_000)
    source = tmp_path / "source.db"
    source.write_bytes(content)
    copy = StoredFile("segments/00000001.db", len(content), sha256(content).hexdigest())

    copy_in(source, FolderStore(tmp_path / "backup"), copy, Pace())

    assert (tmp_path / "backup" / copy.name).read_bytes() == content
    # A commit of the broker waits for a whole request of the disk, and read-ahead makes requests of MB.
    for name in ("source.db", "00000001.db"):
        assert (name, os.POSIX_FADV_RANDOM) in advice
