"""A client whose server is cut off looks for the leader at the other addresses, and moves there."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cmqd_client import Client, connect
from cmqd_client.address import Address, parse_address
from cmqd_client.connection import Connection
from cmqd_client.errors import CmqError, OutcomeUnknown, ServerUnreachable, Standby
from cmqd_client.events import Connected, Event, Lost, Reconnecting
from cmqd_client.links.hosts_in_turn import FIRST_CONNECT_TIMEOUT, Follow, HostsInTurn
from cmqd_client.links.leader_search import PAUSES
from cmqd_client.links.retry import RetryPolicy
from cmqd_protocol import messages as wire
from cmqd_protocol.features import STALLED
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.faulty_link import FaultyLink
from support.client.local_server import LocalServer
from support.eventually import eventually

pytestmark = pytest.mark.timeout(60)  # of 0.4 s: a client that does not look waits without end

CUT_OFF = {STALLED: True}
MANY = 10_000


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd_client.links.leader_search.PAUSES", RetryPolicy(first_delay=0.01, max_delay=0.01))


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are overdue after a moment."""
    monkeypatch.setattr("cmqd_client.connection.OVERDUE_AFTER", 0.05)


@pytest.fixture
async def other(server: LocalServer) -> AsyncIterator[FaultyLink]:
    """The address of the server that leads; the broker is the same."""
    link = FaultyLink(server.broker.address)
    server.link.epoch, link.epoch = 1, 2
    await link.start()
    yield link
    await link.close()


def two(server: LocalServer, other: FaultyLink) -> str:
    return f"{server.url},127.0.0.1:{other.port}"


def ports(events: list[Event]) -> list[int]:
    return [int(event.host.rpartition(":")[2]) for event in events if isinstance(event, Connected)]


def connection_of(client: Client) -> Connection:
    (connection,) = client._channel.connections()  # pyright: ignore[reportPrivateUsage]
    return connection


@pytest.mark.parametrize(
    ("code", "details"),
    [(ErrorCode.BUSY, CUT_OFF), (ErrorCode.DISK_NEARLY_FULL, CUT_OFF), (ErrorCode.OUTCOME_UNKNOWN, None)],
)
async def test_a_call_that_a_stalled_server_refuses_is_made_again_at_the_leader(
    server: LocalServer, other: FaultyLink, code: ErrorCode, details: dict[str, Any] | None
) -> None:
    server.link.refuse(wire.SendMessages, code, times=MANY, retry_after_ms=60_000, details=details)
    events: list[Event] = []

    async with connect(two(server, other), patience=300, retries=1, on_event=events.append) as client:
        await client.queue("orders").send(b"one")

        assert ports(events) == [server.link.port, other.port]
        (lost,) = [event for event in events if isinstance(event, Lost)]
        assert "does not answer" in lost.why
        assert not any(isinstance(event, Reconnecting) for event in events), "the link was never down"
        await eventually(lambda: not server.link.connections)
    assert await server.bodies("orders") == [b"one"]


async def test_ordinary_back_pressure_makes_nobody_look_elsewhere(server: LocalServer, other: FaultyLink) -> None:
    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, times=3)

    async with connect(two(server, other), patience=300) as client:
        await client.queue("orders").send(b"one")

        assert not connection_of(client).is_stalled()
    assert other.connections_made == 0


@pytest.mark.usefixtures("impatience")
async def test_an_overdue_answer_counts_whatever_the_callers_limit(server: LocalServer, other: FaultyLink) -> None:
    server.link.ignore(wire.SendMessages, MANY)

    async with connect(two(server, other), patience=300, request_timeout=300) as client:
        await client.queue("orders").send(b"one")

    assert len(server.link.of(wire.SendMessages)) == 1
    assert await server.bodies("orders") == [b"one"]


@pytest.mark.usefixtures("impatience")
async def test_an_answer_is_overdue_also_when_its_caller_has_given_up(server: LocalServer, other: FaultyLink) -> None:
    server.link.ignore(wire.SendMessages, MANY)

    async with connect(two(server, other), patience=300, request_timeout=0.01) as client:
        with pytest.raises(CmqError):
            await client.queue("orders", patience=0.01).send(b"one")
        await eventually(lambda: other.connections_made == 1)
        await eventually(lambda: connection_of(client).host.endswith(str(other.port)))


@pytest.mark.usefixtures("impatience")
async def test_a_request_that_is_not_safe_to_repeat_has_an_unknown_outcome(
    server: LocalServer, other: FaultyLink
) -> None:
    """As after a lost connection: decision 0040."""
    server.link.ignore(wire.CreateQueue)

    async with connect(two(server, other), patience=300, request_timeout=300) as client:
        with pytest.raises(OutcomeUnknown):
            await client.create_queue("more")

        assert connection_of(client).host.endswith(str(other.port))
    assert other.of(wire.CreateQueue) == []


