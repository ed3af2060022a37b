"""The synchronous client: as complete as the asynchronous client; errors, threads, callbacks, interrupts, forks."""

import ast
import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

import cmqd_client
from cmqd.testing import LocalBroker
from cmqd_client import ConsumerStatistics, HalfMessage, Outgoing, Reject, TransactionCheck, TransactionStatus, sync
from cmqd_client.errors import ClientClosed, InvalidArgument, PoisonMessage, QueueNotFound, ServerUnreachable
from cmqd_client.events import ClientState, Event
from cmqd_client.sync import Client, Consumer, connect
from cmqd_client.synchronous.generator.module import FACADE, facade
from cmqd_client.synchronous.generator.rules import LEFT_OUT
from cmqd_client.synchronous.generator.sources import CannotTurnError, read_source
from cmqd_client.synchronous.generator.twins import Facade
from cmqd_client.synchronous.portal import Portal
from support.eventually import eventually_elsewhere

COMMIT, ROLLBACK = TransactionStatus.COMMIT, TransactionStatus.ROLLBACK


class Order(msgspec.Struct):
    number: int
    drink: str


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[Client]:
    with connect(broker.url, request_timeout=300, connect_timeout=300) as client:
        yield client


# ------------------------------------------------------------------ completeness


def test_the_module_is_the_output_of_the_generator() -> None:
    assert FACADE.read_text() == facade(), "run: make docs"


def test_every_class_with_async_methods_that_programs_import_has_a_twin() -> None:
    exported = [getattr(cmqd_client, name) for name in cmqd_client.__all__]
    with_async_methods = {
        kind.__name__
        for kind in exported
        if inspect.isclass(kind) and any(inspect.iscoroutinefunction(value) for value in vars(kind).values())
    }

    assert with_async_methods >= {"Client", "Queue", "Message", "Topic", "Subscription", "TransactionProducer"}
    assert with_async_methods - set(sync.__all__) == set()


KINDS = [getattr(sync, name) for name in sync.__all__ if name != "connect"]


def asynchronous_kind(twin: type) -> type:
    """Return the class that a twin stands for, found without the generator."""
    return cast("type", getattr(sync, f"Async{twin.__name__}"))


@pytest.mark.parametrize("twin", KINDS, ids=lambda twin: twin.__name__)
def test_a_twin_has_every_public_name_with_the_same_parameters(twin: type) -> None:
    kind = asynchronous_kind(twin)
    special = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}
    names = [name for name in vars(kind) if not name.startswith("_") or name in special]
    left_out = {name for owner, name in LEFT_OUT if owner == kind.__name__}

    for name in set(names) - left_out:
        assert hasattr(twin, special.get(name, name)), f"{kind.__name__}.{name}"
        method = vars(kind)[name]
        other = inspect.getattr_static(twin, special.get(name, name))
        assert not inspect.iscoroutinefunction(other)
        if inspect.isfunction(method):
            given, taken = inspect.signature(method).parameters, inspect.signature(other).parameters
            assert [(p.name, p.kind) for p in given.values()] == [(p.name, p.kind) for p in taken.values()], name
            assert inspect.getdoc(other) or name.startswith("__"), name


def test_a_definition_without_a_rule_is_an_error_that_names_it() -> None:
    imports = "from collections.abc import Callable"

    def written(method: str) -> str:
        source = read_source("cmqd_client.other", f"{imports}\nclass Other:\n{method}")
        return Facade({"other": source}).text()

    with pytest.raises(CannotTurnError, match=r"Other.others returns dict\[str, Other\]"):
        written("    async def others(self) -> dict[str, Other]: ...")
    with pytest.raises(CannotTurnError, match=r"Other.on takes a callback \(Callable\)"):
        written("    async def on(self, function: Callable[[], None]) -> None: ...")
    with pytest.raises(CannotTurnError, match=r"Other.make is decorated with staticmethod"):
        written("    @staticmethod\n    async def make() -> None: ...")


