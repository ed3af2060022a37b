"""The end of a turn after requests whose cost is not constant, and the charge of such a turn."""

from collections import OrderedDict
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from cmqd.server.admission.fairness import (
    CPU_SECOND_COST,
    MAX_CHARGED_SECONDS,
    QUANTUM,
    REQUEST_COST,
    TURN_SECONDS,
    RoundRobin,
    TurnTime,
)
from cmqd.server.admission.memory_budget import MemoryBudget
from cmqd.server.binary.deferred_input import REQUEST_BYTES
from cmqd.server.clients.client import Client
from cmqd.server.loop.io_batch import IO_BATCH_SECONDS, LATE_INPUT_SECONDS
from cmqd.server.requests.dispatch import Dispatcher
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import Request
from support.server.fake_clock import StoppedTimer
from support.server.server_rig import RigClient, ServerRig

LIST_SECONDS = TURN_SECONDS / 2
LISTS = 400
"""Pipelined lists that arrive as one read, taken up on arrival."""


@pytest.fixture
def listed(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times of the lists of subscriptions, each of which takes ``LIST_SECONDS``."""
    times: list[float] = []
    read = rig.broker.list_subscriptions

    def list_subscriptions(*arguments: Any) -> Any:
        times.append(rig.timer.seconds)
        rig.timer.seconds += LIST_SECONDS
        return read(*arguments)

    monkeypatch.setattr(rig.broker, "list_subscriptions", list_subscriptions)
    return times


async def with_topic(rig: ServerRig) -> RigClient:
    client = await rig.client()
    await client.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    return client


def lists(client: RigClient, count: int = LISTS) -> list[Request]:
    return [wire.ListSubscriptions(client.next_id(), "news", "", 0, 1000) for _ in range(count)]


async def test_pipelined_lists_on_arrival_end_after_the_time_of_a_turn(rig: ServerRig, listed: list[float]) -> None:
    client = await with_topic(rig)

    client.feed(*lists(client))

    assert len(listed) == TURN_SECONDS / LIST_SECONDS
    assert not client.transport.is_reading()


async def test_the_decoded_requests_behind_a_turn_count_in_the_memory_budget(
    rig: ServerRig, listed: list[float]
) -> None:
    client = await with_topic(rig)
    before = rig.server.part(MemoryBudget).held_bytes

    client.feed(*lists(client))

    assert rig.server.part(MemoryBudget).held_bytes - before >= REQUEST_BYTES * (LISTS - len(listed))
    for _ in range(LISTS):
        await rig.turn(1)
        client.read()
    assert len(listed) == LISTS
    assert rig.server.part(MemoryBudget).held_bytes == before


async def test_a_send_beside_pipelined_lists_waits_for_two_io_batches(rig: ServerRig, listed: list[float]) -> None:
    client, other = await with_topic(rig), await rig.client()
    client.feed(*lists(client))

    sending = other.begin(wire.SendMessages(other.next_id(), "jobs", [b"small"]))
    began = rig.timer.seconds
    while sending not in other.replies:
        await rig.turn(1)
        other.read()

    assert rig.timer.seconds - began <= 2 * IO_BATCH_SECONDS + TURN_SECONDS
    assert len(listed) < LISTS / 10
    for _ in range(LISTS):
        await rig.turn(1)
        client.read()
    assert len(listed) == LISTS
    assert sorted(client.replies) == list(range(3, LISTS + 3))


async def test_the_sockets_are_polled_after_a_turn_that_its_time_has_ended(rig: ServerRig, listed: list[float]) -> None:
    client = await with_topic(rig)
    client.feed(*lists(client))
    on_arrival = len(listed)

    await rig.turn(1)

    assert len(listed) - on_arrival == TURN_SECONDS / LIST_SECONDS


async def test_receives_of_many_messages_end_a_turn(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await with_topic(rig)
    await client.send("jobs", *[b"x"] * 256)
    receive, received = rig.broker.receive_all, 0

    def receive_all(*arguments: Any, **named: Any) -> Any:
        nonlocal received
        received += 1
        rig.timer.seconds += LIST_SECONDS
        return receive(*arguments, **named)

    monkeypatch.setattr(rig.broker, "receive_all", receive_all)
    ids = [client.next_id() for _ in range(10)]
    client.feed(*[wire.ReceiveMessages(request_id, "jobs", 256, 0) for request_id in ids])

    assert received == TURN_SECONDS / LIST_SECONDS
    assert not client.transport.is_reading()
    for _ in range(10):
        await client.settle()
    assert received == 10
    assert [len(getattr(client.replies[request_id], "messages", ())) for request_id in ids] == [256, *[0] * 9]


def park(client: Client, request: Request) -> None:
    client.park(request)


async def test_parked_requests_end_a_turn_and_go_on(rig: ServerRig, listed: list[float]) -> None:
    client = await with_topic(rig)
    handlers: Any = rig.server.part(Dispatcher).handlers
    handle = handlers[wire.ListSubscriptions]
    handlers[wire.ListSubscriptions] = park
    client.feed(*lists(client, 20))
    handlers[wire.ListSubscriptions] = handle

    client.connection.flush()
    taken = len(listed)
    await rig.turn(100)

    assert taken == TURN_SECONDS / LIST_SECONDS
    assert len(listed) == 20


async def test_lists_of_several_kinds_end_a_turn_and_keep_their_order(rig: ServerRig, listed: list[float]) -> None:
    client = await with_topic(rig)
    requests: list[Request] = []
    for number in range(20):
        requests += [*lists(client, 1), wire.CreateQueue(client.next_id(), f"q{number}", {})]
    last = client.next_id()

    client.feed(*requests, wire.ListQueues(last))

    assert len(listed) == TURN_SECONDS / LIST_SECONDS
    for _ in range(40):
        await client.settle()
    assert len(listed) == 20
    reply: Any = client.replies[last]
    assert reply.total == 21


def any_request(client: RigClient, random: Random) -> Request:
    request_id = client.next_id()
    makes: tuple[Callable[[], Request], ...] = (
        lambda: wire.ListSubscriptions(request_id, "news", "", 0, 1000),
        lambda: wire.SendMessages(request_id, "jobs", [b"x"]),
        lambda: wire.ReceiveMessages(request_id, "jobs", random.choice([1, 256]), 0),
        lambda: wire.DeleteMessages(request_id, "jobs", [1]),
        lambda: wire.PublishMessages(request_id, "news", [b"x"]),
        lambda: wire.CreateQueue(request_id, f"queue-{random.getrandbits(60)}", {}),
    )
    return random.choice(makes)()


@pytest.mark.parametrize("seed", range(4))
async def test_no_request_behind_the_end_of_a_turn_is_forgotten(rig: ServerRig, listed: list[float], seed: int) -> None:
    random = Random(seed)
    clients = [await with_topic(rig), *[await rig.client() for _ in range(3)]]
    asked: list[list[int]] = [[] for _ in clients]
    for _ in range(12):
        for client, ids in zip(clients, asked, strict=True):
            requests = [any_request(client, random) for _ in range(random.choice([0, 1, 3, 30, 300]))]
            ids += [request.request_id for request in requests]
            if requests:
                client.feed(*requests)
        await rig.turn(random.choice([0, 1, 3]))

    for _ in range(2000):
        await rig.turn(1)
        for client in clients:
            client.read()

    assert [set(ids) - client.replies.keys() for client, ids in zip(clients, asked, strict=True)] == [set()] * 4
    assert len(listed) > 10
    assert not len(rig.server.io_batch.turns)
    assert all(client.transport.is_reading() for client in clients)
    assert not rig.server.part(MemoryBudget).held_bytes


async def test_the_next_read_looks_at_the_clock(rig: ServerRig, listed: list[float]) -> None:
    clients = [await with_topic(rig), *[await rig.client() for _ in range(30)]]

    for client in clients:
        client.begin(*lists(client, 1))

    most = (IO_BATCH_SECONDS + LATE_INPUT_SECONDS) / LIST_SECONDS
    assert len(listed) == pytest.approx(most, abs=1)


async def test_a_turn_is_charged_the_larger_of_bytes_and_cpu_time(rig: ServerRig, listed: list[float]) -> None:
    client = await with_topic(rig)
    connection = client.connection
    client.feed(*lists(client, 20))
    turns = connection.turns
    assert turns is not None

    of_lists = turns.take_turn()

    assert of_lists == pytest.approx(TURN_SECONDS * CPU_SECOND_COST, abs=1)
    for _ in range(30):
        await client.settle()
    await rig.turn()
    rig.timer.seconds += 1
    connection.hold()
    client.feed(*[wire.DeleteMessages(client.next_id(), "jobs", [1]) for _ in range(3)])
    connection.is_held = False
    assert 3 * REQUEST_COST < turns.take_turn() < 4 * REQUEST_COST


async def test_requests_of_constant_cost_read_no_clock(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await with_topic(rig)
    turn_time = rig.server.io_batch.turn_time

    def no_clock(turn_time: TurnTime) -> None:
        raise AssertionError(f"a clock is read: {turn_time}")

    for name in ("count", "look"):
        monkeypatch.setattr(TurnTime, name, no_clock)
    makes: tuple[Callable[[int], Request], ...] = (
        lambda number: wire.SendMessages(number, "jobs", [b"x"]),
        lambda number: wire.ReceiveMessages(number, "jobs", 1, 0),
        lambda number: wire.DeleteMessages(number, "jobs", [1]),
        lambda number: wire.PublishMessages(number, "news", [b"x"]),
    )
    for make in makes:
        client.feed(*[make(client.next_id()) for _ in range(3)])
    await rig.turn()

    assert not turn_time.is_counted


class TestTurnTime:
    def test_the_charge_of_a_turn_has_a_limit(self) -> None:
        seconds = StoppedTimer()
        turn_time = TurnTime(seconds, lambda: int(seconds.seconds * 1e9))
        turn_time.restart(is_charged=True)
        turn_time.count()

        seconds.seconds += 0.010
        assert turn_time.cost() == pytest.approx(0.010 * CPU_SECOND_COST, abs=1)
        seconds.seconds += 10

        assert turn_time.cost() == MAX_CHARGED_SECONDS * CPU_SECOND_COST

    def test_the_time_of_another_thread_is_not_charged(self) -> None:
        seconds = StoppedTimer()
        turn_time = TurnTime(seconds, lambda: 0)
        turn_time.restart(is_charged=True)
        turn_time.count()

        seconds.seconds += 1
        turn_time.look()

        assert turn_time.is_over
        assert turn_time.cost() == 0


class Debtor:
    """A connection with turns of a constant cost."""

    def __init__(self, account: str, cost: int, served: list["Debtor"]) -> None:
        self.account = account
        self.credit = 0
        self.has_turn = True
        self.cost = cost
        self.served = served

    def take_turn(self) -> int:
        self.served.append(self)
        return self.cost

    def end_rest(self) -> int:
        raise AssertionError("it does not rest")


def turns(count: int) -> Callable[[], bool]:
    left = iter(range(count - 1))
    return lambda: next(left, None) is not None


def test_large_debts_of_many_connections_are_paid_in_one_pass() -> None:
    served: list[Debtor] = []
    robin = RoundRobin()
    most = int(MAX_CHARGED_SECONDS * CPU_SECOND_COST)
    flows = [Debtor("a", most - number % 7 * QUANTUM, served) for number in range(100)]
    for flow in flows:
        robin.add(flow)
    moves = 0

    class Counted(OrderedDict[Any, None]):
        def move_to_end(self, key: Any, last: bool = True) -> None:
            nonlocal moves
            moves += 1
            super().move_to_end(key, last)

    entry = next(iter(robin.round))
    entry.flows = Counted(entry.flows)

    robin.serve(turns(300))

    counts = [served.count(flow) for flow in flows]
    assert min(counts) >= 2
    assert max(counts) <= 4
    assert moves < 300 * 20
