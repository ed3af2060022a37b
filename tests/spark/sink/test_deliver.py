"""A task of the sink against a server that obeys the test. No Spark session."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportMissingModuleSource=false

import asyncio
import pickle
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cmqd_client import connect
from cmqd_log.copy import sending
from cmqd_log.copy.sending import SendError
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from pyspark_cmqd.sending.default_ids import DefaultIds, DoubledRowsError
from pyspark_cmqd.sending.sink import Delivered, deliver
from pyspark_cmqd.sending.sink_options import parse_sink_options
from pyspark_cmqd.sending.sink_requests import RowError
from support.client.faulty_link import LinkConnection
from support.client.local_server import LocalServer
from support.eventually import eventually
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.spark


@pytest.fixture
async def server() -> AsyncIterator[LocalServer]:
    async with LocalServer() as server:
        yield server


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    first = 0
    for size in sizes:
        yield pa.RecordBatch.from_pydict(
            {"body": pa.array([b"%d" % row for row in range(first, first + size)], pa.binary())}
        )
        first += size


async def send(server: LocalServer, rows: Iterator[pa.RecordBatch], **options: str) -> Delivered:
    given = {"url": server.url, "queue": "orders", "batchSize": "10", **options}
    return await deliver(parse_sink_options(given), {"body": "body"}, rows, DefaultIds("x:", "x"))


async def test_rows_arrive_in_order_under_the_names_of_their_places(server: LocalServer) -> None:
    delivered = await send(server, batches(25, 0, 5))

    assert delivered == Delivered(30, 50, 4)
    assert await server.bodies("orders") == [b"%d" % row for row in range(30)]
    requests = server.link.of(wire.SendMessages)
    assert [name for request in requests for name in request.dedup_ids] == [f"x:{row}" for row in range(30)]


async def test_without_rows_no_request_is_sent(server: LocalServer) -> None:
    await server.link.stop()
    assert await send(server, batches()) == Delivered()
    assert await send(server, batches(0, 0)) == Delivered()


async def test_no_more_requests_are_under_way_than_allowed(server: LocalServer) -> None:
    server.link.ignore(wire.SendMessages, 3)
    sending = asyncio.create_task(send(server, batches(100), inFlight="3", requestTimeout="2", batchSize="1"))
    await server.link.wait_handled(wire.SendMessages, 3)
    await asyncio.sleep(0.05)
    assert len(server.link.of(wire.SendMessages)) == 3

    assert (await sending).messages == 100


async def test_a_rate_is_held(server: LocalServer) -> None:
    begun = time.monotonic()

    assert (await send(server, batches(60), maxMessagesPerSecond="200", batchSize="256")).messages == 60

    assert time.monotonic() - begun >= 0.19, "20 each tenth of a second"
    assert [len(request.bodies) for request in server.link.of(wire.SendMessages)] == [20, 20, 20]


async def test_what_may_be_repeated_is_and_is_stored_once(server: LocalServer) -> None:
    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, retry_after_ms=1)
    server.link.lose_answer(wire.SendMessages)
    server.link.drop_request(wire.SendMessages)

    await send(server, batches(40))

    assert sorted(map(int, await server.bodies("orders"))) == list(range(40))


async def test_one_request_at_a_time_keeps_the_order_whatever_is_repeated(server: LocalServer) -> None:
    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, retry_after_ms=1)
    server.link.lose_answer(wire.SendMessages)
    server.link.drop_request(wire.SendMessages)

    await send(server, batches(80), inFlight="1")

    assert await server.bodies("orders") == [b"%d" % row for row in range(80)]


async def test_a_refusal_ends_it_with_what_was_sent_before(server: LocalServer) -> None:
    server.link.answer(wire.SendMessages, *[lambda peer, request: wire.MessagesSent(request.request_id, [1] * 10)] * 2)
    server.link.refuse(wire.SendMessages, ErrorCode.QUEUE_NOT_FOUND, "queue 'orders' does not exist")

    with pytest.raises(SendError, match="QueueNotFound: queue 'orders' does not exist") as failed:
        await send(server, batches(100), inFlight="1")

    assert failed.value.sent == 20
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)


async def test_a_bad_row_ends_it_and_is_named(server: LocalServer) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(20)
        yield pa.RecordBatch.from_pydict({"body": pa.array([b"x", None], pa.binary())})

    with pytest.raises(RowError) as failed:
        await send(server, rows())

    assert failed.value.row == 21


async def test_a_row_of_a_log_that_comes_twice_is_not_sent(server: LocalServer) -> None:
    def rows(*lsns: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {
                "body": pa.array([b"%d" % lsn for lsn in lsns], pa.binary()),
                "lsn": pa.array(lsns, pa.int64()),
                "row_index": pa.array([0] * len(lsns), pa.int32()),
            }
        )

    given = parse_sink_options({"url": server.url, "queue": "orders"})
    columns = {name: name for name in ("body", "lsn", "row_index")}

    delivered = await deliver(given, columns, iter([rows(1, 2), rows(3)]), DefaultIds("", "first"))
    assert delivered.rows is not None
    assert delivered.rows.names(9) == ["1:0", "2:0", "3:0"]

    with pytest.raises(DoubledRowsError, match="twice: 1:0 "):
        await deliver(given, columns, iter([rows(1, 2), rows(3, 1)]), DefaultIds("", "second"))
    assert set(await server.bodies("orders")) == {b"1", b"2", b"3"}
    assert {len(request.dedup_ids or ()) for request in server.link.of(wire.SendMessages)} == {2, 1}

    # The same write again, by another task and in another order, as after a failure: the broker knows the rows.
    again = await deliver(given, columns, iter([rows(3, 2, 1)]), DefaultIds("other", "first"))
    assert again.messages == 3
    assert len(await server.bodies("orders")) <= 5


async def test_a_server_that_starts_late_is_waited_for(server: LocalServer) -> None:
    await server.link.stop()
    sending = asyncio.create_task(send(server, batches(5), requestTimeout="0.2", retries="1000"))
    await asyncio.sleep(0.5)
    assert not sending.done()

    await server.link.start()

    assert (await sending).messages == 5


async def test_a_server_that_is_not_there_is_given_up(server: LocalServer) -> None:
    await server.link.stop()
    with pytest.raises(SendError, match="ServerUnreachable"):
        await send(server, batches(5), requestTimeout="0.05", retries="2")


async def test_answers_arrive_while_the_next_rows_are_made(server: LocalServer) -> None:
    answered = threading.Event()

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(10)
        # Blocks its thread until the server has answered all sends.
        assert answered.wait(240)
        yield from batches(10)

    sending = asyncio.create_task(send(server, rows()))
    await server.link.wait_handled(wire.SendMessages)
    answered.set()

    assert (await sending).messages == 20


# ---------------------------------------------------------------------- in order, with several requests under way


async def test_an_ordered_write_has_several_requests_under_way(server: LocalServer) -> None:
    server.link.ignore(wire.SendMessages, 3)
    sending = asyncio.create_task(send(server, batches(100), ordered="true", inFlight="3", requestTimeout="2"))
    await server.link.wait_handled(wire.SendMessages, 3)

    first, second, third = server.link.of(wire.SendMessages)
    assert (first.after, second.after, third.after) == (None, "x:9", "x:19")
    assert (await sending).messages == 100
    assert await server.bodies("orders") == [b"%d" % row for row in range(100)]


@pytest.mark.parametrize("seed", range(20))
async def test_an_ordered_write_keeps_its_order_whatever_is_refused_or_lost(server: LocalServer, seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(6):
        match choose.randrange(4):
            case 0:
                server.link.refuse(wire.SendMessages, ErrorCode.BUSY, retry_after_ms=1)
            case 1:
                server.link.lose_answer(wire.SendMessages)
            case 2:
                server.link.drop_request(wire.SendMessages)
            case _:
                server.link.carry_out(wire.SendMessages, choose.randrange(1, 4))

    delivered = await send(server, batches(200), ordered="true", inFlight="5")

    assert delivered.messages == 200
    assert await server.bodies("orders") == [b"%d" % row for row in range(200)]


async def test_a_refusal_in_the_middle_of_an_ordered_write_leaves_a_beginning(server: LocalServer) -> None:
    refusals: list[asyncio.Task[None]] = []

    def refuse(connection: LinkConnection, request: wire.SendMessages) -> None:
        async def refuse_behind_the_first_answers() -> None:
            first = {sent.request_id for sent in server.link.of(wire.SendMessages)[:3]}
            await eventually(lambda: first <= set(server.link.answered))
            connection.answer(wire.error(request.request_id, ErrorCode.BACKLOG_FULL, "the queue is full"))

        refusals.append(asyncio.create_task(refuse_behind_the_first_answers()))

    server.link.carry_out(wire.SendMessages, 3)
    server.link.answer(wire.SendMessages, refuse)

    with pytest.raises(SendError, match="BacklogFull") as failed:
        await send(server, batches(200), ordered="true", inFlight="8", retries="0")

    assert failed.value.sent == 30
    assert await server.bodies("orders") == [b"%d" % row for row in range(30)]

    # The same again, as a run that is gone on with does.
    assert (await send(server, batches(200), ordered="true", inFlight="8")).messages == 200
    assert await server.bodies("orders") == [b"%d" % row for row in range(200)]


async def publish(server: LocalServer, rows: Iterator[pa.RecordBatch], **options: str) -> Delivered:
    given = {"url": server.url, "topic": "news", "batchSize": "10", **options}
    return await deliver(parse_sink_options(given), {"body": "body"}, rows, DefaultIds("x:", "x"))


async def a_topic(server: LocalServer, **attributes: Any) -> None:
    await server.admin.create_topic("news", filter_type="tag", max_message_bytes=65536)
    await server.subscribe("news", "to-orders", "orders", **attributes)


async def test_an_ordered_write_to_a_topic_has_several_requests_under_way(server: LocalServer) -> None:
    await a_topic(server)
    server.link.ignore(wire.PublishMessages, 3)
    publishing = asyncio.create_task(publish(server, batches(100), ordered="true", inFlight="3", requestTimeout="2"))
    await server.link.wait_handled(wire.PublishMessages, 3)

    first, second, third = server.link.of(wire.PublishMessages)
    assert (first.after, second.after, third.after) == (None, "x:9", "x:19")
    assert (await publishing).messages == 100
    assert await server.bodies("orders") == [b"%d" % row for row in range(100)]


@pytest.mark.parametrize("seed", range(10))
async def test_an_ordered_write_to_a_topic_keeps_its_order_whatever_is_refused_or_lost(
    server: LocalServer, seed: int
) -> None:
    await a_topic(server)
    choose = random.Random(seed)
    for _ in range(6):
        match choose.randrange(4):
            case 0:
                server.link.refuse(wire.PublishMessages, ErrorCode.BUSY, retry_after_ms=1)
            case 1:
                server.link.lose_answer(wire.PublishMessages)
            case 2:
                server.link.drop_request(wire.PublishMessages)
            case _:
                server.link.carry_out(wire.PublishMessages, choose.randrange(1, 4))

    delivered = await publish(server, batches(200), ordered="true", inFlight="5")

    assert delivered.messages == 200
    assert await server.bodies("orders") == [b"%d" % row for row in range(200)]


async def test_an_ordered_write_goes_on_behind_messages_that_match_no_subscription(server: LocalServer) -> None:
    await a_topic(server, filter_tags=["other"])

    assert (await publish(server, batches(100), ordered="true", inFlight="8")).messages == 100

    assert len([request for request in server.link.of(wire.PublishMessages) if request.after is None]) == 10


@pytest.mark.parametrize("features", [(), ("ordered_sends",)])
async def test_a_server_without_ordered_publishes_gets_one_publish_at_a_time(
    server: LocalServer, features: tuple[str, ...]
) -> None:
    await a_topic(server)
    server.link.features = features

    await publish(server, batches(80), ordered="true", inFlight="8")

    assert await server.bodies("orders") == [b"%d" % row for row in range(80)]
    assert {request.after for request in server.link.of(wire.PublishMessages)} == {None}


async def test_an_older_server_gets_one_request_at_a_time(server: LocalServer) -> None:
    server.link.features = ()
    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, retry_after_ms=1)
    server.link.lose_answer(wire.SendMessages)

    await send(server, batches(80), ordered="true", inFlight="8")

    assert await server.bodies("orders") == [b"%d" % row for row in range(80)]
    assert {request.after for request in server.link.of(wire.SendMessages)} == {None}


async def test_an_id_of_an_earlier_row_does_not_break_the_order(server: LocalServer) -> None:
    """The second request ends with an id that the broker knows from the first, and is refused for a moment."""
    ids = ["same", "1", "2", "same", "4", "5", "6", "7"]
    rows = pa.RecordBatch.from_pydict(
        {"body": pa.array([b"%d" % row for row in range(8)], pa.binary()), "dedup_id": pa.array(ids)}
    )
    server.link.carry_out(wire.SendMessages, 1)
    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, retry_after_ms=1)
    given = parse_sink_options({"url": server.url, "queue": "orders", "batchSize": "2", "ordered": "true"})

    await deliver(given, {"body": "body", "dedup_id": "dedup_id"}, iter([rows]), DefaultIds("x:", "x"))

    assert await server.bodies("orders") == [b"0", b"1", b"2", b"4", b"5", b"6", b"7"]


async def test_room_for_dedup_ids_is_waited_for(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    monkeypatch.setattr(sending, "_sleep", sleep)
    server.link.carry_out(wire.SendMessages, 2)
    refuse_new_ids(server, 3)

    delivered = await send(server, batches(100), ordered="true", inFlight="4")

    assert delivered.messages == 100
    assert await server.bodies("orders") == [b"%d" % row for row in range(100)]
    assert pauses == [200.0] * 3


async def test_room_for_dedup_ids_is_not_waited_for_without_end(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(_pause_s: float) -> None:
        pass

    monkeypatch.setattr(sending, "_sleep", sleep)
    refuse_new_ids(server, 20)

    with pytest.raises(SendError, match="TooManyRequests"):
        await send(server, batches(10))

    assert len(server.link.of(wire.SendMessages)) == sending.MEMORY_PATIENCE_S // 200 + 1


def refuse_new_ids(server: LocalServer, times: int) -> None:
    """Refuse sends as a broker does that has no memory for more dedup ids of the account."""

    def refuse(_: LinkConnection, request: wire.SendMessages) -> wire.AnyReply:
        return wire.error(
            request.request_id,
            ErrorCode.TOO_MANY_REQUESTS,
            "the account holds its share",
            retry_after_ms=200_000,
            details={"limit": 1, "oldest_ends_ms": 1},
        )

    server.link.answer(wire.SendMessages, *[refuse] * times)


@pytest.mark.system
async def test_an_ordered_write_keeps_its_order_over_kills_of_a_real_broker(tmp_path: Path) -> None:
    rows = 6_000
    with RunningBroker(tmp_path) as broker:
        async with connect(broker.url) as client:
            queue = await client.create_queue("orders", max_message_bytes=65_536)

            async def stored() -> int:
                return (await queue.attributes()).active

            # At a rate, so that messages are left after every start.
            options = {"ordered": "true", "batchSize": "8", "retries": "50", "maxMessagesPerSecond": "3000"}
            given = parse_sink_options({"url": broker.url, "queue": "orders", **options})
            sending = asyncio.create_task(deliver(given, {"body": "body"}, batches(*[100] * 60), DefaultIds("x:", "x")))
            crashed: list[int] = []
            for least in (rows // 10, rows // 3):
                while await stored() < least:  # noqa: ASYNC110 - the server has no push for this
                    await asyncio.sleep(0)
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
                crashed.append(await stored())

            assert (await sending).messages == rows
            assert crashed[-1] < rows, "it was in the middle"
            bodies: list[bytes] = []
            while messages := await queue.receive(256, wait=0):
                bodies += [message.body for message in messages]
                await queue.delete_batch(messages)
            assert bodies == [b"%d" % row for row in range(rows)]
