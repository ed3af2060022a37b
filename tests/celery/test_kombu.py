# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""kombu's own interface and the Celery example against a real broker, which is killed and restarted.

kombu's shared suite and Celery's integration suite are run from their sdists, not from here.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import ChannelError
from kombu.messaging import Consumer, Producer

import cmqd_kombu
from cmqd_client.address import parse_address
from support.processes.running_broker import RunningBroker
from support.processes.silent_port import reserve_port

pytestmark = pytest.mark.system

assert cmqd_kombu.SCHEME == "cmq"  # the import registers the scheme

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"


@pytest.fixture
def connection(broker: RunningBroker) -> Iterator[Connection]:
    with Connection(broker.url) as connection:
        yield connection


def _publish(connection: Connection, body: Any, **options: Any) -> None:
    Producer(connection).publish(body, **options)


def _received(connection: Connection, queue: Queue, count: int) -> list[Any]:
    bodies: list[Any] = []

    def take(body: Any, message: Any) -> None:
        bodies.append(body)
        message.ack()

    with Consumer(connection, [queue], callbacks=[take]):
        while len(bodies) < count:
            connection.drain_events(timeout=60)
    return bodies


def test_a_fanout_reaches_the_queues_of_other_connections(broker: RunningBroker, connection: Connection) -> None:
    exchange = Exchange("news", type="fanout")
    queues = [Queue(f"news@{number}", exchange) for number in range(2)]
    with Connection(broker.url) as other:
        for queue in queues:
            queue(other).declare()
        _publish(connection, "extra", exchange=exchange)
        assert [_received(other, queue, 1) for queue in queues] == [["extra"], ["extra"]]


def test_a_topic_message_that_matches_two_keys_of_a_queue_comes_once(connection: Connection) -> None:
    exchange = Exchange("shop", type="topic")
    queue = Queue("shop", exchange, routing_key="order.*")
    queue(connection).declare()
    Queue("shop", exchange, routing_key="*.paid")(connection).declare()
    for key in ("order.paid", "refund.paid", "order.new", "refund.new"):
        _publish(connection, key, exchange=exchange, routing_key=key)
    assert _received(connection, queue, 3) == ["order.paid", "refund.paid", "order.new"]
    assert queue(connection).get() is None


def test_a_publish_that_kombu_repeats_is_stored_once(connection: Connection) -> None:
    queue = Queue("orders")
    queue(connection).declare()
    channel = connection.default_channel
    properties: dict[str, Any] = {"delivery_mode": 2}
    for _ in range(2):
        message = channel.prepare_message("one", 0, "text/plain", "utf-8", {}, properties)
        channel.basic_publish(message, "", "orders")
    assert queue(connection).queue_declare(passive=True).message_count == 1


def test_a_message_without_a_queue_is_refused_if_mandatory(connection: Connection) -> None:
    with pytest.raises(ChannelError, match="NO_ROUTE"):
        _publish(connection, "x", routing_key="missing", mandatory=True)
    with pytest.raises(ChannelError, match="no exchange"):
        _publish(connection, "x", exchange="missing", routing_key="a")


def test_purge_drops_waiting_messages_and_leaves_messages_in_process(connection: Connection) -> None:
    queue = Queue("orders")
    queue(connection).declare()
    for number in range(3):
        _publish(connection, number, routing_key="orders")
    held = queue(connection).get()
    assert held is not None
    assert queue(connection).purge() == 2
    held.reject(requeue=True)
    assert _received(connection, queue, 1) == [0]


def test_a_consumer_survives_a_killed_broker(broker: RunningBroker, connection: Connection) -> None:
    queue = Queue("orders")
    bodies: list[Any] = []

    def take(body: Any, message: Any) -> None:
        bodies.append(body)
        message.ack()

    with Consumer(connection, [queue], callbacks=[take]):
        _publish(connection, "before", routing_key="orders")
        connection.drain_events(timeout=60)
        broker.kill()
        broker.start()
        with Connection(broker.url) as other:
            _publish(other, "after", routing_key="orders")
        while "after" not in bodies:
            connection.drain_events(timeout=60)
    assert set(bodies) == {"before", "after"}


