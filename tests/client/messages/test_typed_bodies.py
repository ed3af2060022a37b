"""Queues with typed bodies: encodings, headers, and bodies that do not decode."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import pytest

from cmqd_client import Client, HalfMessage, Outgoing, Queue, TransactionCheck, TransactionStatus
from cmqd_client.errors import PoisonMessage
from cmqd_client.messages.typed_bodies import JSON, MSGPACK, BodyCodec, BodyFormat, PoisonPolicy
from cmqd_protocol import messages as wire
from support.client.local_server import LocalServer


class Order(msgspec.Struct):
    number: int
    drink: str
    due: datetime | None = None


@dataclass
class Cup:
    size: int


class Note(TypedDict):
    text: str


@pytest.mark.parametrize("body_format", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("body_type", "value"),
    [
        (Order, Order(7, "espresso", datetime(2026, 1, 2, tzinfo=UTC))),
        (Cup, Cup(3)),
        (Note, {"text": "soon"}),
        (list[Cup], [Cup(1), Cup(2)]),
        (str, "hello"),
    ],
)
async def test_a_sent_message_is_received(client: Client, body_type: Any, value: Any, body_format: BodyFormat) -> None:
    queue = client.queue("orders", body_type, body_format=body_format)

    await queue.send(value)
    await queue.send_batch([value, Outgoing(value, headers={"customer": "7"})], headers={"shop": "1"})

    messages = await queue.receive(3)
    assert [message.body for message in messages] == [value] * 3
    content_type = JSON if body_format == "json" else MSGPACK
    assert [message.headers for message in messages] == [
        {"content-type": content_type},
        {"content-type": content_type, "shop": "1"},
        {"content-type": content_type, "customer": "7"},
    ]


async def test_the_header_tells_the_format_not_the_handle(client: Client) -> None:
    await client.queue("orders", Cup, body_format="msgpack").send(Cup(3))
    await client.queue("orders").send(b'{"size": 4}')
    await client.queue("orders").send(b'{"size": 5}', headers={"content-type": "Application/JSON; charset=utf-8"})

    messages = await client.queue("orders", Cup).receive(3)

    assert [message.body for message in messages] == [Cup(3), Cup(4), Cup(5)]


@pytest.mark.parametrize("body_format", ["json", "msgpack"])
async def test_a_typed_topic_publishes_values(client: Client, server: LocalServer, body_format: BodyFormat) -> None:
    await client.create_topic("shop")
    await server.subscribe("shop", "all", "orders")
    topic = client.topic("shop", Cup, body_format=body_format)

    await topic.publish(Cup(1), headers={"customer": "7"})
    await topic.publish_batch([Cup(2), Cup(3)])
    await topic.publish_batch([Cup(4), Cup(5)], headers=[{"shop": "1"}, None])
    with pytest.raises(TypeError, match="must be of the type Cup, not Order"):
        await topic.publish(Order(1, "tea"))  # type: ignore[arg-type]

    messages = await client.queue("orders", Cup).receive(16)
    assert [message.body for message in messages] == [Cup(number) for number in range(1, 6)]
    kind = {"content-type": JSON if body_format == "json" else MSGPACK}
    assert [message.headers for message in messages] == [
        {"customer": "7", **kind},
        kind,
        kind,
        {"shop": "1", **kind},
        kind,
    ]


async def test_a_transaction_with_typed_bodies(client: Client, server: LocalServer) -> None:
    orders = await _transactional(client)
    halves: list[HalfMessage[Cup]] = []

    def local(message: HalfMessage[Cup], _: None) -> TransactionStatus:
        halves.append(message)
        return TransactionStatus.COMMIT

    async with client.transaction_producer(orders) as producer:
        await producer.send(Cup(1), local)
        await producer.send_batch(
            [Cup(2), Outgoing(Cup(3), headers={"customer": "7"})], lambda messages, _: TransactionStatus.COMMIT
        )
        with pytest.raises(TypeError, match="must be of the type Cup"):
            await producer.send(b"x", local)  # type: ignore[arg-type]

    assert [half.body for half in halves] == [Cup(1)]
    assert [message.body for message in await orders.receive(3)] == [Cup(1), Cup(2), Cup(3)]


async def test_a_checker_gets_the_typed_body_or_decides_without_it(client: Client, server: LocalServer) -> None:
    orders = await _transactional(client)
    await orders.send_half_batch([Cup(1)], first_check=10)
    raw = await client.queue("tx").send_half_batch([b"of an earlier type"], first_check=10)
    poison: list[PoisonMessage] = []

    def checker(check: TransactionCheck[Cup]) -> TransactionStatus:
        try:
            return TransactionStatus.COMMIT if check.body == Cup(1) else TransactionStatus.ROLLBACK
        except PoisonMessage as error:
            poison.append(error)
            return TransactionStatus.COMMIT if check.raw_body == b"of an earlier type" else TransactionStatus.ROLLBACK

    async with client.transaction_producer(orders, checker):
        server.advance(11)
        messages = [message for _ in range(2) for message in await client.queue("tx").receive(wait=30)]

    assert sorted(message.body for message in messages) == [b"of an earlier type", b'{"size":1}']
    (error,) = poison
    assert isinstance(error.message, TransactionCheck)
    assert str(raw.ids[0]) in str(error)


async def _transactional(client: Client) -> Queue[Cup]:
    await client.create_queue("tx", transactional=True)
    return client.queue("tx", Cup)


async def test_a_peek_shows_bytes(client: Client) -> None:
    await client.queue("orders", Cup).send(Cup(3))
    (peeked,) = await client.queue("orders", Cup).peek()
    assert peeked.body == b'{"size":3}'


async def test_a_typed_handle_can_be_asked(client: Client, server: LocalServer) -> None:
    async def answer() -> None:
        (message,) = await server.admin.queue("orders", Cup).receive(wait=30)
        await message.reply(b"%d" % message.body.size)

    answering = asyncio.create_task(answer())
    assert (await client.request(client.queue("orders", Cup), Cup(7))).body == b"7"
    await answering


async def test_raw_bytes_stay_the_default(client: Client) -> None:
    queue = client.queue("orders")
    await queue.send(b"\xff")
    (message,) = await queue.receive()
    assert (message.body, message.raw_body, message.headers) == (b"\xff", b"\xff", {})


@pytest.mark.parametrize(
    ("body", "headers", "why"),
    [
        (b"{", {}, "truncated|malformed"),
        (b"\xff", {}, "malformed|utf-8"),
        (b'{"number": "x", "drink": "tea"}', {}, r"Expected `int`, got `str` - at `\$.number`"),
        (b"x", {"content-type": "text/plain"}, "its content type is 'text/plain'"),
        (b"\xc1", {"content-type": "application/msgpack"}, "invalid"),
        (b'{"number": 1, "drink": "tea", "more": ' + b"[" * 100_000, {}, "recursion|truncated"),
    ],
)
async def test_a_body_that_does_not_decode_is_told_with_its_message(
    client: Client, server: LocalServer, body: bytes, headers: dict[str, str], why: str
) -> None:
    await client.create_queue("long", max_message_bytes=1_000_000)
    raw, queue = client.queue("long"), client.queue("long", Order)
    await raw.send(body, headers=headers)
    await queue.send(Order(1, "tea"))
    poison, good = await queue.receive(2)

    for _ in range(2):
        with pytest.raises(PoisonMessage, match=rf"(?i){poison.id} of 'long' does not decode.*({why})") as caught:
            poison.body  # noqa: B018 - the access decodes
        assert caught.value.message is poison
        assert caught.value.request_id == poison.request_id

    assert poison.raw_body == body
    assert good.body == Order(1, "tea"), "the other messages of the receive are untouched"
    await poison.delete()


async def test_a_value_of_another_type_is_not_sent(client: Client, server: LocalServer) -> None:
    queue = client.queue("orders", Order)
    for wrong in (b"bytes", {"number": 1}, Cup(3)):
        with pytest.raises(TypeError, match="must be of the type Order, not"):
            await queue.send(wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="must be of the type Order, not"):
            await queue.send_batch([Order(1, "tea"), wrong])  # pyright: ignore[reportArgumentType]
    assert not server.link.of(wire.SendMessages)


def test_a_type_that_cannot_be_decoded_is_refused_at_once() -> None:
    class Opaque:
        pass

    with pytest.raises(TypeError, match="cannot be a type of bodies"):
        BodyCodec(Opaque, "json", PoisonPolicy.RAISE)
    with pytest.raises(ValueError, match="must be 'json' or 'msgpack'"):
        BodyCodec(Cup, "xml", PoisonPolicy.RAISE)  # pyright: ignore[reportArgumentType]


async def test_the_policy_stands_in_the_handle_for_consumers(client: Client) -> None:
    default, skipping = client.queue("orders", Order), client.queue("orders", Order, poison=PoisonPolicy.SKIP)
    assert default.codec is not None
    assert skipping.codec is not None
    assert (default.codec.poison, skipping.codec.poison) == (PoisonPolicy.REJECT, PoisonPolicy.SKIP)


def test_the_poison_policy_dead_letter_is_an_alias_of_reject() -> None:
    assert PoisonPolicy.DEAD_LETTER is PoisonPolicy("dead_letter") is PoisonPolicy.REJECT
    with pytest.raises(ValueError, match="is not a valid PoisonPolicy"):
        PoisonPolicy("bury")


async def test_a_typed_handle_has_its_own_decoded_value_once(client: Client) -> None:
    queue = client.queue("orders", Order)
    await queue.send(Order(1, "tea"))
    (message,) = await queue.receive()
    assert message.body is message.body


@pytest.mark.parametrize("body_format", ["json", "msgpack"])
async def test_pydantic_models_are_encoded_and_validated(client: Client, body_format: BodyFormat) -> None:
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Model", number=(int, ...), due=(datetime, ...))
    queue: Any = client.queue("orders", model, body_format=body_format)
    value = model(number=7, due=datetime(2026, 1, 2, tzinfo=UTC))
    await queue.send(value)
    await client.queue("orders").send(b'{"number": "seven"}', headers={"content-type": JSON})

    good, poison = await queue.receive(2)

    assert good.body == value
    with pytest.raises(PoisonMessage, match="2 validation errors"):
        poison.body  # noqa: B018 - the access decodes
