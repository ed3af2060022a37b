"""Spans by the conventions for messaging, and the context in the headers of messages."""

from collections.abc import Iterator
from typing import Any

import pytest

from cmqd.testing import LocalBroker
from cmqd_client import Client, Outgoing, TransactionCheck, TransactionStatus, connect, sync
from cmqd_client.errors import QueueNotFound
from cmqd_client.messages.tracing import Tracing
from cmqd_protocol import messages as wire
from support.client.local_server import LocalServer

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.trace import get_current_span

SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An exporter of finished spans; every client of the test makes its spans there."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


async def test_a_message_carries_the_context_of_its_send_to_its_receive(server: LocalServer, spans: Any) -> None:
    async with connect(server.url) as client:
        queue = client.queue("orders")
        sent = await queue.send(b"one", headers={"customer": "7"})
        (message,) = await queue.receive()
        await message.delete()

    send, receive, delete = spans.get_finished_spans()
    assert [span.name for span in (send, receive, delete)] == ["send orders", "receive orders", "delete orders"]
    assert [span.kind.name for span in (send, receive, delete)] == ["PRODUCER", "CLIENT", "CLIENT"]
    assert dict(send.attributes) == {
        "messaging.system": "cmqd",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.id": sent.id,
        "server.address": "127.0.0.1",
        "server.port": server.link.port,
    }
    trace_id, span_id = (f"{send.context.trace_id:032x}", f"{send.context.span_id:016x}")
    assert message.headers == {
        "customer": "7",
        "traceparent": f"00-{trace_id}-{span_id}-{send.context.trace_flags:02x}",
    }
    assert [link.context.span_id for link in receive.links] == [send.context.span_id]
    assert receive.attributes["messaging.operation.type"] == "receive"
    assert receive.attributes["messaging.message.id"] == sent.id
    assert receive.start_time <= receive.end_time
    assert delete.attributes["messaging.operation.type"] == "settle"


async def test_batches_tell_their_size(server: LocalServer, spans: Any) -> None:
    async with connect(server.url) as client:
        queue = client.queue("orders")
        await queue.send_batch([b"a", Outgoing(b"b", headers={"k": "v"})])
        await queue.release_batch(await queue.receive(2))
    counts = [span.attributes["messaging.batch.message_count"] for span in spans.get_finished_spans()]
    assert counts == [2, 2, 2]
    assert len(spans.get_finished_spans()[1].links) == 2


async def test_a_context_given_by_the_caller_stays(server: LocalServer, spans: Any) -> None:
    async with connect(server.url) as client:
        queue = client.queue("orders")
        await queue.send(b"one", headers={"traceparent": SENDER})
        (message,) = await queue.receive()
    assert message.headers == {"traceparent": SENDER}


async def test_the_work_on_a_message_is_a_child_of_its_send(server: LocalServer, spans: Any) -> None:
    async with connect(server.url) as client:
        queue = client.queue("orders")
        await queue.send(b"one", headers={"traceparent": SENDER})
        (message,) = await queue.receive()
        tracing = queue.channel.tracing
        assert tracing is not None
        with pytest.raises(ZeroDivisionError), tracing.process("orders", message):
            raise ZeroDivisionError

    process = spans.get_finished_spans()[-1]
    assert (process.name, process.kind.name) == ("process orders", "CONSUMER")
    assert f"{process.parent.span_id:016x}" == "b7ad6b7169203331"
    assert process.attributes["error.type"] == "ZeroDivisionError"
    assert process.attributes["messaging.message.id"] == message.id
    assert process.attributes["messaging.message.body.size"] == 3
    assert process.status.status_code.name == "ERROR"


def test_the_span_of_the_work_is_current_in_a_body_of_the_synchronous_client(spans: Any) -> None:
    with LocalBroker() as broker, sync.connect(broker.url) as client:
        orders, archive = client.create_queue("orders"), client.create_queue("archive")
        orders.send_batch([b"one", b"two"])
        inside: list[int] = []
        for message in orders.consume():
            with message.process():
                inside.append(get_current_span().get_span_context().span_id)
                archive.send(message.body)
                if len(inside) == 2:
                    raise ZeroDivisionError
            assert not get_current_span().get_span_context().is_valid
            if len(inside) == 2:
                break

    finished = spans.get_finished_spans()
    works = [span for span in finished if span.name == "process orders"]
    assert [work.context.span_id for work in works] == inside
    assert [span.parent.span_id for span in finished if span.name == "send archive"] == inside
    assert [work.status.status_code.name for work in works] == ["UNSET", "ERROR"]
    assert [len(work.events) for work in works] == [0, 1], "the error is recorded once"


async def test_an_error_is_recorded_and_an_empty_receive_is_no_span(server: LocalServer, spans: Any) -> None:
    async with connect(server.url) as client:
        assert await client.queue("orders").receive(wait=0) == []
        with pytest.raises(QueueNotFound):
            await client.queue("missing").send(b"x")
    (send,) = spans.get_finished_spans()
    assert send.attributes["error.type"] == "QueueNotFound"
    assert send.status.status_code.name == "ERROR"


