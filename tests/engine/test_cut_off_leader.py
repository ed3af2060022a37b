"""A leader that is cut off from PostgreSQL, and not from its clients: they move to the standby while the cut lasts."""

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import cmqd_client
from cmqd.exit_codes import ExitCode
from cmqd.server.redundancy.leader_gate import PROOF_S
from cmqd_client.address import parse_address
from cmqd_client.events import Connected, Event
from support.eventually import eventually
from support.postgresql.installation import Installation
from support.postgresql.servers import PostgresCluster
from support.processes.running_broker import RunningBroker

pytestmark = [pytest.mark.system, pytest.mark.postgresql]


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster(Installation.of_session()) as cluster:
        yield cluster


@pytest.fixture
def pair(cluster: PostgresCluster, tmp_path: Path) -> Iterator[list[RunningBroker]]:
    brokers: list[RunningBroker] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        flags = ("--redundancy", "postgresql", "--engine-url", cluster.url(name))
        brokers.append(RunningBroker(tmp_path / name, *flags, "--http", "127.0.0.1:0"))
    yield brokers
    for broker in brokers:
        with contextlib.suppress(RuntimeError):  # it does not run
            broker.kill()


async def http_of(broker: RunningBroker) -> str:
    """The URL of the JSON API of a broker's gateway."""
    file = broker.folder / "ready.http"
    await eventually(file.exists)
    facts = json.loads(file.read_text())
    return f"http://{facts['host']}:{facts['port']}/api/v1"


async def test_calls_receives_and_http_clients_follow_while_the_cut_lasts(
    cluster: PostgresCluster, pair: list[RunningBroker]
) -> None:
    leader, standby = pair
    await asyncio.to_thread(leader.start)
    process = leader._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    leading = asyncio.create_task(asyncio.to_thread(standby.start))
    try:
        await follow_a_takeover(cluster, leader, standby, leading)
    finally:
        if not leading.done():
            # The thread of its start would go on for ever.
            leader.kill()
            await leading
    assert process.poll() is None, "the cut still lasts, and the former leader does not know"
    cluster.mend()
    assert await asyncio.to_thread(process.wait) == ExitCode.FENCED


async def follow_a_takeover(
    cluster: PostgresCluster, leader: RunningBroker, standby: RunningBroker, leading: "asyncio.Task[None]"
) -> None:
    http = await http_of(leader)
    async with cmqd_client.connect(leader.url) as early:
        await early.create_queue("orders")
        await early.create_queue("calls")
        # The welcome of later clients names the standby.
        await eventually_true(lambda: has_standby(early))
    events: list[Event] = []
    address = parse_address(leader.url)
    token = base64.b64encode(f"{address.secret_id}:{address.secret_key}".encode()).decode()
    web = aiohttp.ClientSession(headers={"Authorization": f"Basic {token}"})
    async with web, cmqd_client.connect(leader.url, patience=60, on_event=events.append) as client:
        assert await listed(web, http) == ["calls", "orders"]
        receiving = asyncio.create_task(timed(client.queue("orders").receive(wait=30)))
        await client.queue("calls").send(b"before the cut")

        cluster.isolate("a")
        # As the keepalive of the sessions does when the machine is silent.
        cluster.n1.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND pid <> pg_backend_pid()"
        )
        begun = time.monotonic()
        # An answer by a proof of the lead from before the cut may still leave.
        await asyncio.sleep(PROOF_S)
        asked = asyncio.create_task(timed(client.queue("calls").attributes()))
        browsed = asyncio.create_task(timed(listed(web, http)))
        await leading
        takeover = time.monotonic() - begun
        async with cmqd_client.connect(standby.url) as other:
            await other.queue("orders").send(b"behind the takeover")

        (message,), received_s = await receiving
        attributes, asked_s = await asked
        names, browsed_s = await browsed

        assert message.body == b"behind the takeover"
        await message.delete()
        assert attributes.active == 1
        assert names == ["calls", "orders"]
        assert [event.host for event in events if isinstance(event, Connected)] == [
            f"127.0.0.1:{leader.port}",
            f"127.0.0.1:{standby.port}",
        ]
        # A later request of the HTTP client needs no more time: the gateway has followed as a whole.
        assert await listed(web, http) == ["calls", "orders"]
        print({"takeover_s": takeover, "call_s": asked_s, "receive_s": received_s, "http_s": browsed_s})


async def eventually_true(ask: Callable[[], Awaitable[bool]]) -> None:
    while not await ask():  # each question takes a round trip
        pass


async def has_standby(client: cmqd_client.Client) -> bool:
    return bool((await client.status())["replication"].get("standbys"))


async def listed(web: aiohttp.ClientSession, http: str) -> list[str]:
    """The names of the queues, over HTTP; repeated as any client repeats a 503."""
    while True:
        async with web.get(f"{http}/queues") as response:
            if response.status == 200:
                return sorted((await response.json())["names"])
            assert response.status == 503, await response.text()


async def timed(call: Awaitable[Any]) -> tuple[Any, float]:
    """The result of a call, and its seconds, for the report of the test."""
    begun = time.monotonic()
    return await call, time.monotonic() - begun
