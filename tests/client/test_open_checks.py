"""Checks that are taken and not answered: the server asks again, or elsewhere."""

import pytest

from cmqd_client import Client, TransactionCheck, connect
from cmqd_client.errors import NotTransactional, QueueNotFound
from cmqd_client.transactions.open_checks import OpenChecks
from cmqd_protocol import messages as wire
from support.client.local_server import LocalServer
from support.eventually import eventually

LONGEST_INTERVAL = 300
"""Seconds; the next check of every half message is due after as long."""


class Taken:
    """The open checks of the queue ``tx``, and the checks that came."""

    def __init__(self, client: Client) -> None:
        self.checks: list[TransactionCheck] = []
        self.open_checks = OpenChecks(client.queue("tx"), self.checks.append)


@pytest.fixture
async def taken(server: LocalServer, client: Client) -> Taken:
    await server.admin.ensure_queue("tx", transactional=True)
    return Taken(client)


async def test_a_check_is_taken_and_not_answered(client: Client, server: LocalServer, taken: Taken) -> None:
    (message_id,) = (await client.queue("tx").send_half_batch([b"a"], headers={"k": "v"})).ids
    await taken.open_checks.open()

    server.advance(LONGEST_INTERVAL)
    await eventually(lambda: len(taken.checks) == 1)
    server.advance(LONGEST_INTERVAL)
    await eventually(lambda: len(taken.checks) == 2)

    first, second = taken.checks
    assert (first.queue, first.id, first.body, first.headers) == ("tx", message_id, b"a", {"k": "v"})
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.age >= 2 * LONGEST_INTERVAL
    assert not server.link.of(wire.EndTransactions)
    await taken.open_checks.close()
    assert await server.status("checkers") == 0


async def test_an_open_check_goes_to_another_checker_when_its_taker_closes(
    client: Client, server: LocalServer, taken: Taken
) -> None:
    await client.queue("tx").send_half_batch([b"a"])
    await taken.open_checks.open()
    server.advance(LONGEST_INTERVAL)
    await eventually(lambda: len(taken.checks) == 1)
    async with connect(server.url) as another:
        elsewhere = Taken(another)
        await elsewhere.open_checks.open()

        await taken.open_checks.close()

        # At once: the next check of the message is minutes away.
        await eventually(lambda: len(elsewhere.checks) == 1)
        await elsewhere.open_checks.close()


async def test_a_new_connection_registers_and_a_check_without_an_answer_comes_again(
    client: Client, server: LocalServer, taken: Taken
) -> None:
    await client.queue("tx").send_half_batch([b"a"])
    await taken.open_checks.open()
    server.advance(LONGEST_INTERVAL)
    await eventually(lambda: len(taken.checks) == 1)

    server.link.connection.drop()

    await eventually(lambda: len(taken.checks) == 2)
    await taken.open_checks.close()


async def test_a_renewed_registration_knows_a_queue_that_was_created_again(
    client: Client, server: LocalServer, taken: Taken
) -> None:
    await taken.open_checks.open()
    await taken.open_checks.renew()
    assert await server.status("checkers") == 1
    await server.admin.delete_queue("tx")
    with pytest.raises(QueueNotFound):
        await taken.open_checks.renew()
    await server.admin.create_queue("tx", transactional=True)
    await client.queue("tx").send_half_batch([b"a"])

    await taken.open_checks.renew()

    server.advance(LONGEST_INTERVAL)
    await eventually(lambda: len(taken.checks) == 1)
    await taken.open_checks.close()


async def test_every_connection_of_a_client_registers(server: LocalServer) -> None:
    await server.admin.ensure_queue("tx", transactional=True)
    async with connect(server.url, connections=3) as client:
        await eventually(lambda: len(server.link.connections) == 3)
        open_checks = Taken(client).open_checks
        await open_checks.open()
        await server.wait_status("checkers", 3)
        await open_checks.close()
        assert await server.status("checkers") == 0


@pytest.mark.parametrize(("queue", "refusal"), [("orders", NotTransactional), ("nowhere", QueueNotFound)])
async def test_a_refused_registration_takes_no_checks(
    client: Client, server: LocalServer, queue: str, refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        await OpenChecks(client.queue(queue), lambda check: None).open()

    server.link.connection.drop()
    await client.queue("orders").attributes()
    assert len(server.link.of(wire.RegisterChecker)) == 1
