"""``cmqd accounts``: the accounts file of a stopped broker, and the ways out after a refusal of the server."""

import asyncio
import json
import os
import re
import stat
from pathlib import Path

import pytest

from cmqd.__main__ import main
from cmqd.server.access.accounts_file import (
    AccountsFile,
    AccountsFileError,
    Document,
    Key,
    encode,
    new_document,
    new_key,
)
from cmqd.storage.folder.data_folder import DataFolder
from cmqd_segment.folder_lock import LockHolder
from cmqd_segment.manifest import CACHE_FORMAT, CacheOf, Manifest, write_manifest


@pytest.fixture
def file(tmp_path: Path) -> AccountsFile:
    document = new_document(5)
    file = AccountsFile(tmp_path)
    file.write(
        Document(
            handle_key=document.handle_key,
            accounts={**document.accounts, "other": 6},
            keys=[*document.keys, new_key("other", 6)],
        )
    )
    return file


def run(file: AccountsFile, *arguments: str) -> int:
    return main(["accounts", *arguments, "--data", str(file.path.parent)])


def edit(file: AccountsFile, old: str, new: str) -> None:
    text = file.path.read_text()
    assert old in text
    file.path.write_text(text.replace(old, new))


def read(file: AccountsFile) -> Document:
    document = file.read()
    assert document is not None
    return document


def printed_key(text: str) -> tuple[str, str]:
    found = re.search(r"SecretId +(\S+)\n +SecretKey +(\S+)", text)
    assert found is not None
    return found.group(1), found.group(2)


def test_check_of_a_sound_file_says_so_and_shows_no_secret(
    file: AccountsFile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, "check") == 0

    out = capsys.readouterr().out
    assert out.count("version 2, checksum correct, 2 accounts, 2 keys") == 2
    document = read(file)
    for secret in (*(key.secret_key for key in document.keys), *map(str, document.handle_key)):
        assert secret not in out


def test_check_names_what_was_edited(file: AccountsFile, capsys: pytest.CaptureFixture[str]) -> None:
    other = read(file).keys[1]
    edit(file, '"account": "other"', '"account": "otter"')

    assert run(file, "check") == 4

    out = capsys.readouterr().out
    assert "checksum WRONG" in out
    assert "account 'other' has no enabled key" in out
    assert f"key '{other.secret_id}' belongs to account 'otter', which is missing" in out
    assert f"beside the copy: key {other.secret_id} was changed" in out
    assert "repair --from-copy" in out


def test_repair_keeps_a_file_that_was_edited_by_hand_and_the_content_before(file: AccountsFile) -> None:
    before = file.path.read_bytes()
    edit(file, "other", "renamed")
    with pytest.raises(AccountsFileError, match="checksum"):
        file.read()

    assert run(file, "repair") == 0

    assert set(read(file).accounts) == {"admin", "renamed"}
    assert file.copy.read_bytes() == file.path.read_bytes()
    kept = file.path.with_name("accounts.json.old.0")
    assert kept.read_bytes() == before
    for path in (file.path, file.copy, kept):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_repair_refuses_a_file_that_breaks_a_rule(file: AccountsFile, capsys: pytest.CaptureFixture[str]) -> None:
    edit(file, '"enabled": true', '"enabled": false')
    edited = file.path.read_bytes()

    assert run(file, "repair") == 4

    assert "account 'admin' has no enabled key" in capsys.readouterr().out
    assert file.path.read_bytes() == edited


def test_repair_from_the_copy_puts_everything_back(file: AccountsFile) -> None:
    document = read(file)
    file.path.write_bytes(b"\xff" * 40)
    assert run(file, "repair") == 4

    assert run(file, "repair", "--from-copy") == 0

    assert read(file) == document
    assert file.path.with_name("accounts.json.old.0").read_bytes() == b"\xff" * 40


def test_repair_from_the_copy_works_without_the_file_and_not_from_a_damaged_copy(file: AccountsFile) -> None:
    document = read(file)
    file.path.unlink()
    assert run(file, "repair", "--from-copy") == 0
    assert read(file) == document
    file.copy.write_text(file.copy.read_text().replace("other", "otter"))
    assert run(file, "repair", "--from-copy") == 4


