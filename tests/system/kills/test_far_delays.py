"""kill -9 of a real broker while messages are sent with delays of days: each keeps its time, to the millisecond."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmqd_protocol import messages as wire
from cmqd_types.messages import PeekedMessage
from support.client.raw_client import RawClient
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

DAY_MS = 86_400_000
FLAGS = ("--max-delay-ms", "15d", "--segment-bytes", str(1 << 20))
QUEUE = "later"
BATCH = 20
BATCHES = 60
"""Of a round, in one write: behind the answered batches some are decided, written or under fsync at the kill."""
ANSWERED = (1, 7, 30)
"""Batches that are answered before the kill, by round."""


def delay_ms(number: int) -> int:
    """Delays of an hour to 14 days; the prime spreads them over all spans of the timers."""
    return 3_600_000 + number * 7_919_317 % (14 * DAY_MS)


def body(number: int) -> bytes:
    return b"%d" % number


def send(client: RawClient, batch: int) -> int:
    numbers = range(batch * BATCH, (batch + 1) * BATCH)
    return client.begin(wire.SendMessages, QUEUE, list(map(body, numbers)), None, list(map(delay_ms, numbers)))


def all_messages(client: RawClient) -> Iterator[PeekedMessage]:
    start: int | None = 0
    while start is not None:
        page = client.ask(wire.MessagesPeeked, wire.PeekMessages, QUEUE, 256, start, None)
        yield from page.messages
        start = page.next_start


def check(broker: RunningBroker, answered: set[int], sent: int) -> list[PeekedMessage]:
    """Every answered batch is there, every batch is whole, and every message waits for its own time."""
    with RawClient(broker.url) as client:
        messages = list(all_messages(client))
        counts = client.ask(wire.QueueInfo, wire.GetQueueAttributes, QUEUE).counts
    numbers = [int(message.body) for message in messages]
    batches = {number // BATCH for number in numbers}
    assert answered <= batches <= set(range(sent))
    assert sorted(numbers) == [
        number for batch in sorted(batches) for number in range(batch * BATCH, (batch + 1) * BATCH)
    ]
    for message, number in zip(messages, numbers, strict=True):
        assert message.state == "delayed"
        assert message.visible_ms - message.enqueue_ms == delay_ms(number)
    assert (counts["delayed"], counts["active"]) == (len(messages), 0)
    return messages


def test_messages_with_delays_of_days_keep_their_times_over_kills_and_restarts(tmp_path: Path) -> None:
    answered: set[int] = set()
    before: list[PeekedMessage] = []
    with RunningBroker(tmp_path, *FLAGS) as broker:
        with RawClient(broker.url) as client:
            client.ask(wire.QueueInfo, wire.CreateQueue, QUEUE, {"retention_ms": 15 * DAY_MS})
        for place, answers in enumerate(ANSWERED):
            first = place * BATCHES
            with RawClient(broker.url) as client:
                asked = {send(client, batch): batch for batch in range(first, first + BATCHES)}
                for request_id in list(asked)[:answers]:
                    assert isinstance(client.reply(request_id), wire.MessagesSent)
                    answered.add(asked[request_id])
                broker.kill()
                with contextlib.suppress(ConnectionResetError):
                    client.read_to_end()
                # Answers that came before the end count as well.
                answered |= {asked[request_id] for request_id in client.replies}
            broker.start()
            before = check(broker, answered, first + BATCHES)
        # Orderly: the next start reads the checkpoint.
        broker.stop()
        broker.start()
        assert check(broker, answered, len(ANSWERED) * BATCHES) == before
        with RawClient(broker.url) as client:
            client.ask(wire.Done, wire.DeleteQueue, QUEUE)
        broker.kill()
        broker.start()
        with RawClient(broker.url) as client:
            refused = client.reply(client.begin(wire.GetQueueAttributes, QUEUE))
        assert isinstance(refused, wire.Error)
        assert refused.name == "queue_not_found"
