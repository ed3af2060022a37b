"""A transactional producer: half send, local transaction, decision; and the answers to checks."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from cmqd_client import (
    Client,
    HalfMessage,
    MessageId,
    Outgoing,
    TransactionCheck,
    TransactionProducer,
    TransactionStatus,
    connect,
)
from cmqd_client.errors import (
    AlreadyCommitted,
    AlreadyRolledBack,
    ClientClosed,
    NotTransactional,
    OutcomeUnknown,
    TransactionNotFound,
)
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.local_server import LocalServer
from support.eventually import eventually

LONGEST_INTERVAL = 300
"""Seconds; the next check of every half message is due after as long."""

COMMIT, ROLLBACK, UNKNOWN = TransactionStatus.COMMIT, TransactionStatus.ROLLBACK, TransactionStatus.UNKNOWN


@pytest.fixture
async def producer(server: LocalServer, client: Client) -> AsyncIterator[TransactionProducer]:
    await server.admin.ensure_queue("tx", transactional=True)
    async with client.transaction_producer("tx") as producer:
        yield producer


def commit(message: HalfMessage, argument: object) -> TransactionStatus:
    return COMMIT


async def _until_decided(server: LocalServer) -> None:
    while (await server.info("tx")).half:
        pass


async def _halves(server: LocalServer, client: Client, *bodies: bytes) -> list[MessageId]:
    await server.admin.ensure_queue("tx", transactional=True)
    return (await client.queue("tx").send_half_batch(bodies)).ids


# ---------------------------------------------------------------------- send


async def test_a_message_is_stored_before_the_transaction_and_delivered_after_it(
    producer: TransactionProducer, server: LocalServer
) -> None:
    seen: list[HalfMessage] = []

    async def insert(message: HalfMessage, order: str) -> TransactionStatus:
        seen.append(message)
        assert order == "order 7"
        info = await server.info("tx")
        assert (info.half, info.active) == (1, 0)
        return COMMIT

    result = await producer.send(b"one", insert, "order 7", headers={"k": "v"}, first_check=1.5, dedup_id="d")

    assert (result.id, result.status, result.error) == (seen[0].id, COMMIT, None)
    assert (seen[0].queue, seen[0].body, seen[0].headers) == ("tx", b"one", {"k": "v"})
    assert result.request_id == server.link.of(wire.EndTransactions)[0].request_id
    (request,) = server.link.of(wire.SendHalfMessages)
    assert (request.first_check_ms, request.dedup_ids, request.headers) == (1500, ["d"], [{"k": "v"}])
    assert request.session
    assert await server.bodies("tx") == [b"one"]
    result.raise_for_error()


async def test_a_rolled_back_message_is_dropped(producer: TransactionProducer, server: LocalServer) -> None:
    result = await producer.send(b"one", lambda message, argument: ROLLBACK)

    assert result.status is ROLLBACK
    info = await server.info("tx")
    assert (info.half, info.active) == (0, 0)


async def test_unknown_is_left_to_a_check(producer: TransactionProducer, server: LocalServer) -> None:
    result = await producer.send(b"one", lambda message, argument: UNKNOWN)

    assert (result.status, result.error) == (UNKNOWN, None)
    assert (await server.info("tx")).half == 1
    assert not server.link.of(wire.EndTransactions)
    assert result.request_id == server.link.of(wire.SendHalfMessages)[0].request_id


@pytest.mark.parametrize("wrong", ["raises", "returns"])
async def test_an_exception_in_the_local_transaction_is_unknown(
    producer: TransactionProducer, server: LocalServer, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    def broken(message: HalfMessage, argument: object) -> TransactionStatus:
        if wrong == "raises":
            raise TypeError("the database is gone")
        return True  # pyright: ignore[reportReturnType]

    result = await producer.send(b"one", broken)

    assert result.status is UNKNOWN
    assert isinstance(result.error, TypeError)
    assert (await server.info("tx")).half == 1
    assert "a check will decide" in caplog.text
    with pytest.raises(TypeError):
        result.raise_for_error()


async def test_a_half_send_whose_answer_was_lost_is_stored_once(
    producer: TransactionProducer, server: LocalServer
) -> None:
    server.link.lose_answer(wire.SendHalfMessages)

    await producer.send(b"one", commit)

    first, second = server.link.of(wire.SendHalfMessages)
    assert (first.session, first.sequence) == (second.session, second.sequence)
    assert await server.bodies("tx") == [b"one"]
    assert (await server.info("tx")).half == 0


async def test_a_decision_whose_answer_was_lost_is_repeated(producer: TransactionProducer, server: LocalServer) -> None:
    server.link.lose_answer(wire.EndTransactions)

    result = await producer.send(b"one", commit)

    assert (result.status, result.error) == (COMMIT, None)
    assert len(server.link.of(wire.EndTransactions)) == 2
    assert await server.bodies("tx") == [b"one"]


async def test_a_decision_that_cannot_be_delivered_is_unknown_and_says_why(
    producer: TransactionProducer, server: LocalServer
) -> None:
    server.link.drop_request(wire.EndTransactions, 3)

    result = await producer.send(b"one", commit)

    assert result.status is UNKNOWN
    assert isinstance(result.error, OutcomeUnknown)


async def test_a_check_that_decided_first_wins(producer: TransactionProducer, server: LocalServer) -> None:
    async def slow(message: HalfMessage, other: TransactionStatus) -> TransactionStatus:
        await producer.queue.end_transactions([message.id], other, check=False)
        return COMMIT

    same = await producer.send(b"one", slow, COMMIT)
    opposite = await producer.send(b"two", slow, ROLLBACK)

    assert (same.status, same.error) == (COMMIT, None)
    assert opposite.status is ROLLBACK
    assert isinstance(opposite.error, AlreadyRolledBack)
    assert await server.bodies("tx") == [b"one"]


async def test_nothing_runs_if_the_half_message_is_refused(client: Client, server: LocalServer) -> None:
    def never(message: HalfMessage, argument: object) -> TransactionStatus:
        raise AssertionError("it must not run")

    async with client.transaction_producer("orders") as producer:
        with pytest.raises(NotTransactional):
            await producer.send(b"one", never)


async def test_cancelling_the_local_transaction_leaves_the_message_undecided(
    producer: TransactionProducer, server: LocalServer
) -> None:
    begun = asyncio.Event()

    async def forever(message: HalfMessage, argument: object) -> TransactionStatus:
        begun.set()
        await asyncio.Event().wait()
        return COMMIT

    sending = asyncio.create_task(producer.send(b"one", forever))
    await begun.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending

    assert (await server.info("tx")).half == 1


async def test_a_batch_has_a_status_for_each(producer: TransactionProducer, server: LocalServer) -> None:
    seen: list[HalfMessage] = []

    async def local(messages: list[HalfMessage], argument: object) -> list[TransactionStatus]:
        seen.extend(messages)
        return [COMMIT, ROLLBACK, UNKNOWN]

    results = await producer.send_batch(
        [b"a", Outgoing(b"b", headers={"k": "v"}), b"c"], local, headers={"all": "1"}, dedup_ids=["x", None, "y"]
    )

    assert [result.status for result in results] == [COMMIT, ROLLBACK, UNKNOWN]
    assert [message.headers for message in seen] == [{"all": "1"}, {"k": "v"}, {"all": "1"}]
    (request,) = server.link.of(wire.SendHalfMessages)
    assert request.dedup_ids == ["x", None, "y"]
    (decision,) = server.link.of(wire.EndTransactions)
    assert len(decision.message_ids) == 2
    assert await server.bodies("tx") == [b"a"]
    assert (await server.info("tx")).half == 1


async def test_a_batch_may_have_one_status_for_all(producer: TransactionProducer, server: LocalServer) -> None:
    results = await producer.send_batch([b"a", b"b"], lambda messages, argument: COMMIT)

    assert [result.status for result in results] == [COMMIT, COMMIT]
    assert await producer.send_batch([], lambda messages, argument: COMMIT) == []


async def test_a_batch_with_too_few_statuses_is_unknown(producer: TransactionProducer) -> None:
    results = await producer.send_batch([b"a", b"b"], lambda messages, argument: [COMMIT])

    assert [result.status for result in results] == [UNKNOWN, UNKNOWN]
    assert all(isinstance(result.error, TypeError) for result in results)


async def test_a_half_message_takes_no_delay(producer: TransactionProducer, server: LocalServer) -> None:
    with pytest.raises(ValueError, match="no delay"):
        await producer.send_batch([Outgoing(b"a", delay=1)], lambda messages, argument: COMMIT)
    assert not server.link.of(wire.SendHalfMessages)


async def test_a_producer_is_used_while_it_is_open(client: Client) -> None:
    producer = client.transaction_producer("tx")
    with pytest.raises(ClientClosed):
        await producer.send(b"one", commit)
    await producer.close()
    await producer.close()


@pytest.mark.parametrize("options", [{"checks_at_once": 0}, {"check_timeout": 0}])
async def test_options_out_of_range_are_refused(client: Client, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        client.transaction_producer("tx", **options)  # pyright: ignore[reportCallIssue, reportArgumentType]


# ---------------------------------------------------------------------- checks


async def test_a_check_is_answered_by_the_checker(client: Client, server: LocalServer) -> None:
    seen: list[TransactionCheck] = []

    async def checker(check: TransactionCheck) -> TransactionStatus:
        seen.append(check)
        return COMMIT if check.body == b"a" else ROLLBACK

    ids = await _halves(server, client, b"a", b"b")
    async with client.transaction_producer("tx", checker):
        server.advance(LONGEST_INTERVAL)
        await _until_decided(server)

    assert [check.id for check in seen] == ids
    assert (seen[0].queue, seen[0].attempt, seen[0].headers) == ("tx", 1, {})
    assert LONGEST_INTERVAL <= seen[0].age < 2 * LONGEST_INTERVAL
    assert seen[0].enqueue_time.tzinfo is not None
    assert await server.bodies("tx") == [b"a"]
    assert await server.status("checkers") == 0


async def test_a_checker_that_cannot_tell_is_asked_again(
    client: Client, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[int] = []

    def checker(check: TransactionCheck) -> TransactionStatus:
        attempts.append(check.attempt)
        if check.attempt == 1:
            raise OSError("no database")
        return UNKNOWN if check.attempt == 2 else COMMIT

    await _halves(server, client, b"a")
    async with client.transaction_producer("tx", checker):
        for answers in (1, 2, 3):
            server.advance(LONGEST_INTERVAL)
            await server.link.wait_handled(wire.EndTransactions, answers)

    assert attempts == [1, 2, 3]
    assert [request.decisions for request in server.link.of(wire.EndTransactions)] == [[3], [3], [1]]
    assert "no database" in caplog.text


async def test_a_checker_that_takes_too_long_is_unknown(
    client: Client, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def checker(check: TransactionCheck) -> TransactionStatus:
        await asyncio.Event().wait()
        return COMMIT

    await _halves(server, client, b"a")
    async with client.transaction_producer("tx", checker, check_timeout=0.02):
        server.advance(LONGEST_INTERVAL)
        await server.link.wait_handled(wire.EndTransactions)

    assert server.link.of(wire.EndTransactions)[0].decisions == [3]
    assert "within 0.02 s" in caplog.text


async def test_checks_run_at_once_but_only_so_many(client: Client, server: LocalServer) -> None:
    gate = asyncio.Event()
    running = most = 0

    async def checker(check: TransactionCheck) -> TransactionStatus:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        return COMMIT

    await _halves(server, client, *[b"x"] * 10)
    async with client.transaction_producer("tx", checker, checks_at_once=3):
        server.advance(LONGEST_INTERVAL)
        await eventually(lambda: running == 3)
        # Asked again while they run or wait: each is answered once.
        server.advance(LONGEST_INTERVAL)
        await client.queue("tx").attributes()  # answered behind the checks
        gate.set()
        await _until_decided(server)

    assert most == 3
    assert len(server.link.of(wire.EndTransactions)) == 10


async def test_a_checker_is_registered_again_after_each_reconnection_before_anything_else(
    client: Client, server: LocalServer
) -> None:
    await _halves(server, client, b"a")
    async with client.transaction_producer("tx", lambda check: COMMIT):
        server.link.connection.drop()
        await eventually(lambda: not server.link.connections)
        await client.queue("tx").attributes()
        kinds = [type(request) for request in server.link.connection.requests]
        assert kinds == [wire.RegisterChecker, wire.GetQueueAttributes]
        server.advance(LONGEST_INTERVAL)
        await server.wait_bodies("tx", b"a")


async def test_a_registration_that_is_refused_for_now_is_repeated(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_queue("tx", transactional=True)
    async with client.transaction_producer("tx", lambda check: COMMIT):
        server.link.refuse(wire.RegisterChecker, ErrorCode.BUSY)
        server.link.connection.drop()
        await server.link.wait_handled(wire.RegisterChecker, 3)
        await server.wait_status("checkers", 1)


async def test_a_registration_that_is_refused_for_good_is_logged(
    client: Client, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    await server.admin.ensure_queue("tx", transactional=True)
    async with client.transaction_producer("tx", lambda check: COMMIT):
        await server.admin.delete_queue("tx")
        server.link.connection.drop()
        await eventually(lambda: "will not come" in caplog.text)


async def test_every_connection_of_a_client_takes_checks(server: LocalServer) -> None:
    await server.admin.ensure_queue("tx", transactional=True)
    async with connect(server.url, connections=3) as client:
        await eventually(lambda: len(server.link.connections) == 3)
        async with client.transaction_producer("tx", lambda check: COMMIT):
            await server.wait_status("checkers", 3)
        assert await server.status("checkers") == 0


async def test_a_checker_needs_a_transactional_queue(client: Client, server: LocalServer) -> None:
    for name, code in (("orders", 308), ("nowhere", 300)):
        producer = client.transaction_producer(name, lambda check: COMMIT)
        with pytest.raises((NotTransactional, Exception)) as caught:
            await producer.open()
        assert getattr(caught.value, "code", None) == code
        await producer.close()
    await server.admin.ensure_queue("tx", transactional=True)
    server.link.connection.drop()
    await client.queue("tx").attributes()
    assert len(server.link.of(wire.RegisterChecker)) == 2


async def test_closing_waits_for_checks_that_run_and_takes_no_more(client: Client, server: LocalServer) -> None:
    gate = asyncio.Event()
    begun: list[TransactionCheck] = []

    async def checker(check: TransactionCheck) -> TransactionStatus:
        begun.append(check)
        await gate.wait()
        return COMMIT

    await _halves(server, client, b"a", b"b")
    producer = client.transaction_producer("tx", checker, checks_at_once=1)
    await producer.open()
    server.advance(LONGEST_INTERVAL)
    await eventually(lambda: len(begun) == 1)
    closing = asyncio.create_task(producer.close())
    await server.link.wait_handled(wire.UnregisterChecker)
    await client.queue("tx").attributes()
    assert not closing.done()
    gate.set()
    await closing

    assert await server.bodies("tx") == [b"a", b"b"]
    # A check that crossed the end of the registration: no checker is there to answer, and the server is told once more.
    server.link.connection.answer(wire.TransactionCheck("tx", 99, b"c", None, 0, 0, 1))
    await server.link.wait_handled(wire.UnregisterChecker, 2)


async def test_cancelling_the_close_cancels_the_checks(client: Client, server: LocalServer) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def checker(check: TransactionCheck) -> TransactionStatus:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return COMMIT

    await _halves(server, client, b"a")
    producer = client.transaction_producer("tx", checker)
    await producer.open()
    server.advance(LONGEST_INTERVAL)
    await begun.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await producer.close()
    await cancelled.wait()
    assert (await server.info("tx")).half == 1


@pytest.mark.parametrize("stays", [True, False])
async def test_a_producer_that_comes_while_the_last_one_leaves_is_registered(
    client: Client, server: LocalServer, stays: bool
) -> None:
    await _halves(server, client, b"a")
    first = client.transaction_producer("tx", lambda check: UNKNOWN)
    second = client.transaction_producer("tx", lambda check: COMMIT)
    await first.open()
    leaving = asyncio.create_task(first.close())
    await asyncio.sleep(0)
    await second.open()
    if not stays:
        await second.close()
    await leaving

    if stays:
        server.advance(LONGEST_INTERVAL)
        await server.wait_bodies("tx", b"a")
        await second.close()
    assert await server.status("checkers") == 0
    server.link.connection.drop()
    await client.queue("tx").attributes()
    assert await server.status("checkers") == 0


async def test_two_producers_of_one_client_share_the_checks(client: Client, server: LocalServer) -> None:
    seen: list[str] = []

    def named(name: str) -> "list[str]":
        return [name]

    def first(check: TransactionCheck) -> TransactionStatus:
        seen.extend(named("first"))
        return UNKNOWN

    def second(check: TransactionCheck) -> TransactionStatus:
        seen.extend(named("second"))
        return UNKNOWN

    await _halves(server, client, b"a", b"b")
    async with client.transaction_producer("tx", first):
        async with client.transaction_producer("tx", second):
            server.advance(LONGEST_INTERVAL)
            await server.link.wait_handled(wire.EndTransactions, 2)
        assert sorted(seen) == ["first", "second"]
        server.advance(LONGEST_INTERVAL)
        await server.link.wait_handled(wire.EndTransactions, 4)
    assert seen[2:] == ["first", "first"]
    assert await server.status("checkers") == 0


async def test_the_answer_to_a_check_that_is_lost_is_repeated_and_one_too_late_is_logged(
    client: Client, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    queue = client.queue("tx")

    async def checker(check: TransactionCheck) -> TransactionStatus:
        if check.body == b"late":
            await queue.end_transactions([check.id], COMMIT)
            return ROLLBACK
        return COMMIT

    await _halves(server, client, b"a")
    async with client.transaction_producer("tx", checker):
        server.link.lose_answer(wire.EndTransactions)
        server.advance(LONGEST_INTERVAL)
        await server.link.wait_handled(wire.EndTransactions, 2)
        await _halves(server, client, b"late")
        server.advance(LONGEST_INTERVAL)
        await eventually(lambda: "answered too late" in caplog.text)
        server.link.refuse(wire.EndTransactions, ErrorCode.INTERNAL_ERROR)
        await _halves(server, client, b"c")
        server.advance(LONGEST_INTERVAL)
        await eventually(lambda: "will ask again" in caplog.text)
    assert await server.bodies("tx") == [b"a", b"late"]


async def test_a_client_that_is_closed_first_does_not_hold_up_its_producer(server: LocalServer) -> None:
    await server.admin.ensure_queue("tx", transactional=True)
    client = connect(server.url)
    await client.open()
    producer = client.transaction_producer("tx", lambda check: COMMIT)
    await producer.open()
    await client.close()
    await producer.close()


# ---------------------------------------------------------------------- operators


async def test_operators_list_and_decide_half_messages(client: Client, server: LocalServer) -> None:
    ids = await _halves(server, client, b"a", b"b", b"c")
    queue = client.queue("tx")

    page = await queue.half_messages(2)
    rest = await queue.half_messages(2, start=page.next_start or 0)

    assert [one.id for one in (*page, *rest)] == ids
    assert (len(page), rest.next_start) == (2, None)
    first = page.messages[0]
    assert (first.checks, first.last_check_time, first.last_answer) == (0, None, "")
    assert first.next_check_time is not None

    done = await queue.end_transactions(ids[:2], [COMMIT, ROLLBACK])
    assert (done.done, done.ok) == (ids[:2], True)
    again = await queue.end_transactions([*ids, "Msg-00000000000000ff"], ROLLBACK, check=False)
    assert again.done == ids[1:]
    assert {failed.id: type(failed.error) for failed in again.failures} == {
        ids[0]: AlreadyCommitted,
        "Msg-00000000000000ff": TransactionNotFound,
    }
    with pytest.raises(Exception, match="2 of 4 failed"):
        again.raise_for_failures()
    assert (await queue.attributes()).half == 0


async def test_many_half_messages_are_decided_in_slices(client: Client, server: LocalServer) -> None:
    ids = [one for _ in range(3) for one in await _halves(server, client, *[b"x"] * 200)]

    result = await client.queue("tx").end_transactions(ids, COMMIT)

    assert len(result.done) == 600
    assert [len(request.message_ids) for request in server.link.of(wire.EndTransactions)] == [256, 256, 88]


async def test_what_is_no_message_id_is_refused(client: Client, server: LocalServer) -> None:
    queue = client.queue("tx")
    with pytest.raises(ValueError, match="not a message id"):
        await queue.end_transactions(["7"], COMMIT)
    with pytest.raises(ValueError, match="1 statuses for 2"):
        await queue.end_transactions(["Msg-0000000000000001", "Msg-0000000000000002"], [COMMIT])
    assert not server.link.handled


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:  # pyright: ignore[reportUnusedFunction]
    caplog.set_level(logging.DEBUG, "cmqd_client")
