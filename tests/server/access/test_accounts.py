"""Accounts and keys: on disk before answered, private, never without a key."""

import asyncio
import hashlib
import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cmqd.core.domain_errors import InvalidArgument
from cmqd.server.access import accounts as rooms
from cmqd.server.access import accounts_file
from cmqd.server.access.accounts import (
    AccountExists,
    AccountNotFound,
    Accounts,
    KeyExists,
    KeyNotFound,
    LastKey,
    PermissionDenied,
)
from cmqd.server.access.accounts_file import (
    COPY_NAME,
    FILE_NAME,
    AccountsFile,
    AccountsFileError,
    Document,
    Key,
    SubscriptionSecret,
    encode,
    new_document,
    new_key,
    version_of,
)
from cmqd.server.process.context_file import CONTEXT_FILE_NAME, reachable_address, write_context
from cmqd.server.requests.dispatch import Dispatcher
from cmqd_client.address import parse_address
from cmqd_protocol import messages as wire
from cmqd_types.keys import Role
from support.server.invariants import check_accounts
from support.server.server_rig import ServerRig, code_of


def open_accounts(folder: Path, now_ms: int) -> tuple[Accounts, bool]:
    """The accounts of a folder, as a start of the server over an empty log has them."""
    accounts, are_new = rooms.open_accounts(folder, now_ms)
    if are_new:
        AccountsFile(folder).write(accounts.document)
    return accounts, are_new


def content_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / FILE_NAME).read_text())["content"]
    return content


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_start_makes_admin_with_a_key_and_later_ones_keep_it(tmp_path: Path) -> None:
    accounts, are_new = open_accounts(tmp_path, 5)
    again, are_new_again = open_accounts(tmp_path, 6)

    assert (are_new, are_new_again) == (True, False)
    key = accounts.first_key("admin")
    assert key == again.first_key("admin")
    assert key.secret_id.startswith("AKID")
    assert len(key.secret_id) == 36
    assert len(key.secret_key) >= 32
    assert accounts.handle_key == again.handle_key
    assert len(set(accounts.handle_key)) == 4
    check_accounts(accounts)


def test_files_with_secrets_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    path = tmp_path / CONTEXT_FILE_NAME
    context = write_context(path, accounts.first_key("admin"), ["127.0.0.1:5680"], tls=False)

    assert mode_of(tmp_path / FILE_NAME) == 0o600
    assert mode_of(context) == 0o600
    (tmp_path / FILE_NAME).chmod(0o644)
    open_accounts(tmp_path, 6)
    assert mode_of(tmp_path / FILE_NAME) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {FILE_NAME, COPY_NAME, CONTEXT_FILE_NAME}


@pytest.mark.parametrize(
    ("host", "tls", "address"),
    [
        ("127.0.0.1", False, "127.0.0.1:99"),
        ("0.0.0.0", False, "127.0.0.1:99"),
        ("::", True, "[::1]:99?tls=1"),
        ("broker.example", True, "broker.example:99?tls=1"),
    ],
)
def test_the_context_names_the_real_port_and_an_address_that_can_be_reached(
    tmp_path: Path, host: str, tls: bool, address: str
) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    key = accounts.first_key("admin")
    path = tmp_path / CONTEXT_FILE_NAME
    write_context(path, key, [reachable_address(host, 1)], tls=False)

    context = tomllib.loads(write_context(path, key, [reachable_address(host, 99)], tls=tls).read_text())

    assert context["current"] == "admin"
    assert context["contexts"]["admin"]["url"] == f"cmq://{key.secret_id}:{key.secret_key}@{address}"


def test_a_file_of_a_newer_version_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    open_accounts(tmp_path, 5)
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"version": 2', b'"version": 4'))
    with pytest.raises(AccountsFileError, match="newer"):
        open_accounts(tmp_path, 6)
    path.write_text("{")
    with pytest.raises(AccountsFileError, match=r"damaged.*accounts\.json\.1 is the last good copy"):
        open_accounts(tmp_path, 6)
    (tmp_path / COPY_NAME).write_text("{")
    with pytest.raises(AccountsFileError, match="No copy can be used"):
        open_accounts(tmp_path, 6)