FORKS = """
import os, sys, traceback
import cmqd_kombu
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer, Producer

bodies = []

def take(body, message):
    bodies.append(body)
    message.ack()

with Connection(sys.argv[1]) as connection:
    queue = Queue("orders")
    queue(connection).declare()
    session = connection.connection
    child = os.fork()
    if not child:
        status = 1
        try:
            print("usable" if session.usable else "not usable", flush=True)
            try:
                session.channels.copy().popitem()[1].queue_purge("orders")
            except ConnectionResetError as refusal:
                print(refusal, flush=True)
            with connection.clone() as own:
                Producer(own).publish("from the child", routing_key="orders")
            connection.release()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    print("the child ended with", os.waitpid(child, 0)[1])
    print("usable" if session.usable else "not usable")
    with Consumer(connection, [queue], callbacks=[take]):
        while not bodies:
            connection.drain_events(timeout=60)
print(*bodies)
"""
"""In a process of its own: a fork of pytest would copy the locks of pytest's other threads as they are, and would keep
pytest's pipes open if it waited for such a lock."""


def test_a_forked_process_reconnects_and_leaves_the_parents_connection_alone(broker: RunningBroker) -> None:
    ran = subprocess.run([sys.executable, "-c", FORKS, broker.url], capture_output=True, text=True, check=False)

    assert ran.stdout.splitlines() == [
        "not usable",
        "the connection to the broker was opened by another process: reconnect",
        "the child ended with 0",
        "usable",
        "from the child",
    ], ran.stderr


def test_the_thread_ends_with_the_last_connection(broker: RunningBroker) -> None:
    with Connection(broker.url) as first:
        first.connect()
        with Connection(broker.url) as second:
            second.connect()
            assert [thread.name for thread in threading.enumerate()].count("cmqd-kombu") == 1
        assert "cmqd-kombu" in [thread.name for thread in threading.enumerate()]
    assert "cmqd-kombu" not in [thread.name for thread in threading.enumerate()]


def test_a_url_without_key_or_with_a_path_is_refused(broker: RunningBroker) -> None:
    with pytest.raises(ValueError, match="names no key pair"):
        Connection("cmq://localhost").connect()
    with pytest.raises(ValueError, match="queue_prefix"):
        Connection(f"{broker.url}/shop").connect()


def test_a_url_can_name_several_hosts(broker: RunningBroker) -> None:
    with reserve_port() as refusing:
        url = broker.url.replace("@", f"@127.0.0.1:{refusing.getsockname()[1]},")
        with Connection(url) as connection, connection.clone() as other:
            queue = Queue("jobs")(connection)
            queue.declare()
            _publish(other, "one", routing_key="jobs")
            assert _received(connection, queue, 1) == ["one"]

            shown = connection.as_uri()
            assert connection.as_uri(include_password=True) == url
    assert shown.split("@")[1] == url.split("@")[1]
    assert shown.split("@")[0].endswith(":**")


def test_a_connection_can_be_given_in_parts(broker: RunningBroker) -> None:
    address = parse_address(broker.url)
    key: dict[str, Any] = {"userid": address.secret_id, "password": address.secret_key}
    with Connection(address.host, transport="cmq", port=address.port, **key) as connection:
        connection.connect()
        assert connection.as_uri(include_password=True) == broker.url
    with Connection(f"cmq://{address.host}:{address.port}", **key) as connection:
        connection.connect()


def test_the_celery_example(broker: RunningBroker) -> None:
    command = [sys.executable, EXAMPLES / "celery_orders.py", broker.url]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == [
        "prices: [250, 500, 750]",
        "with a countdown: 1000",
        "workers that answer: 1",
        "the worker ended with 0",
    ], ran.stderr