async def test_a_waiting_receive_goes_on_at_the_leader(server: LocalServer, other: FaultyLink) -> None:
    server.link.refuse(wire.ReceiveMessages, ErrorCode.BUSY, times=MANY, retry_after_ms=60_000, details=CUT_OFF)

    async with connect(two(server, other), patience=300, retries=1) as client:
        receiving = asyncio.create_task(client.queue("orders").receive(wait=30))
        await other.wait_handled(wire.ReceiveMessages)
        await server.put("orders", b"late")
        (message,) = await receiving

    assert message.body == b"late"


async def test_a_waiting_receive_uses_up_no_repeat_while_no_other_server_leads(server: LocalServer) -> None:
    server.link.refuse(wire.ReceiveMessages, ErrorCode.BUSY, times=6, retry_after_ms=1, details=CUT_OFF)

    async with connect(server.url, patience=300, retries=1) as client:
        receiving = asyncio.create_task(client.queue("orders").receive(wait=30))
        await server.link.wait_handled(wire.ReceiveMessages, 7)
        await server.put("orders", b"late")
        (message,) = await receiving

    assert message.body == b"late"


async def test_a_receive_under_way_follows_when_another_call_finds_the_leader(
    server: LocalServer, other: FaultyLink
) -> None:
    server.link.refuse(wire.ListQueues, ErrorCode.BUSY, times=MANY, retry_after_ms=60_000, details=CUT_OFF)

    async with connect(two(server, other), patience=300) as client:
        receiving = asyncio.create_task(client.queue("orders").receive(wait=30))
        await server.link.wait_handled(wire.ReceiveMessages)
        await client.queues()
        await other.wait_handled(wire.ReceiveMessages)
        await server.put("orders", b"late")
        (message,) = await receiving

    assert message.body == b"late"


async def test_messages_in_hand_keep_lease_and_handle(server: LocalServer, other: FaultyLink) -> None:
    await server.put("orders", b"one")
    server.link.refuse(wire.DeleteMessages, ErrorCode.BUSY, times=MANY, retry_after_ms=60_000, details=CUT_OFF)

    async with connect(two(server, other), patience=300) as client:
        (message,) = await client.queue("orders").receive()
        await message.delete()

        assert connection_of(client).host.endswith(str(other.port))
    assert await server.bodies("orders", "active", "in_flight") == []


async def test_the_client_stays_until_the_other_server_leads(server: LocalServer, other: FaultyLink) -> None:
    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, times=MANY, retry_after_ms=1, details=CUT_OFF)
    other.refusal = wire.error(0, ErrorCode.STANDBY, "a standby", details={"addresses": [], "shard": 0})

    async with connect(two(server, other), patience=300, retries=1) as client:
        sending = asyncio.create_task(client.queue("orders").send(b"one"))
        await eventually(lambda: other.connections_made >= 3)
        assert not sending.done()
        assert connection_of(client).host.endswith(str(server.link.port))
        other.refusal = None
        await sending

    assert await server.bodies("orders") == [b"one"]


@pytest.mark.usefixtures("impatience")
async def test_another_name_of_the_same_leader_ends_no_request(server: LocalServer, other: FaultyLink) -> None:
    """A request that rightly takes long: its server leads, and answers at both addresses."""
    other.epoch = server.link.epoch

    async with connect(two(server, other), patience=300, request_timeout=300) as client:
        server.link.hold()
        asked = asyncio.create_task(client.create_queue("more"))
        await eventually(lambda: other.connections_made >= 2)
        server.link.let_go()
        await asked

        assert connection_of(client).host.endswith(str(server.link.port))


@pytest.mark.usefixtures("impatience")
async def test_a_leader_of_another_shard_is_no_later_leader(server: LocalServer, other: FaultyLink) -> None:
    """Its epochs are those of another log; a refusal may have named its address."""
    other.shard = 1

    async with connect(two(server, other), patience=300, request_timeout=300) as client:
        server.link.hold()
        asked = asyncio.create_task(client.create_queue("more"))
        await eventually(lambda: other.connections_made >= 2)
        server.link.let_go()
        await asked

        assert connection_of(client).host.endswith(str(server.link.port))


@pytest.mark.usefixtures("impatience")
async def test_a_client_of_a_server_that_is_alone_does_not_look(server: LocalServer, other: FaultyLink) -> None:
    server.link.epoch = 0
    server.link.hold()

    async with connect(two(server, other), patience=300, request_timeout=300) as client:
        asked = asyncio.create_task(client.queues())
        await eventually(lambda: connection_of(client).is_stalled())
        server.link.let_go()
        await asked

    assert other.connections_made == 0


