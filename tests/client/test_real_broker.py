"""The client, its examples and the command line against a real broker, which is killed and restarted."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cmqd_client import (
    Client,
    HalfMessage,
    Message,
    Queue,
    TransactionCheck,
    TransactionProducer,
    TransactionStatus,
    connect,
)
from cmqd_client.errors import (
    AlreadyCommitted,
    DeadLetterQueueInUse,
    InvalidArgument,
    QueueDeleted,
    QueueDiffers,
    ReceiptHandleInvalid,
    TimeNotRewindable,
)
from support.processes.forked_program import write_command
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"


async def test_every_operation_of_a_queue_works(broker: RunningBroker) -> None:
    async with connect(broker.url) as client:
        queue = await client.create_queue("orders", visibility_timeout=60)
        sent = await queue.send_batch([b"a", b"b", b"c"], headers={"k": "v"})

        assert [one.id for one in await queue.peek()] == sent.ids
        first, second, third = await queue.receive(3)
        assert first.headers == {"k": "v"}
        assert (await first.change_visibility(120)).next_visible_time is not None
        await first.delete()
        await second.release(count_receive=False)
        with pytest.raises(ReceiptHandleInvalid):
            await first.delete()
        (again,) = await queue.receive()
        assert (again.id, again.receive_count) == (second.id, 1)
        assert (await queue.delete_batch([again, third, 1], check=False)).failures[0].receipt_handle == 1

        info = await queue.set_attributes(delay=90.5)
        assert (info.active, info.in_flight, info.delay) == (0, 0, 90.5)
        assert info.create_time is not None
        with pytest.raises(QueueDiffers):
            await client.ensure_queue("orders", delay=2)
        with pytest.raises(InvalidArgument, match="visibility_timeout is"):
            await queue.set_attributes(visibility_timeout=0.5)
        await queue.send(b"later")
        assert (await queue.attributes()).delayed == 1
        await queue.clear()
        assert (await queue.attributes()).delayed == 0

        receive = asyncio.create_task(queue.receive(wait=20))
        await asyncio.sleep(0)
        await client.delete_queue("orders")
        with pytest.raises(QueueDeleted):
            await receive
        assert list(await client.queues()) == []
        assert (await client.status())["durability"] == "fsync"


async def test_deleted_messages_are_rewound(broker: RunningBroker) -> None:
    async with connect(broker.url) as client:
        queue = await client.create_queue("orders", rewind=3600)
        await queue.send_batch([b"a", b"b", b"c"])
        await queue.delete_batch(await queue.receive(2))
        assert [one.body for one in await queue.peek(states=["rewindable"])] == [b"a", b"b"]
        await (await queue.receive())[0].delete()
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)

        with pytest.raises(TimeNotRewindable) as caught:
            await queue.rewind(ago=7200)
        assert caught.value.nearest is not None
        rewound = await queue.rewind(ago=7200, strict=False)
        assert (rewound.messages, rewound.clamped) == (3, True)
        back = await queue.receive(16)
        assert [(message.body, message.receive_count) for message in back] == [(b"a", 1), (b"b", 1), (b"c", 1)]


async def test_dead_letters_are_moved_and_redriven(broker: RunningBroker) -> None:
    async with connect(broker.url) as client:
        dead = await client.create_queue("dead")
        queue = await client.create_queue(
            "orders", visibility_timeout=1, dead_letter_queue="dead", dead_letter_max_receives=1
        )
        sent = await queue.send(b"a", headers={"k": "v"})
        await queue.receive()
        while not (letters := await dead.receive(wait=10)):
            pass
        (letter,) = letters
        assert letter.origin is not None
        assert (letter.origin.queue, letter.origin.id, letter.origin.reason) == ("orders", sent.id, "receives")
        assert (letter.headers, letter.receive_count) == ({"k": "v"}, 1)
        assert await dead.dead_letter_sources() == ["orders"]
        with pytest.raises(DeadLetterQueueInUse) as caught:
            await client.delete_queue("dead")
        assert caught.value.sources == ["orders"]
        with pytest.raises(QueueDiffers) as differs:
            await client.ensure_queue("orders", dead_letter_queue="dead", dead_letter_max_receives=2)
        assert differs.value.difference == {"dead_letter_max_receives": (1, 2)}
        await letter.release()

        status = await dead.redrive(max_per_second=1000)
        while status.running:
            await asyncio.sleep(0.02)
            status = await dead.redrive_status()
        assert (status.moved, status.remaining, status.reason) == (1, 0, "done")
        (again,) = await queue.receive(wait=10)
        assert again.origin is not None
        assert (again.origin.queue, again.origin.reason) == ("dead", "redrive")


async def test_a_dedup_id_is_known_after_a_crash(broker: RunningBroker) -> None:
    async with connect(broker.url) as client:
        queue = await client.create_queue("orders")
        first = await queue.send_batch([b"a", b"b"], dedup_ids=["A", "B"])
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        second = await queue.send_batch([b"c", b"b"], dedup_ids=[None, "B"])
        assert second.ids[1] == first.ids[1]
        assert [one.body for one in await queue.peek()] == [b"a", b"b", b"c"]


async def test_half_messages_are_committed_checked_and_decided_by_hand(broker: RunningBroker) -> None:
    attempts: list[tuple[str, int]] = []
    restarted = False

    async def checker(check: TransactionCheck) -> TransactionStatus:
        attempts.append((check.id, check.attempt))
        assert check.headers == {"k": "v"}
        # A slow machine may come to the first check before the restart.
        return TransactionStatus.COMMIT if restarted else TransactionStatus.UNKNOWN

    def said(message: HalfMessage, status: TransactionStatus) -> TransactionStatus:
        return status

    async with connect(broker.url) as client:
        queue = await client.create_queue("tx", transactional=True, first_check=1)
        async with client.transaction_producer("tx", checker) as producer:
            assert (await producer.send(b"one", said, TransactionStatus.COMMIT)).error is None
            assert (await producer.send(b"two", said, TransactionStatus.ROLLBACK)).error is None
            left = await producer.send(b"three", said, TransactionStatus.UNKNOWN, headers={"k": "v"})
            (message,) = await queue.receive(16)
            assert message.body == b"one"
            await message.delete()
            # The registration does not outlive the server; the half message and the client's wish do.
            await asyncio.to_thread(broker.kill)
            restarted = True
            await asyncio.to_thread(broker.start)
            while not (messages := await queue.receive(16, wait=20)):
                pass
            assert [(message.id, message.body) for message in messages] == [(left.id, b"three")]
            # The kill may take the first check with it, on a slow machine.
            assert attempts[0] in [(left.id, 1), (left.id, 2)]
            assert {message_id for message_id, _ in attempts} == {left.id}

        results = await client.queue("tx").send_half_batch([b"a", b"b", b"c"], first_check=3600)
        assert [one.id for one in await queue.half_messages()] == results.ids
        assert (await queue.attributes()).half == 3
        commit, rollback = TransactionStatus.COMMIT, TransactionStatus.ROLLBACK
        outcome = await queue.end_transactions(results.ids[:2], [commit, rollback])
        assert outcome.ok
        outcome = await queue.end_transactions(results.ids, rollback, check=False)
        assert [type(failed.error) for failed in outcome.failures] == [AlreadyCommitted]
        assert [one.body for one in await queue.peek(states=["active"])] == [b"a"]


async def test_exactly_the_locally_committed_messages_are_delivered_while_the_broker_is_killed(
    broker: RunningBroker,
) -> None:
    database: set[str] = set()
    """Ids of the messages with a committed local transaction."""

    def insert(message: HalfMessage, number: int) -> TransactionStatus:
        if number % 3 == 0:
            return TransactionStatus.ROLLBACK
        database.add(message.id)
        # Every seventh producer ends before it can answer.
        return TransactionStatus.UNKNOWN if number % 7 == 0 else TransactionStatus.COMMIT

    def was_inserted(check: TransactionCheck) -> TransactionStatus:
        return TransactionStatus.COMMIT if check.id in database else TransactionStatus.ROLLBACK

    async def produce(producer: TransactionProducer, numbers: range) -> None:
        for number in numbers:
            await producer.send(b"x", insert, number)

    async with connect(broker.url, patience=60) as client:
        queue = await client.create_queue("tx", transactional=True, first_check=1, visibility_timeout=600)
        async with client.transaction_producer("tx", was_inserted) as producer:
            producers = [asyncio.create_task(produce(producer, range(50 * part, 50 * part + 50))) for part in range(8)]
            while (await queue.attributes()).active < 60:  # noqa: ASYNC110 - a process acts meanwhile
                await asyncio.sleep(0)
            assert not all(task.done() for task in producers)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            await asyncio.gather(*producers)
            while (await queue.attributes()).half:  # noqa: ASYNC110 - a process acts meanwhile
                await asyncio.sleep(0.05)
            delivered: list[str] = []
            while messages := await queue.receive(256, wait=0):
                delivered += [message.id for message in messages]
            assert len(database) > 200
            assert sorted(delivered) == sorted(database)


def test_the_example_settles_half_messages_of_dead_producers(broker: RunningBroker) -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "transactional_orders.py", broker.url],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = ran.stdout.splitlines()
    assert sum("ended with -9" in line for line in lines) == 3
    assert sum(line.endswith(": COMMIT") for line in lines) == 1
    assert sum(line.endswith(": ROLLBACK") for line in lines) == 2
    assert [line.partition("order of ")[2] for line in lines if line.startswith("consumer")] == [
        "the producer that dies after its commit"
    ]
    assert lines[-1].endswith("0 half messages and 0 messages are left")


async def test_accounts_have_queues_of_their_own(broker: RunningBroker) -> None:
    async with connect(broker.url) as admin:
        key = await admin.accounts.create("kitchen")
        await admin.create_queue("orders")
        address = admin.address
        async with connect(f"cmq://{key.secret_id}:{key.secret_key}@{address.host}:{address.port}") as kitchen:
            assert list(await kitchen.queues()) == []
            await kitchen.create_queue("orders")
            spare = await kitchen.accounts.create_key()
            await kitchen.accounts.set_key_enabled(spare.secret_id, False)
            assert [one.enabled for one in await kitchen.accounts.keys()] == [True, False]


async def _first_of(queue: Queue) -> list[Message]:
    """Receive until a message comes: on a slow machine a broker may start for longer than a receive waits."""
    while not (messages := await queue.receive(wait=25)):
        pass
    return messages


async def _produce(client: Client, name: str, numbers: range) -> None:
    for number in numbers:
        await client.queue(name).send(str(number).encode())


async def test_nothing_is_lost_or_stored_twice_while_the_broker_is_killed(broker: RunningBroker) -> None:
    async with connect(broker.url, patience=60) as client:
        queue = await client.create_queue("orders", visibility_timeout=600)
        waiting = await client.create_queue("waiting")
        late = asyncio.create_task(_first_of(waiting))
        producers = [
            asyncio.create_task(_produce(client, "orders", range(100 * part, 100 * (part + 1)))) for part in range(8)
        ]
        for stored in (100, 400):
            while (await queue.attributes()).active < stored:  # noqa: ASYNC110 - a process acts meanwhile
                await asyncio.sleep(0)
            assert not all(producer.done() for producer in producers)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        await asyncio.gather(*producers)
        await waiting.send(b"at last")

        bodies: list[int] = []
        while messages := await queue.receive(256, wait=0):
            bodies += [int(message.body) for message in messages]
            await queue.delete_batch(messages)
        assert sorted(bodies) == list(range(800))
        assert [message.body for message in await late] == [b"at last"]


async def test_a_drained_broker_is_waited_for(broker: RunningBroker) -> None:
    async with connect(broker.url, patience=60) as client:
        queue = await client.create_queue("orders")
        receive = asyncio.create_task(_first_of(queue))
        await queue.attributes()

        assert await asyncio.to_thread(broker.stop) == 0
        send = asyncio.create_task(queue.send(b"x"))
        await asyncio.to_thread(broker.start)

        await send
        assert [message.body for message in await receive] == [b"x"]


def test_the_example_sends_and_receives(broker: RunningBroker) -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "send_and_receive.py", broker.url],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "3 received and deleted" in ran.stdout
    assert " de hallo\n" in ran.stdout


async def test_the_graceful_consumer_finishes_its_messages(broker: RunningBroker) -> None:
    async with connect(broker.url) as client:
        queue = await client.create_queue("example-jobs")
        await queue.send_batch([b"one", b"two"])
        consumer = await asyncio.create_subprocess_exec(
            sys.executable,
            EXAMPLES / "graceful_consumer.py",
            broker.url,
            "example-jobs",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        while (info := await queue.attributes()).active + info.in_flight:  # noqa: ASYNC110 - a process acts meanwhile
            await asyncio.sleep(0.02)
        consumer.send_signal(signal.SIGTERM)
        out, err = await consumer.communicate()
    assert consumer.returncode == 0
    assert out.decode().splitlines() == ["done: one", "done: two"]
    assert err == b""


def test_the_command_line_reads_the_servers_context_file(broker: RunningBroker, tmp_path: Path) -> None:
    environment = os.environ | {"CMQ_CONTEXT_FILE": str(broker.context_file), "XDG_CONFIG_HOME": str(tmp_path)}
    forks = (write_command("cmq", "cmq_cli", tmp_path),)

    def cmq(*arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = [str(tmp_path / "cmq"), *arguments]
        return subprocess.run(command, env=environment, input=stdin, capture_output=True, check=False, pass_fds=forks)

    assert cmq("queue", "create", "orders").returncode == 0
    assert cmq("send", "orders", "--stdin", stdin=b"a\nb\nc\n").stderr.endswith(b"3 sent\n")
    assert cmq("receive", "orders", "-n", "2", "--delete", "--raw").stdout == b"a\nb\n"
    assert cmq("tail", "orders", "--max", "1", "--raw").stdout == b"c\n"
    assert cmq("queue", "info", "nowhere").returncode == 3

    assert cmq("queue", "set", "orders", "--rewind", "1h").returncode == 0
    assert cmq("receive", "orders", "--delete", "--raw").stdout == b"c\n"
    assert cmq("rewind", "orders", "10m").stderr.startswith(b"1 message ")
    assert cmq("queue", "create", "dead").returncode == 0
    assert cmq("dlq", "set", "orders", "dead", "--max-receives", "1").returncode == 0
    assert cmq("dlq", "sources", "dead").stdout.split() == [b"name", b"orders"]
    assert cmq("receive", "orders", "--visibility-timeout", "1s", "--raw").stdout == b"c\n"
    assert b"from orders" in cmq("receive", "dead", "--wait", "10", "--visibility-timeout", "1s").stdout
    assert cmq("redrive", "dead", "--to", "orders", "--rate", "10").returncode == 0
    assert cmq("redrive", "dead", "--status").returncode == 0
    assert cmq("dlq", "unset", "orders").returncode == 0
    assert cmq("queue", "create", "tx", "--transactional").returncode == 0
    assert cmq("tx", "list", "tx").stderr == b"no undecided half message in 'tx'\n"
    assert cmq("tx", "commit", "tx", "Msg-00000000000000ff").returncode == 1
