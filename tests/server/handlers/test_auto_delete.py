"""Deletion of unused queues, through the server: answers, log line, counters, and the log at a restart."""

from structlog.testing import capture_logs

from cmqd.core.broker import Broker
from cmqd.memory_log import MemoryLog
from cmqd.server.monitoring.counters import Counters
from cmqd.server.monitoring.server_figures import ServerFigures
from cmqd_protocol import messages as wire
from cmqd_segment.records import UNUSED, QueueDeleted
from support.server.server_rig import RigClient, ServerRig, code_of

AFTER_MS = 60_000


async def listening(rig: ServerRig, **attributes: int | bool) -> RigClient:
    """A client of a server that listens, with the queue ``replies``."""
    rig.server.listening_time.begin(rig.clock.now_ms())
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "replies", {"auto_delete_after_ms": AFTER_MS, **attributes})
    return client


async def pass_time(rig: ServerRig, ms: int) -> None:
    """Time with a running server: its timer fires, and its loop turns."""
    rig.clock.advance(ms)
    now_ms = rig.broker_clock.now_ms()
    for _ in range(20):
        due_ms = rig.broker.next_deadline_ms()
        if due_ms is None or due_ms > now_ms:
            break
        rig.server.broker_events.tick(now_ms)
    await rig.turn()


async def test_the_deletion_is_logged_and_counted_with_its_messages(rig: ServerRig) -> None:
    client = await listening(rig, auto_delete_only_empty=False)
    await client.send("replies", b"1", b"2")
    await pass_time(rig, AFTER_MS - 1)
    assert rig.server.part(Counters).queues_auto_deleted == 0

    with capture_logs() as lines:
        await pass_time(rig, 1)

    (line,) = [line for line in lines if line["event"] == "queue_auto_deleted"]
    assert (line["account"], line["queue"], line["messages"], line["unused_ms"]) == ("admin", "replies", 2, AFTER_MS)
    status = rig.server.part(ServerFigures).status_reply("admin")["counters"]
    assert (status["queues_auto_deleted"], status["messages_auto_deleted"]) == (1, 2)
    assert code_of(await client.ask(wire.SendMessages, "replies", [b"late"])) == "queue_not_found"


async def test_the_deletion_is_in_the_log(rig: ServerRig) -> None:
    await listening(rig)
    await pass_time(rig, AFTER_MS)

    restarted = Broker(rig.accounts.handle_key)
    log = MemoryLog(rig.log.disk)
    await log.open()
    reasons: list[str] = []
    async for batch in log.recover():
        for item in batch:
            assert isinstance(item, tuple), "no checkpoint was written"
            lsn, _, records = item
            for record in records:
                restarted.replay(record, lsn)
            reasons += [record.reason for record in records if isinstance(record, QueueDeleted)]

    assert reasons == [UNUSED]
    assert restarted.list_queues("admin", "", 0, 10) == (0, [])


async def test_a_server_that_does_not_listen_yet_or_any_more_deletes_nothing(rig: ServerRig) -> None:
    client = await listening(rig)

    rig.server.listening_time.end()
    await pass_time(rig, 10 * AFTER_MS)

    assert (await client.counts("replies"))["active"] == 0
    rig.server.listening_time.begin(rig.broker_clock.now_ms())
    await pass_time(rig, AFTER_MS - 1)
    assert rig.server.part(Counters).queues_auto_deleted == 0
    await pass_time(rig, 1)
    assert rig.server.part(Counters).queues_auto_deleted == 1


async def test_a_process_that_was_stopped_deletes_nothing_for_that(rig: ServerRig) -> None:
    await listening(rig)

    rig.timer.seconds += 3_600
    await pass_time(rig, 3_600_000)
    assert rig.server.part(Counters).queues_auto_deleted == 0

    await pass_time(rig, AFTER_MS)
    assert rig.server.part(Counters).queues_auto_deleted == 1
