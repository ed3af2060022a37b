"""Registrations with a real broker: begun, renewed after half messages, tried again after failures, ended."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cmqd_client import Client, connect
from cmqd_client.address import parse_address
from cmqd_client.messages.message_ids import id_number
from cmqd_gateway.broker.broker_connections import BrokerConnections
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp.checker_registrations import CheckerRegistration, CheckerRegistrations
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.local_server import LocalServer
from support.eventually import eventually

LONGEST_INTERVAL = 300
"""Seconds; the next check of every half message is due after as long."""


class Rig:
    """The registrations of a gateway, with pauses that a test ends."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        own = parse_address(server.url)
        self.key = KeySecret(own.secret_id, own.secret_key)
        self.connections = BrokerConnections(self.make_client, 20, 60.0)
        self.pausing = 0
        self._pauses = asyncio.Semaphore(0)
        self.registrations = CheckerRegistrations(self.connections, lambda: 0.0, self.sleep)
        self.checks: list[int] = []

    def make_client(self, key: KeySecret) -> Client:
        own = parse_address(self.server.url)
        url = f"cmq://{key.secret_id}:{key.secret_key}@{own.host}:{own.port}"
        return connect(url, retries=0, request_timeout=300, connect_timeout=300, tracing=False)

    async def sleep(self, seconds: float) -> None:
        self.pausing += 1
        try:
            await self._pauses.acquire()
        finally:
            self.pausing -= 1

    def end_pause(self) -> None:
        self._pauses.release()

    def register(self, queue: str = "tx") -> CheckerRegistration:
        return self.registrations.register(self.key, queue, self.checks.append)

    async def half(self) -> int:
        (message_id,) = (await self.server.admin.queue("tx").send_half_batch([b"a"])).ids
        return id_number(message_id)

    async def check(self, count: int = 1) -> None:
        """Let so many checks come by the broker's clock."""
        self.server.advance(LONGEST_INTERVAL)
        await eventually(lambda: len(self.checks) == count)


@pytest.fixture
async def server() -> AsyncIterator[LocalServer]:
    async with LocalServer() as server:
        await server.admin.create_queue("tx", transactional=True)
        yield server


@pytest.fixture
async def rig(server: LocalServer) -> AsyncIterator[Rig]:
    rig = Rig(server)
    yield rig
    await rig.registrations.close()
    await rig.connections.close()


async def test_a_registration_takes_checks_and_leaves_them_open_until_it_ends(rig: Rig, server: LocalServer) -> None:
    number = await rig.half()
    registration = rig.register()
    await eventually(lambda: rig.pausing == 1)
    assert await server.status("checkers") == 1
    assert rig.connections.for_checks == 1

    await rig.check()
    assert rig.checks == [number]
    assert not server.link.of(wire.EndTransactions)
    registration.end()
    await server.wait_status("checkers", 0)
    await asyncio.wait([registration.task])

    # The client waits idle for the next registration.
    again = rig.register()
    await server.wait_status("checkers", 1)
    await eventually(lambda: len(rig.checks) == 2)
    assert len(server.link.connections) == 1
    again.end()


async def test_a_lost_connection_registers_anew(rig: Rig, server: LocalServer) -> None:
    await rig.half()
    rig.register()
    await rig.check()

    server.link.connection.drop()

    await eventually(lambda: len(rig.checks) == 2)


async def test_a_half_message_renews_the_registration_of_a_queue_that_was_created_again(
    rig: Rig, server: LocalServer
) -> None:
    registration = rig.register()
    await server.wait_status("checkers", 1)
    await server.admin.delete_queue("tx")
    await server.admin.create_queue("tx", transactional=True)
    await rig.half()
    registration.half_sent()
    registration.half_sent()

    rig.end_pause()

    await server.link.wait_handled(wire.RegisterChecker, 2)
    await rig.check()
    # Without a further half message no request follows.
    rig.end_pause()
    await eventually(lambda: not rig.pausing)
    await server.status("checkers")
    assert len(server.link.of(wire.RegisterChecker)) == 2


async def test_a_registration_that_is_refused_is_logged_once_and_tried_again_after_a_half_message(
    rig: Rig, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    registration = rig.register("nowhere")
    await server.link.wait_handled(wire.RegisterChecker)
    await eventually(lambda: "checker_not_registered" in caplog.text)
    rig.end_pause()
    await server.status("checkers")
    assert len(server.link.of(wire.RegisterChecker)) == 1

    registration.half_sent()
    await server.link.wait_handled(wire.RegisterChecker, 2)
    await server.admin.create_queue("nowhere", transactional=True)
    await eventually(lambda: rig.connections.for_checks == 1)
    registration.half_sent()
    rig.end_pause()

    await server.wait_status("checkers", 1)
    assert caplog.text.count("checker_not_registered") == 1


async def test_a_key_without_the_role_is_no_checker(
    rig: Rig, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.link.refuse(wire.RegisterChecker, ErrorCode.PERMISSION_DENIED)
    rig.register()

    await eventually(lambda: "checker_not_registered" in caplog.text)

    assert rig.pausing == 0
    assert await server.status("checkers") == 0


async def test_a_broker_that_is_away_is_tried_again_without_a_half_message(rig: Rig, server: LocalServer) -> None:
    server.link.refuse(wire.RegisterChecker, ErrorCode.BUSY)
    rig.register()
    await eventually(lambda: rig.pausing == 1)

    rig.end_pause()

    await server.wait_status("checkers", 1)


async def test_the_end_waits_for_no_broker(rig: Rig, server: LocalServer) -> None:
    rig.register()
    await eventually(lambda: rig.pausing == 1)
    server.link.lose_answer(wire.UnregisterChecker)

    await rig.registrations.close()

    assert len(server.link.of(wire.UnregisterChecker)) == 1
