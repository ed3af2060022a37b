"""A broker in the process of the test: its clock, its faults, and its end, for plain and for async tests."""

import asyncio
import contextlib
import gc
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise

import pytest

from cmqd.testing import BrokerFailedError, LocalBroker
from cmqd_client import Client, connect
from cmqd_client.errors import DiskNearlyFull, QueueNotFound, TooManyInFlight, TooManyQueues
from cmqd_client.sync import Client as SyncClient
from cmqd_client.sync import connect as connect_sync
from support.server.webhook_receiver import WebhookReceiver, answer


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        broker.clock.stop()
        yield broker


@pytest.fixture
async def client(broker: LocalBroker) -> AsyncIterator[Client]:
    async with connect(broker.url, request_timeout=300, connect_timeout=300) as client:
        yield client


@pytest.fixture
def sync_client(broker: LocalBroker) -> Iterator[SyncClient]:
    with connect_sync(broker.url, request_timeout=300, connect_timeout=300) as client:
        yield client


async def until_waiting(client: Client) -> None:
    """Wait until a receive waits in the broker."""
    while not (await client.status())["waiting_receives"]:
        pass


def test_a_lease_ends_when_the_clock_is_turned(broker: LocalBroker, sync_client: SyncClient) -> None:
    queue = sync_client.create_queue("orders", visibility_timeout=30)
    queue.send(b"a")
    assert queue.receive(wait=0)[0].receive_count == 1

    broker.clock.advance(29)
    assert queue.receive(wait=0) == []
    broker.clock.advance(1)
    assert queue.receive(wait=0)[0].receive_count == 2


def test_a_delay_passes_when_the_clock_is_turned(broker: LocalBroker, sync_client: SyncClient) -> None:
    queue = sync_client.create_queue("orders")
    queue.send(b"later", delay=timedelta(hours=1))

    assert queue.receive(wait=0) == []
    broker.clock.advance(hours=3)
    assert [message.body for message in queue.receive(wait=0)] == [b"later"]


def test_a_delay_of_days_passes_when_the_clock_is_turned() -> None:
    with LocalBroker(max_delay_ms=15 * 86_400_000) as broker, connect_sync(broker.url) as client:
        broker.clock.stop()
        queue = client.create_queue("orders", retention=timedelta(days=15))
        queue.send(b"later", delay=timedelta(days=10))

        broker.clock.advance(days=9)
        assert queue.attributes().delayed == 1
        broker.clock.advance(days=1, seconds=1)

        assert [message.body for message in queue.receive(wait=0)] == [b"later"]


def test_an_unused_queue_goes_when_the_clock_is_turned(broker: LocalBroker, sync_client: SyncClient) -> None:
    queue = sync_client.create_queue("replies", auto_delete_after=timedelta(minutes=10))
    broker.clock.advance(minutes=9)
    queue.delete_batch([1], check=False)

    broker.clock.advance(minutes=9)
    assert queue.attributes().active == 0
    broker.clock.advance(minutes=1)

    with pytest.raises(QueueNotFound):
        queue.attributes()


def test_a_rejected_message_is_in_the_dead_letter_queue(broker: LocalBroker, sync_client: SyncClient) -> None:
    dead = sync_client.create_queue("dead")
    queue = sync_client.create_queue("orders", dead_letter_queue="dead", dead_letter_max_receives=5)
    queue.send(b"a")
    (message,) = queue.receive(wait=0)

    queue.reject(message, "no such customer")

    (letter,) = dead.receive(wait=0)
    assert letter.origin is not None
    assert (letter.body, letter.origin.rejection) == (b"a", "no such customer")
    broker.clock.advance(days=1)
    assert queue.receive(wait=0) == []


async def test_a_waiting_receive_gets_the_message_whose_delay_ends(broker: LocalBroker, client: Client) -> None:
    queue = await client.create_queue("orders")
    await queue.send(b"later", delay=10)
    receive = asyncio.create_task(queue.receive(wait=30))
    await until_waiting(client)

    broker.clock.advance(10)

    assert [message.body for message in await receive] == [b"later"]


