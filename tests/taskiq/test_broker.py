"""Tasks over the broker: taskiq's own receiver as the worker, a server with a clock that the test turns."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from taskiq import Context, InMemoryBroker, SmartRetryMiddleware, TaskiqDepends, TaskiqMessage, TaskiqMiddleware
from taskiq.acks import AcknowledgeType
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

from cmqd_client.errors import QueueDiffers, QueueNotFound, ServerError
from cmqd_protocol import messages as wire
from cmqd_taskiq import CmqBroker, CmqScheduleSource
from support.client.local_server import LocalServer
from support.eventually import eventually

CONTEXT: Context = TaskiqDepends()
"""Default of an argument that taskiq fills."""


@asynccontextmanager
async def worker(broker: CmqBroker, **options: Any) -> AsyncGenerator[asyncio.Event]:
    """Run a receiver of taskiq during the block; when the event is set, it finishes the tasks that it has begun."""
    with ThreadPoolExecutor(1) as executor:
        settings: dict[str, Any] = {"max_async_tasks": 10} | options
        receiver = Receiver(broker, executor, run_startup=False, **settings)
        finished = asyncio.Event()
        listening = asyncio.create_task(receiver.listen(finished))
        try:
            yield finished
        finally:
            finished.set()
            await listening


async def counts(server: LocalServer, queue: str = "taskiq") -> tuple[int, int, int]:
    """Return how many messages are active, delayed and in flight."""
    info = await server.info(queue)
    return info.active, info.delayed, info.in_flight


async def until_counts(server: LocalServer, expected: tuple[int, int, int], queue: str = "taskiq") -> None:
    while await counts(server, queue) != expected:
        pass


# ---------------------------------------------------------------------- tasks


async def test_a_task_runs_and_its_message_is_deleted(broker: CmqBroker, server: LocalServer) -> None:
    calls: list[tuple[int, str]] = []

    @broker.task("charge")
    async def charge(order: int, currency: str = "EUR") -> None:
        calls.append((order, currency))

    await charge.kiq(7)
    await charge.kicker().with_labels(tenant="a").with_task_id("t-8").kiq(8, currency="CHF")

    second = (await server.admin.queue("taskiq").peek(10)).messages[1]
    assert dict(second.headers) == {"taskiq-id": "t-8", "taskiq-task": "charge", "taskiq-label-tenant": "a"}
    async with worker(broker):
        await until_counts(server, (0, 0, 0))
    assert calls == [(7, "EUR"), (8, "CHF")]


async def test_a_synchronous_task_runs_in_the_executor(broker: CmqBroker, server: LocalServer) -> None:
    calls: list[int] = []

    @broker.task
    def charge(order: int) -> None:
        calls.append(order)

    await charge.kiq(7)
    async with worker(broker):
        await until_counts(server, (0, 0, 0))
    assert calls == [7]


async def test_a_label_sends_a_task_to_another_queue(broker: CmqBroker, server: LocalServer) -> None:
    @broker.task(queue_name="slow-tasks")
    async def charge() -> None: ...

    await charge.kiq()
    await charge.kicker().with_labels(queue_name="orders").kiq()

    assert (await counts(server, "slow-tasks"))[0] == 1  # created by the send
    assert (await counts(server, "orders"))[0] == 1


async def test_a_task_that_is_too_large_is_not_sent(broker: CmqBroker, server: LocalServer) -> None:
    @broker.task
    async def charge(text: str) -> None: ...

    with pytest.raises(SendTaskError) as caught:
        await charge.kiq("x" * 70_000)
    assert isinstance(caught.value.__cause__, ServerError)


async def test_a_send_with_a_lost_answer_is_stored_once(broker: CmqBroker, server: LocalServer) -> None:
    @broker.task
    async def charge() -> None: ...

    server.link.lose_answer(wire.SendMessages)
    await charge.kiq()
    assert await counts(server) == (1, 0, 0)


# ---------------------------------------------------------------------- delays


async def test_delayed_tasks_wait_in_the_broker(broker: CmqBroker, server: LocalServer) -> None:
    calls: list[str] = []

    @broker.task
    async def charge(name: str) -> None:
        calls.append(name)

    now = server.broker.clock.now()
    await charge.kicker().with_labels(delay=60).kiq("minute")
    await charge.kicker().with_labels(at=str(now + timedelta(minutes=30))).kiq("half an hour")
    await charge.kicker().with_labels(at=str(now - timedelta(hours=1))).kiq("at once")

    async with worker(broker):
        await until_counts(server, (0, 2, 0))
        server.advance(61)
        await until_counts(server, (0, 1, 0))
        assert calls == ["at once", "minute"]
        server.advance(1_800)
        await until_counts(server, (0, 0, 0))
    assert calls == ["at once", "minute", "half an hour"]


async def test_a_delay_that_is_no_number_is_refused(broker: CmqBroker) -> None:
    @broker.task
    async def charge() -> None: ...

    with pytest.raises(SendTaskError) as caught:
        await charge.kicker().with_labels(delay="soon").kiq()
    assert "'soon'" in str(caught.value.__cause__)


async def test_a_schedule_for_a_time_is_a_delayed_message(broker: CmqBroker, server: LocalServer) -> None:
    calls: list[int] = []
    source = CmqScheduleSource(broker)

    @broker.task(delay=5)
    async def charge(order: int) -> None:
        calls.append(order)

    now = server.broker.clock.now()
    await charge.schedule_by_time(source, now + timedelta(minutes=10), 7)

    assert await counts(server) == (0, 1, 0)
    assert await source.get_schedules() == []
    async with worker(broker):
        server.advance(601)
        await until_counts(server, (0, 0, 0))
    assert calls == [7]


async def test_other_schedules_need_another_source(broker: CmqBroker) -> None:
    source = CmqScheduleSource(broker)

    @broker.task
    async def charge() -> None: ...

    with pytest.raises(NotImplementedError, match="another source for cron"):
        await charge.schedule_by_cron(source, "* * * * *")
    with pytest.raises(NotImplementedError, match="cannot be taken back"):
        await source.delete_schedule("one")


@pytest.mark.parametrize("with_source", [False, True])
async def test_retries_of_taskiq_wait_in_the_broker(broker: CmqBroker, server: LocalServer, with_source: bool) -> None:
    """The first attempt has a time of its own; the second attempt must not inherit this time."""
    attempts: list[int] = []
    source = CmqScheduleSource(broker) if with_source else None
    broker.add_middlewares(SmartRetryMiddleware(default_delay=100, use_jitter=False, schedule_source=source))

    @broker.task(retry_on_error=True)
    async def charge() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("not yet")

    now = server.broker.clock.now()
    await charge.kicker().with_labels(at=str(now - timedelta(hours=1))).kiq()
    async with worker(broker):
        await until_counts(server, (0, 1, 0))
        server.advance(101)
        await until_counts(server, (0, 0, 0))
    assert len(attempts) == 2


# ---------------------------------------------------------------------- leases and acknowledgements


async def test_a_worker_takes_no_more_tasks_than_it_can_run(broker: CmqBroker, server: LocalServer) -> None:
    """The second receive asks for three messages; taskiq takes one."""
    gate, running = asyncio.Event(), list[int]()

    @broker.task
    async def charge(order: int) -> None:
        running.append(order)
        await gate.wait()

    for order in range(20):
        await charge.kiq(order)
    async with worker(broker, max_async_tasks=2):
        await eventually(lambda: len(running) == 2)
        assert (await counts(server))[2] == 4
        gate.set()
        await until_counts(server, (0, 0, 0))
    assert running == list(range(20))


async def test_prefetched_tasks_are_received_ahead(broker: CmqBroker, server: LocalServer) -> None:
    gate, running = asyncio.Event(), list[int]()

    @broker.task
    async def charge() -> None:
        running.append(1)
        await gate.wait()

    for _ in range(20):
        await charge.kiq()
    async with worker(broker, max_async_tasks=2, max_prefetch=5):
        await eventually(lambda: len(running) == 2)
        while (await counts(server))[2] < 8:
            pass
        gate.set()
        await until_counts(server, (0, 0, 0))


async def test_the_lease_of_a_running_task_is_kept(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extensions come early, and the task lasts until two of them."""
    monkeypatch.setattr("cmqd_client.consumers.consumption.EXTENSIONS_PER_LEASE", 120)
    broker = CmqBroker(server.url, lease=60)
    runs: list[int] = []

    @broker.task
    async def charge() -> None:
        runs.append(1)
        await server.link.wait_handled(wire.ChangeVisibility, 2)

    await broker.startup()
    await charge.kiq()
    async with worker(broker):
        await until_counts(server, (0, 0, 0))
    await broker.shutdown()
    assert runs == [1]


