"""Secrets of keys for gateways: roles, connections, rates, pushes and log lines."""

import socket
from pathlib import Path
from typing import Any, cast

import pytest

from cmqd.server.access.accounts_file import Key
from cmqd.server.binary.accepted_connection import AcceptedConnection
from cmqd.server.clients.key_watchers import KeyWatchers
from cmqd.server.handlers import secrets_of_keys
from cmqd.server.requests.dispatch import Dispatcher
from cmqd_protocol import messages as wire
from cmqd_types.keys import Role
from support.server.server_rig import RigClient, ServerRig, a_queue, code_of


async def a_gateway(rig: ServerRig, **extra: Any) -> tuple[RigClient, Key]:
    key = await rig.accounts.create_role_key("admin", None, ["gateway"], ["*"], 1)
    client = await rig.client(key)
    client.transport.extra.update(extra)
    return client, key


async def test_a_gateway_reads_one_secret_of_any_account(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    await rig.accounts.create_account("admin", "shop", 1)
    shop = rig.accounts.first_key("shop")
    gateway, _ = await a_gateway(rig)

    reply = await gateway.expect(wire.KeySecret, wire.GetKeySecret, shop.secret_id)

    assert (reply.secret_key, reply.account, reply.enabled) == (shop.secret_key, "shop", True)
    assert shop.secret_key not in repr(reply)
    rig.close()


async def test_a_disabled_key_has_a_secret_and_an_absent_key_has_none(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    key = await rig.accounts.create_key("admin", None, 1)
    await rig.accounts.set_key_enabled("admin", None, key.secret_id, False)
    gateway, _ = await a_gateway(rig)

    disabled = await gateway.expect(wire.KeySecret, wire.GetKeySecret, key.secret_id)
    absent = await gateway.expect(wire.Error, wire.GetKeySecret, "AKIDabsent")

    assert (disabled.secret_key, disabled.enabled) == (key.secret_key, False)
    assert key.secret_key not in repr(disabled)
    assert code_of(absent) == "key_not_found"
    rig.close()


@pytest.mark.parametrize(
    ("extra", "is_private"),
    [
        ({"peername": ("127.0.0.1", 1)}, True),
        ({"peername": ("::1", 1, 0, 0)}, True),
        ({"peername": ("::ffff:127.0.0.1", 1, 0, 0)}, True),
        ({"peername": ("192.0.2.7", 1)}, False),
        ({"peername": ("::ffff:192.0.2.7", 1, 0, 0)}, False),
        ({"peername": ("192.0.2.7", 1), "ssl_object": object()}, True),
        ({"peername": None}, False),
        ({"peername": ("localhost.example", 1)}, False),
    ],
)
async def test_secrets_leave_over_loopback_and_tls_alone(
    tmp_path: Path, extra: dict[str, Any], is_private: bool
) -> None:
    rig = await ServerRig.make(tmp_path)
    gateway, key = await a_gateway(rig, **extra)

    for reply in (await gateway.ask(wire.GetKeySecret, key.secret_id), await gateway.ask(wire.WatchKeys)):
        assert code_of(reply) == "permission_denied" if not is_private else not isinstance(reply, wire.Error), reply
        assert key.secret_key not in repr(reply)
    assert len(rig.server.part(KeyWatchers)) == is_private
    rig.close()


async def test_a_unix_socket_is_private(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    ours, theirs = socket.socketpair()
    gateway, key = await a_gateway(rig, peername="", socket=ours)

    await gateway.expect(wire.KeySecret, wire.GetKeySecret, key.secret_id)

    ours.close()
    theirs.close()
    rig.close()


async def test_every_change_of_a_key_is_pushed_to_gateways_that_watch(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    admin = await rig.client()
    gateway, _ = await a_gateway(rig)
    silent, _ = await a_gateway(rig)
    await gateway.expect(wire.Done, wire.WatchKeys)

    made = await admin.expect(wire.KeyList, wire.CreateKey)
    secret_id = made.keys[0].secret_id
    await admin.expect(wire.Done, wire.SetKeyRoles, secret_id, ["send"], ["*"])
    await admin.expect(wire.Done, wire.SetKeyEnabled, secret_id, False)
    await admin.expect(wire.Done, wire.SetKeyEnabled, secret_id, True)
    await admin.expect(wire.Done, wire.DeleteKey, secret_id)
    await admin.expect(wire.KeyList, wire.ImportKey, "AKIDold", "0123456789abcdef", ["send"], ["*"])
    account = await admin.expect(wire.KeyList, wire.CreateAccount, "shop")
    await admin.expect(wire.Done, wire.DeleteAccount, "shop")
    await gateway.settle()
    await silent.settle()

    assert gateway.key_changes == [
        (secret_id, "created"),
        (secret_id, "roles_changed"),
        (secret_id, "disabled"),
        (secret_id, "enabled"),
        (secret_id, "deleted"),
        ("AKIDold", "created"),
        (account.keys[0].secret_id, "created"),
        (account.keys[0].secret_id, "deleted"),
    ]
    assert silent.key_changes == []
    rig.close()


async def test_a_refused_change_is_not_pushed(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    admin = await rig.client()
    gateway, _ = await a_gateway(rig)
    await gateway.expect(wire.Done, wire.WatchKeys)

    first = rig.accounts.first_key("admin").secret_id
    assert code_of(await admin.ask(wire.DeleteKey, first)) == "last_key"
    await gateway.settle()

    assert gateway.key_changes == []
    rig.close()


async def test_the_keys_of_an_account_whose_deletion_failed_are_reported_as_enabled(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    admin = await rig.client()
    shop = (await admin.expect(wire.KeyList, wire.CreateAccount, "shop")).keys[0].secret_id
    gateway, _ = await a_gateway(rig)
    await gateway.expect(wire.Done, wire.WatchKeys)

    async def fail(document: Any) -> None:
        raise OSError(28, "No space left on device")

    accounts: Any = rig.accounts
    accounts._write = fail
    assert isinstance(await admin.ask(wire.DeleteAccount, "shop"), wire.Error)
    await gateway.settle()

    assert gateway.key_changes == [(shop, "deleted"), (shop, "enabled")]
    await gateway.expect(wire.KeySecret, wire.GetKeySecret, shop)
    rig.close()


async def test_a_gateway_without_its_role_watches_no_more(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    admin = await rig.client()
    gateway, key = await a_gateway(rig)
    await gateway.expect(wire.Done, wire.WatchKeys)

    await admin.expect(wire.Done, wire.SetKeyRoles, key.secret_id, ["read"], ["*"])
    assert len(rig.server.part(KeyWatchers)) == 0
    await admin.expect(wire.KeyList, wire.CreateKey)
    assert code_of(await gateway.ask(wire.GetKeySecret, key.secret_id)) == "permission_denied"

    assert gateway.key_changes == []
    rig.close()


async def test_a_connection_that_ends_is_forgotten(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    gateway, _ = await a_gateway(rig)
    await gateway.expect(wire.Done, wire.WatchKeys)

    gateway.transport.lose()

    assert len(rig.server.part(KeyWatchers)) == 0
    rig.close()


async def test_a_secret_that_is_read_just_before_a_change_arrives_before_the_push(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    admin = await rig.client()
    key = await rig.accounts.create_key("admin", None, 1)
    gateway, _ = await a_gateway(rig)
    await gateway.expect(wire.Done, wire.WatchKeys)
    order: list[str] = []
    answer = AcceptedConnection.answer

    def note(connection: AcceptedConnection, reply: Any, queue: str | None = None) -> None:
        order.append(type(reply).__name__)
        answer(connection, reply, queue)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AcceptedConnection, "answer", note)
        admin.begin(wire.DeleteKey(admin.next_id(), key.secret_id))
        gateway.begin(wire.GetKeySecret(gateway.next_id(), key.secret_id))
        await admin.settle()
    await gateway.settle()

    assert [name for name in order if name.startswith("Key")] == ["KeySecret", "KeyChanged"]
    rig.close()


async def test_reads_are_limited_and_made_up_ids_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets_of_keys, "READS_PER_SECOND", 3)
    monkeypatch.setattr(secrets_of_keys, "UNKNOWN_PER_SECOND", 2)
    rig = await ServerRig.make(tmp_path)
    now_s = [0.0]
    operations = secrets_of_keys.SecretsOfKeys(
        accounts=rig.accounts,
        watchers=rig.server.part(KeyWatchers),
        when_led=rig.server.replies.when_led,
        now_s=lambda: now_s[0],
    )
    cast("dict[Any, Any]", rig.server.part(Dispatcher).handlers)[wire.GetKeySecret] = operations.get
    first = rig.accounts.first_key("admin").secret_id
    gateway, _ = await a_gateway(rig)
    other, _ = await a_gateway(rig)

    made_up = [code_of(await gateway.ask(wire.GetKeySecret, f"AKID{n}")) for n in range(3)]
    assert made_up == ["key_not_found", "key_not_found", "too_many_requests"]
    for _ in range(3):
        await gateway.expect(wire.KeySecret, wire.GetKeySecret, first)
    refused = await gateway.expect(wire.Error, wire.GetKeySecret, first)
    assert (refused.name, refused.retry_after_ms, refused.retryable) == ("too_many_requests", 1_000, True)
    await other.expect(wire.KeySecret, wire.GetKeySecret, first)
    now_s[0] = 1.0
    await gateway.expect(wire.KeySecret, wire.GetKeySecret, first)
    rig.close()


async def test_reads_are_logged_once_and_then_counted_and_no_line_has_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = []

    def keep(event: str, **facts: Any) -> None:
        lines.append({"event": event, **facts})

    monkeypatch.setattr("cmqd.server.handlers.secrets_of_keys._log.info", keep)
    monkeypatch.setattr("cmqd.server.handlers.secrets_of_keys._log.warning", keep)
    rig = await ServerRig.make(tmp_path)
    now_s = [0.0]
    operations = secrets_of_keys.SecretsOfKeys(
        accounts=rig.accounts,
        watchers=rig.server.part(KeyWatchers),
        when_led=rig.server.replies.when_led,
        now_s=lambda: now_s[0],
    )
    cast("dict[Any, Any]", rig.server.part(Dispatcher).handlers)[wire.GetKeySecret] = operations.get
    first = rig.accounts.first_key("admin")
    gateway, key = await a_gateway(rig)

    for now in (0.0, 1.0, 2.0, 600.0):
        now_s[0] = now
        await gateway.expect(wire.KeySecret, wire.GetKeySecret, first.secret_id)
    await gateway.ask(wire.GetKeySecret, "AKIDabsent")

    read = {"event": "secret_read", "peer": "127.0.0.1:1", "by_key": key.secret_id, "secret_id": first.secret_id}
    assert lines[:2] == [read, {**read, "reads_since_last_line": 2}]
    assert (lines[2]["event"], lines[2]["secret_id"], lines[2]["reason"]) == (
        "secret_not_read",
        "AKIDabsent",
        "KeyNotFound",
    )
    assert first.secret_key not in repr(lines)
    rig.close()


async def test_a_lent_key_works_is_in_no_file_and_in_no_list_and_its_secret_is_not_read(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    await rig.accounts.save_new()
    before = (tmp_path / "accounts.json").read_bytes()
    lent = rig.accounts.lend_key((Role.GATEWAY,), 1)
    gateway = await rig.client(lent)
    admin = await rig.client()
    await a_queue(admin)

    await gateway.expect(wire.KeySecret, wire.GetKeySecret, rig.accounts.first_key("admin").secret_id)
    assert code_of(await gateway.ask(wire.GetKeySecret, lent.secret_id)) == "key_not_found"
    assert code_of(await gateway.ask(wire.SendMessages, "jobs", [b"x"])) == "permission_denied"
    listed = await admin.expect(wire.KeyList, wire.ListKeys)
    assert lent.secret_id not in [key.secret_id for key in listed.keys]
    assert code_of(await admin.ask(wire.DeleteKey, lent.secret_id)) == "key_not_found"
    assert code_of(await admin.ask(wire.ImportKey, lent.secret_id, "0123456789abcdef", ["send"], ["*"])) == "key_exists"
    assert (tmp_path / "accounts.json").read_bytes() == before

    rig.accounts.take_back_key(lent.secret_id)
    rig.server.connections.revoke(lent.secret_id)
    await gateway.settle()

    assert rig.accounts.find_key(lent.secret_id) is None
    assert gateway.ended is not None
    assert gateway.ended.name == "authentication_failed"
    rig.close()