async def test_a_long_poll_ends_by_the_time_of_the_broker(broker: LocalBroker, client: Client) -> None:
    queue = await client.create_queue("orders")
    receive = asyncio.create_task(queue.receive(wait=30))
    await until_waiting(client)

    await broker.clock.advance_async(30)

    assert await receive == []


def test_the_broker_stamps_messages_with_its_time(broker: LocalBroker, sync_client: SyncClient) -> None:
    queue = sync_client.create_queue("orders")
    broker.clock.advance(days=2)
    queue.send(b"a")

    assert queue.receive(wait=0)[0].enqueue_time == broker.clock.now()
    assert broker.clock.now() == broker.clock.now(), "the clock stands"


def test_the_clock_runs_again_after_a_stop(broker: LocalBroker) -> None:
    stopped_at = broker.clock.now()
    broker.clock.start()

    while broker.clock.now() == stopped_at:
        pass

    assert broker.clock.now() > stopped_at


def test_from_deadline_to_deadline_a_lease_ends_at_its_own_time(broker: LocalBroker, sync_client: SyncClient) -> None:
    queue = sync_client.create_queue("orders", visibility_timeout=30, retention=86_400)
    queue.send(b"a")
    (message,) = queue.receive(wait=0)

    while not queue.receive(wait=0):
        deadline = broker.clock.next_deadline()
        assert deadline is not None
        broker.clock.advance(max(timedelta(), deadline - broker.clock.now()))

    assert timedelta() <= broker.clock.now() - message.next_visible_time <= timedelta(seconds=0.2)


def test_three_hours_of_retries_take_milliseconds(broker: LocalBroker, sync_client: SyncClient) -> None:
    # A consumer that always fails, and doubles its wait: 1, 2, 4 ... 600 s.
    dead = sync_client.create_queue("dead")
    queue = sync_client.create_queue("orders", dead_letter_queue="dead", dead_letter_max_receives=25)
    queue.send(b"poison")
    begun_at, started = broker.clock.now(), time.perf_counter()
    attempts = 0

    while messages := queue.receive(wait=0):
        attempts += 1
        back_off = min(2.0**attempts / 2, 600)
        messages[0].change_visibility(back_off)
        broker.clock.advance(back_off)

    seconds = time.perf_counter() - started
    assert attempts == 25
    assert broker.clock.now() - begun_at > timedelta(hours=2, minutes=45)
    assert [message.receive_count for message in dead.receive(wait=0)] == [1]
    print(f"{attempts} attempts over {broker.clock.now() - begun_at} in {seconds * 1000:.1f} ms")


async def test_retries_of_a_subscription_come_due_each_at_its_time(broker: LocalBroker, client: Client) -> None:
    async with WebhookReceiver() as receiver:
        receiver.always("/hook", answer(500))
        topic = await client.create_topic("events")
        await topic.subscribe("hook", url=receiver.url("/hook"))
        await topic.publish(b"a")
        await broker.clock.advance_async(0)
        tries = [broker.clock.now()]

        while tries[-1] - tries[0] < timedelta(hours=3):
            before = len(receiver.received)
            while len(receiver.received) == before:
                deadline = broker.clock.next_deadline()
                assert deadline is not None
                await broker.clock.advance_async(max(timedelta(), deadline - broker.clock.now()))
            tries.append(broker.clock.now())

    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(tries)]
    assert pauses[0] < 5
    assert 500 < max(pauses) < 530
    assert pauses == sorted(pauses) or len(tries) > 25


async def test_a_stepwise_turn_makes_every_retry_on_the_way(broker: LocalBroker, client: Client) -> None:
    async with WebhookReceiver() as receiver:
        receiver.always("/hook", answer(500))
        topic = await client.create_topic("events")
        await topic.subscribe("hook", url=receiver.url("/hook"))
        await topic.publish(b"a")
        await broker.clock.advance_async(0)
        at_first = len(receiver.received)
        await broker.clock.advance_async(hours=3)
        after_a_jump = len(receiver.received)
        await broker.clock.advance_async(hours=3, stepwise=True)
        after_steps = len(receiver.received)

    assert (at_first, after_a_jump) == (1, 2)
    assert after_steps - after_a_jump >= 20


