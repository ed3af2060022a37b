"""The memory that clients may make the broker hold: the dropped connections, and the time of a drop."""

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from cmqd.core.limits import Limits
from cmqd.server.admission.memory_budget import LEAST_BYTES, MemoryBudget, default_budget_bytes
from cmqd.server.monitoring.counters import Counters
from cmqd.server.monitoring.server_figures import ServerFigures
from cmqd.server.replies.held_reply_memory import HeldReplyMemory
from cmqd.settings import LEAST_MEMORY_BUDGET_BYTES
from cmqd_protocol import messages as wire
from cmqd_protocol.frames import header
from cmqd_protocol.protocol_errors import ErrorCode
from support.server.server_rig import RigClient, ServerRig

MIB = 1024 * 1024


class Holding:
    def __init__(self, account: str) -> None:
        self.account = account
        self.dropped = ""

    def drop(self, text: str) -> None:
        self.dropped = text


class TestBudget:
    def test_the_largest_holder_of_the_largest_account_is_dropped_until_the_rest_fits(self) -> None:
        budget = MemoryBudget(1_000)
        greedy = [Holding("greedy") for _ in range(8)]
        modest = Holding("modest")
        budget.hold(modest, 240)
        for number, holder in enumerate(greedy):
            budget.hold(holder, 90 + number)
        assert not any(holder.dropped for holder in greedy)

        budget.hold(greedy[0], 150)

        assert [bool(holder.dropped) for holder in greedy] == [True] + [False] * 7
        assert not modest.dropped
        budget.hold(modest, 250)
        assert not modest.dropped
        assert budget.dropped == 1
        budget.check_invariants()

    def test_an_account_may_use_what_others_leave(self) -> None:
        budget = MemoryBudget(1_000)
        alone = Holding("alone")

        budget.hold(alone, 1_000)

        assert not alone.dropped

    def test_promised_memory_leaves_less_and_is_not_dropped(self) -> None:
        kept = 0
        budget = MemoryBudget(1_000, lambda: kept)
        first, second = Holding("a"), Holding("b")
        budget.hold(first, 500)
        kept = 600
        budget.hold(second, 100)

        assert (bool(first.dropped), bool(second.dropped)) == (True, False)

    def test_a_holding_follows_its_connection_to_the_account_and_ends(self) -> None:
        budget = MemoryBudget(1_000)
        holder = Holding("")
        budget.hold(holder, 300)
        holder.account = "a"
        budget.hold(holder, 200)
        budget.check_invariants()

        assert budget.held_bytes == 200
        budget.hold(holder, 0)
        assert budget.held_bytes == 0
        budget.check_invariants()

    def test_the_default_has_a_floor(self) -> None:
        assert default_budget_bytes() >= LEAST_MEMORY_BUDGET_BYTES


# ------------------------------------------------------------------ connections


async def a_rig(folder: Path, total_bytes: int) -> ServerRig:
    """A server with a budget smaller than any that the settings allow."""
    rig = await ServerRig.make(folder)
    rig.server.part(MemoryBudget).total_bytes = total_bytes
    return rig


def send_unfinished(client: RigClient, size: int, length: int = 4 * MIB) -> None:
    """All of a frame but its end: its memory is that of the whole frame."""
    client.connection.data_received(header(length) + bytes(size))


async def test_unfinished_frames_over_the_budget_cost_the_largest_its_connection(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path, 16 * MIB)
    small, *large = [await rig.client() for _ in range(5)]
    key = await rig.accounts.create_account("admin", "other", 1)
    other = await rig.client(key)
    send_unfinished(other, 2 * MIB)
    send_unfinished(small, 1 * MIB, 2 * MIB)
    await rig.turn(20)

    for client in large:
        send_unfinished(client, 3 * MIB)
        await rig.turn(20)
    for client in large:
        client.read()

    ended = [client for client in large if client.ended is not None]
    assert len(ended) == 2
    for client in ended:
        assert client.ended is not None
        assert client.ended.code == ErrorCode.BUSY
        assert client.ended.retryable
        assert client.ended.retry_after_ms == 1_000
        assert client.transport.lost
    assert not small.transport.lost
    assert not other.transport.lost
    assert rig.server.part(MemoryBudget).held_bytes == 14 * MIB + 4 * 4
    assert rig.server.part(Counters).dropped_for_memory == 2
    rig.server.part(MemoryBudget).check_invariants()
    rig.close()


async def test_a_frame_that_grows_by_small_reads_counts_and_is_forgotten_when_it_is_whole(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {"max_message_bytes": MIB})
    client.machine.send(wire.SendMessages(sending := client.next_id(), "jobs", [bytes(600_000)]))
    data = b"".join(client.machine.data_to_send(0))

    for start in range(0, 500_000, 10_000):
        client.connection.data_received(data[start : start + 10_000])
        await rig.turn(1)
    assert rig.server.part(MemoryBudget).held_bytes == len(data)
    client.connection.data_received(data[500_000:])
    await client.settle()

    assert isinstance(client.replies[sending], wire.MessagesSent)
    assert rig.server.part(MemoryBudget).held_bytes == 0


