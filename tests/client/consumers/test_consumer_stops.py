"""The end of consumers: signals, cancellation, grace, and a later run."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType

import pytest

from cmqd_client import Client, ConsumedMessage, connect
from cmqd_client.consumers.running import chained
from cmqd_client.errors import ClientClosed
from cmqd_client.events import ClientState
from support.client.consumer_parts import running
from support.client.local_server import LocalServer
from support.eventually import eventually

pytestmark = pytest.mark.usefixtures("an_older_server")


async def test_sigterm_finishes_begun_handlers_and_gives_back_the_rest_uncounted(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"a", b"b", b"c")
    begun, gate = asyncio.Event(), asyncio.Event()
    former = signal.getsignal(signal.SIGTERM)

    @client.queue("orders").consumer(prefetch=2)
    async def handle(message: ConsumedMessage) -> None:
        begun.set()
        await gate.wait()

    task = asyncio.create_task(client.run(handle))
    await begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: handle.statistics().given_back == 2)
    assert not task.done()
    gate.set()
    await task

    assert signal.getsignal(signal.SIGTERM) is former
    assert await server.bodies("orders") == [b"b", b"c"]
    assert [message.receive_count for message in await server.admin.queue("orders").receive(2)] == [1, 1]
    assert handle.statistics().deleted == 1


async def test_a_signal_also_reaches_the_handler_of_the_web_server_in_the_same_process(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"a")
    arrived: list[int] = []
    begun = asyncio.Event()

    def web_server(number: int, _: FrameType | None) -> None:
        arrived.append(number)

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()

    former = signal.signal(signal.SIGTERM, web_server)
    try:
        task = asyncio.create_task(client.run(handle))
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await task
        assert arrived == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is web_server
    finally:
        signal.signal(signal.SIGTERM, former)


async def test_a_signal_also_reaches_the_handler_of_the_event_loop(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a")
    arrived: list[str] = []
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()

    loop.add_signal_handler(signal.SIGTERM, arrived.append, "loop")
    try:
        task = asyncio.create_task(client.run(handle))
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await task
        await eventually(lambda: arrived == ["loop"])
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: arrived == ["loop", "loop"])
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_a_handler_that_was_installed_during_a_run_stays(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a")
    begun = asyncio.Event()

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()

    former = signal.getsignal(signal.SIGTERM)
    try:
        task = asyncio.create_task(client.run(handle))
        await begun.wait()

        def web_server(number: int, _: FrameType | None) -> None: ...

        signal.signal(signal.SIGTERM, web_server)
        handle.stop()
        await task
        assert signal.getsignal(signal.SIGTERM) is web_server
    finally:
        signal.signal(signal.SIGTERM, former)


def interrupts(number: int, frame: FrameType | None) -> None:
    """As the handler of Spark, which stays installed for the rest of a process."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("former", [signal.default_int_handler, interrupts])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_runs_that_overlap_leave_the_former_effect_of_a_signal(
    number: signal.Signals, former: Callable[[int, FrameType | None], None], request: pytest.FixtureRequest
) -> None:
    before = signal.signal(number, former)
    request.addfinalizer(lambda: signal.signal(number, before))
    arrived: list[str] = []
    first = chained([number], lambda _: arrived.append("first"))
    second = chained([number], lambda _: arrived.append("second"))

    with ExitStack() as both:
        with first:
            both.enter_context(second)
            signal.raise_signal(number)
        signal.raise_signal(number)

    assert arrived == ["second", "first", "second"]
    assert signal.getsignal(number) is former


def test_a_signal_has_its_default_effect_after_a_web_server_that_outlives_a_run() -> None:
    program = (
        "import signal\n"
        "from cmqd_client.consumers.running import chained\n"
        "with chained([signal.SIGTERM], print):\n"
        "    during = signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "signal.signal(signal.SIGTERM, during)\n"
        "signal.raise_signal(signal.SIGTERM)\n"
    )

    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)

    assert ended.returncode == -signal.SIGTERM


async def test_a_worker_is_declared_before_its_client_is_open(server: LocalServer) -> None:
    await server.put("orders", b"a")
    client = connect(server.url)
    bodies: list[bytes] = []

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        bodies.append(message.body)
        handle.stop()

    with pytest.raises(ClientClosed, match="not open"):
        await client.queue("orders").send(b"b")
    await client.run(handle)

    assert bodies == [b"a"]
    assert client.state is ClientState.CLOSED
    assert (await server.info("orders")).in_flight == 0


async def test_a_second_signal_cancels_the_handlers_and_their_messages_are_active_at_once(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"a")
    begun = asyncio.Event()

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(client.run(handle))
    await begun.wait()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
    await task

    assert await server.bodies("orders") == [b"a"]
    assert handle.statistics().retried == 1


async def test_cancelling_cancels_the_handlers(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b")
    begun = asyncio.Event()

    @client.queue("orders").consumer(prefetch=1)
    async def handle(message: ConsumedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(client.run(handle))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await server.bodies("orders") == [b"a", b"b"]
    assert (handle.statistics().retried, handle.statistics().given_back) == (1, 1)


async def test_the_grace_ends_handlers_that_take_too_long(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a")
    begun = asyncio.Event()

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(client.run(handle, grace=0.01))
    await begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await task

    assert await server.bodies("orders") == [b"a"]


async def test_there_must_be_a_consumer(client: Client) -> None:
    with pytest.raises(ValueError, match="no consumer"):
        await client.run()


async def test_a_consumer_runs_once_at_a_time_and_again_later(client: Client, server: LocalServer) -> None:
    async def handle(message: ConsumedMessage) -> None: ...

    async with running(client, handle) as consumer:
        with pytest.raises(RuntimeError, match="runs already"):
            await consumer.run()
    await server.put("orders", b"x")
    task = asyncio.create_task(consumer.run())
    await eventually(lambda: consumer.statistics().deleted == 1)
    consumer.stop()
    await task
