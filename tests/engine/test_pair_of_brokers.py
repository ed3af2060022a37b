"""Two brokers over three PostgreSQL servers: real processes, killed and stopped."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cmqd_client
from cmqd.exit_codes import ExitCode
from cmqd.server.redundancy.leader_gate import PROOF_S
from cmqd_client.errors import CmqError
from support.crash.broker import CrashingBroker
from support.postgresql.installation import Installation
from support.postgresql.servers import PostgresCluster
from support.processes.running_broker import RunningBroker
from support.processes.stopped_process import stop

pytestmark = [pytest.mark.system, pytest.mark.postgresql]


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster(Installation.of_session()) as cluster:
        yield cluster


@pytest.fixture
def pair(cluster: PostgresCluster, tmp_path: Path) -> Iterator[list[RunningBroker]]:
    """Two brokers that a test starts; a start returns once the broker leads."""
    brokers: list[RunningBroker] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        flags = ("--redundancy", "postgresql", "--engine-url", cluster.url(name))
        brokers.append(RunningBroker(tmp_path / name, *flags))
    yield brokers
    for broker in brokers:
        with contextlib.suppress(RuntimeError):  # it does not run
            broker.kill()


async def test_no_answered_message_is_lost_or_doubled_through_kills(pair: list[RunningBroker]) -> None:
    sent: list[bytes] = []
    leader, standby = pair
    await asyncio.to_thread(leader.start)
    for number in range(3):
        leading = asyncio.create_task(asyncio.to_thread(standby.start))
        async with cmqd_client.connect(leader.url) as client:
            queue = await client.create_queue("orders") if number == 0 else client.queue("orders")
            for index in range(50):
                body = f"{number}/{index}".encode()
                await queue.send(body)
                sent.append(body)
        leader.kill()
        await leading
        leader, standby = standby, leader
    received: list[bytes] = []
    async with cmqd_client.connect(leader.url) as client:
        while messages := await client.queue("orders").receive(max_messages=16):
            for message in messages:
                received.append(message.body)
                await message.delete()
    assert leader.stop() == ExitCode.OK
    assert sorted(received) == sorted(sent)


@pytest.mark.parametrize("skew_ms", [7_200_000, -7_200_000])
async def test_a_start_with_a_wrong_clock_ends_no_message_and_no_lease(
    pair: list[RunningBroker], tmp_path: Path, skew_ms: int
) -> None:
    """Both brokers were stopped, and the broker that starts first has another clock than before."""
    leader, _ = pair
    await asyncio.to_thread(leader.start)
    async with cmqd_client.connect(leader.url) as client:
        queue = await client.create_queue("orders", retention=3600, visibility_timeout=60)
        for number in range(5):
            await queue.send(b"%d" % number)
        (leased,) = await queue.receive()
    leader.kill()
    broker = CrashingBroker(tmp_path / "b", flags=pair[1].flags)
    broker.clock_skew_ms = skew_ms
    try:
        ready = await asyncio.to_thread(broker.start)
        async with cmqd_client.connect(ready.url) as client:
            queue = client.queue("orders")
            info = await queue.attributes()
            assert (info.active, info.in_flight) == (4, 1)
            await queue.delete(leased.receipt_handle)
            assert (await client.status())["clock_offset_ms"] == pytest.approx(skew_ms, abs=60_000)
    finally:
        broker.clean_up()


async def test_a_leader_that_was_stopped_answers_nothing_when_it_goes_on(
    cluster: PostgresCluster, pair: list[RunningBroker]
) -> None:
    """Not even a question about its index, which needs no row."""
    leader, standby = pair
    await asyncio.to_thread(leader.start)
    process, storage = leader._process, leader._storage_pid  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    async with cmqd_client.connect(leader.url) as client:
        queue = await client.create_queue("orders")
        stop(process.pid)
        stop(storage)
        stopped = time.monotonic()
        asked = asyncio.create_task(queue.attributes())
        # As the keepalive of the sessions does when the machine is silent.
        cluster.n1.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND pid <> pg_backend_pid()"
        )
        await asyncio.to_thread(standby.start)
        async with cmqd_client.connect(standby.url) as other:
            await other.queue("orders").send(b"unknown to the old leader")
        # An answer by a proof of the lead that is younger may still leave.
        await asyncio.sleep(stopped + PROOF_S - time.monotonic())
        os.kill(storage, signal.SIGCONT)
        os.kill(process.pid, signal.SIGCONT)

        with pytest.raises(CmqError):
            await asked
    assert await asyncio.to_thread(process.wait) == ExitCode.FENCED
    standby.stop()