async def test_the_search_ends_when_the_server_answers_again(
    server: LocalServer, other: FaultyLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cmqd_client.connection.STALLED_FOR", 0.0)
    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, retry_after_ms=1, details=CUT_OFF)

    async with connect(two(server, other), patience=300) as client:
        await client.queue("orders").send(b"one")
        await eventually(lambda: not connection_of(client).is_doubted)

        assert connection_of(client).host.endswith(str(server.link.port))
    assert other.connections_made == 0


async def test_the_welcome_names_the_addresses(server: LocalServer, other: FaultyLink) -> None:
    server.link.addresses = [f"127.0.0.1:{server.link.port}", f"127.0.0.1:{other.port}", "no address:x"]
    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, times=MANY, retry_after_ms=60_000, details=CUT_OFF)

    async with connect(server.url, patience=300) as client:
        await client.queue("orders").send(b"one")

        assert connection_of(client).host.endswith(str(other.port))


async def test_addresses_that_come_later_are_learned_too(server: LocalServer, other: FaultyLink) -> None:
    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, times=MANY, retry_after_ms=10, details=CUT_OFF)

    async with connect(server.url, patience=300) as client:
        sending = asyncio.create_task(client.queue("orders").send(b"one"))
        await server.link.wait_handled(wire.SendMessages, 2)
        client.learn_addresses([f"127.0.0.1:{other.port}"])
        await sending

        assert connection_of(client).host.endswith(str(other.port))


async def test_a_client_that_is_closed_while_it_looks_ends_the_search(server: LocalServer, other: FaultyLink) -> None:
    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, times=MANY, retry_after_ms=1, details=CUT_OFF)
    other.refusal = wire.error(0, ErrorCode.STANDBY, "a standby", details={"addresses": [], "shard": 0})
    client = connect(two(server, other), patience=300)
    await client.open()
    sending = asyncio.create_task(client.queue("orders").send(b"one"))
    await eventually(lambda: other.connections_made >= 1)

    await client.close()

    with pytest.raises(CmqError):
        await sending
    looking = client._channel._links[0]._looking  # pyright: ignore[reportPrivateUsage]
    assert looking is not None
    assert looking._task is None  # pyright: ignore[reportPrivateUsage]


# ---------------------------------------------------------------------- the order of addresses


class Hosts:
    """Hosts that fail to order; notes host and timeout of the attempts."""

    def __init__(self, **answers: CmqError) -> None:
        self.answers = answers
        self.attempts: list[tuple[str, float]] = []

    async def open(self, address: Address, *, timeout: float, **_: object) -> Connection:
        self.attempts.append((address.host, timeout))
        if address.host in self.answers:
            raise self.answers[address.host]
        return Connection.__new__(Connection)

    async def look(self, opener: HostsInTurn, times: int) -> list[tuple[str, float]]:
        """Try the addresses beside that of host ``one``."""
        self.attempts = []
        connection = Connection.__new__(Connection)
        connection.host = "one:5680"
        for _ in range(times):
            with pytest.raises(CmqError):
                await opener.open_beside(
                    connection, on_ended=lambda _: None, next_request_id=lambda: 1, on_push=lambda _, __: None
                )
        return self.attempts


def hosts_in_turn(hosts: Hosts, follow: Follow | None = None) -> HostsInTurn:
    return HostsInTurn(hosts.open, parse_address("cmq://a:b@one,two").each(), 5.0, follow)


async def test_the_other_addresses_take_turns_and_the_own_is_left_out() -> None:
    standby = Standby("standby", details={"addresses": ["three", "one"], "shard": 0})
    hosts = Hosts(one=standby, two=standby, three=standby)

    attempts = await hosts.look(hosts_in_turn(hosts), 5)

    assert {host for host, _ in attempts} == {"two", "three"}
    assert {timeout for _, timeout in attempts} == {FIRST_CONNECT_TIMEOUT}


async def test_hosts_that_do_not_answer_get_more_time_from_round_to_round() -> None:
    hosts = Hosts(two=ServerUnreachable("no answer"))

    attempts = await hosts.look(hosts_in_turn(hosts), 5)

    assert attempts == [("two", 1.0), ("two", 2.0), ("two", 4.0), ("two", 5.0), ("two", 5.0)]


async def test_an_address_that_the_program_does_not_follow_is_not_learned() -> None:
    standby = Standby("standby", details={"addresses": ["three", "four"], "shard": 0})
    hosts = Hosts(two=standby, four=standby)

    attempts = await hosts.look(hosts_in_turn(hosts, lambda named: None if named.host == "three" else named), 4)

    assert {host for host, _ in attempts} == {"two", "four"}


def test_the_first_pause_is_random_and_the_longest_is_2_s() -> None:
    assert [PAUSES.delay(1, chance) for chance in (0.0, 1.0)] == [0.4, 0.2]
    assert PAUSES.delay(99, 0.0) == 2.0
