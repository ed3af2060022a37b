"""Histories of messages over a pair of real brokers: told by the next leader, and by the files of a standby."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cmqd_client import connect
from cmqd_client.messages.histories import MessageHistory
from cmqd_client.messages.message_ids import id_number
from cmqd_log.data_folder.histories import HistoryReader
from cmqd_log.errors import CmqdSourceError
from cmqd_types.histories import LifeEvent, LifeKind
from support.postgresql.installation import Installation
from support.postgresql.servers import PostgresCluster
from support.processes.running_broker import RunningBroker
from support.processes.standing_by import standing_by

pytestmark = [pytest.mark.system, pytest.mark.postgresql]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[RunningBroker]]:
    """Two brokers that a test starts; a start returns once the broker leads."""
    with PostgresCluster(Installation.of_session()) as cluster:
        brokers: list[RunningBroker] = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            # Consumed rows stay.
            flags = ("--redundancy", "postgresql", "--engine-url", cluster.url(name), "--keep-history-ms", "86400000")
            brokers.append(RunningBroker(tmp_path / name, *flags))
        yield brokers
        for broker in brokers:
            with contextlib.suppress(RuntimeError, asyncio.CancelledError):  # it does not run
                broker.kill()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110  of files that other processes write
            await asyncio.sleep(0.05)


def told_by_files(broker: RunningBroker, message_id: str) -> list[LifeEvent]:
    """Return the history that ``cmq history --path`` reads; none while the folder lacks the message."""
    try:
        return list(HistoryReader(str(broker.folder / "data")).history(id_number(message_id)).events)
    except CmqdSourceError:
        return []


def kinds(history: MessageHistory) -> list[tuple[str, str]]:
    return [(event.kind, event.client_name) for event in history]


async def test_the_history_of_a_message_goes_on_over_a_takeover(pair: list[RunningBroker]) -> None:
    """Sealed, not sealed and copied rows; clients and queues by name; a message that moved to another queue."""
    leader, standby = pair
    await asyncio.to_thread(leader.start)
    taking_over = standing_by(standby)
    async with connect(leader.url, name="shop") as client:
        await client.create_queue("dead")
        queue = await client.create_queue("orders", dead_letter_queue="dead", dead_letter_max_receives=5)
        sent = await queue.send(b"4711")
        other = await queue.send(b"4712")
        (given_back,) = await queue.receive()
        await given_back.release()
        await client.seal_segments()
        rejected, leased = await queue.receive(max_messages=2, visibility_timeout=600)
        await rejected.reject("no such customer")
        before = {message: await client.message_history(message) for message in (sent.id, other.id)}
    moved, kept = rejected.id, leased.id
    assert {moved, kept} == before.keys()
    assert [kind for kind, _ in kinds(before[kept])][-1] == LifeKind.RECEIVED
    for message, history in before.items():
        events = list(history.life.events)
        await until(lambda message=message, events=events: told_by_files(standby, message) == events)

    leader.kill()
    await asyncio.to_thread(taking_over.join)
    async with connect(standby.url, name="worker-2") as client:
        for message, history in before.items():
            behind = await client.message_history(message)
            assert behind.events == history.events
            assert behind.places == history.places
        await client.queue("orders").delete(leased.receipt_handle)
        (dead,) = await client.queue("dead").receive()
        await dead.delete()
        after = {message: await client.message_history(message) for message in before}
    for message, history in after.items():
        assert history.events[: len(before[message])] == before[message].events
    assert kinds(after[kept])[-1] == (LifeKind.DELETED, "worker-2")
    assert kinds(after[moved])[-2:] == [(LifeKind.RECEIVED, "worker-2"), (LifeKind.DELETED, "worker-2")]

    # The former leader copies the rest. Its own rows are in segments of its own.
    taking_over = standing_by(leader)
    for message, history in after.items():
        events = list(history.life.events)
        for broker in (leader, standby):
            await until(lambda broker=broker, message=message, events=events: told_by_files(broker, message) == events)
    standby.kill()
    await asyncio.to_thread(taking_over.join)
    async with connect(leader.url) as client:
        for message, history in after.items():
            assert (await client.message_history(message)).events == history.events