async def test_a_killed_worker_gives_its_tasks_back_when_their_leases_end(
    broker: CmqBroker, server: LocalServer
) -> None:
    runs: list[str] = []
    gate = asyncio.Event()

    @broker.task
    async def charge() -> None:
        runs.append("run")
        if len(runs) == 1:
            gate.set()
            await asyncio.Event().wait()

    await charge.kiq()
    dead = CmqBroker(server.url)
    dead.local_task_registry = broker.local_task_registry
    await dead.startup()
    receiver = Receiver(dead, max_async_tasks=1, run_startup=False)
    listening = asyncio.create_task(receiver.listen(asyncio.Event()))
    await gate.wait()
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    await dead.shutdown()
    server.advance(31)

    async with worker(broker):
        await until_counts(server, (0, 0, 0))
    assert runs == ["run", "run"]


async def test_an_acknowledgement_survives_a_lost_answer(broker: CmqBroker, server: LocalServer) -> None:
    runs: list[int] = []

    @broker.task
    async def charge() -> None:
        runs.append(1)

    server.link.lose_answer(wire.DeleteMessages)
    await charge.kiq()
    async with worker(broker):
        await until_counts(server, (0, 0, 0))
    assert runs == [1]
    assert len(server.link.of(wire.DeleteMessages)) == 2


