"""Look-ups of keys with name patterns: few names are compared in a turn of the loop, and the reply is of one moment."""

import asyncio
from typing import Any

import pytest

from cmqd.server.access.permissions import MAX_NAMES_AT_ONCE, Permissions, permissions_of
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.keys import MAX_PATTERNS, Role
from support.server.server_rig import RigClient, ServerRig, code_of

COUNT = 400
MANY_STARS = [f"{'*q' * 10}*{number}" for number in range(MAX_PATTERNS - 2)]
"""Patterns that match no name of this module; a slice compares up to 37 names with them."""
AT_ONCE = 40


class Turns:
    """Counts the names that are compared in each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compared: list[int] = [0]
        self._is_planned = False
        allows_name = Permissions.allows_name

        def counted(permissions: Permissions, name: str) -> bool:
            if not self._is_planned:
                self._is_planned = True
                asyncio.get_running_loop().call_soon(self._next)
            self.compared[-1] += 1
            return allows_name(permissions, name)

        monkeypatch.setattr(Permissions, "allows_name", counted)

    def _next(self) -> None:
        self._is_planned = False
        self.compared.append(0)

    async def comparing(self, count: int) -> None:
        """Wait until a number of names is compared, or for 1,000 turns."""
        for _ in range(1_000):
            if sum(self.compared) >= count:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"only {sum(self.compared)} names were compared")


def make_objects(rig: ServerRig, account: str = "admin") -> None:
    broker = rig.server.broker
    for number in range(COUNT):
        broker.create_queue(account, f"q{number:03}", {}, 1)
        broker.create_topic(account, f"q{number:03}", {}, 1)
        queue = {"queue": f"q{number:03}", "cron": "0 0 1 1 *"}
        broker.create_schedule(account, f"q{number:03}", queue, b"x", None, 1)


async def reader_of(rig: ServerRig, *names: str, roles: tuple[str, ...] = ("read",)) -> RigClient:
    return await rig.client(await rig.accounts.create_role_key("admin", None, [*roles], [*MANY_STARS, *names], 1))


@pytest.mark.parametrize("request_type", [wire.ListQueues, wire.ListTopics, wire.ListSchedules])
async def test_a_list_compares_few_names_in_a_turn(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, request_type: type[wire.Request]
) -> None:
    make_objects(rig)
    reader = await reader_of(rig, "q00*", "q399")
    turns = Turns(monkeypatch)

    reply: Any = await reader.ask(request_type, "", 2, 9)
    first: Any = await reader.ask(request_type, "q00", 0, 2)

    assert max(turns.compared) <= AT_ONCE
    assert (reply.total, first.total) == (11, 10)
    assert names_of(reply) == [*(f"q00{number}" for number in range(2, 10)), "q399"]
    assert names_of(first) == ["q000", "q001"]


async def test_a_list_of_all_accounts_compares_few_names_in_a_turn(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_objects(rig)
    reader = await reader_of(rig, "q00*", "q399", roles=("read", "admin"))
    turns = Turns(monkeypatch)

    page = await reader.expect(wire.AllQueues, wire.ListAllQueues, "", "", "", 3)
    assert page.next is not None
    rest = await reader.expect(wire.AllQueues, wire.ListAllQueues, "", *page.next, 100)

    assert max(turns.compared) <= AT_ONCE
    assert [name for _, _, name in page.queues] == ["q000", "q001", "q002"]
    assert [name for _, _, name in rest.queues] == [*(f"q00{number}" for number in range(3, 10)), "q399"]
    assert rest.next is None


async def test_the_other_names_of_a_page_are_compared_in_slices_too(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = rig.server.broker
    broker.create_topic("admin", "news", {}, 1)
    for number in range(200):
        broker.create_queue("admin", f"q{number:03}", {}, 1)
        broker.subscribe("admin", "news", f"s{number:03}", {"protocol": "queue", "endpoint": f"q{number:03}"}, 1)
    reader = await reader_of(rig, "news", "q199")
    turns = Turns(monkeypatch)

    reply = await reader.expect(wire.SubscriptionList, wire.ListSubscriptions, "news", "", 0, 1000)

    assert max(turns.compared) <= AT_ONCE + 1  # with the name of the request
    assert [summary.endpoint for summary in reply.subscriptions] == ["(hidden)"] * 199 + ["q199"]


async def test_the_topics_that_deliver_to_a_queue_are_compared_in_slices(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_objects(rig)
    for number in range(COUNT):
        rig.server.broker.subscribe("admin", f"q{number:03}", "all", {"endpoint": "q000"}, 1)
    reader = await reader_of(rig, "q00*", "q399")
    turns = Turns(monkeypatch)

    reply = await reader.expect(wire.QueueSubscriptions, wire.ListQueueSubscriptions, "q000", 2, 1000)

    assert max(turns.compared) <= AT_ONCE + 1  # with the name of the request
    assert reply.total == 11
    assert [each.topic for each in reply.subscriptions] == [*(f"q00{number}" for number in range(2, 10)), "q399"]
    assert {each.endpoint for each in reply.subscriptions} == {"q000"}


async def test_requests_of_the_connection_take_effect_in_their_order(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_objects(rig)
    client = await reader_of(rig, "q00*", "new", roles=("read", "manage"))
    other = await rig.client()
    turns = Turns(monkeypatch)

    before = client.begin(wire.ListQueues(client.next_id(), "", 0, 100))
    client.begin(wire.DeleteQueue(client.next_id(), "q000"))
    after = client.begin(wire.ListQueues(client.next_id(), "", 0, 100))
    await turns.comparing(AT_ONCE)
    # Clients of other connections are served in between, and the list shows the moment of its answer.
    await other.expect(wire.QueueInfo, wire.CreateQueue, "new", {})
    assert before not in client.replies
    await client.settle()

    assert names_of(client.replies[before]) == ["new", *(f"q00{number}" for number in range(10))]
    assert names_of(client.replies[after]) == ["new", *(f"q00{number}" for number in range(1, 10))]


@pytest.mark.parametrize(
    ("roles", "names", "expected"),
    [
        (["read"], [*MANY_STARS, "q399"], ["q399"]),
        (["read"], ["q1*"], [f"q1{number:02}" for number in range(100)]),
        (["read"], ["*"], [f"q{number:03}" for number in range(100)]),
        (["send"], [*MANY_STARS, "q00*"], None),
    ],
)
async def test_a_list_under_way_is_checked_again_after_a_change_of_its_key(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, roles: list[str], names: list[str], expected: list[str] | None
) -> None:
    make_objects(rig)
    admin = await rig.client()
    key = await rig.accounts.create_role_key("admin", None, ["read"], [*MANY_STARS, "q00*"], 1)
    reader = await rig.client(key)
    turns = Turns(monkeypatch)

    listed = reader.begin(wire.ListQueues(reader.next_id(), "", 0, 100))
    await turns.comparing(AT_ONCE)
    reader.connection.use_permissions(permissions_of([Role(role) for role in roles], names))
    assert listed not in reader.replies
    await reader.settle()
    await admin.settle()

    reply = reader.replies[listed]
    if expected is None:
        assert code_of(reply) == "permission_denied"
    else:
        assert names_of(reply) == expected


async def test_names_that_are_created_faster_than_they_are_compared_end_the_list(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_objects(rig)
    reader = await reader_of(rig, "q00*")
    created = 0
    read = rig.server.broker.list_queues

    def list_queues(*arguments: Any, **named: Any) -> Any:
        nonlocal created
        for _ in range(100):
            created += 1
            rig.server.broker.create_queue("admin", f"more-{created}", {}, 1)
        return read(*arguments, **named)

    monkeypatch.setattr(rig.server.broker, "list_queues", list_queues)
    reply = await reader.ask(wire.ListQueues, "", 0, 100)

    assert isinstance(reply, wire.Error)
    assert reply.code == ErrorCode.BUSY
    assert reply.retry_after_ms
    monkeypatch.setattr(rig.server.broker, "list_queues", read)
    assert names_of(await reader.ask(wire.ListQueues, "", 0, 100)) == [f"q00{number}" for number in range(10)]


async def test_keys_of_few_names_and_every_name_are_answered_in_a_call(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_objects(rig)
    assert COUNT < MAX_NAMES_AT_ONCE // 4
    for names in (["q00*"], ["*"]):
        reader = await rig.client(await rig.accounts.create_role_key("admin", None, ["read"], names, 1))
        reads: list[int] = []
        read = rig.server.broker.list_queues

        def list_queues(*arguments: Any, read: Any = read, reads: list[int] = reads, **named: Any) -> Any:
            reads.append(1)
            return read(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(rig.server.broker, "list_queues", list_queues)
            await reader.expect(wire.QueueList, wire.ListQueues, "", 0, 100)
        assert len(reads) == 1


async def test_a_list_of_a_closed_connection_ends(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    make_objects(rig)
    reader = await reader_of(rig, "q00*")
    turns = Turns(monkeypatch)
    reader.begin(wire.ListQueues(reader.next_id(), "", 0, 100))
    await turns.comparing(AT_ONCE)

    reader.transport.lose()
    for _ in range(50):
        await asyncio.sleep(0)

    assert sum(turns.compared) < COUNT


def names_of(reply: Any) -> list[str]:
    match reply:
        case wire.QueueList(queues=queues):
            return [name for _, name in queues]
        case wire.TopicList(topics=topics):
            return [name for _, name in topics]
        case wire.ScheduleList(schedules=schedules):
            return [summary.name for summary in schedules]
        case _:
            raise AssertionError(reply)
