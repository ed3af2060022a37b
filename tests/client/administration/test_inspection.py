"""Connections, waiting receives and settings by the client against a broker."""

import asyncio
from datetime import timedelta

import pytest

from cmqd_client import Client, connect
from cmqd_client.errors import InvalidArgument, PermissionDenied
from support.client.local_server import LocalServer


async def test_connections_are_listed_with_the_product_of_each_client(server: LocalServer, client: Client) -> None:
    await client.status()
    async with connect(server.direct_url, product="till") as till:
        page = await client.connections(search="TILL")
        own = await till.accounts.own_key()

    (info,) = page
    assert (info.connection_id, info.secret_id, info.account) == (own.connection_id, own.secret_id, "admin")
    assert (info.product, info.tls, info.peer.partition(":")[0], info.requests) == ("till", False, "127.0.0.1", 0)
    assert (page.total, len(page), info.since) == (1, 1, info.last_request)
    assert info.since <= page.time


async def test_an_order_that_the_server_does_not_know_is_refused(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="is no order of connections; the orders are since"):
        await client.connections(sort="colour")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_waiting_receives_are_listed_with_their_times(client: Client) -> None:
    await client.create_queue("jobs")
    receiving = asyncio.create_task(client.queue("jobs").receive(max_messages=3, wait=25))
    while not (page := await client.waiting_receives()).receives:
        assert not receiving.done()

    (receive,) = page

    assert (receive.queue, receive.max_messages, receive.until - receive.since) == ("jobs", 3, timedelta(seconds=25))
    assert (page.total, len(page)) == (1, 1)
    assert (await client.waiting_receives(connection_id=receive.connection_id + 1)).receives == []
    await client.queue("jobs").send(b"x")
    assert len(await receiving) == 1
    assert (await client.waiting_receives()).total == 0


async def test_settings_are_listed_for_admin(server: LocalServer, client: Client) -> None:
    settings = {setting.name: setting for setting in await client.settings()}

    assert (settings["data"].origin, settings["heartbeat_ms"].origin) == ("program", "default")
    assert (settings["heartbeat_ms"].value, settings["heartbeat_ms"].default) == (30_000, 30_000)
    key = await server.admin.accounts.create("shop")
    address = server.direct_url.rpartition("@")[2]
    async with connect(f"cmq://{key.secret_id}:{key.secret_key}@{address}") as shop:
        with pytest.raises(PermissionDenied, match="read the settings"):
            await shop.settings()