def test_a_generic_class_has_a_generic_twin() -> None:
    text = """
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

class Other(Generic[T]):
    def __init__(self) -> None:
        self.value: T = None

    async def same(self) -> Other[T]: ...
    async def each(self) -> "list[Other[T]]": ...
    async def first(self, others: Iterable[Other[T]]) -> Other[T] | None: ...
    async def all(self, *others: Other[T]) -> int: ...
"""
    written = Facade({"other": read_source("cmqd_client.other", text)}).text()

    ast.parse(written)
    for line in (
        "class Other(Synchronous[AsyncOther[T]]):",
        "def value(self) -> T:",
        "return Other(self.portal.call(self.asynchronous.same), self.portal)",
        "return [Other(element, self.portal) for element in self.portal.call(self.asynchronous.each)]",
        "others = list(others)",
        "return None if result is None else Other(result, self.portal)",
        "self.asynchronous.all(*[entry.asynchronous for entry in others])",
    ):
        assert line in written


def test_iterators_and_contexts_of_the_future_are_turned_by_rule() -> None:
    text = '''
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

class Other:
    """Others."""

    def each(self) -> AsyncIterator[Other]:
        """Yield."""

    def held(self) -> AbstractAsyncContextManager[Other]:
        """Hold."""

    async def count(self) -> int:
        """Count."""
'''
    written = Facade({"other": read_source("cmqd_client.other", text)}).text()

    ast.parse(written)
    assert "def each(self) -> Iterator[Other]:" in written
    assert "self.portal.iterate(self.asynchronous.each(), lambda element: Other(element, self.portal))" in written
    assert "def held(self) -> AbstractContextManager[Other, bool | None]:" in written
    assert "self.portal.context(self.asynchronous.held(), lambda entered: Other(entered, self.portal))" in written


def test_an_iterator_and_a_context_run_in_the_loop_and_are_closed() -> None:
    events: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(3):
                await asyncio.sleep(0)
                yield number
        finally:
            events.append("closed")

    @asynccontextmanager
    async def held() -> AsyncGenerator[int, None]:
        events.append("entered")
        yield 20
        events.append("left")

    portal = Portal()
    portal.start()
    assert list(portal.iterate(numbers(), str)) == ["0", "1", "2"]
    early = portal.iterate(numbers(), str)
    assert next(early) == "0"
    early.close()  # type: ignore[attr-defined]
    with portal.context(held(), lambda value: value + 1) as value:
        assert value == 21
    portal.stop()

    assert events == ["closed", "closed", "entered", "left"]


# ------------------------------------------------------------------ a session


def test_a_message_is_sent_received_and_deleted(client: Client) -> None:
    queue = client.create_queue("orders", visibility_timeout=30)
    sent = queue.send(b"a", headers={"customer": "7"})
    queue.send_batch(body for body in (b"b", b"c"))
    first, *others = queue.receive(16, wait=1)

    assert (first.id, first.body, first.headers, first.queue.name) == (sent.id, b"a", {"customer": "7"}, "orders")
    assert isinstance(first, sync.Message)
    first.delete()
    assert queue.delete_batch(others).ok
    assert (queue.attributes().active, queue.attributes().in_flight) == (0, 0)
    assert client.queues().names == ["orders"]
    assert repr(queue) == "<Queue 'orders'>"


def test_bodies_have_the_type_of_the_handle(client: Client) -> None:
    client.create_queue("orders")
    orders = client.queue("orders", Order)
    orders.send(Order(7, "espresso"))
    orders.send_batch([Order(8, "tea"), Outgoing(Order(9, "milk"), headers={"customer": "7"})])
    client.queue("orders").send(b"no order")

    *good, bad = orders.receive(16)

    assert [message.body for message in good] == [Order(7, "espresso"), Order(8, "tea"), Order(9, "milk")]
    assert orders.delete_batch(good).ok
    with pytest.raises(PoisonMessage) as caught:
        print(bad.body)
    assert caught.value.message is bad, "the message of the error is the caller's, not the asynchronous one"
    bad.delete()
    assert (orders.attributes().active, orders.attributes().in_flight) == (0, 0)


def test_a_request_of_one_thread_is_answered_by_another(client: Client) -> None:
    client.create_queue("prices")

    def answer() -> None:
        (message,) = client.queue("prices").receive(wait=30)
        message.reply(b"1.08")
        message.delete()

    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer)
        assert client.request("prices", b"EUR/USD", timeout=60).body == b"1.08"
        answered.result()


