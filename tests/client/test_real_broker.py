"""The client, its examples and the command line against a real broker, which is killed and restarted."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmqd_client import Client, InvalidArgument, QueueDeleted, QueueDiffers, ReceiptHandleInvalid, connect
from support.running_broker import RunningBroker

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path) as broker:
        yield broker


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
        assert (await queue.delete_batch([again, third, 1])).failures[0].receipt_handle == 1

        info = await queue.set_attributes(delay=1.5)
        assert (info.active, info.in_flight, info.delay) == (0, 0, 1.5)
        assert info.create_time is not None
        with pytest.raises(QueueDiffers):
            await client.ensure_queue("orders", delay=2)
        with pytest.raises(InvalidArgument, match="visibility_timeout_ms"):
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


async def _produce(client: Client, name: str, numbers: range) -> None:
    for number in numbers:
        await client.queue(name).send(str(number).encode())


async def test_nothing_is_lost_or_stored_twice_while_the_broker_is_killed(broker: RunningBroker) -> None:
    async with connect(broker.url, retries=20) as client:
        queue = await client.create_queue("orders", visibility_timeout=600)
        waiting = await client.create_queue("waiting")
        late = asyncio.create_task(waiting.receive(wait=25))
        producers = [
            asyncio.create_task(_produce(client, "orders", range(100 * part, 100 * (part + 1)))) for part in range(8)
        ]
        for stored in (100, 400):
            async with asyncio.timeout(60):
                while (await queue.attributes()).active < stored:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0)
            assert not all(producer.done() for producer in producers)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        await asyncio.gather(*producers)
        await waiting.send(b"at last")

        bodies: list[int] = []
        while messages := await queue.receive(256, wait=0):
            bodies += [int(message.body) for message in messages]
            (await queue.delete_batch(messages)).raise_for_failures()
        assert sorted(bodies) == list(range(800))
        assert [message.body for message in await late] == [b"at last"]


async def test_a_drained_broker_is_waited_for(broker: RunningBroker) -> None:
    async with connect(broker.url, retries=20) as client:
        queue = await client.create_queue("orders")
        receive = asyncio.create_task(queue.receive(wait=25))
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
        timeout=60,
        check=True,
    )
    assert "3 received and deleted" in ran.stdout
    assert " de hallo\n" in ran.stdout


async def test_the_graceful_consumer_finishes_what_it_has(broker: RunningBroker) -> None:
    async with connect(broker.url) as client:
        queue = await client.create_queue("example-jobs")
        await queue.send_batch([b"one", b"fail", b"two"])
        consumer = await asyncio.create_subprocess_exec(
            sys.executable,
            EXAMPLES / "graceful_consumer.py",
            env=os.environ | {"CMQ_URL": broker.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            while (info := await queue.attributes()).active + info.in_flight:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
            consumer.send_signal(signal.SIGTERM)
            out, err = await consumer.communicate()
    assert consumer.returncode == 0
    assert out.decode().splitlines() == ["ready", "done: one", "done: two", "stopped"]
    assert "given up" in err.decode()


def test_the_command_line_reads_the_servers_context_file(broker: RunningBroker, tmp_path: Path) -> None:
    environment = os.environ | {"CMQ_CONTEXT_FILE": str(broker.context_file), "XDG_CONFIG_HOME": str(tmp_path)}

    def cmq(*arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = [sys.executable, "-m", "cmq_cli", *arguments]
        return subprocess.run(command, env=environment, input=stdin, capture_output=True, timeout=60, check=False)

    assert cmq("queue", "create", "orders").returncode == 0
    assert cmq("send", "orders", "--stdin", stdin=b"a\nb\nc\n").stderr.endswith(b"3 sent\n")
    assert cmq("receive", "orders", "-n", "2", "--delete", "--raw").stdout == b"a\nb\n"
    assert cmq("tail", "orders", "--for", "300ms", "--raw").stdout == b"c\n"
    assert cmq("queue", "info", "nowhere").returncode == 3
