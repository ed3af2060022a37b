"""Connections that do not read their replies: bounds, back-pressure, and the end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cmqd.server.monitoring.counters import Counters
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.server.server_rig import RigClient, ServerRig, a_queue, beat, code_of

MIB = 1024 * 1024


async def a_slow_reader(rig: ServerRig, *, messages: int = 8) -> tuple[RigClient, RigClient]:
    """A client with a socket that is stuck in a large reply, and a healthy client."""
    slow, other = await rig.client(), await rig.client()
    await a_queue(other, "big", max_message_bytes=MIB)
    await a_queue(other)
    for _ in range(messages):
        await other.send("big", bytes(MIB))
    slow.transport.stuck = True
    slow.begin(wire.ReceiveMessages(slow.next_id(), "big", 1, 0, 60_000))
    slow.begin(wire.ReceiveMessages(slow.next_id(), "big", 1, 0, 60_000))
    await rig.turn()
    return slow, other


async def test_a_slow_reader_is_not_read_from_until_it_has_read(rig: ServerRig) -> None:
    slow, other = await a_slow_reader(rig)

    assert not slow.transport.is_reading()
    await other.send("jobs", b"others are served")
    slow.transport.stuck = False
    slow.read()
    await slow.settle()

    assert slow.transport.is_reading()
    assert len(slow.replies) == 2


async def test_a_receive_of_a_slow_reader_takes_no_messages_from_others(rig: ServerRig) -> None:
    slow, other = await rig.client(), await rig.client()
    await a_queue(other, "big", max_message_bytes=MIB)
    await a_queue(other)
    waiting = slow.begin(wire.ReceiveMessages(slow.next_id(), "jobs", 1, 30_000))
    await slow.settle()
    for _ in range(2):
        await other.send("big", bytes(MIB))
    slow.transport.stuck = True
    for _ in range(2):
        slow.begin(wire.ReceiveMessages(slow.next_id(), "big", 1, 0, 60_000))
    await rig.turn()

    beat(rig, 400)
    await other.send("jobs", b"for whoever reads")

    assert [message.body for message in await other.receive("jobs")] == [b"for whoever reads"]
    await other.send("jobs", b"second")
    slow.transport.stuck = False
    await slow.settle()
    reply = slow.replies[waiting]
    assert isinstance(reply, wire.MessagesReceived)
    assert [message.body for message in reply.messages] == [b"second"]


async def test_a_slow_reader_gets_no_more_than_its_bound_of_replies_at_once(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_unread_receives=4)
    slow, other = await rig.client(), await rig.client()
    await a_queue(other)
    await other.send("jobs", *[b"x"] * 50)
    rig.log.hold()

    ids = [slow.begin(wire.ReceiveMessages(slow.next_id(), "jobs", 1)) for _ in range(20)]
    await rig.turn()
    assert rig.broker.facts.queues.find("admin", "jobs").index.in_flight_count == 4
    cancelled = ids[-1]
    slow.cancel(cancelled)
    rig.log.let_go()
    await slow.settle()
    await slow.settle()

    assert set(slow.replies) == set(ids)
    assert code_of(slow.replies[cancelled]) == "cancelled"
    assert rig.broker.facts.queues.find("admin", "jobs").index.in_flight_count == 19
    rig.close()


async def test_browsing_is_bounded_like_receiving(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_unread_receives=4)
    client = await rig.client()
    await a_queue(client)
    await client.send("jobs", b"x")
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "jobs", [b"keeps the gate shut"]))

    ids = [client.begin(wire.PeekMessages(client.next_id(), "jobs")) for _ in range(10)]
    await rig.turn()
    assert client.connection.unread_receives == 4
    client.cancel(ids[0])
    rig.log.let_go()
    await client.settle()

    assert code_of(client.replies[ids[0]]) == "cancelled"
    assert all(isinstance(client.replies[each], wire.MessagesPeeked) for each in ids[1:])
    assert client.connection.unread_receives == 0
    rig.close()


async def test_a_slow_reader_that_never_reads_is_closed_and_its_unsent_messages_come_back(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, heartbeat_ms=1_000)
    slow, other = await a_slow_reader(rig, messages=30)
    slow.transport.stuck = False
    slow.read()
    await slow.settle()
    slow.transport.stuck = True
    for _ in range(25):
        slow.begin(wire.ReceiveMessages(slow.next_id(), "big", 1, 0, 60_000))
    await rig.turn()
    taken = rig.broker.facts.queues.find("admin", "big").index.in_flight_count
    assert taken == 27

    for _ in range(30):
        beat(rig, 100)
        other.connection.data_received(b"\0\0\0\0")
    await rig.turn()

    assert slow.transport.lost
    assert rig.server.part(Counters).slow_readers_closed == 1
    assert rig.server.part(Counters).given_back == 25
    rig.close()


async def test_a_reader_over_the_hard_limit_is_closed_at_once(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, slow_reader_bytes=4_096, max_unread_bytes=65_536)
    slow, other = await a_slow_reader(rig)
    await rig.turn()

    assert slow.transport.lost
    await other.send("jobs", b"others are served")
    rig.close()


async def test_replies_to_a_slow_reader_and_its_own_waits_ended_in_one_step_break_nothing(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_unread_receives=64)
    slow, sender = await rig.client(), await rig.client()
    await a_queue(sender, "big", max_message_bytes=MIB)
    await a_queue(sender, "empty")
    receives = [slow.begin(wire.ReceiveMessages(slow.next_id(), "big", 1, 30_000)) for _ in range(120)]
    ending = [slow.begin(wire.ReceiveMessages(slow.next_id(), "empty", 1, 100)) for _ in range(2)]
    await slow.settle()
    slow.transport.stuck = True
    for _ in range(12):
        sender.begin(wire.SendMessages(sender.next_id(), "big", [bytes(100_000)] * 10))
    await rig.turn(12)

    # Both waits end in a single tick, while the client is slow and has more than its share unread.
    rig.clock.advance(120)
    await rig.tick()
    await rig.turn(12)
    assert rig.failures == []
    assert slow.connection.is_slow
    slow.transport.stuck = False
    for _ in range(4):
        await slow.settle()
    sender.begin(wire.SendMessages(sender.next_id(), "big", [b"x"] * 20))
    await slow.settle()

    assert rig.failures == []
    assert set(slow.replies) == {*receives, *ending}
    rig.check()
    rig.close()


async def test_waits_of_a_slow_reader_that_all_end_at_once_are_answered_once(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_unread_receives=4)
    slow, waiting = await a_slow_reader_that_waits(rig, waits=3)

    rig.server.client_events.end_waits(ErrorCode.SHUTTING_DOWN, "bye")
    await rig.turn()
    slow.transport.stuck = False
    await slow.settle()
    await slow.settle()

    assert [code_of(slow.replies[request_id]) for request_id in waiting] == ["shutting_down"] * 3
    assert not slow.transport.lost
    rig.close()


async def a_slow_reader_that_waits(rig: ServerRig, *, waits: int) -> tuple[RigClient, list[int]]:
    """A stuck client with more unread replies than its bound, and with receives that wait."""
    slow, other = await rig.client(), await rig.client()
    await a_queue(other, "big", max_message_bytes=MIB)
    await a_queue(other)
    first = [slow.begin(wire.ReceiveMessages(slow.next_id(), "big", 1, 30_000)) for _ in range(8)]
    waiting = [slow.begin(wire.ReceiveMessages(slow.next_id(), "jobs", 1, 30_000)) for _ in range(waits)]
    await slow.settle()
    slow.transport.stuck = True
    for _ in first:
        other.begin(wire.SendMessages(other.next_id(), "big", [bytes(MIB)]))
    # Until the replies are decided and the first is written, and not until the others are flushed.
    while not slow.connection.is_slow:
        await rig.turn(1)
    return slow, waiting


async def test_a_reply_of_which_the_socket_took_only_a_part_comes_back_uncounted(rig: ServerRig) -> None:
    slow, other = await a_slow_reader(rig, messages=3)
    assert slow.connection.is_slow, "one large reply is enough"
    assert slow.transport.unread < 2 * MIB, "the second is not encoded before the first is gone"

    slow.transport.lose()

    again = await other.receive("big", 3)
    again += await other.receive("big", 3)
    again += await other.receive("big", 3)
    assert [message.receive_count for message in again] == [1, 1, 1]


async def test_replies_that_the_socket_took_stay_in_flight_when_the_connection_dies(rig: ServerRig) -> None:
    slow, other = await a_slow_reader(rig, messages=3)
    slow.transport.stuck = False
    slow.read()
    await rig.turn()
    assert not slow.connection.is_slow

    slow.transport.lose()

    assert (await other.counts("big"))["in_flight"] == 2
    assert rig.server.part(Counters).given_back == 0


async def test_small_replies_do_not_make_a_reader_slow_before_the_mark(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    client.transport.stuck = True
    client.begin(wire.ListQueues(client.next_id()))
    await rig.turn()
    assert not client.connection.is_slow

    client.begin(wire.SendMessages(client.next_id(), "jobs", [b"x"]))
    client.begin(wire.ReceiveMessages(client.next_id(), "jobs"))
    await rig.turn()
    assert client.connection.is_slow, "messages that the socket does not take do"
    client.transport.stuck = False
    await client.settle()
    client.transport.stuck = True
    client.begin(wire.ListQueues(client.next_id()))
    await rig.turn()

    assert not client.connection.is_slow
    assert len(client.replies) == 3


async def test_peeks_that_wait_for_bodies_are_bounded(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_unread_receives=4)
    client = await rig.client()
    await a_queue(client, delay_ms=600_000)
    await client.send("jobs", b"x")
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "jobs", [b"keeps pages from being read"]))

    ids = [client.begin(wire.PeekMessages(client.next_id(), "jobs")) for _ in range(20)]
    await rig.turn()
    assert len(rig.server.part(WaitingRequests)) == 4
    assert client.connection.unread_receives == 4
    client.cancel(ids[0])
    await rig.turn()
    assert len(rig.server.part(WaitingRequests)) == 4, "the next has taken its place"
    rig.log.let_go()
    for _ in range(6):
        await client.settle()

    assert code_of(client.replies[ids[0]]) == "cancelled"
    assert all(isinstance(client.replies[each], wire.MessagesPeeked) for each in ids[1:])
    assert client.connection.unread_receives == 0
    rig.close()


async def test_above_the_hard_mark_of_pending_bytes_nothing_is_read_until_the_disk_has_caught_up(
    tmp_path: Path,
) -> None:
    rig = await ServerRig.make(tmp_path, busy_pending_bytes=2 * MIB, pause_pending_bytes=2 * MIB)
    client = await rig.client()
    await a_queue(client, max_message_bytes=MIB)
    rig.log.hold()
    for _ in range(3):
        client.begin(wire.SendMessages(client.next_id(), "jobs", [bytes(MIB)]))
        await rig.turn()
        if not client.transport.is_reading():
            break
    assert not client.transport.is_reading()
    client.machine.send(wire.ListQueues(one_more := client.next_id()))
    beat(rig, 100_000)
    assert client.ended is None, "its silence is not its own doing"
    rig.log.let_go()
    await client.settle()

    assert client.transport.is_reading()
    assert isinstance(client.replies[one_more], wire.QueueList)
    rig.close()


def test_connections_that_are_due_together_are_looked_at_in_pieces(rig: ServerRig) -> None:
    listener: Any = rig.server.listener
    looked_at: list[int] = []
    planned: list[Any] = []

    def call_later(_seconds: float, callback: Any) -> Any:
        planned.append(callback)
        return callback

    listener._loop = SimpleNamespace(call_later=call_later)
    listener._look_again = looked_at.append
    listener._due = list(range(1_000))

    listener._visit_some()
    first = len(looked_at)
    while planned:
        planned.pop()()

    assert 0 < first <= 40
    assert looked_at == list(range(1_000))
    assert listener._visits is None