def test_no_byte_of_the_content_can_change_unseen(tmp_path: Path) -> None:
    open_accounts(tmp_path, 5)
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for position in range(len(whole)):
        for flipped in (whole[position] ^ 1, whole[position] ^ 0x80):
            path.write_bytes(whole[:position] + bytes([flipped]) + whole[position + 1 :])
            try:
                AccountsFile(tmp_path).read()
            except AccountsFileError:
                continue
            # White space between the three members may turn into other white space; further changes are impossible.
            assert whole[position : position + 1].isspace()


def test_a_copy_is_written_after_each_change_and_renewed_at_the_start(tmp_path: Path) -> None:
    open_accounts(tmp_path, 5)
    copy = tmp_path / COPY_NAME
    assert (mode_of(copy), copy.read_bytes()) == (0o600, (tmp_path / FILE_NAME).read_bytes())
    copy.write_text("{")

    open_accounts(tmp_path, 6)

    assert copy.read_bytes() == (tmp_path / FILE_NAME).read_bytes()


async def test_a_copy_that_cannot_be_written_does_not_undo_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    write_private = accounts_file.write_private

    def full(path: Path, content: bytes) -> None:
        if path.name == COPY_NAME:
            raise OSError(28, "No space left on device")
        write_private(path, content)

    monkeypatch.setattr(accounts_file, "write_private", full)
    await accounts.create_account("admin", "other", 7)

    again, _ = open_accounts(tmp_path, 8)
    assert again.list_accounts("admin") == ["admin", "other"]


def test_new_accounts_are_not_on_disk_before_they_are_saved(tmp_path: Path) -> None:
    _, are_new = rooms.open_accounts(tmp_path, 5)

    assert are_new
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_of_a_crash_are_removed_at_the_start(tmp_path: Path) -> None:
    open_accounts(tmp_path, 5)
    (tmp_path / f".{FILE_NAME}.x1y2z3").write_text("a secret")

    open_accounts(tmp_path, 6)

    assert {path.name for path in tmp_path.iterdir()} == {FILE_NAME, COPY_NAME}


def test_an_admin_without_an_enabled_key_is_refused_with_the_way_out(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    document = msgspec.structs.replace(accounts.document, keys=[])
    AccountsFile(tmp_path).write(document)

    with pytest.raises(AccountsFileError, match="new-key admin"):
        open_accounts(tmp_path, 6)


async def test_a_change_is_on_disk_when_it_is_answered(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)

    key = await accounts.create_account("admin", "other", 7)
    second = await accounts.create_key("other", None, 8)
    await accounts.set_key_enabled("other", None, key.secret_id, False)

    again, _ = open_accounts(tmp_path, 9)
    assert again.list_accounts("admin") == ["admin", "other"]
    assert again.find_key(key.secret_id) is None
    assert again.find_key(second.secret_id) == second
    assert [each.enabled for each in again.list_keys("admin", "other")] == [False, True]
    check_accounts(again)


async def test_a_change_that_cannot_be_written_did_not_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts, _ = open_accounts(tmp_path, 5)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(accounts_file, "write_private", full)
    with pytest.raises(OSError, match="No space"):
        await accounts.create_account("admin", "other", 7)

    assert accounts.list_accounts("admin") == ["admin"]


async def test_only_admin_manages_others(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    key = await accounts.create_account("admin", "other", 7)

    with pytest.raises(PermissionDenied):
        await accounts.create_account("other", "third", 8)
    with pytest.raises(PermissionDenied):
        accounts.list_accounts("other")
    with pytest.raises(PermissionDenied):
        accounts.list_keys("other", "admin")
    with pytest.raises(PermissionDenied):
        await accounts.create_key("other", "admin", 8)
    with pytest.raises(KeyNotFound):
        await accounts.delete_key("other", None, accounts.first_key("admin").secret_id)
    with pytest.raises(AccountNotFound):
        await accounts.create_key("admin", "nobody", 8)
    assert accounts.list_keys("other", "other") == [key]
    assert accounts.list_keys("admin", "other") == [key]


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "a/b"])
async def test_an_illegal_account_name_is_refused(tmp_path: Path, name: str) -> None:
    accounts, _ = open_accounts(tmp_path, 5)

    with pytest.raises(InvalidArgument, match="account"):
        await accounts.create_account("admin", name, 7)