def test_an_event_reaches_the_hook_and_a_string_is_no_list(broker: LocalBroker) -> None:
    events: list[Event] = []
    with connect(broker.url, on_event=events.append) as client:
        assert client.state is ClientState.CONNECTED
        with pytest.raises(TypeError, match="tags"):
            client.create_topic("shop").publish(b"a", tags="red")
        assert client.create_topic("bar").publish(b"a", tags=(tag for tag in ("red", "big"))).matched == 0
        assert client.statistics().messages_sent == 1
    assert [event.name for event in events] == ["connected", "closed"]
    assert client.state is ClientState.CLOSED


def test_a_queue_is_subscribed_by_its_handle(client: Client) -> None:
    queue, topic = client.create_queue("orders"), client.create_topic("events")
    subscription = topic.subscribe("all", queue=queue)

    assert topic.publish(b"a").matched == 1
    assert (subscription.topic, subscription.name, subscription.secret) == ("events", "all", None)
    assert [message.body for message in queue.receive()] == [b"a"]


def test_accounts_are_administered(client: Client, broker: LocalBroker) -> None:
    key = client.accounts.create("kitchen")
    host, port = broker.address

    with connect(f"cmq://{key.secret_id}:{key.secret_key}@{host}:{port}") as other:
        other.create_queue("orders")
    assert client.accounts.list() == ["admin", "kitchen"]


def test_errors_are_those_of_the_asynchronous_client(client: Client, broker: LocalBroker) -> None:
    with pytest.raises(QueueNotFound):
        client.queue("missing").send(b"a")
    with pytest.raises(InvalidArgument):
        client.create_queue("a name with spaces")
    with pytest.raises(ValueError, match="connections is 0"):
        connect(broker.url, connections=0)
    with pytest.raises(ServerUnreachable):
        connect("cmq://ID:KEY@127.0.0.1:1", request_timeout=0.05).open()


def test_a_client_is_opened_once_and_used_between_open_and_close(broker: LocalBroker) -> None:
    client = connect(broker.url)
    with pytest.raises(ClientClosed):
        client.queue("orders").send(b"early")
    client.close()
    client.open()
    queue = client.create_queue("orders")
    with pytest.raises(ClientClosed, match="opened before"):
        client.open()
    queue.send(b"still open")
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        queue.send(b"late")
    with pytest.raises(ClientClosed):
        client.queues()


# ------------------------------------------------------------------ threads


def test_threads_share_a_client(client: Client) -> None:
    queue = client.create_queue("orders")

    def work(number: int) -> bytes:
        queue.send(b"%d" % number)
        (message,) = queue.receive(wait=30)
        message.delete()
        return message.body

    with ThreadPoolExecutor(8) as pool:
        bodies = list(pool.map(work, range(200)))

    assert sorted(bodies) == sorted(b"%d" % number for number in range(200))


def test_a_waiting_receive_of_one_thread_blocks_no_other(client: Client) -> None:
    queue = client.create_queue("orders")
    with ThreadPoolExecutor(1) as pool:
        receive = pool.submit(queue.receive, wait=30)
        queue.send(b"a")
        assert [message.body for message in receive.result()] == [b"a"]


def test_a_receive_that_waits_when_the_client_is_closed_ends(broker: LocalBroker) -> None:
    client = connect(broker.url)
    client.open()
    queue = client.create_queue("orders")
    with ThreadPoolExecutor(1) as pool:
        receive = pool.submit(queue.receive, wait=30)
        queue.attributes()
        client.close()
        with pytest.raises(ClientClosed):
            receive.result()


async def test_a_call_works_where_an_event_loop_runs(broker: LocalBroker) -> None:
    # As in Jupyter, or in an async view.
    with connect(broker.url) as client:
        client.create_queue("orders").send(b"a")
        assert client.queue("orders").attributes().active == 1


def test_a_call_in_the_thread_of_the_client_is_refused_and_does_not_wait_for_ever(client: Client) -> None:
    client.create_queue("orders", transactional=True)

    async def local(_: HalfMessage, __: None) -> TransactionStatus:
        with pytest.raises(RuntimeError, match="event loop thread"):
            client.queues()
        return COMMIT

    with client.transaction_producer("orders") as producer:
        assert producer.send(b"a", local).error is None