async def test_a_publish_carries_its_context_to_the_copies(server: LocalServer, spans: Any) -> None:
    async with connect(server.url) as client:
        topic = await client.create_topic("shop")
        await server.subscribe("shop", "all", "orders")
        await topic.publish(b"one")
        (copy,) = await client.queue("orders").receive()
    publish, receive = spans.get_finished_spans()
    assert (publish.name, publish.kind.name) == ("publish shop", "PRODUCER")
    assert publish.attributes["messaging.operation.type"] == "send"
    assert f"{publish.context.span_id:016x}" in copy.headers["traceparent"]
    assert receive.links[0].context.span_id == publish.context.span_id


async def test_a_transaction_is_a_half_send_and_its_decision(server: LocalServer, spans: Any) -> None:
    await server.admin.create_queue("tx", transactional=True)
    async with connect(server.url) as client:
        async with client.transaction_producer("tx") as producer:
            result = await producer.send(b"one", lambda message, _: TransactionStatus.COMMIT)
        (message,) = await client.queue("tx").receive()

    half, decision, receive = spans.get_finished_spans()
    assert [span.name for span in (half, decision)] == ["send_half tx", "end_transactions tx"]
    assert (half.kind.name, half.attributes["messaging.message.id"]) == ("PRODUCER", result.id)
    assert decision.attributes["messaging.operation.type"] == "settle"
    assert f"{half.context.span_id:016x}" in message.headers["traceparent"], "the commit keeps the context"
    assert receive.links[0].context.span_id == half.context.span_id


async def test_a_check_is_a_child_of_the_half_send(server: LocalServer, spans: Any) -> None:
    await server.admin.create_queue("tx", transactional=True)
    current: list[int] = []

    def checker(check: TransactionCheck) -> TransactionStatus:
        current.append(get_current_span().get_span_context().span_id)
        return TransactionStatus.COMMIT

    async with connect(server.url) as client:
        sent = await client.queue("tx").send_half_batch([b"one"], first_check=10)
        async with client.transaction_producer("tx", checker):
            server.advance(11)
            (message,) = await client.queue("tx").receive(wait=30)
    assert (message.id, message.body) == (sent.ids[0], b"one")

    by_name = {span.name: span for span in spans.get_finished_spans()}
    half, check, decision = by_name["send_half tx"], by_name["check tx"], by_name["end_transactions tx"]
    assert (check.kind.name, check.parent.span_id) == ("CONSUMER", half.context.span_id)
    assert current == [check.context.span_id], "the checker's own spans are children of the check's"
    assert decision.parent.span_id == check.context.span_id
    assert check.attributes["messaging.message.id"] == sent.ids[0]


def test_a_context_that_does_not_fit_is_left_out(spans: Any) -> None:
    tracing = Tracing("h", 1)
    full = {f"h{number}": "v" for number in range(32)}
    long = {"h": "v" * (16 * 1024 - 1)}
    with tracing.send("orders", 1):
        assert tracing.inject([b"x"], [full]) == [full]
        assert tracing.inject([b"x"], [long]) == [long]
        assert tracing.inject([b"x" * 1024 * 1023, b"y" * 1024], None) is None
        injected = tracing.inject([b"x", b"y"], [None, {"k": "v"}])
    assert injected is not None
    assert [sorted(headers or {}) for headers in injected] == [["traceparent"], ["k", "traceparent"]]


async def test_tracing_can_be_turned_off(server: LocalServer, spans: Any) -> None:
    async with connect(server.url, tracing=False) as client:
        await client.queue("orders").send(b"one")
        (message,) = await client.queue("orders").receive()
    assert (message.headers, spans.get_finished_spans()) == ({}, ())


async def test_without_the_api_nothing_is_traced(
    server: LocalServer, spans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("cmqd_client.messages.tracing.import_module", missing)
    async with connect(server.url) as client:
        await client.queue("orders").send(b"one")
    assert server.link.of(wire.SendMessages)[0].headers is None
    assert spans.get_finished_spans() == ()


async def test_without_an_sdk_nothing_is_traced(client: Client, server: LocalServer) -> None:
    await client.queue("orders").send(b"one")
    assert server.link.of(wire.SendMessages)[0].headers is None, "the API alone has no context to send"
    assert client.queue("orders").channel.tracing is None, "spans that the API discards cost nothing"


async def test_an_sdk_may_be_set_up_after_the_client_is_made(
    server: LocalServer, request: pytest.FixtureRequest
) -> None:
    client = connect(server.url)
    spans = request.getfixturevalue("spans")
    async with client:
        await client.queue("orders").send(b"one")
    assert [span.name for span in spans.get_finished_spans()] == ["send orders"]
