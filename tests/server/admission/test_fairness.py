"""Turns of connections with deferred input, and the room of the log for that input."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmqd.log.values import Pending
from cmqd.server.admission.fairness import AHEAD_BYTES, DISK_PATIENCE_SECONDS, QUANTUM, CommitRoom, RoundRobin
from cmqd.server.binary.deferred_input import LONE_FRAME_BYTES, PIECE_BYTES, DeferredInput
from cmqd.server.loop.io_batch import IO_BATCH_SECONDS, LARGE_READS, LEAST_TURNS_SECONDS
from cmqd.server.requests.dispatch import Dispatcher
from cmqd_protocol import messages as wire
from cmqd_protocol.frames import HEARTBEAT, frame
from cmqd_protocol.messages import Request
from cmqd_protocol.protocol_errors import ErrorCode
from support.server.server_rig import RigClient, ServerRig, code_of

MIB = 1024 * 1024


class Input:
    """A connection with pieces of input of given costs."""

    def __init__(self, account: str, costs: list[int], served: list["Input"]) -> None:
        self.account = account
        self.credit = 0
        self.costs = costs
        self.served = served
        self.after_turn: Callable[[], None] = lambda: None

    @property
    def has_turn(self) -> bool:
        return bool(self.costs)

    def take_turn(self) -> int:
        self.served.append(self)
        self.after_turn()
        return self.costs.pop(0)

    def end_rest(self) -> int:
        raise AssertionError("it does not rest")


def times(turns: int) -> Callable[[], bool]:
    """Time for this number of turns."""
    left = iter(range(turns - 1))
    return lambda: next(left, None) is not None


class TestRoundRobin:
    def test_connections_of_an_account_get_equal_cost_whatever_their_pieces_cost(self) -> None:
        served: list[Input] = []
        robin = RoundRobin()
        small, large = Input("a", [QUANTUM // 4] * 1_000, served), Input("a", [QUANTUM * 2] * 1_000, served)
        for flow in (small, large):
            robin.add(flow)

        robin.serve(times(900))

        spent = [served.count(small) * QUANTUM // 4, served.count(large) * QUANTUM * 2]
        assert abs(spent[0] - spent[1]) <= 3 * QUANTUM, spent

    def test_accounts_share_equally_however_many_connections_they_have(self) -> None:
        served: list[Input] = []
        robin = RoundRobin()
        alone = Input("alone", [QUANTUM] * 1_000, served)
        for flow in [*(Input("crowd", [QUANTUM] * 1_000, served) for _ in range(9)), alone]:
            robin.add(flow)

        robin.serve(times(200))

        assert abs(served.count(alone) - 100) <= 2

    def test_a_small_newcomer_is_served_within_a_round(self) -> None:
        served: list[Input] = []
        robin = RoundRobin()
        bulk = [Input("a", [256_000] * 1_000, served) for _ in range(8)]
        for flow in bulk:
            robin.add(flow)
        robin.serve(times(50))
        served.clear()
        newcomer = Input("a", [300], served)
        robin.add(newcomer)

        robin.serve(times(20))

        assert newcomer in served[: len(bulk) + 1]
        robin.check_invariants()

    def test_a_debt_outlives_an_empty_backlog(self) -> None:
        served: list[Input] = []
        robin = RoundRobin()
        greedy, modest = Input("a", [], served), Input("b", [QUANTUM] * 1_000, served)
        robin.add(modest)

        for _ in range(50):
            # A large piece at a time: the backlog is empty after every piece.
            greedy.costs = [QUANTUM * 16]
            robin.add(greedy)
            robin.serve(times(4))

        assert served.count(modest) >= 10 * served.count(greedy)

    def test_without_time_one_turn_is_given(self) -> None:
        served: list[Input] = []
        robin = RoundRobin()
        robin.add(Input("a", [1, 1, 1], served))

        robin.serve(lambda: False)

        assert len(served) == 1

    def test_without_room_none_is_given(self) -> None:
        served: list[Input] = []
        robin = RoundRobin(lambda: False)
        robin.add(Input("a", [1], served))

        robin.serve(lambda: True)

        assert not served
        assert len(robin) == 1

    def test_a_connection_that_authenticates_or_goes_in_its_turn_changes_its_place(self) -> None:
        served: list[Input] = []
        robin = RoundRobin()
        stranger, leaving = Input("", [1, 1, 1], served), Input("", [1, 1, 1], served)

        def authenticate() -> None:
            stranger.account = "a"

        def leave() -> None:
            robin.remove(leaving)
            leaving.costs = [1]

        stranger.after_turn, leaving.after_turn = authenticate, leave
        robin.add(stranger)
        robin.add(leaving)

        robin.serve(times(2))
        robin.check_invariants()
        robin.serve(lambda: True)

        assert (served.count(stranger), served.count(leaving)) == (3, 1)
        assert len(robin) == 0


class PendingLog:
    def __init__(self) -> None:
        self.pending = Pending()
        self.durable_lsn = 7


class TestCommitRoom:
    def test_there_is_room_until_so_much_waits_for_the_disk(self) -> None:
        log: Any = PendingLog()
        room = CommitRoom(log, lambda: 0.0)

        assert room.has_room()
        log.pending.bytes = AHEAD_BYTES
        assert not room.has_room()
        log.pending.bytes -= 1
        assert room.has_room()

    def test_a_storage_that_ends_no_commit_is_not_waited_for_long(self) -> None:
        now = 10.0
        log: Any = PendingLog()
        log.pending.bytes = AHEAD_BYTES
        room = CommitRoom(log, lambda: now)

        assert not room.has_room()
        now += DISK_PATIENCE_SECONDS / 2
        log.durable_lsn += 1
        assert not room.has_room()
        now += DISK_PATIENCE_SECONDS / 2
        assert not room.has_room(), "a commit ended since"
        now += DISK_PATIENCE_SECONDS
        assert room.has_room()


# ------------------------------------------------------------------ the server


async def with_queue(rig: ServerRig) -> RigClient:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {"max_message_bytes": MIB})
    return client


def pass_time(rig: ServerRig) -> None:
    """Let a step of the coarse time pass."""
    listener: Any = rig.server.listener
    listener.pass_time(listener._shared.time_ms + 100)


@pytest.mark.parametrize("flood", [HEARTBEAT, frame(wire.encoder.encode(wire.Cancel(1)))])
async def test_a_flood_is_read_no_further_before_the_wake_up_ends(rig: ServerRig, flood: bytes) -> None:
    client = await with_queue(rig)

    client.connection.data_received(flood * (256_000 // len(flood)))

    assert not client.transport.is_reading()
    rig.give_turns()
    assert not client.transport.is_reading(), "it rests"
    await rig.turn(100)
    assert not client.transport.is_reading(), "no request was in it"
    pass_time(rig)
    assert not client.transport.is_reading(), "connections that rest are read from in turns"
    await rig.turn()
    assert client.transport.is_reading()
    assert client.ended is None


async def test_a_large_read_with_a_request_rests_no_longer_than_the_wake_up(rig: ServerRig) -> None:
    client = await with_queue(rig)
    request = frame(wire.encoder.encode(wire.ListQueues(client.next_id())))

    client.connection.data_received(HEARTBEAT * (MIB // 8) + request + HEARTBEAT)
    rig.give_turns()
    await rig.turn()

    assert client.transport.is_reading()


async def test_a_large_frame_is_read_on_without_a_rest_till_the_coarse_time(rig: ServerRig) -> None:
    client = await with_queue(rig)
    request = frame(wire.encoder.encode(wire.SendMessages(client.next_id(), "jobs", [bytes(MIB)])))

    client.connection.data_received(request[: MIB // 2])
    rig.give_turns()
    await rig.turn()

    assert client.transport.is_reading()


async def test_a_read_without_the_end_of_a_frame_takes_no_turn_while_the_log_has_room(rig: ServerRig) -> None:
    client, other = await with_queue(rig), await rig.client()
    rig.log.hold()
    request = send_frame(client, MIB - 300)

    for start in range(0, 600_000, 200_000):
        client.transport.bring(request[start : start + 200_000])
        assert not len(rig.server.turns)
        assert client.transport.is_reading(), "without a rest"
        await rig.turn()
    other.feed(*(wire.SendMessages(other.next_id(), "jobs", [bytes(960_000)]) for _ in range(5)))
    await rig.turn()
    assert rig.log.pending.bytes >= AHEAD_BYTES
    client.transport.bring(request[600_000:800_000])
    assert not client.transport.is_reading()
    await rig.turn()
    assert not client.transport.is_reading(), "the client keeps the rest, and not the memory of the server"

    rig.log.let_go()
    await rig.turn()
    client.transport.bring(request[800_000:])
    assert not len(rig.server.turns), "a frame that no turn is before is taken up on arrival"
    await client.settle()
    assert [type(reply) for reply in client.replies.values()] == [wire.MessagesSent]


async def test_many_large_frames_rest_and_take_turns(rig: ServerRig) -> None:
    await with_queue(rig)
    clients = [await rig.client() for _ in range(LARGE_READS + 3)]
    requests = [send_frame(client, MIB - 300) for client in clients]

    for client, request in zip(clients, requests, strict=True):
        client.transport.bring(request[:300_000])
    assert [client.transport.is_reading() for client in clients] == [True] * LARGE_READS + [False] * 3
    await rig.turn(20)
    assert all(client.transport.is_reading() for client in clients)
    assert not len(rig.server.turns)

    for client, request in zip(clients[:-1], requests, strict=False):
        client.transport.bring(request[300_000:])
    assert 0 < len(rig.server.turns) < LARGE_READS, "frames beyond the room of the log"
    assert not clients[-2].transport.is_reading()
    clients[-1].transport.bring(requests[-1][300_000:600_000])
    assert not clients[-1].transport.is_reading()
    await rig.turn(40)
    clients[-1].transport.bring(requests[-1][600_000:])
    for client in clients:
        await client.settle()

    assert all([type(reply) for reply in client.replies.values()] == [wire.MessagesSent] for client in clients)


async def test_a_connection_that_ends_within_a_large_frame_leaves_nothing(rig: ServerRig) -> None:
    client = await with_queue(rig)
    client.transport.bring(send_frame(client, MIB - 300)[:600_000])

    client.transport.lose()

    assert client.connection.is_gone
    await rig.turn()
    assert not len(rig.server.turns)


def send_frame(client: RigClient, size: int) -> bytes:
    """Return the bytes of a send without handing them to the server."""
    client.machine.send(wire.SendMessages(client.next_id(), "jobs", [bytes(size)]))
    return b"".join(client.machine.data_to_send(0))


async def test_a_lone_frame_with_a_body_of_64_kib_is_taken_up_on_arrival(rig: ServerRig) -> None:
    client = await with_queue(rig)
    request = send_frame(client, 64 * 1024)

    # As the loopback interface cuts it.
    for part in (request[:65_483], request[65_483:]):
        client.connection.data_received(part)
        assert client.transport.is_reading()
        assert not len(rig.server.turns)

    await client.settle()
    (reply,) = (reply for reply in client.replies.values() if isinstance(reply, wire.MessagesSent))
    assert len(reply.message_ids) == 1


async def test_a_lone_frame_takes_turns_behind_others_or_a_full_log(rig: ServerRig) -> None:
    client, other = await with_queue(rig), await rig.client()
    request = send_frame(client, 64 * 1024)

    other.connection.data_received(bytes(100_000))
    client.connection.data_received(request)
    assert len(rig.server.turns) == 2
    await rig.turn(100)
    pass_time(rig)
    await rig.turn()
    assert not len(rig.server.turns)

    rig.log.hold()
    client.feed(*(wire.SendMessages(client.next_id(), "jobs", [bytes(MIB)]) for _ in range(5)))
    await rig.turn()
    assert rig.log.pending.bytes >= AHEAD_BYTES
    other.connection.data_received(send_frame(other, 64 * 1024))
    assert not other.transport.is_reading()
    rig.log.let_go()


@pytest.mark.parametrize(
    ("sizes", "is_taken"),
    [([70_000], True), ([LONE_FRAME_BYTES], False), ([30_000, 30_000], False), ([30_000, 5], False)],
)
async def test_only_a_frame_of_its_own_that_is_not_too_large_is_taken_up_on_arrival(
    rig: ServerRig, sizes: list[int], is_taken: bool
) -> None:
    client = await with_queue(rig)

    client.connection.data_received(b"".join(send_frame(client, size) for size in sizes))

    assert client.transport.is_reading() is is_taken


def test_a_piece_ends_with_the_large_frame_that_it_begins() -> None:
    large, small = frame(bytes(40_000)), frame(bytes(10))
    deferred = DeferredInput()
    deferred.add(large + small * 3000)

    assert deferred.take_piece(0, at_frame=True) == large
    assert deferred.take_piece(0, at_frame=True) == (small * 3000)[:PIECE_BYTES]

    deferred = DeferredInput()
    begun = large[:30_000]
    deferred.add(begun)
    assert deferred.take_piece(0, at_frame=True) is begun, "a copy would be for nothing"

    deferred.add(large + small)
    assert len(deferred.take_piece(0)) == PIECE_BYTES, "before the welcome the bytes may be no frames"


async def test_a_connection_that_breaks_while_it_rests_for_longer_leaves_nothing(rig: ServerRig) -> None:
    client = await with_queue(rig)
    client.connection.data_received(bytes(256_000))
    rig.give_turns()

    client.transport.abort()
    await rig.turn()
    pass_time(rig)

    assert not rig.server.io_batch.rests.round


async def test_a_flood_takes_no_more_than_its_time_of_a_wake_up(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await with_queue(rig), await rig.client()
    taken: list[int] = []
    machine = client.connection._wire  # type: ignore[attr-defined]
    receive = type(machine).receive

    def slow_receive(self: object, data: bytes, now_ms: int) -> object:
        if self is machine:
            taken.append(len(data))
            rig.timer.seconds += LEAST_TURNS_SECONDS / 2
        return receive(self, data, now_ms)  # type: ignore[arg-type]

    monkeypatch.setattr(type(machine), "receive", slow_receive)
    client.connection.data_received(bytes(256_000))
    await rig.turn(1)

    assert sum(taken) <= PIECE_BYTES * (IO_BATCH_SECONDS / (LEAST_TURNS_SECONDS / 2) + 1)
    assert not client.transport.is_reading()
    sending = other.begin(wire.SendMessages(other.next_id(), "jobs", [b"served in between"]))
    await rig.turn(1)
    assert rig.log.pending.records > 0
    assert sum(taken) < 256_000
    await rig.turn(100)
    other.read()
    assert isinstance(other.replies[sending], wire.MessagesSent)
    assert sum(taken) == 256_000
    pass_time(rig)
    await rig.turn()
    assert client.transport.is_reading()


async def test_a_bulk_producer_keeps_the_next_commit_open_for_others(rig: ServerRig) -> None:
    bulk, other = await with_queue(rig), await rig.client()
    rig.log.hold()

    bulk.feed(*(wire.SendMessages(bulk.next_id(), "jobs", [bytes(960_000)]) for _ in range(64)))
    await rig.turn()
    before = rig.log.pending.bytes
    sending = other.begin(wire.SendMessages(other.next_id(), "jobs", [b"small"]))
    await rig.turn()

    assert before <= AHEAD_BYTES + MIB
    assert before < rig.log.pending.bytes < before + 10_000, "a small request goes ahead of the backlog"
    rig.log.let_go()
    for _ in range(40):
        await bulk.settle()
        await other.settle()
    assert isinstance(other.replies[sending], wire.MessagesSent)
    assert len(bulk.replies) == 64
    assert [len(reply.message_ids) for reply in bulk.replies.values() if isinstance(reply, wire.MessagesSent)] == [
        1
    ] * 64


async def test_requests_keep_their_order_while_they_are_put_off(rig: ServerRig) -> None:
    client = await with_queue(rig)
    ids = [client.next_id() for _ in range(5)]

    client.feed(
        wire.SendMessages(ids[0], "jobs", [bytes(100_000)]),
        wire.ReceiveMessages(ids[1], "jobs", 16, 0),
        wire.ClearQueue(ids[2], "jobs"),
        wire.SendMessages(ids[3], "jobs", [bytes(100_000)]),
        wire.ReceiveMessages(ids[4], "jobs", 16, 0),
    )
    for _ in range(3):
        await client.settle()

    first, second = client.replies[ids[1]], client.replies[ids[4]]
    assert isinstance(first, wire.MessagesReceived)
    assert isinstance(second, wire.MessagesReceived)
    assert [len(first.messages), len(second.messages)] == [1, 1]


async def test_a_cancel_behind_a_request_that_is_put_off_neither_loses_nor_answers_it_early(rig: ServerRig) -> None:
    bulk = await with_queue(rig)
    rig.log.hold()
    ids = [bulk.next_id() for _ in range(64)]
    bulk.feed(*(wire.SendMessages(request_id, "jobs", [bytes(960_000)]) for request_id in ids[:-1]))
    bulk.feed(wire.ReceiveMessages(ids[-1], "empty", 1, 30_000))
    bulk.machine.send(wire.Cancel(ids[-2]))
    bulk.connection.data_received(b"".join(bulk.machine.data_to_send(0)))
    await rig.turn()

    assert not bulk.replies
    rig.log.let_go()
    for _ in range(40):
        await bulk.settle()

    assert all(isinstance(bulk.replies[request_id], wire.MessagesSent) for request_id in ids[:-1])
    assert code_of(bulk.replies[ids[-1]]) == "queue_not_found"


async def test_requests_that_are_put_off_when_the_server_drains_are_refused_and_change_nothing(rig: ServerRig) -> None:
    bulk = await with_queue(rig)
    rig.log.hold()
    bulk.feed(*(wire.SendMessages(bulk.next_id(), "jobs", [bytes(960_000)]) for _ in range(20)))
    await rig.turn()
    decided = rig.broker.facts.queues.find("admin", "jobs").index.active_count

    rig.log.let_go()
    await rig.server.drain(1)
    bulk.read()

    sent = [reply for reply in bulk.replies.values() if isinstance(reply, wire.MessagesSent)]
    refused = [code_of(reply) for reply in bulk.replies.values() if isinstance(reply, wire.Error)]
    assert len(sent) == decided
    assert refused == ["shutting_down"] * (20 - decided)
    assert bulk.ended is not None
    assert bulk.ended.code == ErrorCode.SHUTTING_DOWN


async def test_a_connection_that_breaks_leaves_no_turns(rig: ServerRig) -> None:
    bulk = await with_queue(rig)
    rig.log.hold()
    bulk.feed(*(wire.SendMessages(bulk.next_id(), "jobs", [bytes(960_000)]) for _ in range(20)))
    await rig.turn()
    decided = rig.broker.facts.queues.find("admin", "jobs").index.active_count

    bulk.transport.lose()
    rig.log.let_go()
    await rig.turn(20)

    assert len(rig.server.turns) == 0
    assert rig.broker.facts.queues.find("admin", "jobs").index.active_count == decided


async def test_a_held_connection_dispatches_nothing_until_it_is_released(rig: ServerRig) -> None:
    client, other = await with_queue(rig), await rig.client()
    dispatch = rig.server.part(Dispatcher).dispatch
    seen: list[int] = []

    def hold_at_the_first(asker: object, request: Request) -> None:
        seen.append(request.request_id)
        if len(seen) == 2:
            client.connection.hold()
            client.connection.put_back(request)
            return
        dispatch(client.connection, request)
        if len(seen) == 1:
            client.connection.hold()

    client.connection._shared.dispatch = hold_at_the_first  # type: ignore[attr-defined, method-assign]
    # Sends that arrive together go through the same call, each for itself.
    rig.server.part(Dispatcher).dispatch = hold_at_the_first  # type: ignore[method-assign]
    rig.server.part(Dispatcher).runs = {}
    client.feed(*(wire.SendMessages(client.next_id(), "jobs", [b"%d" % number]) for number in range(4)))
    client.feed(wire.ListQueues(client.next_id()))
    await rig.turn()

    assert seen == [1 + 1]
    assert not client.transport.is_reading()
    client.connection.release()
    await rig.turn()
    assert seen == [2, 3], "the second one was put back"
    client.connection.release()
    await client.settle()

    assert seen == [2, 3, 3, 4, 5, 6]
    assert sorted(client.replies) == [2, 3, 4, 5, 6]
    assert client.transport.is_reading()
    client.connection._shared.dispatch = dispatch  # pyright: ignore[reportPrivateUsage]
    assert [message.body for message in await other.receive("jobs")] == [b"0", b"1", b"2", b"3"]


async def test_a_slow_reader_takes_no_turns(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, slow_reader_bytes=4_096)
    client = await with_queue(rig)
    await client.send("jobs", bytes(50_000))
    client.transport.stuck = True
    client.feed(wire.ReceiveMessages(client.next_id(), "jobs", 1))
    await rig.turn()
    assert client.connection.is_slow
    client.feed(wire.SendMessages(sending := client.next_id(), "jobs", [bytes(50_000)]))
    await rig.turn()
    assert rig.broker.facts.queues.find("admin", "jobs").index.active_count == 0

    client.transport.stuck = False
    await client.settle()
    await client.settle()

    assert isinstance(client.replies[sending], wire.MessagesSent)
    rig.check()
    rig.close()
