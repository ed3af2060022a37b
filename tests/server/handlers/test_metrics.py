"""Requests for metrics: the figures that a client may read, the wait for the disk, and the figures of the server."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from cmqd.server.access.permissions import Permissions
from cmqd.server.admission.entries_ahead import MAX_ENTRIES_AHEAD
from cmqd.server.binary.accepted_connection import AcceptedConnection
from cmqd_protocol import messages as wire
from cmqd_types.metrics import Histogram, ServerMetrics
from cmqd_types.totals import QueueTotals
from support.server.server_rig import RigClient, ServerRig, code_of


async def server_figures(admin: RigClient) -> ServerMetrics:
    server = (await admin.expect(wire.Metrics, wire.GetMetrics)).server
    assert server is not None
    return server


async def other_client(rig: ServerRig, admin: RigClient) -> RigClient:
    await admin.expect(wire.KeyList, wire.CreateAccount, "other")
    return await rig.client(rig.accounts.first_key("other"))


async def test_an_account_reads_its_own_figures_and_admin_those_of_all(rig: ServerRig) -> None:
    admin = await rig.client()
    other = await other_client(rig, admin)
    for client, name in ((admin, "orders"), (other, "jobs")):
        await client.expect(wire.QueueInfo, wire.CreateQueue, name, {})
        await client.send(name, b"12")

    own = await other.expect(wire.Metrics, wire.GetMetrics)
    assert (own.queue_totals, own.queues, own.server) == (QueueTotals(sent=1, sent_bytes=2), 1, None)
    everything = await admin.expect(wire.Metrics, wire.GetMetrics)
    assert (everything.queue_totals.sent, everything.queues) == (2, 2)
    assert everything.server is not None

    page = await other.expect(wire.QueueMetricsPage, wire.GetQueueMetrics)
    assert [(queue.account, queue.queue) for queue in page.queues] == [("other", "jobs")]
    page = await admin.expect(wire.QueueMetricsPage, wire.GetQueueMetrics, True)
    assert [(queue.account, queue.queue) for queue in page.queues] == [("admin", "orders"), ("other", "jobs")]
    page = await admin.expect(wire.QueueMetricsPage, wire.GetQueueMetrics, True, *("admin", "orders"), 1)
    assert [queue.queue for queue in page.queues] == ["jobs"]


@pytest.mark.parametrize("request_type", [wire.GetQueueMetrics, wire.GetTopicMetrics])
async def test_only_admin_reads_the_figures_of_all_accounts(rig: ServerRig, request_type: type[wire.Request]) -> None:
    admin = await rig.client()
    other = await other_client(rig, admin)

    assert code_of(await other.ask(request_type, True)) == "permission_denied"
    assert code_of(await admin.ask(request_type, False, "", "", 1001)) == "invalid_argument"


async def test_topics_come_with_their_subscriptions(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "orders", {})
    await client.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    await client.expect(wire.SubscriptionInfo, wire.Subscribe, "news", "reader", {"endpoint": "orders"})
    await client.expect(wire.MessagesPublished, wire.PublishMessages, "news", [b"12"])

    page = await client.expect(wire.TopicMetricsPage, wire.GetTopicMetrics)

    (topic,) = page.topics
    assert (topic.topic, topic.totals.published, topic.retained) == ("news", 1, 0)
    assert [(one.subscription, one.totals.delivered) for one in topic.subscriptions] == [("reader", 1)]


async def test_the_largest_queues_come_with_sums_over_all(rig: ServerRig) -> None:
    admin = await rig.client()
    other = await other_client(rig, admin)
    for client, name, count in ((admin, "orders", 2), (admin, "parcels", 1), (other, "jobs", 3)):
        await client.expect(wire.QueueInfo, wire.CreateQueue, name, {})
        for _ in range(count):
            await client.send(name, b"12")

    own = await other.expect(wire.TopMetrics, wire.GetTopMetrics)
    assert (own.sums.active, [queue.queue for queue in own.queues]) == (3, ["jobs"])
    everything = await admin.expect(wire.TopMetrics, wire.GetTopMetrics, 2)
    assert (everything.sums.active, [queue.queue for queue in everything.queues]) == (6, ["jobs", "orders"])
    assert code_of(await admin.ask(wire.GetTopMetrics, 1001)) == "invalid_argument"
    reader = await rig.client(await rig.accounts.create_role_key("admin", None, ["read"], ["orders"], 1))
    assert code_of(await reader.ask(wire.GetTopMetrics)) == "permission_denied"


async def test_requests_for_different_numbers_of_queues_share_nothing(rig: ServerRig) -> None:
    make_queues(rig, 300)
    admin = await rig.client()
    asked = {admin.begin(wire.GetTopMetrics(admin.next_id(), limit)): limit for limit in (0, 1, 250, 1, 250) * 20}

    await admin.settle()

    for request_id, limit in asked.items():
        reply = admin.replies[request_id]
        assert isinstance(reply, wire.TopMetrics)
        assert len(reply.queues) == limit


@pytest.mark.parametrize(
    "request_type", [wire.GetMetrics, wire.GetQueueMetrics, wire.GetTopicMetrics, wire.GetTopMetrics]
)
async def test_no_figure_leaves_before_the_records_that_it_counts_are_durable(
    rig: ServerRig, request_type: type[wire.Request]
) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "orders", {})
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "orders", [b"1"]))
    request_id = client.begin(request_type(client.next_id()))
    await client.settle()
    assert request_id not in client.replies

    rig.log.let_go()
    await client.settle()

    assert request_id in client.replies


async def test_errors_are_counted_by_name_and_commits_by_size(rig: ServerRig) -> None:
    admin = await rig.client()
    before = await server_figures(admin)
    assert code_of(await admin.ask(wire.GetQueueAttributes, "nowhere")) == "queue_not_found"
    await admin.expect(wire.QueueInfo, wire.CreateQueue, "orders", {})
    await admin.send("orders", b"1")

    after = await server_figures(admin)

    assert after.errors_total == before.errors_total | {"queue_not_found": 1}
    assert after.commit_records is not None
    assert before.commit_records is not None
    assert commits(after.commit_records) == commits(before.commit_records) + 2
    assert after.commit_us is not None
    assert commits(after.commit_us) == commits(after.commit_records)
    assert after.committed_bytes_total > before.committed_bytes_total
    assert after.bytes_in_total > before.bytes_in_total
    assert after.bytes_out_total > before.bytes_out_total
    assert (after.requests_total, after.connections) == (before.requests_total + 4, 1)


def commits(values: Histogram) -> int:
    assert len(values.counts) == len(values.bounds) + 1
    return sum(values.counts)


async def test_publishes_without_a_match_are_counted(rig: ServerRig) -> None:
    admin = await rig.client()
    await admin.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    await admin.expect(wire.MessagesPublished, wire.PublishMessages, "news", [b"1", b"2"])

    assert (await server_figures(admin)).unmatched_total == 2
    assert (await admin.expect(wire.Metrics, wire.GetMetrics)).topic_totals.published == 0


async def test_a_checkpoint_is_counted_with_its_time(rig: ServerRig) -> None:
    admin = await rig.client()
    await admin.expect(wire.QueueInfo, wire.CreateQueue, "orders", {})
    assert (await server_figures(admin)).checkpoint_ms == 0

    rig.server.checkpoints.want()
    await admin.settle()

    found = await server_figures(admin)
    assert (found.checkpoints_total, found.checkpoint_ms) == (1, rig.server.clock.now_ms())


class Slices:
    """Counts the slices of the core that requests for metrics take."""

    def __init__(self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        broker = rig.server.broker
        read, add_up = broker.queue_metrics, broker.add_up_totals

        def queue_metrics(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return read(*arguments, **named)

        def add_up_totals(account: str | None) -> Generator[None, None, Any]:
            steps = add_up(account)
            while True:
                self.count += 1
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value
                yield

        monkeypatch.setattr(broker, "queue_metrics", queue_metrics)
        monkeypatch.setattr(broker, "add_up_totals", add_up_totals)

    async def first(self) -> None:
        """Wait for the first slice, which comes after the I/O batch of the request."""
        for _ in range(10):
            if self.count:
                break
            await asyncio.sleep(0)
        assert self.count == 1


def make_queues(rig: ServerRig, count: int, account: str = "admin") -> None:
    for number in range(count):
        rig.server.broker.create_queue(account, f"q{number:05}", {}, 1)


async def test_many_requests_at_once_take_one_slice_a_turn_and_others_are_served_in_between(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queues(rig, 1000)
    scraper, sender = await rig.client(), await rig.client()
    slices = Slices(rig, monkeypatch)
    page_ids = [scraper.begin(wire.GetQueueMetrics(scraper.next_id())) for _ in range(32)]
    totals_ids = [scraper.begin(wire.GetMetrics(scraper.next_id())) for _ in range(32)]
    assert slices.count == 0, "no slice runs where requests are dispatched"
    sent_id = sender.begin(wire.SendMessages(sender.next_id(), "q00000", [b"1"]))

    turns = 0
    while sent_id not in sender.replies:
        await asyncio.sleep(0)
        turns += 1
        sender.read()
        assert slices.count <= turns < 10

    await scraper.settle()
    assert all(len(scraper.replies[request_id].queues) == 1000 for request_id in page_ids)  # pyright: ignore
    assert all(isinstance(scraper.replies[request_id], wire.Metrics) for request_id in totals_ids)


async def test_requests_for_totals_that_wait_share_an_adding_up_and_later_ones_get_the_next(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queues(rig, 1000)
    admin, sender = await rig.client(), await rig.client()
    slices = Slices(rig, monkeypatch)
    await admin.expect(wire.Metrics, wire.GetMetrics)
    slices_of_one, slices.count = slices.count, 0

    waiting = [admin.begin(wire.GetMetrics(admin.next_id())) for _ in range(64)]
    await slices.first()
    sent_id = sender.begin(wire.SendMessages(sender.next_id(), "q00000", [b"1"]))
    while sent_id not in sender.replies:
        await asyncio.sleep(0)
        sender.read()
    late = [admin.begin(wire.GetMetrics(admin.next_id())) for _ in range(64)]
    await admin.settle()

    assert slices.count == 2 * slices_of_one
    assert all(isinstance(admin.replies[request_id], wire.Metrics) for request_id in waiting)
    sent = {admin.replies[request_id].queue_totals.sent for request_id in late}  # pyright: ignore
    assert sent == {1}, "a request sees the sends that were answered before it"


async def test_requests_of_a_client_that_has_left_cost_no_further_slice(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queues(rig, 1000)
    client = await rig.client()
    slices = Slices(rig, monkeypatch)
    for _ in range(32):
        client.begin(wire.GetQueueMetrics(client.next_id()))
    client.begin(wire.GetMetrics(client.next_id()))
    await slices.first()

    client.transport.lose()
    await rig.turn()

    assert slices.count == 1


async def test_a_client_that_does_not_read_gets_its_pages_when_it_reads(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queues(rig, 1000)
    client = await rig.client()
    client.transport.set_write_buffer_limits(64 * 1024)
    client.transport.stuck = True
    slices = Slices(rig, monkeypatch)
    page_ids = [client.begin(wire.GetQueueMetrics(client.next_id())) for _ in range(16)]
    await rig.turn()
    pages_made = slices.count / 5
    assert 1 <= pages_made < 8

    client.transport.stuck = False
    for _ in page_ids:
        client.read()
        await rig.turn()
    client.read()

    assert all(isinstance(client.replies[request_id], wire.QueueMetricsPage) for request_id in page_ids)


async def test_the_totals_of_an_account_examine_the_queues_of_that_account_alone(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = await rig.client()
    other = await other_client(rig, admin)
    make_queues(rig, 2000)
    make_queues(rig, 1, "other")
    slices = Slices(rig, monkeypatch)

    assert (await other.expect(wire.Metrics, wire.GetMetrics)).queues == 1
    of_other, slices.count = slices.count, 0
    assert (await admin.expect(wire.Metrics, wire.GetMetrics)).queues == 2001

    assert of_other < slices.count


async def test_a_key_reads_the_figures_of_the_names_that_its_patterns_match(rig: ServerRig) -> None:
    admin = await rig.client()
    for name in ("orders-1", "orders-2", "parcels"):
        await admin.expect(wire.QueueInfo, wire.CreateQueue, name, {})
    await admin.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    reader = await rig.client(await rig.accounts.create_role_key("admin", None, ["read"], ["orders-*"], 1))

    page = await reader.expect(wire.QueueMetricsPage, wire.GetQueueMetrics)
    assert [queue.queue for queue in page.queues] == ["orders-1", "orders-2"]
    assert (await reader.expect(wire.TopicMetricsPage, wire.GetTopicMetrics)).topics == []
    refusal = await reader.ask(wire.GetMetrics)
    assert code_of(refusal) == "permission_denied"
    assert "adds up the figures of all names" in getattr(refusal, "text", "")


async def test_pages_go_on_behind_each_other(rig: ServerRig) -> None:
    admin = await rig.client()
    make_queues(rig, 1100)

    page = await admin.expect(wire.QueueMetricsPage, wire.GetQueueMetrics)
    assert [queue.queue for queue in page.queues] == [f"q{number:05}" for number in range(1000)]
    assert page.next == ("admin", "q00999")
    rest = await admin.expect(wire.QueueMetricsPage, wire.GetQueueMetrics, False, "admin", "q00999")
    assert (len(rest.queues), rest.next) == (100, None)


async def test_a_page_ends_after_a_bounded_number_of_names_that_a_key_may_not_see(rig: ServerRig) -> None:
    for number in range(20_000):
        rig.server.broker.create_queue(f"a{number // 10_000}", f"q{number}", {}, 1)
    rig.server.broker.create_queue("admin", "orders", {}, 1)
    reader = await rig.client(await rig.accounts.create_role_key("admin", None, ["read"], ["orders"], 1))

    page = await reader.expect(wire.QueueMetricsPage, wire.GetQueueMetrics, True)

    assert page.queues == []
    assert page.next is not None
    page = await reader.expect(wire.QueueMetricsPage, wire.GetQueueMetrics, True, *page.next)
    assert [queue.queue for queue in page.queues] == ["orders"]


async def test_pages_that_wait_for_the_disk_are_limited(rig: ServerRig) -> None:
    make_queues(rig, 1000)
    client = await rig.client()
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "q00000", [b"1"]))
    most = MAX_ENTRIES_AHEAD // 1000
    page_ids = [client.begin(wire.GetQueueMetrics(client.next_id())) for _ in range(most + 5)]
    await client.settle()
    refused = [request_id for request_id in page_ids if request_id in client.replies]
    assert {code_of(client.replies[request_id]) for request_id in refused} == {"busy"}
    assert refused == page_ids[most:]

    rig.log.let_go()
    await client.settle()

    for request_id in page_ids[:most]:
        assert isinstance(client.replies[request_id], wire.QueueMetricsPage)
    assert len((await client.expect(wire.QueueMetricsPage, wire.GetQueueMetrics)).queues) == 1000


async def test_rankings_that_wait_for_the_disk_are_limited_together_with_pages(rig: ServerRig) -> None:
    make_queues(rig, 1000)
    client = await rig.client()
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "q00000", [b"1"]))
    for _ in range(MAX_ENTRIES_AHEAD // 1000 - 1):
        client.begin(wire.GetQueueMetrics(client.next_id()))
    # Requests with the same limit share a ranking; each limit has a ranking of its own.
    taken, *others = (client.begin(wire.GetTopMetrics(client.next_id(), limit)) for limit in (1000, 999, 1, 1))
    totals = client.begin(wire.GetTopMetrics(client.next_id(), 0))
    await client.settle()
    assert taken not in client.replies
    assert totals not in client.replies
    assert {code_of(client.replies[request_id]) for request_id in others} == {"busy"}

    rig.log.let_go()
    await client.settle()

    assert isinstance(client.replies[taken], wire.TopMetrics)
    assert isinstance(client.replies[totals], wire.TopMetrics)
    assert len((await client.expect(wire.TopMetrics, wire.GetTopMetrics, 3)).queues) == 3


async def test_a_slice_does_not_examine_all_requests_that_share_its_figures(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queues(rig, 1000)
    admin = await rig.client()
    examined = 0
    is_gone = AcceptedConnection.is_gone.fget
    assert is_gone is not None

    def counted(connection: AcceptedConnection) -> bool:
        nonlocal examined
        examined += 1
        return is_gone(connection)

    monkeypatch.setattr(AcceptedConnection, "is_gone", property(counted))
    asked = [admin.begin(wire.GetMetrics(admin.next_id())) for _ in range(500)]
    await admin.settle()

    assert all(isinstance(admin.replies[request_id], wire.Metrics) for request_id in asked)
    assert examined < 3 * len(asked)


async def test_a_slice_compares_fewer_names_with_patterns_of_many_stars(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queues(rig, 400)
    patterns = [f"{'*q' * 10}*{number}" for number in range(49)]
    reader = await rig.client(await rig.accounts.create_role_key("admin", None, ["read"], [*patterns, "q00399"], 1))
    compared: list[int] = []
    read = rig.server.broker.queue_metrics
    allows_name = Permissions.allows_name

    def queue_metrics(*arguments: Any, **named: Any) -> Any:
        compared.append(0)
        return read(*arguments, **named)

    def counted(permissions: Permissions, name: str) -> bool:
        compared[-1] += 1
        return allows_name(permissions, name)

    monkeypatch.setattr(rig.server.broker, "queue_metrics", queue_metrics)
    monkeypatch.setattr(Permissions, "allows_name", counted)
    page = await reader.expect(wire.QueueMetricsPage, wire.GetQueueMetrics)
    names = [queue.queue for queue in page.queues]
    while page.next is not None:
        page = await reader.expect(wire.QueueMetricsPage, wire.GetQueueMetrics, False, *page.next)
        names += [queue.queue for queue in page.queues]

    assert names == ["q00399"]
    assert max(compared) <= 40