async def test_threads_of_an_async_view_share_a_client(broker: LocalBroker) -> None:
    # As Django does: an async view calls the synchronous client in worker threads, while its own loop goes on.
    with connect(broker.url) as client:
        queue = await asyncio.to_thread(client.create_queue, "orders")
        waiting = asyncio.create_task(asyncio.to_thread(queue.receive, wait=30))
        await asyncio.gather(*(asyncio.to_thread(queue.send, b"%d" % number) for number in range(5)))
        received = [message.body for message in await waiting]
        received += [message.body for message in await asyncio.to_thread(queue.receive, 16, wait=0)]
    assert sorted(received) == [b"%d" % number for number in range(5)]


def test_a_generator_of_messages_may_call_the_client(client: Client) -> None:
    source, target = client.create_queue("source"), client.create_queue("target")
    source.send_batch([b"a", b"b"])

    target.send_batch(source.receive()[0].body for _ in range(2))

    assert [message.body for message in target.receive(16)] == [b"a", b"b"]


# ------------------------------------------------------------------ callbacks


def test_a_local_transaction_runs_in_the_thread_of_its_caller(client: Client) -> None:
    client.create_queue("orders", transactional=True)
    threads: list[int] = []

    def local(message: HalfMessage, order: str) -> TransactionStatus:
        threads.append(threading.get_ident())
        # The checker may use the client: its thread is not the client's.
        assert client.queue("orders").attributes().half == 1
        assert (message.body, order) == (b"a", "42")
        return COMMIT

    with client.transaction_producer("orders") as producer:
        result = producer.send(b"a", local, "42")

    assert (result.status, threads) == (COMMIT, [threading.get_ident()])
    assert [message.body for message in client.queue("orders").receive()] == [b"a"]


def test_an_async_local_transaction_runs_in_the_loop(client: Client) -> None:
    client.create_queue("orders", transactional=True)
    threads: list[int] = []

    async def local(messages: list[HalfMessage], _: None) -> list[TransactionStatus]:
        await asyncio.sleep(0)
        threads.append(threading.get_ident())
        return [COMMIT, ROLLBACK]

    with client.transaction_producer("orders") as producer:
        results = producer.send_batch([b"a", b"b"], local)

    assert [result.status for result in results] == [COMMIT, ROLLBACK]
    assert threads != [threading.get_ident()]


@pytest.mark.parametrize("error", [KeyError("gone"), StopIteration()], ids=repr)
def test_an_error_in_a_local_transaction_leaves_the_decision_to_a_check(client: Client, error: Exception) -> None:
    client.create_queue("orders", transactional=True)

    def local(_: HalfMessage, __: None) -> TransactionStatus:
        raise error

    with client.transaction_producer("orders") as producer:
        result = producer.send(b"a", local)

    assert result.status is TransactionStatus.UNKNOWN
    assert result.error is error or (result.error is not None and result.error.__cause__ is error)


def test_an_interrupt_in_a_local_transaction_reaches_its_caller(client: Client) -> None:
    client.create_queue("orders", transactional=True)

    def local(_: HalfMessage, __: None) -> TransactionStatus:
        raise KeyboardInterrupt

    with client.transaction_producer("orders") as producer:
        with pytest.raises(KeyboardInterrupt):
            producer.send(b"a", local)
        assert client.queue("orders").attributes().half == 1


def test_a_checker_runs_in_a_worker_thread(client: Client, broker: LocalBroker) -> None:
    queue = client.create_queue("orders", transactional=True)
    queue.send_half_batch([b"a"], first_check=10)
    threads: list[int] = []

    def check(question: TransactionCheck) -> TransactionStatus:
        threads.append(threading.get_ident())
        assert (question.body, client.queue("orders").attributes().half) == (b"a", 1)
        return COMMIT

    with client.transaction_producer("orders", check):
        broker.clock.advance(60)
        (message,) = queue.receive(wait=30)

    assert message.body == b"a"
    assert threads
    assert threads[0] != threading.get_ident()


# ------------------------------------------------------------------ consumers


def deleted(consumer: Consumer[Any]) -> int:
    """Return the messages that a consumer has deleted; 0 before it begins."""
    try:
        return consumer.statistics().deleted
    except RuntimeError:
        return 0


