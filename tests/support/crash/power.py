"""Power failures: a broker under load and a tracer, its folder as a power failure leaves it, a restart, and the check.

``CMQD_POWER_SEED`` repeats the choices of an earlier run.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.crash.broker import WAY_COMMITS, CrashingBroker
from support.crash.load import (
    QUEUES,
    Consumer,
    NumberedProducer,
    Owner,
    Producer,
    Worker,
    create_queues,
    drain_all,
    work_until_lost,
)
from support.crash.load_moves import DedupProducer, Redriver, Rewinder
from support.crash.load_topics import (
    APPLES,
    PEARS,
    PUSH_FLAGS,
    STRICT,
    TOPIC_QUEUES,
    DedupPublisher,
    Endpoints,
    NumberedPublisher,
    Troublemaker,
    Watcher,
    create_topic,
    deliver_all,
    tags_of,
)
from support.crash.load_transactions import Books, Checker, TransactionalProducer
from support.crash.promises.checker import check
from support.crash.promises.history import History, Outcome, Publish, Send
from support.crash.promises.ledger import Violation
from support.crash.session import Session
from support.crash.traces.disk import Unsynced, disk_after
from support.crash.traces.trace import AnyEvent, Created, FolderSynced, Removed, Renamed, Resized, Synced, read_trace
from support.eventually import eventually

SEED = int(os.environ.get("CMQD_POWER_SEED", "0")) or random.SystemRandom().getrandbits(32)
SMALL_SEGMENTS = ("--segment-bytes", str(1 << 20), *PUSH_FLAGS)
LOAD_SECONDS = 3.5
LEAST_SENDS, LEAST_PUBLISHES = 40, 12
"""A load goes on until it has done so many of both: on a slow machine longer than its seconds."""
# Syncs take up to this time, so an answer that does not wait for its sync comes well before the sync ends.
HOLD_MS = 6.0
DRAIN_SECONDS = 600.0
"""After this time the checker names the messages that are left; the time limit of the suite names none."""
# Consumers delete fewer messages than in other tests, so that some messages die in the short time.
MORTAL = (0.7, 0.1, 0.05, 0.05, 0.05, 0.05)
RARE = (Created, Renamed, Removed, Resized, FolderSynced)
OWNED = ("owned-1", "owned-2")


def new_history() -> History:
    return History(wall_offset_ms=time.time() * 1e3 - time.monotonic() * 1e3)


def done(history: History, kind: type[Send] | type[Publish]) -> int:
    return sum(operation.done for operation in history.of_kind(kind))


def workers(generation: str, history: History, chance: random.Random) -> list[Worker]:
    """Return new workers. Workers of an earlier life remember answers that the power failure undid."""
    books = Books()
    return [
        NumberedProducer(f"{generation}-numbered", chance.getrandbits(32), 0.01).work,
        Producer(f"{generation}-plain", chance.getrandbits(32), 0.01).work,
        DedupProducer(f"{generation}-dedup", chance.getrandbits(32), 0.02).work,
        TransactionalProducer(f"{generation}-half", chance.getrandbits(32), books, 0.02).work,
        Checker(chance.getrandbits(32), books).work,
        NumberedPublisher(f"{generation}-numbered-publish", chance.getrandbits(32), 0.05).work,
        DedupPublisher(f"{generation}-dedup-publish", chance.getrandbits(32), 0.05).work,
        Troublemaker(chance.getrandbits(32)).work,
        Watcher().work,
        *(Consumer(queue, chance.getrandbits(32), 0.02).work for queue in (APPLES, PEARS, STRICT)),
        *(
            Consumer(queue, chance.getrandbits(32), fates=MORTAL, acknowledges=acknowledges).work
            for queue in QUEUES
            for acknowledges in (False, True)
        ),
        Rewinder(chance.getrandbits(32), history.wall_offset_ms).work,
        Redriver(chance.getrandbits(32)).work,
        Owner(chance.getrandbits(32), 0.02, OWNED, f"{generation}-owner").work,
    ]


@dataclass
class TracedLife:
    """A life of a broker that power failures may have ended at any event."""

    endpoints: Endpoints
    history: History
    flags: Sequence[str]
    chance: random.Random
    events: list[AnyEvent]
    begin: int
    """Index of the first event under load."""

    def cut(self, folder: Path, cut: int, unsynced: Unsynced) -> History:
        """Make the folder that a power failure after ``cut`` events leaves; return the history up to then."""
        folder.mkdir()
        disk_after(self.events[:cut], unsynced, self.chance).write_to(folder / "data")
        return self.history.until(self.events[cut].at_ns)

    async def violations(self, folder: Path, cut: int, unsynced: Unsynced) -> list[Violation]:
        """Start a broker after a power failure, and check its messages."""
        history = self.cut(folder, cut, unsynced)
        return await violations_after_restart(folder, self.endpoints, history, self.flags)


async def traced_life(
    folder: Path,
    endpoints: Endpoints,
    flags: Sequence[str],
    *,
    history: History | None = None,
    generation: str = "life",
    chance: random.Random | None = None,
    until: Callable[[], bool] = lambda: True,
    way_commits: int = WAY_COMMITS,
) -> TracedLife:
    """Run a broker under load and kill it. The load goes on until ``until()`` is true."""
    history = history or new_history()
    chance = chance or random.Random(SEED)
    folder.mkdir(exist_ok=True)
    endpoints.history = history
    endpoints.is_repaired = False
    broker = CrashingBroker(folder, flags=flags, way_commits=way_commits)
    trace_file = folder / "trace"
    try:
        ready = await asyncio.to_thread(
            broker.start, trace_file=trace_file, hold_ms=HOLD_MS, seed=chance.getrandbits(32)
        )
        history.breaks_ns.append(time.monotonic_ns())
        session = await Session.connect(ready.url, history)
        await create_queues(session)
        if not endpoints.secrets:
            # The topic is complete before the power fails: the check is about its messages.
            await create_topic(session, endpoints)
        session.close()
        began_ns = time.monotonic_ns()
        load = asyncio.create_task(work_until_lost(ready.url, history, workers(generation, history, chance)))
        sends, publishes = done(history, Send), done(history, Publish)
        await asyncio.wait([load], timeout=LOAD_SECONDS)
        await eventually(lambda: load.done() or done(history, Send) >= sends + LEAST_SENDS)
        await eventually(lambda: load.done() or done(history, Publish) >= publishes + LEAST_PUBLISHES)
        await eventually(lambda: load.done() or until())
        assert not load.done(), f"the load ended by itself: {load}\n{broker.log_tail()}"
    finally:
        history.breaks_ns.append(time.monotonic_ns())
        broker.clean_up()
    await load
    events = read_trace(trace_file)
    begin = next((index for index, event in enumerate(events) if event.at_ns > began_ns), len(events))
    return TracedLife(endpoints, history, flags, chance, events, begin)


def choose_cut(life: TracedLife) -> int:
    """Choose the number of events before the power failure.

    Any number; or all up to the end of a sync; or up to a change of names or lengths or near it, since most events are
    commits, and rolls, seals, checkpoints and drops would seldom be met by chance.
    """
    events, begin, chance = life.events, life.begin, life.chance
    syncs = [at for at in range(begin, len(events)) if isinstance(events[at], Synced | FolderSynced)]
    rare = [at for at in range(begin, len(events)) if isinstance(events[at], RARE)]
    way = chance.random()
    if way < 0.3:
        return chance.choice(syncs)
    if way < 0.7 and rare:
        return min(max(begin, chance.choice(rare) + chance.randint(-3, 6)), len(events) - 1)
    return chance.randrange(begin, len(events))


async def violations_after_restart(
    folder: Path, endpoints: Endpoints, history: History, flags: Sequence[str]
) -> list[Violation]:
    """Start a broker on a rebuilt folder, repeat sends, have pushes carried out, drain, stop, check."""
    endpoints.history = history
    endpoints.is_repaired = True
    broker = CrashingBroker(folder, flags=flags)
    try:
        ready = await asyncio.to_thread(broker.start)
        session = await Session.connect(ready.url, history)
        await repeat_sends(session, history)
        await deliver_all(session, endpoints, seconds=DRAIN_SECONDS)
        await drain_all(session, [*OWNED, *TOPIC_QUEUES], seconds=DRAIN_SECONDS)
        session.close()
        assert await asyncio.to_thread(broker.stop) == 0
    finally:
        broker.clean_up()
    return check(history, drained=True)


async def repeat_sends(session: Session, history: History) -> None:
    """Repeat the sends with unknown answers that can be repeated, and the last sends with known answers.

    Only those that a broker still remembers: on a busy machine the lives before began too long ago.
    """
    first_calls = first_calls_ns(history)
    oldest_ns = time.monotonic_ns() - int(DedupProducer.REMEMBERED_SECONDS * 1e9)

    def is_remembered(send: Send | Publish) -> bool:
        return all(first_calls[key] >= oldest_ns for key in keys_of(send))

    sends = [send for send in history.of_kind(Send) if not send.half and is_remembered(send)]
    numbered = [send for send in sends if send.sequence]
    answered = {send.sequence for send in numbered if send.outcome is not Outcome.UNKNOWN}
    unanswered = {send.sequence: send for send in numbered if send.sequence not in answered}
    for send in (*unanswered.values(), *numbered[-5:]):
        await session.send(send.queue, send.bodies, session=send.session, sequence=send.sequence)
    deduped = [send for send in sends if send.dedup_ids]
    for send in (*(send for send in deduped if send.outcome is Outcome.UNKNOWN), *deduped[-5:]):
        await session.send(send.queue, send.bodies, dedup_ids=send.dedup_ids)
    publishes = [publish for publish in history.of_kind(Publish) if is_remembered(publish)]
    for publish in publishes:
        if publish.outcome is not Outcome.UNKNOWN:
            continue
        await session.publish(
            publish.queue,
            publish.bodies,
            list(map(tags_of, publish.bodies)),
            session=publish.session,
            sequence=publish.sequence,
            dedup_ids=publish.dedup_ids,
        )


def keys_of(send: Send | Publish) -> list[tuple[str, int, int | str]]:
    """Return the keys by which a broker recognises a repeat: of the sequence, and of each dedup id."""
    keys: list[tuple[str, int, int | str]] = [(send.queue, 0, dedup_id) for dedup_id in send.dedup_ids]
    return [*keys, (send.queue, send.session, send.sequence)] if send.sequence else keys


def first_calls_ns(history: History) -> dict[tuple[str, int, int | str], int]:
    """Return the time of the first attempt for each key: a broker counts its memory from the first message."""
    calls: dict[tuple[str, int, int | str], int] = {}
    for kind in (Send, Publish):
        for send in history.of_kind(kind):
            for key in keys_of(send):
                calls[key] = min(calls.get(key, send.called_ns), send.called_ns)
    return calls
