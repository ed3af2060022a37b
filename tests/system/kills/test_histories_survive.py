"""kill -9 under load: histories read from the files have every acknowledged send, receive and answer."""

import asyncio
import os
import random
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import pytest

from cmqd_reading.births import births_in
from cmqd_reading.life import Life
from cmqd_segment.manifest import SegmentState, read_manifest
from cmqd_segment.records import AnyRecord
from cmqd_segment.scan import readable_segments, scan_segment
from cmqd_types.histories import LifeEvent, LifeKind
from support.crash.broker import WAY_COMMITS, CrashingBroker, Victim
from support.crash.load import (
    BACKLOG,
    DEAD,
    DELAYED,
    FRAGILE,
    MAIN,
    Consumer,
    Producer,
    create_queues,
    work_until_lost,
)
from support.crash.load_moves import Redriver
from support.crash.promises.history import DeadLetter, Delete, Delivery, History, Receive, Release, Send
from support.crash.session import Session
from support.eventually import eventually

ROUNDS = int(os.environ.get("CMQD_KILL_ROUNDS", "3"))
SEED = int(os.environ.get("CMQD_KILL_SEED", "0")) or random.SystemRandom().getrandbits(32)
FLAGS = ("--segment-bytes", str(1 << 20), "--keep-history", "7d")
OPERATIONS = 250
"""Operations of a round before its kill."""
CHECKED = 400
"""Messages whose histories are read, at most."""
ANSWERS = {Delete: LifeKind.DELETED, Release: LifeKind.RELEASED, DeadLetter: LifeKind.DEAD_LETTERED}

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


async def test_histories_have_every_acknowledged_fact_after_kills(tmp_path: Path) -> None:
    print(f"CMQD_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    broker = CrashingBroker(tmp_path, flags=FLAGS, way_commits=WAY_COMMITS)
    history = History(wall_offset_ms=time.time() * 1e3 - time.monotonic() * 1e3)
    mortal = (0.5, 0.2, 0.05, 0.05, 0.05, 0.15)
    workers = [
        *(Producer(f"plain-{n}", chance.getrandbits(32), 0.01).work for n in range(2)),
        *(Consumer(queue, chance.getrandbits(32)).work for queue in (MAIN, MAIN, DELAYED, BACKLOG)),
        *(Consumer(FRAGILE, chance.getrandbits(32), 0.01, fates=mortal, visibilities_ms=(1_000,)).work for _ in "ab"),
        Consumer(DEAD, chance.getrandbits(32), 0.1).work,
        Redriver(chance.getrandbits(32)).work,
    ]
    try:
        for number in range(ROUNDS):
            ready = await asyncio.to_thread(broker.start)
            if number == 0:
                session = await Session.connect(ready.url, history)
                await create_queues(session)
                session.close()
            enough = len(history.operations) + OPERATIONS
            load = asyncio.create_task(work_until_lost(ready.url, history, workers))
            await eventually(partial(has_worked, load, history, enough))
            broker.strike(list(Victim)[number % 3])
            await asyncio.to_thread(broker.wait_for_death)
            await load
        # The last start recovers the folder, and the stop seals it.
        await asyncio.to_thread(broker.start)
        assert await asyncio.to_thread(broker.stop) == 0
    finally:
        broker.clean_up()

    rows = read_rows(tmp_path / "data")
    births = {birth.message_id: birth for _, _, records in rows for birth in births_in(records)}
    sent = {each for send in history.of_kind(Send) if send.done for each in send.message_ids}
    assert sent <= births.keys()
    received: defaultdict[int, list[Delivery]] = defaultdict(list)
    by_handle: dict[int, int] = {}
    for receive in history.of_kind(Receive):
        for delivery in receive.deliveries if receive.done else ():
            received[delivery.message_id].append(delivery)
            by_handle[delivery.handle] = delivery.message_id
    answers: defaultdict[int, Counter[LifeKind]] = defaultdict(Counter)
    for kind, told in ANSWERS.items():
        for operation in history.of_kind(kind):
            for handle in operation.handles:
                if handle in by_handle and operation.worked(handle):
                    answers[by_handle[handle]][told] += 1
    ids = sorted(sent | received.keys())
    checked = chance.sample(ids, min(CHECKED, len(ids)))
    for message_id in checked:
        path = [message_id]
        while parent := births[path[0]].parent_id:
            path.insert(0, parent)
        events = [event for event in life(rows, path) if event.message_id == message_id]
        receives = Counter(event.receive_count for event in events if event.kind == LifeKind.RECEIVED)
        assert receives >= Counter(delivery.receive_count for delivery in received[message_id])
        kinds = Counter(LifeKind(event.kind) for event in events)
        # The move of a rejected message is told by the message in the other queue.
        moved = answers[message_id].pop(LifeKind.DEAD_LETTERED, 0)
        assert kinds >= answers[message_id]
        assert moved <= any(each.from_id == message_id for each in life(rows, path))
    assert len(checked) > 100
    print(f"{len(checked)} histories, {len(rows)} rows, {sum(map(len, received.values()))} receives")


def has_worked(load: "asyncio.Task[None]", history: History, enough: int) -> bool:
    return load.done() or len(history.operations) >= enough


def read_rows(folder: Path) -> list[tuple[int, int, list[AnyRecord]]]:
    """All rows of a folder: LSN, time and records."""
    return [
        (row.lsn, row.time_ms, row.records)
        for entry in readable_segments(read_manifest(folder))
        for row in scan_segment(folder / entry.file, sealed=entry.state is SegmentState.SEALED, bodies=False)
    ]


def life(rows: list[tuple[int, int, list[AnyRecord]]], path: list[int]) -> list[LifeEvent]:
    found = Life(path)
    for lsn, time_ms, records in rows:
        found.feed(lsn, time_ms, records)
    return found.result(rows[-1][0], rows[-1][1]).events