async def test_promises_of_the_core_count_and_one_too_many_is_refused_with_its_time(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, limits=Limits(max_sessions=1))
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.EnsureQueue, "jobs", {})
    await client.expect(wire.MessagesSent, wire.SendMessages, "jobs", [b"x"], None, None, 7, 1, ["order"])

    refused = await client.expect(wire.Error, wire.SendMessages, "jobs", [b"x"], None, None, 8, 1)

    assert (refused.code, refused.retryable, refused.retry_after_ms) == (ErrorCode.TOO_MANY_REQUESTS, True, 600_000)
    assert refused.details == {"limit": 1, "oldest_ends_ms": rig.clock.now_ms() + 600_000}
    promised = rig.broker.facts.promises.memory.total_bytes
    status = rig.server.part(ServerFigures).status_reply("admin")
    assert (status["memory_promised_bytes"], promised > 0) == (promised, True)
    assert f"kept={promised}" in repr(rig.server.part(MemoryBudget))
    rig.close()


async def test_a_broken_connection_holds_nothing_and_its_frame_is_freed(rig: ServerRig) -> None:
    client = await rig.client()
    send_unfinished(client, 2 * MIB)
    await rig.turn(20)
    assert rig.server.part(MemoryBudget).held_bytes == 4 * MIB + 4

    client.transport.lose()

    machine: Any = client.connection._wire  # type: ignore[attr-defined]
    assert machine.unfinished_bytes == 0
    assert rig.server.part(MemoryBudget).held_bytes == 0
    rig.server.part(MemoryBudget).check_invariants()


async def test_a_flood_of_unfinished_frames_leaves_no_bytes_with_its_connections(rig: ServerRig) -> None:
    clients = [await rig.client() for _ in range(20)]
    # The server runs without a collector.
    gc.disable()
    tracemalloc.start()
    try:
        for client in clients:
            send_unfinished(client, 200_000)
            await rig.turn(20)
            for size in (100_000, 10_000, 256_000, 500_000):
                client.connection.data_received(bytes(size))
                await rig.turn(20)
        flood_bytes, _ = tracemalloc.get_traced_memory()
        for client in clients:
            client.transport.lose()
        left_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()

    assert flood_bytes > 20 * MIB
    assert left_bytes < LEAST_BYTES * len(clients) // 4


async def test_unread_replies_over_the_budget_cost_the_connection_and_their_messages_come_back(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path, 3 * MIB)
    slow, other = await rig.client(), await rig.client()
    await other.expect(wire.QueueInfo, wire.CreateQueue, "big", {"max_message_bytes": MIB})
    for _ in range(6):
        await other.send("big", bytes(MIB))
    slow.transport.stuck = True
    for _ in range(6):
        slow.begin(wire.ReceiveMessages(slow.next_id(), "big", 1, 0, 60_000))
    await rig.turn(20)

    assert slow.transport.lost
    assert rig.server.part(Counters).dropped_for_memory == 1
    assert rig.server.part(MemoryBudget).held_bytes == 0
    assert (await other.counts("big"))["active"] == 6
    rig.close()


@pytest.mark.parametrize("read", [True, False])
async def test_a_reader_within_the_budget_is_left_alone(tmp_path: Path, read: bool) -> None:
    rig = await a_rig(tmp_path, 16 * MIB)
    slow, other = await rig.client(), await rig.client()
    await other.expect(wire.QueueInfo, wire.CreateQueue, "big", {"max_message_bytes": MIB})
    await other.send("big", bytes(MIB))
    slow.transport.stuck = True
    receiving = slow.begin(wire.ReceiveMessages(slow.next_id(), "big", 1, 0, 60_000))
    await rig.turn()
    assert rig.server.part(MemoryBudget).held_bytes > MIB

    slow.transport.stuck = not read
    await slow.settle()

    assert not slow.transport.lost
    assert (receiving in slow.replies) == read
    assert (rig.server.part(MemoryBudget).held_bytes == 0) == read
    rig.close()


async def hold_receives(rig: ServerRig, count: int) -> RigClient:
    """Let a client receive ``count`` messages of 1 MiB with leases that do not become durable."""
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "big", {"max_message_bytes": MIB})
    for _ in range(count):
        await client.send("big", bytes(MIB))
    rig.log.hold()
    for _ in range(count):
        client.begin(wire.ReceiveMessages(client.next_id(), "big", 1, 0, 60_000))
    await rig.turn()
    return client


def bodies_at_the_gate(rig: ServerRig) -> int:
    replies = [reply for _, reply in rig.server.replies.with_messages()]
    return sum(
        len(message.body) for reply in replies if isinstance(reply, wire.MessagesReceived) for message in reply.messages
    )


