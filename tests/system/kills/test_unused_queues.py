"""kill -9 while queues are deleted because they are unused: no queue in use goes, and no deletion is undone.

The shortest time of a queue is a minute, and each start begins the time anew, so the test takes little more than a
minute: a part of ``make test-all`` (``CMQD_UNUSED_QUEUES=1``). The queues fall due over two seconds. Each broker is
killed as soon as a client sees the first queue gone, with other deletions decided, written or under fsync. Three
brokers run at once, a broker per victim.
"""

import asyncio
import os
import time
from functools import partial
from pathlib import Path

import pytest

from cmqd_segment.manifest import SegmentState, read_manifest, segment_file
from cmqd_segment.records import UNUSED, QueueDeleted
from cmqd_segment.scan import readable_segments, scan_segment
from support.crash.broker import CrashingBroker, Victim, has_ended
from support.crash.load import drain
from support.crash.promises.checker import check
from support.crash.promises.history import CreateQueue, GetAttributes, History, Outcome
from support.crash.session import Session
from support.eventually import eventually

AFTER_MS = 60_000
GOES = {"auto_delete_after_ms": AFTER_MS, "auto_delete_only_empty": False}
IDLE = [f"idle-{number}" for number in range(80)]
"""Unused, with messages, and deleted with them."""
EMPTY = "empty"
"""Unused and empty: deleted."""
FULL = "full"
"""Unused, with a message, and deleted only when empty: stays."""
LEASED, LATER, POLLED = "leased", "later", "polled"
"""In use by a message in flight, by a delayed message, by a consumer: stay."""
STAY = (FULL, LEASED, LATER, POLLED)
BETWEEN_SECONDS = 0.025

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600),
    pytest.mark.skipif("CMQD_UNUSED_QUEUES" not in os.environ, reason="takes over a minute: make test-all"),
]


async def test_a_deletion_that_a_client_saw_is_kept_and_no_queue_in_use_goes(tmp_path: Path) -> None:
    await asyncio.gather(*(kill_one(tmp_path / victim.name.lower(), victim) for victim in Victim))


async def kill_one(folder: Path, victim: Victim) -> None:
    folder.mkdir()
    # Kept for the records of the deletions: the messages of the segments are gone.
    broker = CrashingBroker(folder, flags=("--keep-history-ms", "1d"))
    history = History(wall_offset_ms=time.time() * 1e3 - time.monotonic() * 1e3)
    try:
        await live_and_die(broker, history, victim)
        left = await live_again(broker, history)
    finally:
        broker.clean_up()

    assert [str(violation) for violation in check(history, drained=True)] == []
    # The record of each deletion has its reason, and no other queue has such a record.
    ids = {one.queue_id: one.queue for one in history.of_kind(CreateQueue) if one.done}
    deleted = [ids[queue_id] for queue_id in deleted_as_unused(broker.data)]
    assert sorted(deleted) == sorted({EMPTY, *IDLE} - left)
    print(f"{victim.value}: {len(deleted)} queues deleted as unused, {len(left)} of {len(IDLE) + 1} left by the kill")


async def live_and_die(broker: CrashingBroker, history: History, victim: Victim) -> None:
    """Fill a broker with queues, and kill the broker when the first queue is seen gone."""
    ready = await asyncio.to_thread(broker.start)
    history.breaks_ns.append(time.monotonic_ns())
    session = await Session.connect(ready.url, history)
    await session.create_queue(EMPTY, {"auto_delete_after_ms": AFTER_MS})
    await session.create_queue(FULL, {"auto_delete_after_ms": AFTER_MS})
    for queue in (LEASED, LATER, POLLED):
        await session.create_queue(queue, GOES)
    for queue in (FULL, LEASED):
        await session.send(queue, [queue.encode()])
    await session.receive(LEASED, max_messages=1, wait_ms=0, visibility_ms=3_600_000)
    await session.send(LATER, [b"later"], delay_ms=3_600_000)
    for queue in IDLE:
        await session.create_queue(queue, GOES)
        await session.send(queue, [f"{queue}/{number}".encode() for number in range(2)])
        await asyncio.sleep(BETWEEN_SECONDS)
    told: GetAttributes | None = None
    while told is None or told.done:
        told = await session.get_attributes(IDLE[0])
        await session.receive(POLLED, max_messages=1, wait_ms=50, visibility_ms=1_000)
    assert told.error == "queue_not_found"
    history.breaks_ns.append(time.monotonic_ns())
    await asyncio.to_thread(broker.kill, victim)
    session.close()
    # The lock of the folder passes to the next broker, so the storage process must be gone or going.
    await eventually(partial(has_ended, ready.storage_pid))


async def live_again(broker: CrashingBroker, history: History) -> set[str]:
    """Start the broker again, look at all queues twice, drain them, and stop. Return the queues that the kill left."""
    ready = await asyncio.to_thread(broker.start)
    history.breaks_ns.append(time.monotonic_ns())
    session = await Session.connect(ready.url, history)
    left = {queue for queue in [EMPTY, *IDLE] if (await session.get_attributes(queue)).done}
    assert IDLE[0] not in left
    for queue in STAY:
        assert (await session.get_attributes(queue)).done, queue
    # The name is free, and the new queue has no message of the old queue.
    await session.create_queue(IDLE[0], {})
    await session.send(IDLE[0], [b"of the new queue"])
    for queue in [*STAY, *sorted(left)]:
        # The start was a use: a queue that was due before stays for a minute.
        assert (await session.get_attributes(queue)).outcome is Outcome.DONE, queue
    for queue in (LEASED, LATER):
        await session.clear(queue)
    await drain(session, [*STAY, *IDLE], seconds=60)
    session.close()
    assert await asyncio.to_thread(broker.stop) == 0
    return left


def deleted_as_unused(data: Path) -> list[int]:
    """Return the ids of the queues with a deletion in the log for the reason ``unused``."""
    found: list[int] = []
    manifest = read_manifest(data)
    for entry in readable_segments(manifest):
        sealed = entry.state is SegmentState.SEALED
        for row in scan_segment(data / segment_file(entry.number), sealed=sealed, bodies=False):
            found += [one.queue_id for one in row.records if isinstance(one, QueueDeleted) and one.reason == UNUSED]
    return found
