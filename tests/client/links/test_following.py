"""The client follows ``standby`` and ``moved``: two addresses, of which one refuses at the hello or at requests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cmqd_client import ConsumedMessage, connect
from cmqd_client.address import Address, parse_address
from cmqd_client.client import PATIENCE
from cmqd_client.connection import Connection
from cmqd_client.errors import CmqError, Elsewhere, Moved, ServerUnreachable, Standby
from cmqd_client.events import Connected, Event, Reconnecting
from cmqd_client.links.channel import SHORTEST_ATTEMPT
from cmqd_client.links.hosts_in_turn import FIRST_CONNECT_TIMEOUT, MAX_LEARNED, HostsInTurn
from cmqd_client.links.retry import RetryPolicy
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.faulty_link import FaultyLink
from support.client.local_server import LocalServer
from support.eventually import eventually

STANDBY_TEXT = "this server is a standby"
ELSEWHERE = pytest.mark.parametrize("code", [ErrorCode.STANDBY, ErrorCode.MOVED])


@pytest.fixture
async def other(server: LocalServer) -> AsyncIterator[FaultyLink]:
    """A second way to the broker, at another address."""
    link = FaultyLink(server.broker.address)
    await link.start()
    yield link
    await link.close()


def place(*links: FaultyLink) -> dict[str, Any]:
    """The details of a refusal that names these links."""
    return {"addresses": [f"127.0.0.1:{link.port}" for link in links], "shard": 0}


def refuse_connections(link: FaultyLink, *named: FaultyLink) -> None:
    link.refusal = wire.error(0, ErrorCode.STANDBY, STANDBY_TEXT, details=place(*named))


def pauses(events: list[Event]) -> list[float]:
    return [event.pause for event in events if isinstance(event, Reconnecting)]


def ports(events: list[Event]) -> list[int]:
    return [int(event.host.rpartition(":")[2]) for event in events if isinstance(event, Connected)]


# ---------------------------------------------------------------------- through connections


async def test_a_standby_at_the_hello_leads_to_the_leader_without_a_pause(
    server: LocalServer, other: FaultyLink
) -> None:
    refuse_connections(server.link, other)
    events: list[Event] = []

    async with connect(server.url, patience=300, on_event=events.append) as client:
        await client.queue("orders").send(b"one")

    assert pauses(events) == []
    assert ports(events) == [other.port]
    assert await server.bodies("orders") == [b"one"]


@ELSEWHERE
@pytest.mark.parametrize("operation", ["send", "clear"])
async def test_a_refused_request_is_repeated_at_the_named_address_without_a_pause(
    server: LocalServer, other: FaultyLink, code: ErrorCode, operation: str
) -> None:
    """Also a request that is not safe to repeat: the refusing server did nothing."""
    kind = wire.SendMessages if operation == "send" else wire.ClearQueue
    server.link.refuse(kind, code, details=place(other))
    events: list[Event] = []

    async with connect(server.url, patience=300, on_event=events.append) as client:
        queue = client.queue("orders")
        await (queue.send(b"one") if operation == "send" else queue.clear())

        assert pauses(events) == [0.0]
        assert ports(events) == [server.link.port, other.port]
        assert (len(server.link.of(kind)), len(other.of(kind))) == (1, 1)
        # The connection that was left closes behind its last reply.
        await eventually(lambda: not server.link.connections)


@ELSEWHERE
async def test_a_refused_receive_waits_on_at_the_named_address(
    server: LocalServer, other: FaultyLink, code: ErrorCode
) -> None:
    server.link.refuse(wire.ReceiveMessages, code, details=place(other))
    events: list[Event] = []

    async with connect(server.url, patience=300, on_event=events.append) as client:
        receiving = asyncio.create_task(client.queue("orders").receive(wait=30))
        await other.wait_handled(wire.ReceiveMessages)
        await server.put("orders", b"late")
        (message,) = await receiving

    assert message.body == b"late"
    assert pauses(events) == [0.0]


@ELSEWHERE
async def test_the_call_itself_makes_no_pause_before_it_follows(
    server: LocalServer, other: FaultyLink, code: ErrorCode
) -> None:
    """A pause would be longer than the time limit of the test."""
    for kind in (wire.SendMessages, wire.ReceiveMessages):
        link, next_link = (server.link, other) if kind is wire.SendMessages else (other, server.link)
        link.refuse(kind, code, details=place(next_link))

    async with connect(server.url, patience=None) as client:
        client._channel._policy = RetryPolicy(first_delay=100_000, max_delay=100_000)  # pyright: ignore[reportPrivateUsage]
        await client.queue("orders").send(b"one")
        (message,) = await client.queue("orders").receive(wait=30)

    assert message.body == b"one"
    assert len(server.link.of(wire.SendMessages)) + len(other.of(wire.SendMessages)) == 2


async def test_a_leader_that_steps_down_ends_its_connections_with_the_address_of_the_next(
    server: LocalServer, other: FaultyLink
) -> None:
    events: list[Event] = []
    async with connect(server.url, patience=300, on_event=events.append) as client:
        await client.queues()
        server.link.connection.answer(wire.error(0, ErrorCode.STANDBY, STANDBY_TEXT, details=place(other)))
        refuse_connections(server.link, other)

        await client.queue("orders").send(b"one")

    assert pauses(events) == [0.0]
    assert ports(events) == [server.link.port, other.port]


async def test_the_addresses_of_the_url_are_tried_when_a_learned_one_is_gone(
    server: LocalServer, other: FaultyLink
) -> None:
    refuse_connections(server.link, other)
    events: list[Event] = []
    async with connect(server.url, patience=300, on_event=events.append) as client:
        await client.queues()
        server.link.refusal = None
        await other.stop()

        await client.queue("orders").send(b"one")

    assert ports(events) == [other.port, server.link.port]


async def test_two_standbys_that_name_each_other_cost_an_attempt_each_between_pauses(
    server: LocalServer, other: FaultyLink
) -> None:
    refuse_connections(server.link, other)
    refuse_connections(other, server.link)
    events: list[Event] = []

    def lead(event: Event) -> None:
        events.append(event)
        if isinstance(event, Reconnecting) and event.attempt == 4:
            other.refusal = None

    async with connect(server.url, patience=300, on_event=lead) as client:
        await client.queue("orders").send(b"one")

    assert len(pauses(events)) == 3
    assert all(pauses(events))
    assert (server.link.connections_made, other.connections_made) in [(3, 4), (4, 4)]


@ELSEWHERE
async def test_servers_that_send_a_request_to_and_fro_are_followed_once_without_a_pause(
    server: LocalServer, other: FaultyLink, code: ErrorCode
) -> None:
    server.link.refuse(wire.SendMessages, code, details=place(other), times=2)
    other.refuse(wire.SendMessages, code, details=place(server.link), times=2)
    events: list[Event] = []

    async with connect(server.url, patience=300, on_event=events.append) as client:
        await client.queue("orders").send(b"one")

    first, *rest = pauses(events)
    assert first == 0.0
    assert len(rest) == 3
    assert all(rest)
    assert await server.bodies("orders") == [b"one"]


@ELSEWHERE
async def test_a_call_that_finds_no_leader_ends_with_its_patience(
    server: LocalServer, other: FaultyLink, code: ErrorCode
) -> None:
    server.link.refuse(wire.SendMessages, code, details=place(), times=10_000)

    async with connect(server.url, patience=0.4) as client:
        with pytest.raises(CmqError) as caught:
            await client.queue("orders").send(b"one")

    assert isinstance(caught.value, Elsewhere | ServerUnreachable)
    assert caught.value.waited is not None
    assert await server.bodies("orders") == []


async def test_without_retries_a_refusal_is_the_callers(server: LocalServer, other: FaultyLink) -> None:
    server.link.refuse(wire.SendMessages, ErrorCode.MOVED, details=place(other) | {"shard": 7})

    async with connect(server.url, retries=0, patience=300) as client:
        with pytest.raises(Moved) as caught:
            await client.queue("orders").send(b"one")

    assert (caught.value.addresses, caught.value.shard) == ([f"127.0.0.1:{other.port}"], 7)


async def test_a_first_start_waits_for_a_leader(server: LocalServer, other: FaultyLink) -> None:
    refuse_connections(server.link)
    await other.stop()
    client = connect(f"{server.url},127.0.0.1:{other.port}", patience=None)
    opening = asyncio.create_task(client.open())
    await eventually(lambda: server.link.connections_made >= 3)
    assert not opening.done()

    await other.start()
    await opening
    await client.queue("orders").send(b"one")
    await client.close()

    assert await server.bodies("orders") == [b"one"]


# ---------------------------------------------------------------------- the order of addresses


class Hosts:
    """Hosts that fail to order; notes host and timeout of the attempts."""

    def __init__(self, **answers: CmqError) -> None:
        self.answers = answers
        self.attempts: list[str] = []
        self.timeouts: list[float] = []
        self.end: Callable[[Elsewhere | None], None] = lambda _: None
        """Ends the last connection."""

    async def open(self, address: Address, *, timeout: float, on_ended: Any, **_: object) -> Connection:
        self.attempts.append(address.host)
        self.timeouts.append(timeout)
        if address.host in self.answers:
            raise self.answers[address.host]
        connection = Connection.__new__(Connection)

        def end(elsewhere: Elsewhere | None) -> None:
            connection.elsewhere = elsewhere
            on_ended(connection)

        self.end = end
        return connection

    def take(self) -> list[str]:
        """The hosts of the attempts since the last call."""
        attempts, self.attempts, self.timeouts = self.attempts, [], []
        return attempts


def at(*hosts: str) -> Standby:
    return Standby(STANDBY_TEXT, details={"addresses": list(hosts), "shard": 0})


def an_opener(hosts: Hosts, url: str = "cmq://a:b@one,two") -> Callable[[], Any]:
    opener = HostsInTurn(hosts.open, parse_address(url).each(), 5.0)
    return lambda: opener(on_ended=lambda _: None, next_request_id=lambda: 1, on_push=lambda _, __: None)


async def test_a_standby_that_names_the_leader_puts_it_next() -> None:
    hosts = Hosts(one=at("three", "two"))
    opened = an_opener(hosts)
    await opened()
    assert hosts.take() == ["one", "three"]

    hosts.end(None)
    await opened()
    assert hosts.take() == ["three"], "the host of the last connection comes first, also a learned one"

    hosts.end(at("two"))
    await opened()
    assert hosts.take() == ["two"], "then the leader that the end of the connection named"


async def test_no_address_is_tried_twice_in_an_attempt() -> None:
    hosts = Hosts(one=at("two"), two=at("one", "three"), three=at("one", "two"))
    with pytest.raises(Standby):
        await an_opener(hosts)()
    assert hosts.take() == ["one", "two", "three"]


async def test_servers_that_name_ever_new_addresses_end_an_attempt_too() -> None:
    class Endless(Hosts):
        async def open(self, address: Address, **_: Any) -> Connection:
            self.attempts.append(address.host)
            raise at(f"{address.host}x")

    hosts = Endless()
    opened = an_opener(hosts, "cmq://a:b@h")
    for _ in range(2):
        with pytest.raises(Standby):
            await opened()
    assert len(hosts.attempts) <= 2 * (MAX_LEARNED + 3)
    assert hosts.attempts[0] == "h"


async def test_malformed_addresses_are_left_out_and_details_of_another_type() -> None:
    hosts = Hosts(one=Standby(STANDBY_TEXT, details={"addresses": [7, "x:y", "[::1]:9"], "shard": "?"}))
    await an_opener(hosts)()
    assert hosts.take() == ["one", "::1"]

    hosts = Hosts(one=Standby(STANDBY_TEXT, details={"addresses": "nowhere"}))
    await an_opener(hosts)()
    assert hosts.take() == ["one", "two"]


async def test_hosts_that_could_not_be_reached_come_last_and_hold_up_the_others_for_a_second_at_most() -> None:
    dark = ServerUnreachable("no answer")
    hosts = Hosts(one=dark, two=at("one"))
    opened = an_opener(hosts)
    for expected in (["one", "two"], ["two", "one"]):
        with pytest.raises((ServerUnreachable, Standby)):
            await opened()
        assert set(hosts.timeouts) == {FIRST_CONNECT_TIMEOUT}
        assert hosts.take() == expected

    hosts.answers["two"] = dark
    for expected in (1.0, 2.0, 4.0, 5.0, 5.0):
        with pytest.raises(ServerUnreachable):
            await opened()
        assert set(hosts.timeouts) == {expected}, "a slow network gets more time with each attempt"
        hosts.take()


async def test_a_single_address_has_the_whole_time() -> None:
    hosts = Hosts()
    await an_opener(hosts, "cmq://a:b@one")()
    assert hosts.timeouts == [5.0]


# ---------------------------------------------------------------------- patience


def test_the_pauses_of_a_call_with_default_patience_bridge_an_outage_of_6_s() -> None:
    """In the worst case of random pauses, with a second for a host without power in each attempt but the first."""
    policy = RetryPolicy()
    for seconds_an_attempt in (0.0, 1.0):
        now = last = 0.0
        attempt = 0
        while now < 6.0:
            attempt += 1
            now += policy.delay(attempt, 0.0)
            last = now
            now += seconds_an_attempt

        assert last + SHORTEST_ATTEMPT < PATIENCE


async def test_a_worker_that_starts_before_its_server_waits_and_says_so(
    server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    await server.link.stop()
    events: list[Event] = []
    client = connect(server.url, on_event=events.append)
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        handled.put_nowait(message.body)

    running = asyncio.create_task(client.run(handle, stop_signals=()))
    await eventually(lambda: len(pauses(events)) >= 3)
    assert not running.done()
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert (warning.name, warning.__dict__["event"]) == ("cmqd_client.links.link", "waiting_for_server")
    assert "cannot be reached" in warning.getMessage()

    await server.link.start()
    await server.put("orders", b"late")
    assert await handled.get() == b"late"
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize(("hosts", "heartbeat_ms"), [(1, 30_000), (2, 2_000)])
async def test_a_url_with_several_hosts_has_heartbeats_that_notice_a_silent_machine(
    server: LocalServer, other: FaultyLink, hosts: int, heartbeat_ms: int
) -> None:
    url = server.url if hosts == 1 else f"{server.url},127.0.0.1:{other.port}"
    async with connect(url, patience=300) as client:
        (connection,) = client._channel.connections()  # pyright: ignore[reportPrivateUsage]
        assert connection._wire.heartbeat_ms == heartbeat_ms  # pyright: ignore[reportPrivateUsage]
