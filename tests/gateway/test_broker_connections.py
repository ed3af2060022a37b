"""Connections to the broker: clients per key, opened once, closed when idle, bounded in number."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, cast

import msgspec
import pytest

from cmqd_client import Client, connect
from cmqd_client.address import parse_address
from cmqd_client.errors import ClientClosed, CmqError, ServerUnreachable
from cmqd_client.events import ClientState
from cmqd_gateway.broker import broker_connections
from cmqd_gateway.broker.broker_connections import (
    BrokerConnections,
    TooManyCheckedQueues,
    TooManyKeysInUse,
    TooManyPolls,
)
from cmqd_gateway.callers.key_secrets import KeySecret
from support.client.local_server import LocalServer
from support.eventually import eventually
from support.gateway.gateway_rig import RigClock


class Rig:
    def __init__(self, server: LocalServer, limit: int = 10) -> None:
        self.clock = RigClock()
        self.clock.hold()
        self.server = server
        self.clients: list[Client] = []
        self.patience = 300.0
        self.connections = BrokerConnections(self.make_client, limit, 60.0, self.clock)
        own = parse_address(server.url)
        self.own = KeySecret(own.secret_id, own.secret_key)

    def make_client(self, key: KeySecret) -> Client:
        own = parse_address(self.server.url)
        url = f"cmq://{key.secret_id}:{key.secret_key}@{own.host}:{own.port}"
        client = connect(url, patience=self.patience, request_timeout=300, connect_timeout=300, tracing=False)
        self.clients.append(client)
        return client

    async def another_key(self, account: str) -> KeySecret:
        made = await self.server.admin.accounts.create(account)
        assert made.secret_key is not None
        return KeySecret(made.secret_id, made.secret_key)

    async def poll(self, stack: AsyncExitStack, key: KeySecret) -> Client:
        """Begin a poll that ends with the stack."""
        return await stack.enter_async_context(self.connections.polling(key))

    async def use(self, key: KeySecret) -> Client:
        async with self.connections.client(key) as client:
            await client.queues()
        return client


@pytest.fixture
async def server() -> Any:
    async with LocalServer() as server:
        yield server


async def closed(client: Client) -> None:
    await eventually(lambda: client.state is ClientState.CLOSED)


async def test_requests_of_a_key_share_a_connection(server: LocalServer):
    rig = Rig(server)

    clients = await asyncio.gather(*(rig.use(rig.own) for _ in range(20)))

    assert len(set(clients)) == len(rig.clients) == len(rig.connections) == 1
    await rig.connections.close()


async def test_an_idle_client_is_closed_and_a_used_one_is_not(server: LocalServer):
    rig = Rig(server)
    other = await rig.another_key("shop")
    idle = await rig.use(rig.own)
    async with rig.connections.client(other) as used:
        rig.clock.advance(60)
        rig.connections.close_idle()
        await closed(idle)
        assert (await used.queues()).total == 0
        assert len(rig.connections) == 1
    rig.clock.advance(59)
    rig.connections.close_idle()
    assert len(rig.connections) == 1
    rig.clock.advance(1)
    rig.connections.close_idle()
    assert len(rig.connections) == 0
    await rig.connections.close()


async def test_the_client_that_was_idle_for_longest_makes_room(server: LocalServer):
    rig = Rig(server, limit=2)
    first, second = rig.own, await rig.another_key("shop")
    third = await rig.another_key("mill")
    old = await rig.use(first)
    rig.clock.advance(1)
    recent = await rig.use(second)

    await rig.use(third)

    await closed(old)
    assert recent.state is ClientState.CONNECTED
    async with rig.connections.client(second), rig.connections.client(third):
        with pytest.raises(TooManyKeysInUse):
            await rig.use(first)
    assert (await rig.use(first)).state is ClientState.CONNECTED
    await rig.connections.close()


async def test_a_key_with_another_secret_has_another_client(server: LocalServer):
    rig = Rig(server)
    async with rig.connections.client(rig.own) as former:
        with pytest.raises(CmqError):
            await rig.use(KeySecret(rig.own.secret_id, "another"))
        # The request that began with the former secret finishes.
        assert (await former.queues()).total == 1
    await closed(former)
    assert len(rig.connections) == 0
    assert await rig.use(rig.own) is not former
    await rig.connections.close()


async def test_a_late_use_of_a_former_secret_gets_the_client_of_the_new_secret(server: LocalServer):
    rig = Rig(server)
    former = KeySecret(rig.own.secret_id, "former", reading=3)
    new = msgspec.structs.replace(rig.own, reading=5)
    client = await rig.use(new)
    stack = AsyncExitStack()
    polling = await rig.poll(stack, new)

    for _ in range(2):
        assert await rig.use(former) is client
        assert await rig.poll(stack, former) is polling
        assert await rig.use(new) is client

    assert len(rig.clients) == 2
    await stack.aclose()
    await rig.connections.close()


async def test_a_secret_that_comes_back_replaces_the_secret_of_meanwhile(server: LocalServer):
    rig = Rig(server)
    first = await rig.use(msgspec.structs.replace(rig.own, reading=1))
    with pytest.raises(CmqError):
        await rig.use(KeySecret(rig.own.secret_id, "meanwhile", reading=2))
    await closed(first)

    client = await rig.use(msgspec.structs.replace(rig.own, reading=3))

    assert await rig.use(msgspec.structs.replace(rig.own, reading=5)) is client
    # Read after the client was opened, and before its secret was confirmed.
    assert await rig.use(KeySecret(rig.own.secret_id, "meanwhile", reading=4)) is client
    # A key of a file has no reading, and is used as it is.
    with pytest.raises(CmqError):
        await rig.use(KeySecret(rig.own.secret_id, "of a file"))
    await rig.connections.close()


async def test_a_failed_opening_fails_all_that_wait_and_is_tried_again(server: LocalServer):
    rig = Rig(server)
    rig.patience = 0.05
    await server.link.stop()

    results = await asyncio.gather(*(rig.use(rig.own) for _ in range(5)), return_exceptions=True)

    assert all(isinstance(result, ServerUnreachable) for result in results)
    assert len(rig.clients) == 1
    assert len(rig.connections) == 0
    await server.link.start()
    rig.patience = 300.0
    await rig.use(rig.own)
    await rig.connections.close()


async def test_a_request_that_is_cancelled_while_the_client_opens_leaves_the_others(server: LocalServer):
    rig = Rig(server)
    first = asyncio.create_task(rig.use(rig.own))
    second = asyncio.create_task(rig.use(rig.own))
    await asyncio.sleep(0)
    first.cancel()

    assert (await second).state is ClientState.CONNECTED
    await rig.connections.close()


# ---------------------------------------------------------------- polls


@pytest.fixture
async def narrow_server() -> Any:
    """A broker that refuses the fifth unanswered request in a connection."""
    async with LocalServer(max_requests_per_connection=4) as server:
        yield server


async def test_polls_use_more_clients_as_they_grow_in_number_and_leave_the_requests_client_alone(
    narrow_server: LocalServer,
):
    rig = Rig(narrow_server, limit=20)
    shared = await rig.use(rig.own)
    async with AsyncExitStack() as stack:
        # At once: the limit of the broker is not known before the first of the clients is open.
        clients = await asyncio.gather(*(rig.poll(stack, rig.own) for _ in range(8)))

        assert sorted(Counter(clients).values()) == [2, 3, 3]
        assert shared not in clients
        assert await rig.use(rig.own) is shared
        assert (len(rig.connections), rig.connections.keys) == (4, 1)
    # The next polls gather in the first client, so the others become idle.
    async with rig.connections.polling(rig.own) as first, rig.connections.polling(rig.own) as second:
        assert first is second
        rig.clock.advance(61)
        rig.connections.close_idle()
        assert len(rig.connections) == 1
    await rig.connections.close()


async def test_polls_have_at_most_half_of_the_connections_and_refuse_no_other_request(narrow_server: LocalServer):
    rig = Rig(narrow_server, limit=4)
    other = await rig.another_key("shop")
    async with AsyncExitStack() as stack:
        for _ in range(6):
            await rig.poll(stack, rig.own)
        for key in (rig.own, other):
            with pytest.raises(TooManyPolls):
                await rig.poll(stack, key)
            await rig.use(key)
        assert len(rig.connections) == 4
    # The idle clients of a key make room for the polls of another key.
    async with rig.connections.polling(other):
        assert len(rig.connections) == 4
    await rig.connections.close()


async def test_a_poll_finds_no_room_if_all_connections_are_in_use_by_requests(server: LocalServer):
    rig = Rig(server, limit=2)
    other = await rig.another_key("shop")
    async with rig.connections.client(rig.own), rig.connections.client(other):
        with pytest.raises(TooManyPolls):
            await rig.poll(AsyncExitStack(), rig.own)
    async with rig.connections.polling(rig.own):
        assert len(rig.connections) == 2
    await rig.connections.close()


async def test_the_polls_of_a_former_secret_end_over_their_client_and_new_polls_have_another(server: LocalServer):
    rig = Rig(server)
    async with rig.connections.polling(rig.own) as former:
        with pytest.raises(CmqError):
            await rig.poll(AsyncExitStack(), KeySecret(rig.own.secret_id, "another"))
        async with rig.connections.polling(rig.own) as later:
            assert later is not former
        assert (await former.queues()).total == 1
    await closed(former)
    assert later.state is ClientState.CONNECTED
    await rig.connections.close()


async def test_clients_that_were_replaced_count_while_requests_use_them(server: LocalServer):
    rig = Rig(server, limit=2)
    other = await rig.another_key("shop")
    changed = KeySecret(rig.own.secret_id, "another")
    async with rig.connections.client(rig.own), rig.connections.client(other):
        with pytest.raises(TooManyKeysInUse):
            await rig.use(changed)
        assert len(rig.connections) == len(rig.clients) == 2
    await rig.connections.close()


# ---------------------------------------------------------------- checks


async def test_checks_have_clients_of_their_own_which_stay_as_long_as_queues_are_registered(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(broker_connections, "MAX_CHECKED_QUEUES_PER_CLIENT", 2)
    rig = Rig(server, limit=12)
    shared = await rig.use(rig.own)
    async with AsyncExitStack() as stack:
        polling = await rig.poll(stack, rig.own)
        clients = [await stack.enter_async_context(rig.connections.checking(rig.own)) for _ in range(5)]

        assert sorted(Counter(clients).values()) == [1, 2, 2]
        assert not {shared, polling} & set(clients)
        assert (rig.connections.for_checks, rig.connections.for_polls, len(rig.connections)) == (3, 1, 5)
        rig.clock.advance(61)
        rig.connections.close_idle()
        assert rig.connections.for_checks == 3
    rig.clock.advance(61)
    rig.connections.close_idle()
    assert len(rig.connections) == 0
    await rig.connections.close()


async def test_checks_have_at_most_a_quarter_of_the_connections_and_refuse_no_other_request(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(broker_connections, "MAX_CHECKED_QUEUES_PER_CLIENT", 1)
    rig = Rig(server, limit=7)
    other = await rig.another_key("shop")
    async with rig.connections.checking(rig.own):
        for key in (rig.own, other):
            with pytest.raises(TooManyCheckedQueues):
                async with rig.connections.checking(key):
                    pass
            await rig.use(key)
            await rig.poll(AsyncExitStack(), key)
    async with rig.connections.checking(other):
        # The idle client of the first key made room.
        assert rig.connections.for_checks == 1
    await rig.connections.close()


async def test_the_end_of_the_polls_leaves_the_checks(server: LocalServer):
    rig = Rig(server)
    async with rig.connections.checking(rig.own) as client:
        await rig.connections.end_polls()
        assert client.state is ClientState.CONNECTED
        await rig.connections.close()
        await closed(client)
    with pytest.raises(ClientClosed):
        async with rig.connections.checking(rig.own):
            pass


# ---------------------------------------------------------------- the end


async def test_polls_end_before_other_requests(server: LocalServer):
    rig = Rig(server)
    async with rig.connections.client(rig.own) as shared:
        async with rig.connections.polling(rig.own) as client:
            poll = asyncio.create_task(client.queue("orders").receive(wait=30))
            while not await server.status("waiting_receives"):
                pass
            await rig.connections.end_polls()
            with pytest.raises(ClientClosed):
                await poll
        with pytest.raises(ClientClosed):
            await rig.poll(AsyncExitStack(), rig.own)
        assert (await shared.queues()).total == 1
    other = await rig.another_key("shop")
    await rig.use(other)
    await rig.connections.close()


async def test_after_the_end_no_client_is_opened(server: LocalServer):
    rig = Rig(server)
    await rig.use(rig.own)
    await rig.connections.close()

    with pytest.raises(ClientClosed):
        await rig.use(rig.own)

    assert len(rig.clients) == 1
    assert len(rig.connections) == 0


async def test_requests_that_wait_for_a_client_get_an_error_at_the_end_and_are_not_cancelled(server: LocalServer):
    rig = Rig(server)
    await server.link.stop()
    waiting = asyncio.create_task(rig.use(rig.own))
    polling = asyncio.create_task(rig.poll(AsyncExitStack(), rig.own))
    await asyncio.sleep(0)

    await rig.connections.close()

    for task in (waiting, polling):
        with pytest.raises(ClientClosed):
            await task


# ---------------------------------------------------------------- all at once


class FakeClient:
    """A client without a broker. The opening takes some turns of the loop, and may fail."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.max_waiting_requests: int | None = None
        self.is_open = self.is_closed = False

    async def open(self) -> None:
        for _ in range(self._draw.randrange(4)):
            await asyncio.sleep(0)
        if self._draw.random() < 0.1:
            raise ServerUnreachable("no broker")
        self.is_open, self.max_waiting_requests = True, 8

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("seed", range(4))
async def test_the_limits_hold_and_no_client_is_closed_in_use_or_forgotten(seed: int, monkeypatch: pytest.MonkeyPatch):
    draw = random.Random(seed)
    clock = RigClock()
    clock.hold()
    made: list[FakeClient] = []

    def make(key: KeySecret) -> Any:
        made.append(FakeClient(draw))
        return made[-1]

    monkeypatch.setattr(broker_connections, "MAX_CHECKED_QUEUES_PER_CLIENT", 4)
    limit = 9
    connections = BrokerConnections(make, limit, 60.0, clock)
    outcomes: Counter[str] = Counter()

    async def request(key: KeySecret) -> None:
        kinds = (connections.polling, connections.client, connections.checking)
        try:
            async with draw.choices(kinds, (6, 4, 1))[0](key) as client:
                used = cast("FakeClient", client)
                for _ in range(draw.randrange(30)):
                    assert used.is_open
                    assert not used.is_closed
                    await asyncio.sleep(0)
                outcomes["served"] += 1
        except (TooManyKeysInUse, TooManyPolls, TooManyCheckedQueues, ServerUnreachable) as refusal:
            outcomes[type(refusal).__name__] += 1

    requests: list[asyncio.Task[None]] = []
    for _ in range(3_000):
        key = KeySecret(f"id-{draw.randrange(8)}", "changed" if draw.random() < 0.05 else "secret")
        requests.append(asyncio.create_task(request(key)))
        if draw.random() < 0.1:
            draw.choice(requests[-10:]).cancel()
        if draw.random() < 0.02:
            clock.advance(61)
            connections.close_idle()
        if draw.random() < 0.5:
            await asyncio.sleep(0)
        assert len(connections) <= limit
        assert connections.for_polls <= limit // 2
        assert connections.for_checks <= limit // 4
    for result in await asyncio.gather(*requests, return_exceptions=True):
        assert result is None or isinstance(result, asyncio.CancelledError), result
    clock.advance(61)
    connections.close_idle()
    assert len(connections) == connections.keys == 0
    await connections.close()

    assert all(client.is_closed for client in made)
    refusals = {"TooManyKeysInUse", "TooManyPolls", "TooManyCheckedQueues", "ServerUnreachable"}
    assert set(outcomes) == {"served", *refusals}
