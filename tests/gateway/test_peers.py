"""A gateway follows its broker's log to another broker, or says that it cannot serve."""

import asyncio
from typing import Any, cast

import pytest

from cmqd_client.address import Address, parse_address
from cmqd_client.errors import (
    CmqError,
    ConnectionLost,
    OutcomeUnknown,
    PermissionDenied,
    RequestTimeout,
    ServerUnreachable,
)
from cmqd_client.events import Connected
from cmqd_gateway.broker.broker_keys import STALLED_MS, BrokerKeys
from cmqd_gateway.broker.peers import Peers
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.monitoring.readiness import Readiness
from cmqd_gateway.process.command import client_of
from cmqd_gateway.process.gateway_reload import Reload
from cmqd_gateway.process.gateway_settings import Settings
from cmqd_protocol import messages as wire
from cmqd_protocol.features import STALLED
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.faulty_link import FaultyLink
from support.client.local_server import LocalServer
from support.gateway.gateway_rig import GatewayRig


def peers_of(url: str = "cmq://id:key@127.0.0.1:5680") -> Peers:
    return Peers(parse_address(url))


def an_address(text: str, *, tls: bool = False) -> Address:
    return parse_address(f"cmq://id:key@{text}{'?tls=1' if tls else ''}")


class ToldClient:
    def __init__(self) -> None:
        self.told: list[list[str]] = []

    def learn_addresses(self, addresses: list[str]) -> None:
        self.told.append(addresses)


def test_a_gateway_follows_over_tls_or_loopback_alone() -> None:
    peers = peers_of()
    assert peers.follow(an_address("127.0.0.1:7")) == an_address("127.0.0.1:7")
    assert peers.follow(an_address("10.0.0.2:7")) is None, "a broker refuses secrets there"

    peers.use(["10.0.0.2:7"], tls=True)

    assert peers.follow(an_address("10.0.0.2:7")) == an_address("10.0.0.2:7", tls=True)


async def test_the_pipe_of_the_broker_brings_addresses_to_every_client() -> None:
    peers, clients = peers_of(), [ToldClient(), ToldClient()]
    peers.clients = lambda: cast("Any", clients)
    reload = Reload(cast("Any", None), Settings(), peers)

    reload.begin(b'{"addresses": ["127.0.0.1:1", "127.0.0.1:2"], "addresses_tls": false}')

    assert peers.addresses == ["127.0.0.1:1", "127.0.0.1:2"]
    assert [client.told for client in clients] == [[peers.addresses], [peers.addresses]]


def test_new_clients_begin_at_the_leader_that_the_own_client_found() -> None:
    peers = peers_of("cmq://id:key@127.0.0.1:1,127.0.0.1:2")
    moves: list[str] = []
    peers.on_moved = lambda: moves.append(peers.leader.host)

    peers.event(Connected("127.0.0.1:1", 1, "", 1))
    assert moves == []
    peers.event(Connected("127.0.0.1:2", 1, "", 2))
    assert peers.leader.each() == [an_address("127.0.0.1:2"), an_address("127.0.0.1:1")]
    peers.use([], tls=True)
    peers.event(Connected("10.0.0.3:3", 1, "", 3))

    assert peers.leader == an_address("10.0.0.3:3", tls=True)
    assert len(moves) == 2


class AskedClient:
    """A client with the own key that fails, or answers a status."""

    def __init__(self, failure: CmqError | None = None, **status: Any) -> None:
        self._failure = failure
        self._status = status
        self.accounts = self

    async def key_secret(self, _secret_id: str) -> None:
        assert self._failure is not None
        raise self._failure

    async def status(self) -> dict[str, Any]:
        return self._status


@pytest.mark.parametrize("kind", [RequestTimeout, OutcomeUnknown, ConnectionLost, PermissionDenied])
async def test_a_gateway_that_cannot_ask_for_keys_is_unavailable(kind: type[CmqError]) -> None:
    keys = BrokerKeys(cast("Any", AskedClient(kind("the reason"))))
    with pytest.raises(ServerUnreachable, match="the reason"):
        await keys.fetch("id")


async def test_a_broker_that_waits_for_its_log_is_not_ready() -> None:
    await BrokerKeys(cast("Any", AskedClient())).probe()
    await BrokerKeys(cast("Any", AskedClient(stalled_ms=STALLED_MS - 1))).probe()
    with pytest.raises(ServerUnreachable, match=r"3\.0 s"):
        await BrokerKeys(cast("Any", AskedClient(stalled_ms=STALLED_MS))).probe()


async def test_a_request_goes_on_at_the_leader_and_later_ones_begin_there() -> None:
    """A single repeat is left to a request, which the repeats at a stalled broker do not use up."""
    async with LocalServer() as server:
        other = FaultyLink(server.broker.address)
        server.link.epoch, other.epoch = 1, 2
        await other.start()
        server.link.refuse(wire.ListQueues, ErrorCode.BUSY, times=10_000, retry_after_ms=1_000, details={STALLED: True})
        address = parse_address(server.url)
        peers = Peers(address)
        peers.use([f"127.0.0.1:{server.link.port}", f"127.0.0.1:{other.port}"], tls=False)
        settings, key = Settings(broker_patience_seconds=60), KeySecret(address.secret_id, address.secret_key)
        async with client_of(peers, settings, key, peers.event) as client:
            await client.queues()
        assert peers.leader.port == other.port

        async with client_of(peers, settings, key) as later:
            await later.queues()

        assert len(other.of(wire.ListQueues)) == 2
        assert len(server.link.of(wire.ListQueues)) == 1
        await other.close()


async def test_requests_behind_a_move_get_new_clients() -> None:
    async with GatewayRig() as rig:
        connections = rig.gateway.connections
        async with connections.client(rig.own_key) as first:
            connections.replace_all()
            async with connections.client(rig.own_key) as second:
                assert second is not first
                await first.queues()
            assert set(connections.clients()) == {first, second}
        await asyncio.sleep(0)
        assert connections.clients() == [second]


async def test_a_gateway_that_has_followed_is_as_ready_as_the_broker_that_leads() -> None:
    readiness = Readiness(lambda: 0.0)
    readiness.take(b'{"readiness": {"role": "leader", "reason": "the log has not answered for 5 s"}}')
    assert "5 s" in await readiness.reason()

    readiness.has_followed = True

    assert await readiness.reason() == ""


def test_a_gateway_that_comes_back_to_its_own_broker_is_at_home() -> None:
    peers = peers_of()
    peers.event(Connected("127.0.0.1:2", 1, "", 2))
    assert not peers.is_at_home
    peers.event(Connected("127.0.0.1:5680", 1, "", 3))
    assert peers.is_at_home