def test_a_new_key_is_printed_once_and_works(file: AccountsFile, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "new-key", "admin") == 0

    secret_id, secret_key = printed_key(capsys.readouterr().out)
    added = read(file).keys[-1]
    assert (added.secret_id, added.secret_key, added.account, added.enabled) == (secret_id, secret_key, "admin", True)
    assert len(read(file).keys) == 3


def test_a_new_key_for_an_admin_without_any(file: AccountsFile) -> None:
    document = read(file)
    keys = [Key(secret_id="A", secret_key="b", account="admin", created_ms=1, enabled=False), document.keys[1]]
    file.write(Document(handle_key=document.handle_key, accounts=document.accounts, keys=keys))
    with pytest.raises(AccountsFileError, match="new-key admin"):
        file.read()

    assert run(file, "new-key", "admin") == 0

    assert [(key.account, key.enabled) for key in read(file).keys] == [
        ("admin", False),
        ("other", True),
        ("admin", True),
    ]


def test_a_new_key_of_an_unknown_account_is_refused(file: AccountsFile, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "new-key", "nobody") == 4
    assert "the accounts are admin, other" in capsys.readouterr().out


def test_new_key_admin_begins_a_file_that_is_lost_but_not_over_a_copy(
    file: AccountsFile, capsys: pytest.CaptureFixture[str]
) -> None:
    file.path.unlink()
    assert run(file, "new-key", "admin") == 4
    assert "repair --from-copy" in capsys.readouterr().out
    file.copy.unlink()
    assert run(file, "new-key", "other") == 4

    assert run(file, "new-key", "admin") == 0

    assert "have to be created again" in capsys.readouterr().out
    assert set(read(file).accounts) == {"admin"}


def test_new_key_admin_begins_a_file_beside_a_copy_that_cannot_be_used(file: AccountsFile) -> None:
    file.path.unlink()
    file.copy.write_bytes(b"\xff" * 40)

    assert run(file, "new-key", "admin") == 0

    assert set(read(file).accounts) == {"admin"}
    assert file.copy.read_bytes() == file.path.read_bytes()
    assert file.path.with_name("accounts.json.old.0").read_bytes() == b"\xff" * 40


def test_check_of_a_file_that_cannot_be_read_says_why(file: AccountsFile, capsys: pytest.CaptureFixture[str]) -> None:
    file.path.unlink()
    file.path.mkdir()

    assert run(file, "check") == 4

    assert "Is a directory" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("repair",), ("new-key", "admin")])
def test_a_running_broker_is_named_and_nothing_is_changed(
    file: AccountsFile, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    content = file.path.read_bytes()
    folder = DataFolder(file.path.parent)
    asyncio.run(folder.lock(0, LockHolder(os.getpid(), 1234)))

    assert run(file, *arguments) == 4
    assert run(file, "check") == 0

    folder.unlock()
    out = capsys.readouterr().out
    assert f"process {os.getpid()}" in out
    assert "stop the broker first" in out
    assert file.path.read_bytes() == content


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert main(["accounts", "new-key", "admin", "--data", str(tmp_path / "none")]) == 4
    assert not (tmp_path / "none").exists()


def test_a_newer_file_is_left_alone(file: AccountsFile, capsys: pytest.CaptureFixture[str]) -> None:
    content = encode(read(file)).replace(b'"version": 2', b'"version": 4')
    file.path.write_bytes(content)

    assert [run(file, "check"), run(file, "repair"), run(file, "new-key", "admin")] == [4, 4, 4]

    assert "use a newer cmqd" in capsys.readouterr().out
    assert file.path.read_bytes() == content
    assert json.loads(content)["version"] == 4


@pytest.mark.parametrize("arguments", [("check",), ("repair",), ("repair", "--from-copy"), ("new-key", "admin")])
def test_a_cache_has_its_accounts_in_the_engine(
    file: AccountsFile, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """A key in its accounts.json would open nothing."""
    cache = CacheOf("e" * 32, 3)
    write_manifest(file.path.parent, Manifest(format=CACHE_FORMAT, cache_of=cache, log_id=cache.log_id))
    before = (file.path.read_bytes(), file.copy.read_bytes())

    assert run(file, *arguments) == 4

    out = capsys.readouterr().out
    assert f"is a cache of {cache}: the engine has the accounts" in out
    assert "use 'cmqd ha export', then 'cmqd accounts new-key', then 'cmqd ha import'" in out
    assert (file.path.read_bytes(), file.copy.read_bytes()) == before
