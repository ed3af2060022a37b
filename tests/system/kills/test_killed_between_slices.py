"""kill -9 of a real broker while long publishes are planned in slices: a publish is stored whole or not at all."""

import contextlib
from collections import defaultdict
from itertools import count
from pathlib import Path

import pytest

from cmqd_protocol import messages as wire
from support.client.raw_client import RawClient
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

QUEUES = 10
MESSAGES = 256
PUBLISHES = 30
"""Per connection, in a single write: later publishes are planned, or wait, when the first is answered."""
CONNECTIONS = 3
LEASE_MS = 3_600_000


def tags_of(publish: int, message: int) -> list[str]:
    """Tags that the broker has not seen, so that every message is matched anew, and two tags that queues filter for."""
    return [f"{publish}-{message}", f"t{message % QUEUES}", f"t{(message * 7 + publish) % QUEUES}"]


def expected(queue: int, publish: int) -> list[bytes]:
    return [b"%d-%d" % (publish, message) for message in range(MESSAGES) if f"t{queue}" in tags_of(publish, message)]


def publish(client: RawClient, number: int) -> int:
    bodies = [b"%d-%d" % (number, message) for message in range(MESSAGES)]
    return client.begin(
        wire.PublishMessages, "news", bodies, None, [tags_of(number, message) for message in range(MESSAGES)]
    )


def received(client: RawClient, queue: int) -> dict[int, list[bytes]]:
    """All messages of a queue by publish, in order."""
    found: dict[int, list[bytes]] = defaultdict(list)
    while messages := client.ask(
        wire.MessagesReceived, wire.ReceiveMessages, f"queue-{queue}", 256, 0, LEASE_MS
    ).messages:
        for message in messages:
            found[int(message.body.split(b"-")[0])].append(message.body)
    return found


@pytest.mark.parametrize("answers", [1, 5, 20])
def test_a_publish_is_there_whole_or_not_at_all_after_a_kill_between_its_slices(tmp_path: Path, answers: int) -> None:
    for attempt in count():
        folder = tmp_path / str(attempt)
        folder.mkdir()
        if publish_and_kill(folder, answers) < CONNECTIONS * PUBLISHES:
            break
        # A busy machine may come to the kill after the last publish.


def publish_and_kill(folder: Path, answers: int) -> int:
    """Kill a broker after some answers, and check the publishes. Return the number of publishes that are stored."""
    with RunningBroker(folder) as broker:
        with RawClient(broker.url) as client:
            client.ask(wire.TopicInfo, wire.CreateTopic, "news", {"filter_type": "tag"})
            for number in range(QUEUES):
                client.ask(wire.QueueInfo, wire.CreateQueue, f"queue-{number}", {})
                attributes = {"endpoint": f"queue-{number}", "filter_tags": [f"t{number}"]}
                client.ask(wire.SubscriptionInfo, wire.Subscribe, "news", f"to-{number}", attributes)
        clients = [RawClient(broker.url).__enter__() for _ in range(CONNECTIONS)]
        asked = [
            {publish(client, place * PUBLISHES + number): place * PUBLISHES + number for number in range(PUBLISHES)}
            for place, client in enumerate(clients)
        ]
        for request_id in list(asked[0])[:answers]:
            reply = clients[0].reply(request_id)
            assert isinstance(reply, wire.MessagesPublished)
        broker.kill()
        for client in clients[1:]:
            with contextlib.suppress(ConnectionResetError):
                client.read_to_end()
        answered = set(list(asked[0].values())[:answers])
        for numbers, client in zip(asked, clients, strict=True):
            answered |= {numbers[request_id] for request_id in client.replies}
            client.__exit__(None, None, None)

        broker.start()
        with RawClient(broker.url) as client:
            found = [received(client, queue) for queue in range(QUEUES)]

    whole = {number for number in range(CONNECTIONS * PUBLISHES) if all(number in each for each in found)}
    assert {number for each in found for number in each} == whole, "a publish is in some queues only"
    for queue, by_publish in enumerate(found):
        assert all(bodies == expected(queue, number) for number, bodies in by_publish.items())
    assert answered <= whole
    return len(whole)