def run_until_handled(client: Client, consumer: Consumer[Any], count: int) -> ConsumerStatistics:
    """Run a consumer in a thread until it has deleted this number of messages; return its statistics."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.run, consumer)
        eventually_elsewhere(lambda: running.done() or deleted(consumer) >= count)
        consumer.stop()
        running.result()
    return consumer.statistics()


def test_handlers_run_in_threads_of_their_own(client: Client) -> None:
    orders = client.create_queue("orders")
    orders = client.queue("orders", Order)
    orders.send_batch([Order(number, "tea") for number in range(12)])
    together = threading.Barrier(3)
    handled: list[int] = []
    in_flight: list[int] = []

    @orders.consumer(concurrency=3)
    def handle(message: sync.ConsumedMessage[Order]) -> None:
        together.wait()  # ends only if three handlers run at the same time
        in_flight.append(message.queue.attributes().in_flight)  # a handler may use the client
        # Else two messages could be deleted before the look of the third handler.
        together.wait()
        assert isinstance(message, sync.ConsumedMessage)
        handled.append(message.body.number)

    assert handle.handler.__name__ == "handle"
    assert handle.queue_name == "orders"
    statistics = run_until_handled(client, handle, 12)

    assert sorted(handled) == list(range(12))
    assert min(in_flight) >= 3
    assert (statistics.deleted, orders.attributes().active) == (12, 0)


def test_a_handler_that_raises_gets_the_message_again_or_rejects_it(client: Client, broker: LocalBroker) -> None:
    client.create_queue("dead")
    orders = client.create_queue("orders", dead_letter_queue="dead", dead_letter_max_receives=100)
    orders.send_batch([b"fails once", b"rejected", b"stops", b"exits"])
    attempts: list[tuple[bytes, int]] = []

    @orders.consumer(first_retry=0)
    def handle(message: sync.ConsumedMessage) -> None:
        attempts.append((message.body, message.receive_count))
        if message.body == b"rejected":
            raise Reject("no such customer")
        if message.receive_count == 1:
            raise {b"fails once": KeyError("gone"), b"stops": StopIteration(), b"exits": SystemExit(1)}[message.body]

    run_until_handled(client, handle, 3)

    assert sorted(attempts) == [
        *((b"exits", 1), (b"exits", 2), (b"fails once", 1), (b"fails once", 2)),
        *((b"rejected", 1), (b"stops", 1), (b"stops", 2)),
    ]
    (dead,) = client.queue("dead").receive(16)
    assert dead.origin is not None
    assert (dead.body, dead.origin.rejection) == (b"rejected", "no such customer")


def test_a_consumer_is_called_for_tests_and_an_async_handler_is_refused(client: Client) -> None:
    orders = client.create_queue("orders")
    orders.send(b"a")

    @orders.consumer()
    def handle(message: sync.ConsumedMessage) -> str:
        return f"handled {message.body!r}"

    async def asynchronous(message: sync.ConsumedMessage) -> None: ...

    assert handle(cast("Any", orders.receive()[0])) == "handled b'a'"
    with pytest.raises(TypeError, match=r"asynchronous.* is an async function; a handler of the synchronous client"):
        orders.consumer()(asynchronous)
    with pytest.raises(ValueError, match="concurrency"):
        orders.consumer(concurrency=0)
    with pytest.raises(ValueError, match="no consumer"):
        client.run()


def test_a_worker_is_declared_before_its_client_is_open(client: Client, broker: LocalBroker) -> None:
    client.create_queue("orders").send(b"a")
    worker = connect(broker.url)
    handled: list[bytes] = []

    @worker.queue("orders").consumer()
    def handle(message: sync.ConsumedMessage) -> None:
        handled.append(message.body)
        handle.stop()

    worker.run(handle)

    assert handled == [b"a"]
    assert worker.state is ClientState.CLOSED


def test_messages_are_iterated_and_processed(client: Client) -> None:
    orders = client.create_queue("orders")
    orders.send_batch([b"a", b"fails", b"c"])
    seen: list[tuple[bytes, int]] = []

    for message in orders.consume(first_retry=0):
        with message.process():
            seen.append((message.body, message.receive_count))
            assert message.lost is None
            if message.body == b"fails" and message.receive_count == 1:
                raise ZeroDivisionError
        if len(seen) == 4:
            break

    assert sorted(seen) == [(b"a", 1), (b"c", 1), (b"fails", 1), (b"fails", 2)]
    info = orders.attributes()
    assert (info.active, info.in_flight) == (0, 0)


def test_an_interrupt_in_the_body_goes_on_and_the_message_comes_again(client: Client) -> None:
    orders = client.create_queue("orders")
    orders.send(b"a")

    def work() -> None:
        for message in orders.consume():
            with message.process():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    (again,) = orders.receive(wait=30)
    assert (again.body, again.receive_count) == (b"a", 2)


def test_a_body_whose_lease_is_lost_sees_it_and_its_end_is_not_used(
    client: Client, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cmqd_client.consumers.consumption.EXTENSIONS_PER_LEASE", 300)
    orders = client.create_queue("orders")
    orders.send(b"a")

    with orders.consume(lease=60) as stream:
        message = next(iter(stream))
        with message.process():
            orders.clear()  # the handle is invalid from here on, as the next extension finds
            eventually_elsewhere(lambda: message.lost is not None)
            raise ZeroDivisionError  # goes no further, as any Exception of the body
        assert stream.statistics().lost == 1


def test_threads_iterate_over_one_stream(client: Client) -> None:
    orders = client.create_queue("orders")
    orders.send_batch([b"%d" % number for number in range(40)])
    bodies: list[bytes] = []

    with orders.consume(concurrency=4) as stream:

        def work() -> None:
            for message in stream:
                with message.process():
                    bodies.append(message.body)
                if len(bodies) == 40:
                    stream.stop()

        with ThreadPoolExecutor(4) as pool:
            for worker in [pool.submit(work) for _ in range(4)]:
                worker.result()

    assert sorted(bodies) == sorted(b"%d" % number for number in range(40))
    assert orders.attributes().in_flight == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_a_worker_behind_its_handlers(broker: LocalBroker, number: signal.Signals) -> None:
    program = """
