"""Requests for metrics: whose figures a client may read, the wait for the disk, and the figures of the server."""

import pytest

from cmqd_protocol import messages as wire
from cmqd_types.metrics import Histogram, ServerMetrics
from cmqd_types.totals import QueueTotals
from support.server_rig import RigClient, ServerRig, code_of


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


@pytest.mark.parametrize("request_type", [wire.GetMetrics, wire.GetQueueMetrics, wire.GetTopicMetrics])
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


async def test_totals_of_a_thousand_queues_are_added_up_in_steps_between_which_others_are_served(
    rig: ServerRig,
) -> None:
    admin = await rig.client()
    for number in range(1000):
        rig.server.broker.create_queue("admin", f"q{number}", {}, 1)
    other = await rig.client()
    totals_id = admin.begin(wire.GetMetrics(admin.next_id()))

    status_id = other.begin(wire.GetServerStatus(other.next_id()))
    await rig.turn()
    other.read()

    assert status_id in other.replies
    await admin.settle()
    reply = admin.replies[totals_id]
    assert isinstance(reply, wire.Metrics)
    assert reply.queues == 1000


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


async def test_a_page_of_a_thousand_queues_is_read_in_slices_between_which_others_are_served(rig: ServerRig) -> None:
    admin = await rig.client()
    for number in range(1100):
        rig.server.broker.create_queue("admin", f"q{number:04}", {}, 1)
    other = await rig.client()
    page_id = admin.begin(wire.GetQueueMetrics(admin.next_id()))

    status_id = other.begin(wire.GetServerStatus(other.next_id()))
    await rig.turn()
    other.read()

    assert status_id in other.replies
    await admin.settle()
    page = admin.replies[page_id]
    assert isinstance(page, wire.QueueMetricsPage)
    assert [queue.queue for queue in page.queues] == [f"q{number:04}" for number in range(1000)]
    assert page.next == ("admin", "q0999")
    rest = await admin.expect(wire.QueueMetricsPage, wire.GetQueueMetrics, False, "admin", "q0999")
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