async def test_a_task_that_is_acknowledged_first_is_deleted_before_it_runs(
    broker: CmqBroker, server: LocalServer
) -> None:
    seen: list[tuple[int, int, int]] = []

    @broker.task(ack_type=AcknowledgeType.WHEN_RECEIVED.value)
    async def charge() -> None:
        seen.append(await counts(server))

    await charge.kiq()
    async with worker(broker):
        await eventually(lambda: seen)
    assert seen == [(0, 0, 0)]


async def test_a_task_acknowledges_itself(broker: CmqBroker, server: LocalServer) -> None:
    seen: list[tuple[int, int, int]] = []

    @broker.task(ack_type="manual")
    async def charge(context: Context = CONTEXT) -> None:
        await context.ack()
        await context.ack()
        seen.append(await counts(server))

    await charge.kiq()
    async with worker(broker):
        await eventually(lambda: seen)
    assert seen == [(0, 0, 0)]


async def test_a_message_that_taskiq_drops_is_delivered_again(broker: CmqBroker, server: LocalServer) -> None:
    """taskiq has no sign for this case: the middleware raises, and the message is neither run nor acknowledged."""

    class Failing(TaskiqMiddleware):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
            self.calls += 1
            if self.calls == 1:
                raise ConnectionError("the middleware's database is down")
            return message

    runs: list[str] = []
    failing = Failing()
    broker.add_middlewares(failing)

    @broker.task
    async def charge(name: str) -> None:
        runs.append(name)

    # A log line with the traceback, kept by pytest, would hold the message.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    await charge.kiq("first")
    async with worker(broker):
        await eventually(lambda: failing.calls == 1)
        # taskiq's receiver holds the last message until it takes the next message.
        await charge.kiq("second")
        await eventually(lambda: runs == ["second"])
        await eventually(lambda: server.link.of(wire.ChangeVisibility))
        server.advance(2)
        await until_counts(server, (0, 0, 0))
    assert runs == ["second", "first"]


async def test_messages_that_taskiq_did_not_take_go_back_uncounted(broker: CmqBroker, server: LocalServer) -> None:
    gate, runs = asyncio.Event(), list[int]()

    @broker.task
    async def charge(order: int) -> None:
        runs.append(order)
        await gate.wait()

    for order in range(10):
        await charge.kiq(order)
    async with worker(broker, max_async_tasks=2) as finished:
        await eventually(lambda: len(runs) == 2)
        received = (await counts(server))[2]
        finished.set()
        # Received ahead, and not taken: back before the running tasks end.
        await until_counts(server, (8, 0, 2))
        gate.set()

    assert received == 4
    await until_counts(server, (8, 0, 0))
    assert {message.receive_count for message in await server.admin.queue("taskiq").receive(10, wait=0)} == {1}