import sys
from cmqd_client.sync import connect

with connect(sys.argv[1]) as client:
    @client.queue("orders").consumer(prefetch=1)
    def handle(message):
        print("begun", flush=True)
        sys.stdin.readline()
        print("handled", flush=True)

    client.run(handle)
    print("ended", flush=True)
"""
    with connect(broker.url) as client:
        orders = client.create_queue("orders")
        orders.send_batch([b"a", b"b"])
        command = [sys.executable, "-c", program, broker.url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            assert worker.stdout.readline() == "begun\n"
            while orders.attributes().in_flight != 2:
                pass  # the receive ahead; without its message the look below would not wait for the signal
            worker.send_signal(number)
            while orders.attributes().in_flight != 1:
                pass  # the message that is not begun goes back first
            worker.stdin.write("go on\n")
            worker.stdin.flush()
            assert worker.stdout.read() == "handled\nended\n"
            assert worker.wait() == 0
        (left,) = orders.receive(16, wait=0)
        assert (left.body, left.receive_count) == (b"b", 1)
        assert orders.attributes().active == 0


# ------------------------------------------------------------------ interrupts and forks


def test_an_interrupt_ends_a_waiting_receive_and_loses_no_message(broker: LocalBroker) -> None:
    program = """
import sys
from cmqd_client.sync import connect

with connect(sys.argv[1]) as client:
    queue = client.queue("orders")
    try:
        print("waiting", flush=True)
        queue.receive(wait=30)
    except KeyboardInterrupt:
        print(queue.attributes().active, flush=True)
"""
    with connect(broker.url) as client:
        queue = client.create_queue("orders")
        command = [sys.executable, "-c", program, broker.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "waiting\n"
            while not client.status()["waiting_receives"]:
                pass
            waiting.send_signal(signal.SIGINT)
            assert waiting.stdout.readline() == "0\n"
            assert waiting.wait() == 0
        queue.send(b"a")
        assert [message.body for message in queue.receive(wait=0)] == [b"a"]


def test_a_forked_child_is_told_to_open_a_client_of_its_own(broker: LocalBroker) -> None:
    program = """
import os, sys
from cmqd_client.errors import ClientClosed
from cmqd_client.sync import connect

client = connect(sys.argv[1])
client.open()
child = os.fork()
if not child:
    try:
        client.queues()
    except ClientClosed as error:
        print(error, flush=True)
    client.close()
    os._exit(0)
os.waitpid(child, 0)
print(client.queues().names, flush=True)
# Not closed: the process ends all the same.
"""
    command = [sys.executable, "-W", "ignore", "-c", program, broker.url]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    refused, names = ran.stdout.splitlines()
    assert "forked child" in refused
    assert "open a client in each process" in refused
    assert names == "[]"