async def test_replies_that_stay_at_the_gate_count_from_the_second_beat_until_it_opens(rig: ServerRig) -> None:
    client = await hold_receives(rig, 3)
    held = rig.server.part(HeldReplyMemory)

    held.beat()
    assert rig.server.part(MemoryBudget).held_bytes == 0
    held.beat()
    assert rig.server.part(MemoryBudget).held_bytes == 3 * MIB
    rig.log.let_go()
    await client.settle()

    assert rig.server.part(MemoryBudget).held_bytes == 0
    assert len(client.replies) == 3
    held.beat()
    assert rig.server.part(MemoryBudget).held_bytes == 0


async def test_replies_at_the_gate_over_the_budget_cost_the_connection_its_bodies_and_no_message(
    tmp_path: Path,
) -> None:
    rig = await a_rig(tmp_path, 3 * MIB)
    client = await hold_receives(rig, 4)
    other = await rig.client()
    for _ in range(2):
        rig.server.part(HeldReplyMemory).beat()
    await rig.turn()
    client.read()

    assert client.ended is not None
    assert client.ended.code == ErrorCode.BUSY
    assert bodies_at_the_gate(rig) == rig.server.part(MemoryBudget).held_bytes == 0
    rig.log.let_go()
    await other.settle()
    assert (await other.counts("big"))["active"] == 4
    (message, *_) = await other.receive("big")
    assert (message.receive_count, len(message.body)) == (1, MIB)
    rig.server.part(MemoryBudget).check_invariants()
    rig.close()


async def test_bodies_for_a_client_that_left_do_not_stay_at_the_gate(rig: ServerRig) -> None:
    client = await hold_receives(rig, 3)
    other = await rig.client()
    client.transport.lose()

    for _ in range(2):
        rig.server.part(HeldReplyMemory).beat()

    assert bodies_at_the_gate(rig) == rig.server.part(MemoryBudget).held_bytes == 0
    rig.log.let_go()
    await other.settle()
    assert (await other.counts("big"))["active"] == 3
    (message, *_) = await other.receive("big")
    assert (message.receive_count, len(message.body)) == (1, MIB)


async def test_small_replies_at_the_gate_are_not_counted(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    await client.send("jobs", b"x")
    rig.log.hold()
    receiving = client.begin(wire.ReceiveMessages(client.next_id(), "jobs", 1, 0, 60_000))
    await rig.turn()

    for _ in range(3):
        rig.server.part(HeldReplyMemory).beat()

    assert rig.server.part(MemoryBudget).held_bytes == 0
    rig.log.let_go()
    await client.settle()
    assert receiving in client.replies


async def park_receives(rig: ServerRig, count: int) -> RigClient:
    """Let a client park receives with 256 handles each, behind a receive with a lease that is not durable."""
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    await client.send("jobs", b"x")
    rig.log.hold()
    client.begin(wire.ReceiveMessages(client.next_id(), "jobs", 1, 0, 60_000))
    await rig.turn()
    for _ in range(count):
        handles = list(range(2**63, 2**63 + 256))
        client.begin(wire.ReceiveMessages(client.next_id(), "jobs", 1, 0, None, handles))
        await rig.turn()
    return client


async def test_parked_receives_count_with_their_handles_until_they_begin(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_unread_receives=1)
    client = await park_receives(rig, 100)
    handles_bytes = 9 * 256

    held_bytes = rig.server.part(MemoryBudget).held_bytes
    # As on the wire, and never late by more than the bytes that no budget counts.
    assert 100 * handles_bytes - LEAST_BYTES < held_bytes < 101 * handles_bytes
    rig.log.let_go()
    await client.settle()
    await client.settle()

    replies = [reply for reply in client.replies.values() if isinstance(reply, wire.MessagesReceived)]
    assert [len(reply.failures or ()) for reply in replies if reply.failures is not None] == [256] * 100
    assert rig.server.part(MemoryBudget).held_bytes == 0
    rig.check()
    rig.close()


async def test_parked_receives_over_the_budget_cost_the_connection(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_unread_receives=1)
    rig.server.part(MemoryBudget).total_bytes = 2 * LEAST_BYTES
    client = await park_receives(rig, 100)
    client.read()

    assert client.ended is not None
    assert client.ended.code == ErrorCode.BUSY
    assert rig.server.part(MemoryBudget).held_bytes == 0
    rig.check()
    rig.close()


async def test_cancelled_receives_are_no_longer_parked(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_unread_receives=1)
    client = await park_receives(rig, 40)
    parked: Any = client.connection._parked  # type: ignore[attr-defined]
    assert (len(parked), parked.stored_bytes > 40 * 9 * 256) == (40, True)

    for request_id in range(4, 44):
        client.cancel(request_id)

    assert (len(parked), parked.stored_bytes) == (0, 0)
    rig.close()