# ---------------------------------------------------------------------- dead letters


@pytest.fixture
async def careful(server: LocalServer) -> AsyncIterator[CmqBroker]:
    """A broker with a queue that has a dead-letter queue."""
    broker = CmqBroker(server.url, queue_attributes={"dead_letter_queue": "dead", "dead_letter_max_receives": 5})
    await broker.startup()
    yield broker
    await broker.shutdown()


async def test_a_rejected_task_becomes_a_dead_letter(careful: CmqBroker, server: LocalServer) -> None:
    @careful.task("charge")
    async def charge(context: Context = CONTEXT) -> None:
        context.reject()

    await charge.kiq()
    async with worker(careful):
        await until_counts(server, (1, 0, 0), "dead")
    dead = (await server.admin.queue("dead").peek(1)).messages[0]
    assert dead.origin is not None
    assert dead.origin.rejection == "rejected by the task charge"
    assert await counts(server) == (0, 0, 0)


async def test_a_rejected_task_is_deleted_without_a_dead_letter_queue(
    broker: CmqBroker, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    @broker.task
    async def charge(context: Context = CONTEXT) -> None:
        context.reject()

    await charge.kiq()
    async with worker(broker):
        await until_counts(server, (0, 0, 0))
    assert "is rejected and deleted" in caplog.text


async def test_a_message_that_is_no_task_becomes_a_dead_letter(careful: CmqBroker, server: LocalServer) -> None:
    runs: list[int] = []

    @careful.task
    async def charge() -> None:
        runs.append(1)

    await server.put("taskiq", b"{not json")
    await charge.kiq()
    async with worker(careful):
        await until_counts(server, (1, 0, 0), "dead")
        await eventually(lambda: runs)
    dead = (await server.admin.queue("dead").peek(1)).messages[0]
    assert dead.origin is not None
    assert dead.origin.rejection is not None
    assert dead.origin.rejection.startswith("no task of taskiq: JSONDecodeError")


async def test_an_unknown_task_is_left_to_other_workers(broker: CmqBroker, server: LocalServer) -> None:
    other = CmqBroker(server.url)
    runs: list[int] = []

    @other.task("charge")
    async def charge(order: int) -> None:
        runs.append(order)

    await other.startup()
    await charge.kiq(7)
    async with worker(broker):  # has no tasks
        await eventually(lambda: server.link.of(wire.ChangeVisibility))
    async with worker(other):
        server.advance(2)
        await eventually(lambda: runs == [7])
    await other.shutdown()


# ---------------------------------------------------------------------- start and end


async def test_a_queue_with_other_attributes_is_refused_at_the_start(broker: CmqBroker, server: LocalServer) -> None:
    other = CmqBroker(server.url, queue_attributes={"max_message_bytes": 1_048_576})
    with pytest.raises(QueueDiffers):
        await other.startup()
    with pytest.raises(RuntimeError, match="not started"):
        _ = other.client


async def test_a_missing_queue_is_refused_if_none_may_be_created(server: LocalServer) -> None:
    with pytest.raises(ValueError, match="create_queues is False"):
        CmqBroker(server.url, create_queues=False, queue_attributes={"rewind": 60})
    broker = CmqBroker(server.url, queue="missing", create_queues=False)

    @broker.task
    async def charge() -> None: ...

    await broker.startup()
    with pytest.raises(SendTaskError) as caught:
        await charge.kiq()
    assert isinstance(caught.value.__cause__, QueueNotFound)
    with pytest.raises(QueueNotFound):
        await anext(broker.listen())
    await broker.shutdown()


async def test_a_broker_starts_again_after_its_end(broker: CmqBroker, server: LocalServer) -> None:
    await broker.shutdown()
    with pytest.raises(RuntimeError, match="startup"):
        broker.listen()
    await broker.startup()
    assert (await broker.client.queue(broker.queue_name).attributes()).active == 0


def test_tasks_of_a_program_run_without_a_server_in_its_tests() -> None:
    """taskiq's own way: an InMemoryBroker in place of this broker. Tasks need no part of this package."""
    broker = InMemoryBroker(await_inplace=True)
    runs: list[int] = []

    @broker.task
    async def charge(order: int) -> None:
        runs.append(order)

    asyncio.run(charge.kiq(7))  # pyright: ignore[reportArgumentType]
    assert runs == [7]
