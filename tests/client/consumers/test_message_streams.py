"""Loops over the messages of a consumer, with and without a limit of concurrency."""

import asyncio

import pytest

from cmqd_client import Client, ConsumedMessage, Retry, connect
from cmqd_client.consumers.consumer import MessageStream
from support.client.consumer_parts import options, source
from support.client.local_server import LocalServer
from support.client.turned_clock import TurnedClock
from support.eventually import eventually

pytestmark = pytest.mark.usefixtures("an_older_server")


async def test_a_loop_over_messages(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"bad", b"c")
    bodies: list[bytes] = []

    async for message in client.queue("orders").consume(prefetch=2):
        async with message.process():
            if message.body == b"bad" and message.receive_count == 1:
                raise Retry(after=0)
            bodies.append(message.body)
        if len(bodies) == 3:
            break
    await client.close()  # settles the processed messages

    assert sorted(bodies) == [b"a", b"bad", b"c"]
    assert (await server.info("orders")).in_flight == 0
    assert await server.bodies("orders") == []


async def test_leaving_the_loop_gives_back_messages_that_were_not_taken(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b", b"c")

    async for message in client.queue("orders").consume(prefetch=2):
        await message.delete()
        break
    await server.wait_bodies("orders", b"b", b"c")

    assert [message.receive_count for message in await server.admin.queue("orders").receive(2)] == [1, 1]


async def test_a_message_that_the_program_keeps_stays_in_flight_until_its_lease_ends(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"a")
    stream = MessageStream(source(client), options())
    async with stream:
        async for message in stream:
            assert message.body == b"a"
            break
    assert (await server.info("orders")).in_flight == 1

    server.advance(31)
    assert await server.bodies("orders") == [b"a"]


async def test_the_body_is_cancelled_when_the_lease_is_lost_and_the_loop_goes_on(
    client: Client, server: LocalServer
) -> None:
    clock = TurnedClock()
    await server.put("orders", b"a")
    stream = MessageStream(source(client), options(clock))
    receives: list[int] = []

    async def lose() -> None:
        await eventually(lambda: receives)
        server.advance(31)
        clock.advance(10)

    losing = asyncio.create_task(lose())
    async with stream:
        async for message in stream:
            receives.append(message.receive_count)
            async with message.process():
                if message.receive_count == 1:
                    await asyncio.Event().wait()
            if message.receive_count == 2:
                break
    await losing

    assert receives == [1, 2]
    assert stream.statistics().deleted == 1
    assert asyncio.current_task().cancelling() == 0  # pyright: ignore[reportOptionalMemberAccess]


async def test_several_tasks_share_a_stream(client: Client, server: LocalServer) -> None:
    await server.put("orders", *[b"x"] * 20)
    stream = client.queue("orders").consume(concurrency=4)
    bodies: list[bytes] = []

    async def work() -> None:
        async for message in stream:
            async with message.process():
                await asyncio.sleep(0)
                bodies.append(message.body)

    async with stream:
        tasks = [asyncio.create_task(work()) for _ in range(4)]
        await eventually(lambda: stream.statistics().deleted == 20)
        stream.stop()
        await asyncio.gather(*tasks)

    assert len(bodies) == 20


async def test_an_error_from_outside_goes_through_the_body_and_makes_the_message_active(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"a")
    begun = asyncio.Event()

    async def work() -> None:
        async with client.queue("orders").consume() as stream:
            async for message in stream:
                async with message.process():
                    begun.set()
                    await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await server.bodies("orders") == [b"a"]


async def test_a_program_that_limits_itself_takes_what_it_can_handle(client: Client, server: LocalServer) -> None:
    await server.put("orders", *[b"%d" % number for number in range(20)])
    async with client.queue("orders").consume(concurrency=None) as stream:
        messages = aiter(stream)
        taken = [await anext(messages) for _ in range(5)]  # not settled
        info = await server.info("orders")
        # Receives of 1, 3 and 7 messages: the program asked for the fifth.
        assert (info.active, info.in_flight) == (9, 11)
        stream.stop()
        while (await server.info("orders")).active < 15:
            pass
        for message in taken:
            await message.delete()

    assert [message.body for message in taken] == [b"0", b"1", b"2", b"3", b"4"]
    assert (await server.info("orders")).in_flight == 0


async def test_a_task_that_asks_no_more_leaves_the_next_message_to_others(client: Client, server: LocalServer) -> None:
    async with client.queue("orders").consume(concurrency=None) as stream:

        async def ask() -> ConsumedMessage[bytes]:
            return await anext(aiter(stream))

        asking = asyncio.create_task(ask())
        await server.wait_status("waiting_receives", 1)
        asking.cancel()
        await asyncio.wait([asking])
        await server.put("orders", b"a")
        message = await ask()
        assert message.body == b"a"
        await message.delete()


async def test_a_run_ends_at_its_cancellation_after_its_client_was_closed(server: LocalServer) -> None:
    await server.put("orders", b"x")
    begun = asyncio.Event()
    client = connect(server.url, patience=0.05)
    await client.open(patience=300)

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(client.run(handle))
    await begun.wait()
    await client.close()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