def test_settings_are_those_of_a_real_broker() -> None:
    with (
        LocalBroker(max_queues_per_account=1, max_in_flight_per_queue=1) as broker,
        connect_sync(broker.url, retries=0) as client,
    ):
        queue = client.create_queue("only")
        with pytest.raises(TooManyQueues):
            client.create_queue("another")
        queue.send_batch([b"a", b"b"])
        queue.receive(wait=0)
        with pytest.raises(TooManyInFlight):
            queue.receive(wait=0)
        assert client.status()["durability"] == "none (ephemeral)"

    with pytest.raises(TypeError, match="max_queus"):
        LocalBroker(max_queus=1)


async def test_a_client_reconnects_after_its_connection_was_dropped(broker: LocalBroker, client: Client) -> None:
    queue = await client.create_queue("orders")
    for body in (b"a", b"b"):
        broker.drop_connections()
        await queue.send(body)

    assert [message.body for message in await queue.receive(16, wait=0)] == [b"a", b"b"]


def test_sends_are_refused_as_on_a_full_disk(broker: LocalBroker, sync_client: SyncClient) -> None:
    queue = sync_client.create_queue("orders")
    with connect_sync(broker.url, retries=0) as impatient:
        broker.refuse_sends()
        with pytest.raises(DiskNearlyFull):
            impatient.queue("orders").send(b"a")
        broker.accept_sends()
        impatient.queue("orders").send(b"b")

    assert [message.body for message in queue.receive(16, wait=0)] == [b"b"]


async def test_a_broker_is_an_async_context_manager_too() -> None:
    async with LocalBroker() as broker, connect(broker.url) as client:
        queue = await client.create_queue("orders", visibility_timeout=30)
        await queue.send(b"a")
        await queue.receive()
        await broker.clock.advance_async(30)
        (message,) = await queue.receive()

    assert message.receive_count == 2


def test_several_brokers_share_nothing(broker: LocalBroker, sync_client: SyncClient) -> None:
    with LocalBroker() as other, connect_sync(other.url) as client:
        client.create_queue("orders")
        other.clock.stop()
        before = broker.clock.now()
        other.clock.advance(hours=1)

        assert broker.clock.now() == before
        assert sync_client.queues().names == []


def test_a_broker_is_started_once_and_used_while_it_runs() -> None:
    broker = LocalBroker()
    with pytest.raises(RuntimeError, match="not running"):
        broker.clock.advance(1)
    broker.start()
    with pytest.raises(RuntimeError, match="was started before"):
        broker.start()
    broker.close()
    broker.close()
    with pytest.raises(RuntimeError, match="not running"):
        broker.clock.advance(1)
    LocalBroker().close()


def test_an_address_in_use_is_an_error(broker: LocalBroker) -> None:
    host, port = broker.address
    other = LocalBroker(listen=f"{host}:{port}")
    with pytest.raises(OSError, match="in use"):
        other.start()
    other.close()


def test_a_broker_that_halted_by_a_bug_says_so_at_its_end() -> None:
    bug = ArithmeticError("a bug")
    broker = LocalBroker()
    broker.start()
    # The server after an exception of the core.
    broker._in_loop(lambda: broker._parts.server.halt.fail(bug))  # pyright: ignore[reportPrivateUsage]

    with pytest.raises(BrokerFailedError) as raised:
        broker.close()

    assert raised.value.__cause__ is bug


def connect_until_refused(address: tuple[str, int], clients: contextlib.ExitStack) -> None:
    """Connect at most 200 times."""
    with contextlib.suppress(OSError):
        for _ in range(200):
            clients.enter_context(socket.create_connection(address))


def test_connections_that_arrive_at_the_end_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[object] = []

    def note(found: "sys.UnraisableHookArgs") -> None:
        forgotten.append(found.exc_value)

    monkeypatch.setattr(sys, "unraisablehook", note)
    for _ in range(5):
        with contextlib.ExitStack() as clients, ThreadPoolExecutor(1) as pool:
            with LocalBroker() as broker:
                arriving = pool.submit(connect_until_refused, broker.address, clients)
            arriving.result()
        del broker
        gc.collect()

    assert forgotten == []
