"""Totals after kill -9: exactly the last totals that were read, and never lower.

Segments are as small as possible, so that checkpoints are taken, segments sealed and dropped while the killing goes on.
"""

import contextlib
from pathlib import Path

import pytest
from msgspec.structs import asdict

from cmqd_protocol import messages as wire
from cmqd_types.totals import QueueTotals
from support.client.raw_client import RawClient
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

KILLS = 20
SENDS = 30
"""Of a round, pipelined."""
BODY = b"x" * 40_000
FLAGS = ("--segment-bytes", str(1 << 20))


def totals_of(client: RawClient) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """The totals of every queue by name, and the totals of the account."""
    page = client.ask(wire.QueueMetricsPage, wire.GetQueueMetrics)
    account = client.ask(wire.Metrics, wire.GetMetrics)
    return {queue.queue: asdict(queue.totals) for queue in page.queues}, asdict(account.queue_totals)


def work(client: RawClient, number: int) -> None:
    """Send, receive, delete, return and reject messages; let a queue come and go."""
    client.ask(wire.QueueInfo, wire.EnsureQueue, "dead", {})
    # By hand alone: a move by the policy could come between the reading of the totals and the kill.
    attributes = {"dead_letter_queue": "dead", "dead_letter_max_receives": 1000}
    client.ask(wire.QueueInfo, wire.EnsureQueue, "orders", attributes)
    asked = [client.begin(wire.SendMessages, "orders", [BODY, b"%d" % number]) for _ in range(SENDS)]
    for request_id in asked:
        assert isinstance(client.reply(request_id), wire.MessagesSent)
    received = client.ask(wire.MessagesReceived, wire.ReceiveMessages, "orders", 20, 0).messages
    handles = [message.receipt_handle for message in received]
    client.ask(wire.HandlesDone, wire.DeleteMessages, "orders", handles[: len(handles) // 2])
    client.ask(wire.HandlesDone, wire.ReleaseMessages, "orders", handles[len(handles) // 2 : -2])
    client.ask(wire.HandlesDone, wire.DeadLetterMessages, "orders", handles[-2:], ["why"])
    client.ask(wire.QueueInfo, wire.CreateQueue, "gone", {})
    client.ask(wire.MessagesSent, wire.SendMessages, "gone", [b"1", b"2"])
    client.ask(wire.Done, wire.DeleteQueue, "gone")


def test_totals_are_the_same_after_each_of_twenty_kills(tmp_path: Path) -> None:
    queues: dict[str, dict[str, int]] = {}
    with RunningBroker(tmp_path, *FLAGS) as broker:
        for number in range(KILLS):
            with RawClient(broker.url) as client:
                work(client, number)
                before = totals_of(client)
            broker.kill()
            broker.start()
            with RawClient(broker.url) as client:
                after = queues, account = totals_of(client)

            assert after == before
            assert account["sent"] == (number + 1) * (2 * SENDS + 2), "the sends to deleted queues count too"
        orders = queues["orders"]
        assert orders["sent"] == KILLS * 2 * SENDS
        assert orders["sent_bytes"] == KILLS * SENDS * len(BODY) + SENDS * sum(len(str(one)) for one in range(KILLS))
        assert orders["deleted"]
        assert orders["redelivered"]
        assert orders["dead_lettered"] == queues["dead"]["dead_letters"] == 2 * KILLS


def test_totals_that_were_read_are_never_taken_back_by_a_kill_under_load(tmp_path: Path) -> None:
    highest = asdict(QueueTotals())
    with RunningBroker(tmp_path, *FLAGS) as broker:
        for number in range(KILLS // 2):
            with RawClient(broker.url) as client:
                client.ask(wire.QueueInfo, wire.EnsureQueue, "orders", {})
                for place in range(SENDS):
                    client.begin(wire.SendMessages, "orders", [b"%d" % place])
                    client.begin(wire.ReceiveMessages, "orders", 1, 0)
                    client.begin(wire.GetQueueMetrics)
                for _ in range(number):
                    # A page that left the server before the kill, at a different position per round.
                    _, page_id = client.begin(wire.SendMessages, "orders", [b"x"]), client.begin(wire.GetQueueMetrics)
                    assert isinstance(client.reply(page_id), wire.QueueMetricsPage)
                broker.kill()
                with contextlib.suppress(ConnectionResetError):
                    client.read_to_end()
                pages = [reply for reply in client.replies.values() if isinstance(reply, wire.QueueMetricsPage)]
            for page in pages:
                for name, value in asdict(page.queues[0].totals).items():
                    highest[name] = max(highest[name], value)
            broker.start()
            with RawClient(broker.url) as client:
                after, _ = totals_of(client)

            for name, value in after["orders"].items():
                assert value >= highest[name], name
