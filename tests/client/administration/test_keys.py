"""Keys with roles, imported keys, and the calls of a gateway, by the client against a broker."""

import traceback
from contextlib import AsyncExitStack
from datetime import datetime

import pytest

from cmqd_client import Client, connect
from cmqd_client.accounts import AccessKey
from cmqd_client.errors import InvalidArgument, KeyExists, KeyNotFound, LastKey, PermissionDenied
from cmqd_client.links.key_changes import MISSED, KeyChange
from cmqd_protocol import messages as wire
from support.client.local_server import LocalServer
from support.eventually import eventually

SECRET = "kept-by-a-program-0123456789"


def url_of(server: LocalServer, key: AccessKey, secret_key: str | None = None, *, direct: bool = True) -> str:
    address = (server.direct_url if direct else server.url).rpartition("@")[2]
    return f"cmq://{key.secret_id}:{secret_key or key.secret_key}@{address}"


def client_of(server: LocalServer, key: AccessKey, secret_key: str | None = None, *, direct: bool = True) -> Client:
    url = url_of(server, key, secret_key, direct=direct)
    return connect(url, patience=300, request_timeout=300, connect_timeout=300)


async def test_a_key_with_roles_does_what_they_say_on_the_names_that_match(server: LocalServer) -> None:
    admin = server.admin
    await admin.create_queue("billing")
    key = await admin.accounts.create_key(roles=["send"], names=["orders*"])

    async with client_of(server, key) as client:
        await client.queue("orders").send(b"x")
        with pytest.raises(PermissionDenied) as role:
            await client.queue("orders").receive(wait=0)
        with pytest.raises(PermissionDenied) as name:
            await client.queue("billing").send(b"x")

    assert (key.roles, key.names) == (("send",), ("orders*",))
    assert role.value.details["operation"] == "receive_messages"
    assert "role send" in role.value.text
    assert "needs role consume" in role.value.text
    assert (name.value.details["name"], name.value.details["names"]) == ("billing", ["orders*"])


async def test_a_single_text_is_one_role_and_one_pattern(server: LocalServer) -> None:
    key = await server.admin.accounts.create_key(roles="read", names="orders")

    assert (key.roles, key.names) == (("read",), ("orders",))


async def test_a_key_without_roles_has_all_but_gateway(server: LocalServer) -> None:
    key = await server.admin.accounts.create_key()
    named = await server.admin.accounts.create_key(names=["orders"])

    assert key.roles == named.roles == ("admin", "manage", "send", "consume", "read")
    assert (key.names, named.names) == (("*",), ("orders",))


async def test_roles_are_changed_for_open_clients_and_listed(server: LocalServer) -> None:
    accounts = server.admin.accounts
    key = await accounts.create_key(roles=["send"])
    async with client_of(server, key) as client:
        await client.queue("orders").send(b"x")
        await accounts.set_key_roles(key.secret_id, roles=["consume"], names=["orders"])
        with pytest.raises(PermissionDenied):
            await client.queue("orders").send(b"x")
        assert len(await client.queue("orders").receive(wait=0)) == 1

    [listed] = [each for each in await accounts.keys() if each.secret_id == key.secret_id]
    assert (listed.roles, listed.names, listed.secret_key) == (("consume",), ("orders",), None)
    await accounts.set_key_roles(key.secret_id)
    [listed] = [each for each in await accounts.keys() if each.secret_id == key.secret_id]
    assert "admin" in listed.roles


async def test_a_key_reads_its_own_roles_and_names_also_after_a_change(server: LocalServer) -> None:
    accounts = server.admin.accounts
    key = await accounts.create_key(roles=["read", "send"], names=["orders-*", "billing"])
    async with client_of(server, key) as client:
        before = await client.accounts.own_key()
        await accounts.set_key_roles(key.secret_id, roles=["gateway"])
        after = await client.accounts.own_key()
    unrestricted = await accounts.own_key()

    assert (before.secret_id, before.account, before.is_admin) == (key.secret_id, "admin", True)
    assert (before.roles, before.names) == (("send", "read"), ("orders-*", "billing"))
    assert (after.roles, after.names, after.connection_id) == (("gateway",), ("*",), before.connection_id)
    assert (unrestricted.roles, unrestricted.names) == (("admin", "manage", "send", "consume", "read"), ("*",))
    assert str(key.secret_key) not in repr(before)


