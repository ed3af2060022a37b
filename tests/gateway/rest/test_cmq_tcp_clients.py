"""The list of the clients of CMQ's TCP protocol: of an account, and of all accounts for its administrators."""

from datetime import timedelta
from typing import Any

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp import commands
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig
from support.gateway.rest_calls import RestCalls
from support.gateway.tcp_program import TcpProgram


async def in_account(rest: RestCalls, account: str, *roles: str, names: list[str] | None = None) -> RestCalls:
    """Calls with a key of a new account, or with a further key of ``admin``."""
    if account != "admin":
        await rest.ok("create_account", account=account)
    body: dict[str, Any] = {"roles": list(roles)} | ({} if names is None else {"names": names})
    made = await rest.ok("create_key", query={"account": account}, body=body)
    # The broker tells the gateway the account of a key; the table of the rig is filled by hand.
    key = KeySecret(made.key.secret_id, made.secret_key, account=account)
    rest.rig.table.keys[key.secret_id] = key
    return RestCalls(rest.rig, key)


async def client_ids(rest: RestCalls, **query: Any) -> list[str]:
    return [client.client_id for client in (await rest.ok("list_cmq_tcp_clients", query=query)).clients]


async def test_clients_have_key_client_id_and_age() -> None:
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0") as rig, TcpProgram(rig) as program, TcpProgram(rig) as stranger:
        rest = await in_account(RestCalls(rig), "admin", "manage", "consume")
        # A connection without log-in is no client.
        stranger.send(commands.HEARTBEAT)
        await program.log_in(rest.key, "10.0.0.7@till")
        program.send(commands.RECEIVE, queueName="orders", pollingWaitSeconds=30)
        rig.clock.advance(90)
        (connection,) = [each for each in rig.gateway.cmq_tcp or () if each.key is not None]
        await eventually(lambda: len(connection.requests) == 1)

        page = await rest.ok("list_cmq_tcp_clients")

        (client,) = page.clients
        assert (client.account, client.secret_id, client.client_id) == ("admin", rest.key.secret_id, "10.0.0.7@till")
        assert (client.peer, client.requests) == ("127.0.0.1", 1)
        assert page.time - client.since >= timedelta(seconds=90)
        assert (page.total, page.is_served, page.next_offset) == (1, True, None)


async def test_an_account_sees_its_own_clients_and_administrators_see_all() -> None:
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0") as rig, TcpProgram(rig) as first, TcpProgram(rig) as second:
        root = RestCalls(rig)
        shop = await in_account(root, "shop", "manage", "send")
        bank = await in_account(root, "bank", "manage", "send")
        narrow = await in_account(root, "admin", "manage", names=["a-*"])
        await first.log_in(shop.key, "of-shop")
        await second.log_in(bank.key, "of-bank")

        assert await client_ids(shop) == ["of-shop"]
        assert await client_ids(bank) == ["of-bank"]
        assert await client_ids(narrow) == []
        assert await client_ids(root) == ["of-shop", "of-bank"]
        assert await client_ids(root, search="SHOP") == ["of-shop"]
        assert await client_ids(root, search=bank.key.secret_id) == ["of-bank"]
        page = await root.ok("list_cmq_tcp_clients", query={"limit": 1})
        assert ([client.client_id for client in page.clients], page.total, page.next_offset) == (["of-shop"], 2, 1)
        assert await client_ids(root, offset=page.next_offset) == ["of-bank"]
        assert await client_ids(bank, search="of-shop") == []
