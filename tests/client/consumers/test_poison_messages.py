"""Typed bodies: a body that cannot be decoded reaches no handler and no loop."""

import asyncio

import msgspec
import pytest

from cmqd_client import Client, ConsumedMessage
from cmqd_client.errors import PoisonMessage
from cmqd_client.messages.typed_bodies import PoisonPolicy
from support.client.consumer_parts import with_dead_letters
from support.client.local_server import LocalServer
from support.eventually import eventually

pytestmark = pytest.mark.usefixtures("an_older_server")


class Order(msgspec.Struct):
    number: int


async def put_poison(client: Client, server: LocalServer) -> None:
    """Send an order, a body that is no order, and an order."""
    orders = client.queue("orders", Order)
    await orders.send(Order(1))
    await server.put("orders", b'{"number": "two"}')
    await orders.send(Order(3))


@pytest.mark.parametrize("policy", [PoisonPolicy.REJECT, PoisonPolicy.SKIP])
async def test_a_poison_message_reaches_no_handler(client: Client, server: LocalServer, policy: PoisonPolicy) -> None:
    dead = await with_dead_letters(server)
    await put_poison(client, server)
    numbers: list[int] = []

    @client.queue("orders", Order, poison=policy).consumer(prefetch=2)
    async def handle(message: ConsumedMessage[Order]) -> None:
        numbers.append(message.body.number)

    task = asyncio.create_task(handle.run())
    await eventually(lambda: numbers == [1, 3])
    await eventually(lambda: handle.statistics().held == 0)
    handle.stop()
    await task

    assert (await server.info("orders")).active == 0
    letters = await dead.receive(2, wait=0)
    if policy is PoisonPolicy.SKIP:
        assert (letters, handle.statistics().deleted) == ([], 3)
    else:
        (letter,) = letters
        assert letter.body == b'{"number": "two"}'
        assert letter.origin is not None
        assert letter.origin.rejection == "does not decode: Expected `int`, got `str` - at `$.number`"


async def test_a_poison_message_can_end_the_consumer_and_goes_back_uncounted(
    client: Client, server: LocalServer
) -> None:
    await put_poison(client, server)
    numbers: list[int] = []

    @client.queue("orders", Order, poison=PoisonPolicy.RAISE).consumer(prefetch=2)
    async def handle(message: ConsumedMessage[Order]) -> None:
        numbers.append(message.body.number)

    with pytest.raises(PoisonMessage) as raised:
        await client.run(handle)

    assert numbers == [1]
    assert raised.value.message.raw_body == b'{"number": "two"}'
    left = await server.admin.queue("orders").receive(3)
    assert [(message.body, message.receive_count) for message in left] == [
        (b'{"number": "two"}', 1),
        (b'{"number":3}', 1),
    ]


@pytest.mark.parametrize("policy", list(PoisonPolicy))
async def test_a_loop_sees_no_poison_message(client: Client, server: LocalServer, policy: PoisonPolicy) -> None:
    await with_dead_letters(server)
    await put_poison(client, server)
    numbers: list[int] = []

    async def loop() -> None:
        async for message in client.queue("orders", Order, poison=policy).consume(prefetch=2):
            async with message.process():
                numbers.append(message.body.number)
            if len(numbers) == 2:
                break

    if policy is PoisonPolicy.RAISE:
        with pytest.raises(PoisonMessage):
            await loop()
    else:
        await loop()

    assert numbers == ([1] if policy is PoisonPolicy.RAISE else [1, 3])