async def test_refusals_are_typed(server: LocalServer) -> None:
    accounts = server.admin.accounts
    [first] = await accounts.keys()
    with pytest.raises(LastKey):
        await accounts.set_key_roles(first.secret_id, roles=["send"])
    with pytest.raises(InvalidArgument, match="not a role"):
        await accounts.create_key(roles=["root"])
    with pytest.raises(InvalidArgument, match="not a name pattern"):
        await accounts.create_key(names=["a b"])
    with pytest.raises(KeyNotFound):
        await accounts.set_key_roles("AKIDabsent", roles=["send"])


async def test_an_imported_pair_connects_and_its_secret_is_in_no_result_and_no_traceback(server: LocalServer) -> None:
    accounts = server.admin.accounts
    key = await accounts.import_key("AKIDold", SECRET, roles=["send"])
    await accounts.import_key("AKIDold", SECRET, roles=["send"])
    async with client_of(server, key, SECRET) as client:
        await client.queue("orders").send(b"x")
    with pytest.raises(KeyExists) as caught:
        await accounts.import_key("AKIDold", SECRET + "-other", roles=["send"])

    assert key.secret_key is None
    shown = "".join(traceback.format_exception(caught.value)) + repr(key) + repr(caught.value.details)
    assert SECRET not in shown


async def test_a_gateway_reads_secrets_and_hears_of_changes(server: LocalServer) -> None:
    accounts = server.admin.accounts
    gateway_key = await accounts.create_key(roles=["gateway"])
    caller = await accounts.create_key(roles=["send"])
    changes: list[KeyChange] = []
    async with client_of(server, gateway_key) as gateway:
        secret = await gateway.accounts.key_secret(caller.secret_id)
        assert (secret.secret_key, secret.account) == (caller.secret_key, "admin")
        assert str(caller.secret_key) not in repr(secret)
        with await gateway.accounts.watch_keys(changes.append) as watch:
            assert watch.request_id > 0
            await accounts.set_key_enabled(caller.secret_id, False)
            await eventually(lambda: KeyChange(caller.secret_id, "disabled") in changes)
            disabled = await gateway.accounts.key_secret(caller.secret_id)
            assert (disabled.secret_key, disabled.enabled) == (caller.secret_key, False)
            with pytest.raises(KeyNotFound):
                await gateway.accounts.key_secret("AKIDabsent")
        changes.clear()
        await accounts.set_key_enabled(caller.secret_id, True)
        await gateway.accounts.key_secret(caller.secret_id)

    assert changes == []


async def test_only_a_gateway_reads_secrets(server: LocalServer) -> None:
    [first] = await server.admin.accounts.keys()

    with pytest.raises(PermissionDenied, match="needs role gateway"):
        await server.admin.accounts.key_secret(first.secret_id)
    with pytest.raises(PermissionDenied, match="needs role gateway"):
        await server.admin.accounts.watch_keys(lambda change: None)


async def test_a_lost_connection_is_reported_and_the_next_one_watches_again(server: LocalServer) -> None:
    accounts = server.admin.accounts
    gateway_key = await accounts.create_key(roles=["gateway"])
    changes: list[KeyChange] = []
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(client_of(server, gateway_key, direct=False))
        await gateway.accounts.watch_keys(changes.append)
        await eventually(lambda: changes == [MISSED])
        server.link.connection.drop()
        # The end of the connection, and the watch of the next connection.
        await eventually(lambda: changes == [MISSED] * 3)
        made = await accounts.create_key()
        await eventually(lambda: changes[3:] == [KeyChange(made.secret_id, "created")])

    assert len(server.link.of(wire.WatchKeys)) == 3


async def test_the_audit_trail_is_read_in_pages(client: Client) -> None:
    await client.create_queue("audited", delay=5)
    await client.delete_queue("audited")

    page = await client.audit_entries(search="audited", limit=1)
    older = await client.audit_entries(search="audited", before=page.next)

    (deleted,), (created,) = page.entries, older.entries
    assert (deleted.operation, created.operation, created.changes) == ("delete_queue", "create_queue", "delay_ms=5000")
    assert (deleted.name, deleted.account, deleted.by_account) == ("audited", "admin", "admin")
    assert deleted.time >= created.time
    assert older.next is None
    newer = await client.audit_entries(after=created.entry_id)
    assert [entry.operation for entry in newer.entries] == ["delete_queue"]
    assert (await client.audit_entries(search="audited", until=created.time)).entries == []
    same = await client.audit_entries(search="audited", since=created.time, operation="create_queue")
    assert same.entries == [created]
    with pytest.raises(ValueError, match="names no zone"):
        await client.audit_entries(since=datetime(2026, 1, 1))
