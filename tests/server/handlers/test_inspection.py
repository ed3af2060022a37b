"""Connections, waiting receives and settings, as operators see them, by the whole server."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cmqd.server.handlers.inspection import EXAMINED_A_SLICE, settings_shown
from cmqd.server.process import broker_reload as reload
from cmqd.settings import SETTINGS, Settings, load
from cmqd_protocol import messages as wire
from cmqd_protocol.operations import requests_of
from cmqd_types.actors import Actor, StatedClient
from cmqd_types.inspection import CONNECTION_SORTS, ORIGINS, ConnectionInfo
from support.cases import naming
from support.server.server_rig import RigClient, ServerRig, a_queue, beat, code_of


async def a_client_of(rig: ServerRig, admin: RigClient, account: str, **named: Any) -> RigClient:
    created = await admin.ask(wire.CreateAccount, account)
    assert isinstance(created, wire.KeyList)
    return await rig.client(rig.accounts.find_key(created.keys[0].secret_id), **named)


async def connections(client: RigClient, **fields: Any) -> list[ConnectionInfo]:
    return (await client.expect(wire.ConnectionList, wire.ListConnections, **fields)).connections


def wait_for_messages(client: RigClient, queue: str, wait_ms: int = 30_000, most: int = 1) -> int:
    return client.begin(wire.ReceiveMessages(client.next_id(), queue, most, wait_ms))


async def test_a_connection_is_listed_with_its_key_address_software_and_figures(rig: ServerRig) -> None:
    admin = await rig.client()
    shop = await a_client_of(rig, admin, "shop", product="till/2")
    shop.transport.extra["peername"] = ("2001:db8::7", 40312)
    await a_queue(shop)
    await a_queue(shop, "pay", transactional=True)
    since_ms = (await connections(shop))[0].since_ms
    rig.clock.advance(5_000)
    beat(rig, 5_000)
    await shop.expect(wire.Done, wire.RegisterChecker, "pay")
    await shop.send("jobs", b"x" * 4_000)
    wait_for_messages(shop, "pay")
    await shop.settle()
    assert shop.opened is not None

    (info,) = await connections(shop)

    assert (info.connection_id, info.account) == (shop.opened.connection_id, "shop")
    assert (info.secret_id, info.peer, info.product) == (shop.connection.secret_id, "[2001:db8::7]:40312", "till/2")
    assert (info.is_tls, info.checked_queues, info.waiting, info.unread_bytes) == (False, 1, 1, 0)
    # Two queues, the list before, the checker, the send, the receive, and this list.
    assert (info.requests, info.unanswered) == (7, 2)
    assert (info.since_ms, info.last_request_ms) == (since_ms, since_ms + 5_000)
    assert info.bytes_in > 4_000 > info.bytes_out > 0


async def test_a_connection_is_an_actor_with_the_name_and_host_that_lists_show(rig: ServerRig) -> None:
    admin = await rig.client(name="cmq")
    shop = rig.connect(rig.accounts.first_key("admin"), name="checkout 3.2")
    shop.transport.extra["peername"] = ("2001:db8::7", 40312)
    await shop.settle()
    await a_queue(shop)
    stated = StatedClient("till", "192.0.2.9")
    shop.begin(wire.ReceiveMessages(shop.next_id(), "jobs", 1, 30_000, on_behalf_of=stated))
    wait_for_messages(shop, "jobs")
    await shop.settle()

    assert shop.connection.actor == Actor("admin", shop.connection.secret_id, "checkout 3.2", "2001:db8::7")
    assert [info.name for info in await connections(admin)] == ["cmq", "checkout 3.2"]
    assert [info.name for info in await connections(admin, search="CHECKOUT")] == ["checkout 3.2"]
    waiting = await admin.expect(wire.WaitingReceiveList, wire.ListWaitingReceives)
    assert [info.name for info in waiting.receives] == ["till", "checkout 3.2"]


async def test_consumers_are_listed_for_the_role_manage_with_hosts_for_every_name_alone(rig: ServerRig) -> None:
    admin = await rig.client(name="cmq")
    shop = await a_client_of(rig, admin, "shop", name="till")
    await a_queue(shop)
    await shop.send("jobs", b"x")
    await shop.expect(wire.MessagesReceived, wire.ReceiveMessages, "jobs", 1, 0)
    manager = await rig.client(await rig.accounts.create_role_key("shop", None, ["manage"], ["jo*"], 1))
    other = await rig.client(await rig.accounts.create_role_key("shop", None, ["manage"], ["pay"], 1))
    reader = await rig.client(await rig.accounts.create_role_key("shop", None, ["read"], ["*"], 1))

    for client in (admin, shop):
        page = await client.expect(wire.ConsumerList, wire.ListConsumers)
        assert [(info.account, info.queue, info.name) for info in page.consumers] == [("shop", "jobs", "till")]
        assert (page.total, page.consumers[0].host, page.consumers[0].in_flight) == (1, shop.connection.actor.host, 1)
    restricted = await manager.expect(wire.ConsumerList, wire.ListConsumers)
    assert [(info.queue, info.host) for info in restricted.consumers] == [("jobs", "(hidden)")]
    assert (await other.expect(wire.ConsumerList, wire.ListConsumers)).total == 0
    assert code_of(await reader.ask(wire.ListConsumers)) == "permission_denied"
    assert code_of(await shop.ask(wire.ListConsumers, "", "", 0, 1001)) == "invalid_argument"


async def test_equal_clients_share_an_actor(rig: ServerRig) -> None:
    first, second, other = [await rig.client(name=name) for name in ("worker", "worker", "other")]

    assert first.connection.actor is second.connection.actor
    assert first.connection.actor != other.connection.actor


async def test_an_account_sees_its_own_connections_and_admin_all_that_have_authenticated(rig: ServerRig) -> None:
    admin = await rig.client()
    shop = await a_client_of(rig, admin, "shop")
    rig.connect()

    own = await shop.expect(wire.ConnectionList, wire.ListConnections)
    everything = await admin.expect(wire.ConnectionList, wire.ListConnections)

    assert ([info.account for info in own.connections], own.total) == (["shop"], 1)
    assert ([info.account for info in everything.connections], everything.total) == (["admin", "shop"], 2)


async def test_lists_are_for_the_role_manage_whose_change_holds_at_once(rig: ServerRig) -> None:
    key = await rig.accounts.create_role_key("admin", None, ["read"], ["*"], 1)
    client = await rig.client(key)
    for request in (wire.ListConnections, wire.ListWaitingReceives, wire.GetSettings):
        assert code_of(await client.ask(request)) == "permission_denied"
    manager = await rig.client(await rig.accounts.create_role_key("admin", None, ["manage"], ["orders"], 1))
    assert len(await connections(manager)) == 2


async def test_keys_of_admin_with_patterns_see_no_other_account_and_no_settings(rig: ServerRig) -> None:
    admin = await rig.client()
    shop = await a_client_of(rig, admin, "shop")
    await a_queue(shop, "orders")
    wait_for_messages(shop, "orders")
    await shop.settle()
    manager = await rig.client(await rig.accounts.create_role_key("admin", None, ["manage"], ["orders"], 1))

    assert {info.account for info in await connections(manager)} == {"admin"}
    assert (await manager.expect(wire.WaitingReceiveList, wire.ListWaitingReceives)).total == 0
    assert code_of(await manager.ask(wire.GetSettings)) == "permission_denied"
    assert (await admin.expect(wire.WaitingReceiveList, wire.ListWaitingReceives)).total == 1


async def test_the_search_compares_account_key_address_and_product(rig: ServerRig) -> None:
    admin = await rig.client(product="cmq")
    shop = await a_client_of(rig, admin, "Shop", product="cmqd-gateway")
    shop.transport.extra["peername"] = ("192.0.2.77", 4711)

    for word in ("shop", "SHOP", "gateway", "0.2.77:47", shop.connection.secret_id[3:].lower()):
        page = await admin.expect(wire.ConnectionList, wire.ListConnections, word)
        assert ([info.account for info in page.connections], page.total) == (["Shop"], 1), word
    assert await connections(admin, search="nothing like it") == []


async def test_every_order_and_every_page_over_several_slices(rig: ServerRig) -> None:
    """Pages of a sorted list, joined, are the list sorted in one step."""
    admin = await rig.client()
    count = EXAMINED_A_SLICE + 20
    for number in range(count):
        client = await rig.client(product=f"p{number % 3}")
        # The asking connection changes with each request: the search leaves it out.
        client.transport.extra["peername"] = ("192.0.2.1", number)
        if number % 50 == 0:
            rig.clock.advance(200)
            beat(rig, 200)
        if number % 4 == 0:
            await client.expect(wire.OwnKey, wire.GetOwnKey)

    for sort, descending in product(CONNECTION_SORTS, (False, True)):
        with naming((sort, descending)):
            order = ("192.0", sort, descending)
            pages: list[ConnectionInfo] = []
            while len(pages) < count:
                page = await admin.expect(wire.ConnectionList, wire.ListConnections, *order, len(pages), 90)
                assert (page.total, bool(page.connections)) == (count, True)
                pages += page.connections

            key = f"{sort}_ms" if sort in ("since", "last_request") else sort
            ranks = [(getattr(info, key), info.connection_id) for info in pages]
            assert ranks == sorted(ranks, reverse=descending)
            assert len({info.connection_id for info in pages}) == count


@pytest.mark.parametrize(
    ("request_type", "fields", "field"),
    [
        (wire.ListConnections, {"sort": "colour"}, "sort"),
        (wire.ListConnections, {"search": "ß" * 129}, "search"),
        (wire.ListWaitingReceives, {"search": "ß" * 129}, "search"),
        (wire.ListConnections, {"limit": 1_001}, "limit"),
        (wire.ListConnections, {"limit": 0}, "limit"),
        (wire.ListConnections, {"offset": -1}, "offset"),
        (wire.ListWaitingReceives, {"limit": 1_001}, "limit"),
        (wire.ListWaitingReceives, {"offset": -1}, "offset"),
    ],
)
async def test_wrong_pages_are_refused(
    rig: ServerRig, request_type: Callable[..., wire.Request], fields: dict[str, Any], field: str
) -> None:
    refused = await (await rig.client()).expect(wire.Error, request_type, **fields)

    assert (refused.name, (refused.details or {})["field"]) == ("invalid_argument", field)


async def test_a_connection_that_closes_between_two_slices_is_left_out(rig: ServerRig) -> None:
    admin = await rig.client()
    clients = [await rig.client() for _ in range(EXAMINED_A_SLICE + 1)]
    request_id = admin.begin(wire.ListConnections(admin.next_id(), limit=1_000))
    # The work has been added, and its first slice comes in a later turn of the loop.
    clients[0].transport.lose()
    await admin.settle()

    page = admin.replies.pop(request_id)

    assert isinstance(page, wire.ConnectionList)
    assert len(page.connections) == EXAMINED_A_SLICE + 1
    assert clients[0].connection.connection_id not in {info.connection_id for info in page.connections}


async def test_a_list_for_a_client_that_left_is_dropped(rig: ServerRig) -> None:
    admin = await rig.client()
    for request in (wire.ListConnections, wire.ListWaitingReceives):
        leaving = await rig.client()
        wait_for_messages(leaving, "absent")
        leaving.begin(request(leaving.next_id()))
        leaving.transport.lose()
    await admin.settle()

    assert len(await connections(admin)) == 1
    rig.check()


async def test_waiting_receives_are_listed_in_order_of_arrival_with_their_times(rig: ServerRig) -> None:
    admin = await rig.client()
    shop = await a_client_of(rig, admin, "shop", product="till")
    await a_queue(admin, "orders", polling_wait_ms=20_000)
    await a_queue(shop)
    wait_for_messages(shop, "jobs", 10_000, 16)
    await shop.settle()
    rig.clock.advance(1_000)
    admin.begin(wire.ReceiveMessages(admin.next_id(), "orders", 1))
    await admin.settle()

    page = await admin.expect(wire.WaitingReceiveList, wire.ListWaitingReceives)
    own = await shop.expect(wire.WaitingReceiveList, wire.ListWaitingReceives)

    first, second = page.receives
    assert page.total == 2
    assert (first.account, first.queue, first.max_messages, first.product) == ("shop", "jobs", 16, "till")
    assert (first.connection_id, first.secret_id) == (shop.connection.connection_id, shop.connection.secret_id)
    assert (first.until_ms - first.since_ms, second.until_ms - second.since_ms) == (10_000, 20_000)
    assert (second.account, second.queue, second.since_ms - first.since_ms) == ("admin", "orders", 1_000)
    assert own.receives == [first]
    await shop.send("jobs", b"x")
    assert (await shop.expect(wire.WaitingReceiveList, wire.ListWaitingReceives)).receives == []


async def test_waiting_receives_are_searched_paged_and_limited_to_a_connection_and_to_the_names_of_a_key(
    rig: ServerRig,
) -> None:
    admin, other = await rig.client(), await rig.client()
    for name in ("orders-1", "orders-2", "parcels"):
        await a_queue(admin, name)
        wait_for_messages(admin, name)
        wait_for_messages(other, name)
    await admin.settle()
    await other.settle()

    async def queues(client: RigClient, *fields: Any) -> tuple[list[str], int]:
        page = await client.expect(wire.WaitingReceiveList, wire.ListWaitingReceives, *fields)
        return [receive.queue for receive in page.receives], page.total

    assert await queues(admin, "PARC") == (["parcels"] * 2, 2)
    assert await queues(admin, "", other.connection.connection_id) == (["orders-1", "orders-2", "parcels"], 3)
    assert await queues(admin, "orders", 0, 1, 2) == (["orders-1", "orders-2"], 4)
    assert await queues(admin, "", 999) == ([], 0)
    manager = await rig.client(await rig.accounts.create_role_key("admin", None, ["manage"], ["orders-*"], 1))
    assert await queues(manager) == (["orders-1"] * 2 + ["orders-2"] * 2, 4)


async def test_peeks_that_wait_for_the_log_are_no_waiting_receives(rig: ServerRig) -> None:
    admin = await rig.client()
    await a_queue(admin)
    await admin.expect(wire.WaitingReceiveList, wire.ListWaitingReceives)
    wait_for_messages(admin, "jobs")
    await admin.settle()

    (info,) = await connections(admin)

    assert info.waiting == 1
    assert (await admin.expect(wire.WaitingReceiveList, wire.ListWaitingReceives)).total == 1


async def test_the_lists_and_settings_are_answered_while_the_disk_hangs(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "jobs", [b"x"]))

    for request in requests_of(lambda operation: not operation.needs_storage):
        assert not isinstance(await client.ask(request), wire.Error), request
    rig.log.let_go()


async def test_requests_that_are_put_back_count_once(rig: ServerRig) -> None:
    """A request behind a list that is made in slices is dispatched twice."""
    key = await rig.accounts.create_role_key("admin", None, ["read", "manage"], ["q*" * 12], 1)
    admin = await rig.client()
    for number in range(1_000):
        admin.begin(wire.CreateQueue(admin.next_id(), f"q{number}q", {}))
    await admin.settle()
    client = await rig.client(key)
    client.begin(wire.ListQueues(client.next_id()))
    client.begin(wire.GetServerStatus(client.next_id()))
    client.begin(wire.GetServerStatus(client.next_id()))
    await client.settle()

    [info] = [info for info in await connections(client) if info.connection_id == client.connection.connection_id]

    assert info.requests == 4


async def test_an_idle_connection_has_no_table_of_its_own_for_the_lists(rig: ServerRig) -> None:
    """Ten thousand idle connections stay ten thousand small objects: equal texts and times are shared."""
    first, second = [await rig.client(product=f"{'worker'}/1") for _ in range(2)]

    assert first.connection.product is second.connection.product
    assert first.connection._since_ms is second.connection._since_ms  # pyright: ignore[reportPrivateUsage]
    for number in range(200):
        await rig.client(product=f"made up {number}")
    shared: Any = first.connection._shared  # pyright: ignore[reportPrivateUsage]
    assert len(shared.products) == 100


# ---------------------------------------------------------------------- settings


async def test_settings_come_with_default_origin_and_meaning(tmp_path: Path) -> None:
    file = tmp_path / "cmqd.toml"
    file.write_text("region = 'north'\n[limits]\nmax_connections = 5\n")
    settings = load(
        file=file,
        environment={"CMQD_MAX_CONNECTIONS": "6", "CMQD_LOG_LEVEL": "debug", "CMQD_TLS_KEY": "key.pem"},
        flags={"max_connections": "7", "tls_certificate": "chain.pem"},
    )

    shown = {setting.name: setting for setting in settings_shown(settings)}

    assert list(shown) == list(SETTINGS)
    assert (shown["region"].value, shown["region"].default) == ("north", "local")
    assert (shown["region"].origin, shown["region"].place) == ("file", str(file))
    assert (shown["max_connections"].value, shown["max_connections"].place) == (7, "--max-connections")
    assert (shown["max_connections"].origin, shown["max_connections"].section) == ("flag", "limits")
    assert (shown["log_level"].origin, shown["log_level"].place) == ("environment", "CMQD_LOG_LEVEL")
    assert (shown["listen"].origin, shown["listen"].place, shown["listen"].value) == ("default", "", "127.0.0.1:5680")
    assert shown["heartbeat_ms"].meaning == SETTINGS["heartbeat_ms"].text
    assert shown["log_level"].allowed == "debug or info or warning or error"
    assert {setting.origin for setting in shown.values()} <= set(ORIGINS)


async def test_a_value_given_by_a_program_says_so(tmp_path: Path) -> None:
    shown = {setting.name: setting for setting in settings_shown(Settings(data=tmp_path, region="local"))}

    assert (shown["data"].origin, shown["region"].origin) == ("program", "default")


async def test_settings_that_a_reload_takes_bring_their_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[object] = []
    monkeypatch.setattr(reload, "set_log_level", levels.append)
    started = load(environment={}, flags={"region": "north"})
    read = load(environment={"CMQD_LOG_LEVEL": "error", "CMQD_REGION": "south"})
    reloading = reload.Reload(started, lambda: read)

    await reloading.run(None)

    shown = {setting.name: setting for setting in settings_shown(reloading.in_force)}
    assert (shown["log_level"].value, shown["log_level"].place) == ("error", "CMQD_LOG_LEVEL")
    assert levels == ["error"]
    assert (shown["region"].value, shown["region"].place) == ("north", "--region")


async def test_the_settings_in_force_are_for_admin_alone(rig: ServerRig) -> None:
    admin = await rig.client()
    shop = await a_client_of(rig, admin, "shop")

    listed = await admin.expect(wire.SettingList, wire.GetSettings)

    assert {setting.name: setting.value for setting in listed.settings} == rig.server.settings.as_table()
    assert code_of(await shop.ask(wire.GetSettings)) == "permission_denied"


async def test_no_file_that_a_setting_names_is_shown(rig: ServerRig, tmp_path: Path) -> None:
    """Keys stand in files, and a setting has the path alone."""
    client = await rig.client()
    secret = rig.accounts.first_key("admin").secret_key

    listed = await client.expect(wire.SettingList, wire.GetSettings)

    assert secret not in repr(listed)
    assert not [name for name in SETTINGS if "secret" in name or "password" in name or "token" in name]