async def test_names_that_differ_only_in_case_cannot_coexist(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)

    with pytest.raises(AccountExists):
        await accounts.create_account("admin", "Admin", 7)


async def test_the_last_enabled_key_stays(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    first = accounts.first_key("admin")
    with pytest.raises(LastKey):
        await accounts.delete_key("admin", None, first.secret_id)
    with pytest.raises(LastKey):
        await accounts.set_key_enabled("admin", None, first.secret_id, False)

    second = await accounts.create_key("admin", None, 6)
    await accounts.set_key_enabled("admin", None, second.secret_id, False)
    with pytest.raises(LastKey):
        await accounts.delete_key("admin", None, first.secret_id)
    await accounts.set_key_enabled("admin", None, second.secret_id, True)
    await accounts.delete_key("admin", None, first.secret_id)

    assert accounts.first_key("admin").secret_id == second.secret_id
    check_accounts(accounts)


async def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)

    await asyncio.gather(*(accounts.create_account("admin", f"a{number}", 6) for number in range(20)))

    again, _ = open_accounts(tmp_path, 7)
    assert len(again.list_accounts("admin")) == 21


async def test_the_number_of_keys_is_bounded(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    for _ in range(99):
        await accounts.create_key("admin", None, 6)

    with pytest.raises(InvalidArgument, match="100 keys"):
        await accounts.create_key("admin", None, 6)


def test_a_key_does_not_show_its_secret_by_accident(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    key = accounts.first_key("admin")

    assert key.secret_key not in repr(key)


async def test_keys_are_managed_over_the_wire_and_shown_once(rig: ServerRig) -> None:
    admin = await rig.client()

    made = await admin.expect(wire.KeyList, wire.CreateAccount, "other")
    (key,) = made.keys
    assert key.secret_key is not None
    listed = await admin.expect(wire.KeyList, wire.ListKeys, "other")
    assert [(each.secret_id, each.secret_key, each.enabled) for each in listed.keys] == [(key.secret_id, None, True)]
    assert (await admin.expect(wire.AccountList, wire.ListAccounts)).accounts == ["admin", "other"]
    other = await rig.client(rig.accounts.first_key("other"))
    assert code_of(await other.ask(wire.DeleteKey, key.secret_id)) == "last_key"
    (second,) = (await other.expect(wire.KeyList, wire.CreateKey)).keys
    await other.expect(wire.Done, wire.DeleteKey, second.secret_id)
    assert code_of(await other.ask(wire.DeleteKey, second.secret_id)) == "key_not_found"
    assert code_of(await other.ask(wire.CreateAccount, "third")) == "permission_denied"
    assert code_of(await admin.ask(wire.CreateAccount, "other")) == "account_exists"
    assert code_of(await admin.ask(wire.ListKeys, "nobody")) == "account_not_found"


async def test_an_account_is_deleted_only_when_empty_and_its_clients_are_put_out(rig: ServerRig) -> None:
    admin = await rig.client()
    await admin.expect(wire.KeyList, wire.CreateAccount, "other")
    key = rig.accounts.first_key("other")
    other = await rig.client(key)
    await other.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    await other.expect(wire.TopicInfo, wire.CreateTopic, "news", {})

    refused = await admin.expect(wire.Error, wire.DeleteAccount, "other")
    assert refused.name == "account_not_empty"
    assert refused.details == {"account": "other", "queues": 1, "topics": 1, "schedules": 0}
    assert other.ended is None, "a refusal changes nothing"
    await other.expect(wire.Done, wire.DeleteQueue, "jobs")
    assert code_of(await admin.ask(wire.DeleteAccount, "other")) == "account_not_empty"
    await other.expect(wire.Done, wire.DeleteTopic, "news")
    await admin.expect(wire.Done, wire.DeleteAccount, "other")

    await other.settle()
    assert other.ended is not None
    assert other.ended.name == "authentication_failed"
    again = rig.connect(key)
    await again.settle()
    assert again.opened is None
    assert (await admin.expect(wire.AccountList, wire.ListAccounts)).accounts == ["admin"]
    assert code_of(await admin.ask(wire.DeleteAccount, "other")) == "account_not_found"
    assert (await admin.expect(wire.KeyList, wire.CreateAccount, "other")).keys[0].secret_id != key.secret_id


@pytest.mark.parametrize("make", [wire.CreateQueue, wire.EnsureQueue, wire.CreateTopic, wire.EnsureTopic])
async def test_a_request_that_is_carried_out_late_makes_nothing_for_a_deleted_account(
    rig: ServerRig, make: Any
) -> None:
    admin = await rig.client()
    await admin.expect(wire.KeyList, wire.CreateAccount, "other")
    other = await rig.client(rig.accounts.first_key("other"))
    rows = rig.log.last_lsn
    refused: list[str] = []

    async def settle() -> None:
        rig.server.part(Dispatcher).dispatch(other.connection, make(7, "late", {}))
        refused.append(f"while leaving: {rig.log.last_lsn - rows} rows")

    await rig.accounts.delete_account("admin", "other", lambda: None, rig.server.connections.revoke, settle)
    rig.server.part(Dispatcher).dispatch(other.connection, make(8, "late", {}))

    assert rig.log.last_lsn == rows
    assert refused == ["while leaving: 0 rows"]
    assert rig.broker.list_queues("other", "", 0, 1)[0] == rig.broker.list_topics("other", "", 0, 1)[0] == 0


async def test_a_key_that_is_asked_for_just_before_its_account_is_deleted_is_not_made(
    rig: ServerRig, tmp_path: Path
) -> None:
    admin = await rig.client()
    await admin.expect(wire.KeyList, wire.CreateAccount, "other")
    other = await rig.client(rig.accounts.first_key("other"))

    admin.begin(wire.DeleteAccount(admin.next_id(), "other"))
    other.begin(wire.CreateKey(other.next_id()))
    await admin.settle()

    check_accounts(rig.accounts)
    open_accounts(tmp_path, 7)


async def test_a_disabled_key_does_not_enable_itself_again(rig: ServerRig) -> None:
    admin = await rig.client()
    await admin.expect(wire.KeyList, wire.CreateAccount, "other")
    stolen = rig.accounts.first_key("other")
    thief = await rig.client(stolen)
    (kept,) = (await admin.expect(wire.KeyList, wire.CreateKey, "other")).keys

    admin.begin(wire.SetKeyEnabled(admin.next_id(), stolen.secret_id, False, "other"))
    thief.begin(wire.SetKeyEnabled(thief.next_id(), stolen.secret_id, True))
    thief.begin(wire.CreateKey(thief.next_id()))
    thief.begin(wire.DeleteKey(thief.next_id(), kept.secret_id))
    await admin.settle()

    enabled = {key.secret_id: key.enabled for key in rig.accounts.list_keys("other", None)}
    assert enabled == {stolen.secret_id: False, kept.secret_id: True}


async def test_only_admin_deletes_accounts_and_never_itself(rig: ServerRig) -> None:
    admin = await rig.client()
    await admin.expect(wire.KeyList, wire.CreateAccount, "other")
    other = await rig.client(rig.accounts.first_key("other"))

    assert code_of(await other.ask(wire.DeleteAccount, "other")) == "permission_denied"
    assert code_of(await other.ask(wire.ListAllQueues)) == "permission_denied"
    assert code_of(await admin.ask(wire.DeleteAccount, "admin")) == "invalid_argument"


async def test_a_deletion_that_cannot_be_written_leaves_the_account_usable(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = await rig.client()
    await admin.expect(wire.KeyList, wire.CreateAccount, "other")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(accounts_file, "write_private", full)
        assert code_of(await admin.ask(wire.DeleteAccount, "other")) == "internal_error"

    other = await rig.client(rig.accounts.first_key("other"))
    await other.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})


async def test_an_account_leaves_the_file_only_when_the_deletes_before_are_durable(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    await accounts.create_account("admin", "other", 6)
    steps: list[str] = []

    async def settle() -> None:
        steps.append(f"settle with {len(accounts.list_accounts('admin'))} accounts")
        assert accounts.find_key(accounts.first_key("other").secret_id) is None, "nobody connects meanwhile"

    await accounts.delete_account("admin", "other", lambda: steps.append("look"), lambda _: None, settle)

    assert steps == ["look", "settle with 2 accounts", "look"]
    again, _ = open_accounts(tmp_path, 7)
    assert again.list_accounts("admin") == ["admin"]


async def test_the_queues_of_all_accounts_are_listed_by_pages(rig: ServerRig) -> None:
    admin = await rig.client()
    expected: list[tuple[str, str]] = []
    for account in ("b", "a"):
        await admin.expect(wire.KeyList, wire.CreateAccount, account)
        client = await rig.client(rig.accounts.first_key(account))
        for name in ("orders", "jobs", "Zoo"):
            await client.expect(wire.QueueInfo, wire.CreateQueue, name, {})
            expected.append((account, name))
    await admin.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    expected = sorted([*expected, ("admin", "jobs")])

    for limit in (1, 2, 3, 7, 1000):
        listed: list[tuple[str, str]] = []
        after: tuple[str, str] | None = ("", "")
        while after is not None:
            page = await admin.expect(wire.AllQueues, wire.ListAllQueues, "", *after, limit)
            assert len(page.queues) <= limit
            listed += [(account, name) for account, _, name in page.queues]
            after = page.next
        assert listed == expected
    found = await admin.expect(wire.AllQueues, wire.ListAllQueues, "ob")
    assert [(account, name) for account, _, name in found.queues] == [("a", "jobs"), ("admin", "jobs"), ("b", "jobs")]
    for limit in (0, 1001):
        assert code_of(await admin.ask(wire.ListAllQueues, "", "", "", limit)) == "invalid_argument"


async def test_secrets_of_subscriptions_are_there_after_a_restart(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    first = await accounts.make_secret(7)
    second = await accounts.rotate_secret(7, 100)

    again, _ = open_accounts(tmp_path, 6)

    assert again.secrets_of(7, 99) == [second, first]
    assert again.secrets_of(7, 100) == [second]
    assert (again.secrets_of(8, 0), again.has_secret(7), again.has_secret(8)) == ([], True, False)
    assert mode_of(tmp_path / FILE_NAME) == 0o600


async def test_only_the_last_two_secrets_count(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    await accounts.make_secret(7)
    second = await accounts.rotate_secret(7, 100)
    third = await accounts.rotate_secret(7, 100)

    assert accounts.secrets_of(7, 0) == [third, second]


async def test_a_secret_that_is_lost_can_be_made_anew(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)

    made = await accounts.rotate_secret(7, 100)

    assert accounts.secrets_of(7, 0) == [made]


async def test_a_file_of_version_1_without_secrets_of_subscriptions_is_as_good(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    document = {"version": 1} | content_of(tmp_path)
    del document["subscription_secrets"]
    (tmp_path / FILE_NAME).write_text(json.dumps(document))
    (tmp_path / COPY_NAME).unlink()

    again, _ = open_accounts(tmp_path, 6)

    assert again.document == accounts.document
    assert AccountsFile.decode((tmp_path / FILE_NAME).read_bytes()).version == 2
    assert AccountsFile.decode((tmp_path / COPY_NAME).read_bytes()).is_sealed


async def test_no_secret_is_shown_in_a_log(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    first = await accounts.make_secret(7)
    await accounts.rotate_secret(7, 100)
    document = content_of(tmp_path)["subscription_secrets"]["7"]

    shown = repr(SubscriptionSecret(**document))

    assert first not in shown
    assert document["secret"] not in shown


def restricted(accounts: Accounts, *roles: str) -> Key:
    """A key with these roles for some names, added to the file."""
    return asyncio.run(accounts.create_role_key("admin", None, roles or ("send",), ["orders-*"], 7))


def test_a_restricted_key_is_the_same_after_a_restart(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    key = restricted(accounts, "send", "read")

    again, _ = open_accounts(tmp_path, 6)

    assert again.find_key(key.secret_id) == key
    assert (key.roles, key.names) == ((Role.SEND, Role.READ), ("orders-*",))
    check_accounts(again)


def read_as_before_roles(path: Path) -> dict[str, Any]:
    """Read a file by the rules of the servers that know no roles: they take versions 1 and 2, and ignore new fields."""
    document = json.loads(path.read_text())
    if document["version"] > 2:
        raise AccountsFileError(f"has version {document['version']} and this cmqd knows up to 2: use a newer cmqd")
    content = path.read_text().partition('"content": ')[2].rpartition("}")[0]
    assert hashlib.sha256(content.encode()).hexdigest() == document["sha256"]
    keys: list[dict[str, Any]] = document["content"]["keys"]
    return {key["secret_id"]: key["account"] for key in keys}


def test_a_server_without_roles_refuses_a_file_with_a_restricted_key_and_opens_any_other(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    root = accounts.first_key("admin")
    for path in (tmp_path / FILE_NAME, tmp_path / COPY_NAME):
        assert read_as_before_roles(path) == {root.secret_id: "admin"}

    key = restricted(accounts)

    for path in (tmp_path / FILE_NAME, tmp_path / COPY_NAME):
        with pytest.raises(AccountsFileError, match="version 3"):
            read_as_before_roles(path)
    asyncio.run(accounts.set_key_enabled("admin", None, key.secret_id, False))
    with pytest.raises(AccountsFileError, match="version 3"):
        read_as_before_roles(tmp_path / FILE_NAME)
    asyncio.run(accounts.delete_key("admin", None, key.secret_id))
    assert read_as_before_roles(tmp_path / FILE_NAME) == {root.secret_id: "admin"}
    open_accounts(tmp_path, 6)


def test_the_version_of_a_file_with_a_restricted_key_cannot_be_lowered(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    restricted(accounts)
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes().replace(b'"version": 3', b'"version": 2'))

    with pytest.raises(AccountsFileError, match="does not match its checksum"):
        open_accounts(tmp_path, 6)


def test_keys_of_a_file_without_roles_may_do_everything_in_their_account(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    content = content_of(tmp_path)
    for key in content["keys"]:
        del key["roles"], key["names"]
    inner = json.dumps(content)
    digest = hashlib.sha256(inner.encode()).hexdigest()
    (tmp_path / FILE_NAME).write_text(f'{{"version": 2, "sha256": "{digest}", "content": {inner}}}')

    again, _ = open_accounts(tmp_path, 6)

    assert again.first_key("admin") == accounts.first_key("admin")
    assert again.permissions_of(again.first_key("admin").secret_id) is None


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ({"roles": []}, "at least one role"),
        ({"names": ["a b"]}, "name pattern"),
        ({"roles": ["gateway"], "account": "other"}, "has role gateway"),
    ],
)
async def test_a_file_edited_by_hand_into_impossible_roles_is_faulty(
    tmp_path: Path, damage: dict[str, Any], text: str
) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    await accounts.create_account("admin", "other", 6)
    document = accounts.document
    assert document.faults() == []
    key = msgspec.structs.replace(accounts_file.new_key("admin", 7), **damage)

    faults = msgspec.structs.replace(document, keys=[*document.keys, key]).faults()

    assert len(faults) == 1
    assert text in faults[0]


async def test_the_last_enabled_key_with_role_admin_is_neither_restricted_nor_disabled_nor_deleted(
    tmp_path: Path,
) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    first = accounts.first_key("admin")
    sender = await accounts.create_role_key("admin", None, ["manage", "send"], ["*"], 6)
    for change in (
        accounts.set_key_roles("admin", None, first.secret_id, ["manage", "send", "consume", "read"], ["*"]),
        accounts.set_key_enabled("admin", None, first.secret_id, False),
        accounts.delete_key("admin", None, first.secret_id),
    ):
        with pytest.raises(LastKey, match="last enabled key with role admin"):
            await change
    assert accounts.find_key(first.secret_id) == first

    await accounts.set_key_roles("admin", None, first.secret_id, ["admin"], ["*"])
    await accounts.set_key_enabled("admin", None, sender.secret_id, False)
    await accounts.delete_key("admin", None, sender.secret_id)
    second = await accounts.create_role_key("admin", None, ["admin"], ["*"], 7)
    await accounts.set_key_roles("admin", None, first.secret_id, ["send"], ["*"])
    with pytest.raises(LastKey):
        await accounts.set_key_roles("admin", None, second.secret_id, ["send"], ["*"])
    assert accounts.first_key("admin").secret_id == second.secret_id
    open_accounts(tmp_path, 8)


async def test_only_keys_of_admin_are_gateways(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    admin = await rig.client()
    await admin.ask(wire.CreateAccount, "other")
    other = await rig.client(rig.accounts.first_key("other"))
    own_key = rig.accounts.first_key("other").secret_id

    assert code_of(await other.ask(wire.CreateRoleKey, ["gateway"], ["*"])) == "invalid_argument"
    assert code_of(await other.ask(wire.CreateRoleKey, ["gateway"], ["*"], "admin")) == "permission_denied"
    assert code_of(await other.ask(wire.ImportKey, "X", "0123456789abcdef", ["gateway"], ["*"])) == "invalid_argument"
    refused = await other.ask(wire.SetKeyRoles, own_key, ["admin", "gateway"], ["*"])
    assert code_of(refused) == "invalid_argument"
    assert code_of(await admin.ask(wire.CreateRoleKey, ["gateway"], ["*"], "other")) == "invalid_argument"
    made = await admin.expect(wire.KeyList, wire.CreateRoleKey, ["gateway"], ["*"])
    assert made.keys[0].roles == ("gateway",)
    rig.close()


async def test_a_key_with_role_admin_manages_the_keys_of_its_account_alone(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    admin = await rig.client()
    await admin.ask(wire.CreateAccount, "other")
    keys_key = await rig.accounts.create_role_key("other", None, ["admin"], ["*"], 6)
    client = await rig.client(keys_key)

    made = await client.expect(wire.KeyList, wire.CreateRoleKey, ["send"], ["orders-*"])
    listed = await client.expect(wire.KeyList, wire.ListKeys)

    assert (made.keys[0].account, made.keys[0].names) == ("other", ("orders-*",))
    assert made.keys[0].secret_key
    assert [key.roles for key in listed.keys][1:] == [("admin",), ("send",)]
    assert code_of(await client.ask(wire.CreateRoleKey, ["send"], ["*"], "admin")) == "permission_denied"
    assert code_of(await client.ask(wire.ListAccounts)) == "permission_denied"
    rig.close()


async def test_a_key_that_loses_its_role_admin_does_not_give_it_back(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    admin = await rig.client()
    stolen = await rig.accounts.create_role_key("admin", None, ["admin"], ["*"], 6)
    thief = await rig.client(stolen)
    admin.begin(wire.SetKeyRoles(admin.next_id(), stolen.secret_id, ["send"], ["*"]))
    late = thief.begin(wire.SetKeyRoles(thief.next_id(), stolen.secret_id, ["admin"], ["*"]))
    await admin.settle()
    await thief.settle()

    assert code_of(thief.replies[late]) == "permission_denied"
    key = rig.accounts.find_key(stolen.secret_id)
    assert key is not None
    assert key.roles == (Role.SEND,)
    rig.close()


SECRET = "kept-by-a-program-0123456789"


async def test_an_imported_key_logs_in_and_importing_it_again_changes_nothing(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    admin = await rig.client()
    first = await admin.expect(wire.KeyList, wire.ImportKey, "AKIDold", SECRET, ["send"], ["orders"])
    reply = await admin.expect(wire.KeyList, wire.ImportKey, "AKIDold", SECRET, ["send"], ["orders"])
    assert first.keys[0].secret_key is reply.keys[0].secret_key is None
    key = rig.accounts.find_key("AKIDold")
    assert key is not None
    assert (await rig.client(key)).opened
    assert len(rig.accounts.list_keys("admin", None)) == 2
    assert SECRET not in repr(key) + repr(reply) + repr(wire.ImportKey(1, "a", SECRET, [], []))
    for secret, roles, names in (
        (SECRET + "x", ["send"], ["orders"]),
        (SECRET, ["read"], ["orders"]),
        (SECRET, ["send"], ["*"]),
    ):
        refused = await admin.ask(wire.ImportKey, "AKIDold", secret, roles, names)
        assert code_of(refused) == "key_exists"
        assert secret not in repr(refused)
    assert rig.accounts.find_key("AKIDold") == key
    rig.close()


@pytest.mark.parametrize(
    ("secret_id", "secret_key", "field"),
    [
        ("", SECRET, "secret_id"),
        ("a b", SECRET, "secret_id"),
        ("x" * 129, SECRET, "secret_id"),
        ("ok", "short", "secret_key"),
        ("ok", "fifteen-letters", "secret_key"),
        ("ok", "with space 0123456789", "secret_key"),
        ("ok", "x" * 129, "secret_key"),
        ("ok", "ä" * 20, "secret_key"),
    ],
)
async def test_pairs_of_another_form_are_not_imported_and_no_error_shows_a_secret(
    tmp_path: Path, secret_id: str, secret_key: str, field: str
) -> None:
    accounts, _ = open_accounts(tmp_path, 5)

    with pytest.raises(InvalidArgument) as refused:
        await accounts.import_key("admin", None, secret_id, secret_key, ["send"], ["*"], 6)

    assert refused.value.details["field"] == field
    assert secret_key not in refused.value.text + repr(refused.value.details)
    assert len(accounts.document.keys) == 1


def test_the_context_quotes_an_imported_secret(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    key = msgspec.structs.replace(accounts.first_key("admin"), secret_key="a/b@c:d?e#f%41gh")

    context = tomllib.loads(write_context(tmp_path / CONTEXT_FILE_NAME, key, ["127.0.0.1:99"], tls=False).read_text())

    assert parse_address(context["contexts"]["admin"]["url"]).secret_key == key.secret_key


async def test_the_key_of_the_gateways_is_made_once_for_the_log(tmp_path: Path) -> None:
    written: list[Document] = []

    async def write(document: Document) -> None:
        written.append(document)

    first = Accounts(new_document(1), write)
    key = await first.gateway_key((Role.READ, Role.GATEWAY), 5)
    assert await first.gateway_key((Role.READ, Role.GATEWAY), 6) == key
    (document,) = written

    other = Accounts(AccountsFile.decode(encode(document)).document, write)

    assert await other.gateway_key((Role.READ, Role.GATEWAY), 7) == key
    assert len(written) == 1
    assert other.find_key(key.secret_id) == key
    assert other.account_of(key.secret_id) == "admin"
    permissions = other.permissions_of(key.secret_id)
    assert permissions is not None
    assert set(permissions.roles) == {Role.READ, Role.GATEWAY}


async def test_no_list_change_or_limit_of_keys_knows_the_key_of_the_gateways(tmp_path: Path) -> None:
    accounts, _ = open_accounts(tmp_path, 5)
    (admin_key,) = accounts.list_keys("admin", None)
    key = await accounts.gateway_key((Role.READ, Role.GATEWAY), 5)

    assert accounts.list_keys("admin", None) == [admin_key]
    assert accounts.find_secret(key.secret_id) is None, "no gateway gets it for a caller"
    for change in (
        accounts.delete_key("admin", None, key.secret_id),
        accounts.set_key_enabled("admin", None, key.secret_id, False),
    ):
        with pytest.raises(KeyNotFound):
            await change
    with pytest.raises(KeyExists):
        await accounts.import_key("admin", None, key.secret_id, "x" * 20, ["manage"], ["*"], 6)
    for _ in range(rooms.MAX_KEYS - 1):
        await accounts.create_key("admin", None, 1)
    assert content_of(tmp_path)["gateway_key"]["secret_id"] == key.secret_id

    again, _ = open_accounts(tmp_path, 6)
    assert again.find_key(key.secret_id) is None, "a folder that came out of an engine has no pair"


def test_an_older_broker_reads_accounts_with_a_key_of_gateways() -> None:
    document = msgspec.structs.replace(new_document(1), gateway_key=new_key("admin", 1, (Role.READ, Role.GATEWAY)))
    assert version_of(document) == 2, "it ignores the field, and knows no role"
    content = json.loads(encode(new_document(1)))["content"]
    assert "gateway_key" not in content
