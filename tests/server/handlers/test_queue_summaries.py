"""Requests for lists of queues with their figures: the queues that a client may see, and the wait for the disk."""

import pytest

from cmqd.server.access.permissions import Permissions
from cmqd.server.admission.entries_ahead import MAX_ENTRIES_AHEAD
from cmqd_protocol import messages as wire
from support.server.server_rig import RigClient, ServerRig, code_of


async def names_of(client: RigClient, *fields: object) -> list[str]:
    page = await client.expect(wire.QueueSummaries, wire.ListQueueSummaries, *fields)
    return [queue.queue for queue in page.queues]


async def some_queues(rig: ServerRig) -> RigClient:
    client = await rig.client()
    for name, count in (("orders", 2), ("orders-dead", 0), ("parcels", 3)):
        await client.expect(wire.QueueInfo, wire.CreateQueue, name, {})
        for _ in range(count):
            await client.send(name, b"12")
    attributes = {"dead_letter_queue": "orders-dead", "dead_letter_max_receives": 5}
    await client.expect(wire.QueueInfo, wire.SetQueueAttributes, "orders", attributes)
    return client


async def test_queues_are_listed_in_any_order_by_page(rig: ServerRig) -> None:
    client = await some_queues(rig)

    assert await names_of(client) == ["orders", "orders-dead", "parcels"]
    assert await names_of(client, "orders", "active", True) == ["orders", "orders-dead"]
    assert await names_of(client, "", "active", True) == ["parcels", "orders", "orders-dead"]
    assert await names_of(client, "", "active", False, 1, 1) == ["orders"]
    assert await names_of(client, "", "name", False, 0, 100, "dead_letter_queues") == ["orders-dead"]
    page = await client.expect(wire.QueueSummaries, wire.ListQueueSummaries, "orders", "name", False, 0, 1)
    assert (page.total, page.broker_time_ms) == (2, rig.clock.now_ms())
    assert (page.queues[0].active, page.queues[0].arrived) == (2, 2)


async def test_an_account_lists_its_own_queues(rig: ServerRig) -> None:
    admin = await some_queues(rig)
    await admin.expect(wire.KeyList, wire.CreateAccount, "other")
    other = await rig.client(rig.accounts.first_key("other"))
    await other.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})

    assert await names_of(other) == ["jobs"]
    assert "jobs" not in await names_of(admin)


async def test_a_restricted_key_sees_the_names_that_its_patterns_match(rig: ServerRig) -> None:
    await some_queues(rig)
    reader = await rig.client(await rig.accounts.create_role_key("admin", None, ["read"], ["orders", "parcels"], 1))

    page = await reader.expect(wire.QueueSummaries, wire.ListQueueSummaries)

    assert page.total == 2
    assert [(queue.queue, queue.dead_letter_queue) for queue in page.queues] == [
        ("orders", "(hidden)"),
        ("parcels", ""),
    ]
    assert "orders-dead" not in repr(page)


@pytest.mark.parametrize(
    "fields", [("", "size"), ("", "name", False, 0, 1001), ("", "name", False, 0, 0), ("", "name", False, 0, 1, "big")]
)
async def test_arguments_that_are_unknown_or_out_of_range_are_refused(
    rig: ServerRig, fields: tuple[object, ...]
) -> None:
    client = await rig.client()

    assert code_of(await client.ask(wire.ListQueueSummaries, *fields)) == "invalid_argument"


def make_queues(rig: ServerRig, count: int) -> None:
    for number in range(count):
        rig.server.broker.create_queue("admin", f"q{number:05}", {}, 1)


async def test_a_list_waits_for_the_disk_and_lists_that_wait_are_limited(rig: ServerRig) -> None:
    make_queues(rig, 1000)
    client = await rig.client()
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "q00000", [b"1"]))
    most = MAX_ENTRIES_AHEAD // 1000
    request = ("", "active", True, 0, 1000)
    asked = [client.begin(wire.ListQueueSummaries(client.next_id(), *request)) for _ in range(most + 5)]
    await client.settle()
    refused = [request_id for request_id in asked if request_id in client.replies]
    assert {code_of(client.replies[request_id]) for request_id in refused} == {"busy"}
    assert refused == asked[most:]

    rig.log.let_go()
    await client.settle()

    for request_id in asked[:most]:
        reply = client.replies[request_id]
        assert isinstance(reply, wire.QueueSummaries)
        assert reply.queues[0].queue == "q00000"
    assert len(await names_of(client, *request)) == 1000


async def test_a_client_that_has_left_costs_no_further_slice(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    make_queues(rig, 2000)
    client = await rig.client()
    steps = 0
    summaries = rig.server.broker.queue_summaries

    def counted(*arguments: object, **named: object) -> object:
        nonlocal steps
        work = summaries(*arguments, **named)  # pyright: ignore[reportArgumentType]
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value
            steps += 1
            client.transport.lose()
            yield

    monkeypatch.setattr(rig.server.broker, "queue_summaries", counted)
    for _ in range(10):
        client.begin(wire.ListQueueSummaries(client.next_id()))
    await rig.turn()

    assert steps == 1


async def test_a_slice_compares_fewer_names_with_patterns_of_many_stars(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queues(rig, 200)
    patterns = [f"{'*q' * 10}*{number}" for number in range(49)]
    reader = await rig.client(await rig.accounts.create_role_key("admin", None, ["read"], [*patterns, "q00199"], 1))
    compared: list[int] = []
    summaries, allows_name = rig.server.broker.queue_summaries, Permissions.allows_name

    def in_steps(*arguments: object, **named: object) -> object:
        compared.append(0)
        work = summaries(*arguments, **named)  # pyright: ignore[reportArgumentType]
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value
            compared.append(0)
            yield

    def counted(permissions: Permissions, name: str) -> bool:
        compared[-1] += 1
        return allows_name(permissions, name)

    monkeypatch.setattr(rig.server.broker, "queue_summaries", in_steps)
    monkeypatch.setattr(Permissions, "allows_name", counted)

    assert await names_of(reader) == ["q00199"]
    assert sum(compared) == 200
    assert max(compared) <= 40
