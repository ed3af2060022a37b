"""kill -9 while receives delete messages: no message of an answered request comes back, no unanswered one is half done.

Consumers delete the messages of a receive in the request of the next receive, four at a time. After each kill the
messages that are left tell which requests were carried out.
"""

import asyncio
import random
from pathlib import Path

import pytest

from cmqd_client.connection import Connection
from cmqd_client.errors import CmqError
from cmqd_protocol import messages as wire
from support.processes.running_broker import RunningBroker

ROUNDS = 6
CONSUMERS = 4
BATCH = 4
LEAST_ANSWERED = 60
"""Answered requests of a round before the kill, so that a slow machine has a real load too."""
LEASE_MS = 43_200_000

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


class Facts:
    """The messages by the requests that delete them."""

    def __init__(self) -> None:
        self.deleted: set[int] = set()
        """Messages of answered requests."""
        self.unanswered: list[set[int]] = []
        """Messages of each request without an answer."""
        self.answered = 0

    def check(self, left: set[int]) -> tuple[int, int]:
        """Judge the messages that are left; return how many unanswered requests were carried out, and how many not."""
        assert not left & self.deleted, "a message came back after the answer to its delete"
        done = 0
        for messages in self.unanswered:
            assert messages <= left or not messages & left, "a request was carried out in part"
            if not messages & left:
                done += 1
                self.deleted |= messages
        counts = done, len(self.unanswered) - done
        self.unanswered.clear()
        return counts


async def consume(connection: Connection, facts: Facts) -> None:
    """Delete and receive until the connection is lost."""
    held: dict[int, int] = {}
    while True:
        request = wire.ReceiveMessages(
            connection.next_request_id(), "orders", BATCH, 0, LEASE_MS, list(held) if held else None
        )
        messages = set(held.values())
        try:
            reply = await connection.receive(request, 60)
        except CmqError:
            if messages:
                facts.unanswered.append(messages)
            return
        if held:
            assert reply.failures == []
            assert reply.error is None
            facts.deleted |= messages
            facts.answered += 1
        held = {message.receipt_handle: message.message_id for message in reply.messages}


async def produce(connection: Connection) -> None:
    """Send until the connection is lost."""
    while True:
        request = wire.SendMessages(connection.next_request_id(), "orders", [b"x"] * BATCH)
        try:
            await connection.request(request, 60)
        except CmqError:
            return


async def left_in(connection: Connection) -> set[int]:
    """Ids of the messages that are not deleted."""
    found: set[int] = set()
    start: int | None = 0
    while start is not None:
        request = wire.PeekMessages(connection.next_request_id(), "orders", 256, start)
        page = await connection.request(request, 60)
        assert isinstance(page, wire.MessagesPeeked)
        found |= {message.message_id for message in page.messages}
        start = page.next_start
    return found


async def a_round(broker: RunningBroker, facts: Facts, kill_after: int) -> None:
    """Load the broker, kill it after this number of answers, and judge what a restart finds."""
    connections = [await Connection.open(broker.url) for _ in range(CONSUMERS + 2)]
    begun = facts.answered
    tasks = [asyncio.create_task(produce(connection)) for connection in connections[:2]]
    tasks += [asyncio.create_task(consume(connection, facts)) for connection in connections[2:]]
    while facts.answered < begun + kill_after:  # noqa: ASYNC110 - the tasks set no event
        await asyncio.sleep(0.001)
    await asyncio.to_thread(broker.kill)
    await asyncio.gather(*tasks)
    for connection in connections:
        await connection.close()
    await asyncio.to_thread(broker.start)
    fresh = await Connection.open(broker.url)
    facts.check(await left_in(fresh))
    await fresh.close()


async def test_deletes_in_receives_survive_a_kill_whole_or_not_at_all(tmp_path: Path) -> None:
    chance = random.Random(183)
    facts = Facts()
    with RunningBroker(tmp_path) as broker:
        connection = await Connection.open(broker.url)
        await connection.request(wire.CreateQueue(connection.next_request_id(), "orders", {}), 60)
        await connection.close()

        for _ in range(ROUNDS):
            await a_round(broker, facts, LEAST_ANSWERED + chance.randrange(200))

    assert facts.answered >= ROUNDS * LEAST_ANSWERED
    assert len(facts.deleted) >= facts.answered
