"""kill -9 under load, again and again on the same data folder: no acknowledged fact may change.

The load sends, receives, delays, lets messages die and redrives them, rewinds, and decides half messages or leaves them
to checkers that go away: never lost, never in two queues, never half-committed. It also publishes to a topic with
queues that refuse copies for a time, and with URLs that fail: every matching subscriber gets all messages, and no other
subscriber gets a message. Single messages of a subscription are retried and dropped: an acknowledged drop stays.

``CMQD_KILL_ROUNDS`` asks for more rounds (default 12; ``make test-all`` has more), ``CMQD_KILL_SEED`` repeats the
choices of an earlier run.
"""

import asyncio
import os
import random
import time
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from support.crash.broker import CrashingBroker, Victim, has_ended
from support.crash.load import (
    BACKLOG,
    DEAD,
    DELAYED,
    FRAGILE,
    MAIN,
    QUEUES,
    REWOUND,
    TRANSACTIONAL,
    Consumer,
    NumberedProducer,
    Owner,
    Producer,
    Worker,
    create_queues,
    drain_all,
    outcomes,
    work_until_lost,
)
from support.crash.load_moves import DedupProducer, Redriver, Rewinder
from support.crash.load_topics import (
    APPLES,
    DOWN,
    FICKLE,
    FLAKY,
    HEALTHY,
    PEARS,
    PUSH_FLAGS,
    STRICT,
    TOPIC_QUEUES,
    DedupPublisher,
    Endpoints,
    NumberedPublisher,
    Publisher,
    Troublemaker,
    Watcher,
    Weeder,
    create_topic,
    deliver_all,
    late_copies,
    pushes_of,
)
from support.crash.load_transactions import Books, Checker, TransactionalProducer
from support.crash.promises.checker import check
from support.crash.promises.history import Check, EndTransactions, GetAttributes, History, Receive, Rewind
from support.crash.session import Session
from support.eventually import eventually

ROUNDS = int(os.environ.get("CMQD_KILL_ROUNDS", "12"))
SEED = int(os.environ.get("CMQD_KILL_SEED", "0")) or random.SystemRandom().getrandbits(32)

# The smallest possible segments, so that rolls, seals, checkpoints and drops happen while the killing goes on.
FLAGS = ("--segment-bytes", str(1 << 20), *PUSH_FLAGS)
LOAD_SECONDS = (0.2, 1.0)
MOST_ROUNDS = 120
"""Far more rounds than every kind of event needs to happen."""
LEAST_OPERATIONS = 200
"""Minimum number of operations of a round: on a slow machine a round lasts longer than its seconds."""
MORTAL = (0.5, 0.2, 0.05, 0.05, 0.05, 0.15)
"""Fates of messages that are to die, see ``Consumer.fates``."""
SHORT = (1_000,)
DRAIN_SECONDS = 600.0
"""After this time the checker names the remaining messages, before the time limit of the suite."""

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200 + 30 * ROUNDS)]


class Rounds:
    """The broker, the workers, and the history of all rounds."""

    def __init__(self, folder: Path) -> None:
        self.broker = CrashingBroker(folder, flags=FLAGS)
        self.history = History(wall_offset_ms=time.time() * 1e3 - time.monotonic() * 1e3)
        self.survived = 0
        self._chance = random.Random(SEED)
        self.endpoints = Endpoints(self.history, self._seed())
        self._numbered = [NumberedProducer(f"numbered-{n}", self._seed(), 0.01) for n in range(2)]
        self._numbered.append(NumberedPublisher("numbered-publish", self._seed(), 0.05))
        self._owner = Owner(self._seed(), 0.005)
        self._dedup = [DedupProducer("dedup", self._seed(), 0.02), DedupPublisher("dedup-publish", self._seed(), 0.1)]
        books = Books()
        self._workers: list[Worker] = [
            *(producer.work for producer in self._numbered),
            *(Producer(f"plain-{n}", self._seed(), 0.01).work for n in range(2)),
            *(
                Consumer(queue, self._seed(), acknowledges=acknowledges).work
                for queue in (MAIN, DELAYED)
                for acknowledges in (False, True)
            ),
            self._owner.work,
            *(producer.work for producer in self._dedup),
            Publisher("publish", self._seed(), 0.1).work,
            Troublemaker(self._seed()).work,
            Watcher().work,
            Weeder(self._seed()).work,
            *(Consumer(queue, self._seed(), 0.02, acknowledges=True).work for queue in (APPLES, PEARS, STRICT)),
            Consumer(FICKLE, self._seed(), 0.1).work,
            *(TransactionalProducer(f"half-{n}", self._seed(), books, 0.03).work for n in range(2)),
            *(Checker(self._seed(), books).work for _ in range(2)),
            Consumer(TRANSACTIONAL, self._seed(), 0.01, fates=MORTAL).work,
            *(Consumer(FRAGILE, self._seed(), 0.01, fates=MORTAL, visibilities_ms=SHORT).work for _ in range(2)),
            Consumer(REWOUND, self._seed(), 0.01, visibilities_ms=SHORT).work,
            Consumer(REWOUND, self._seed(), 0.01, fates=MORTAL, visibilities_ms=SHORT).work,
            Rewinder(self._seed(), self.history.wall_offset_ms).work,
            Consumer(DEAD, self._seed(), 0.1).work,
            Redriver(self._seed()).work,
        ]
        # The backlog grows for some rounds, beyond what the broker keeps in memory, and pins its segments; then it
        # is consumed for some, so that segments are dropped.
        self._slow: Worker = Consumer(BACKLOG, self._seed(), pause_seconds=0.15).work
        self._fast: list[Worker] = [Consumer(BACKLOG, self._seed(), acknowledges=n > 0).work for n in range(3)]

    def _seed(self) -> int:
        return self._chance.getrandbits(32)

    async def run(self, rounds: int) -> None:
        """Run at least the given rounds, and up to ``MOST_ROUNDS`` until the load was real.

        Raises BrokerFailedError, or the exception of a worker, in the failed round.
        """
        victims = list(Victim)
        orphan: int | None = None
        for number in count():
            # Chance decides about rare events, so there are more rounds until every kind has happened.
            if number >= rounds:
                missing = shortfalls(self.history)
                if not missing or number >= MOST_ROUNDS:
                    break
                print(f"round {number}: not happened yet: {', '.join(missing)}")
            ready = await asyncio.to_thread(self.broker.start)
            self.history.breaks_ns.append(time.monotonic_ns())
            # The lock of the folder passed to the new broker, so the old storage process must be gone or going.
            if orphan is not None:
                await eventually(partial(has_ended, orphan))
            if number == 0:
                await self._create_all(ready.url)
            backlog = self._fast if number % 12 >= 8 else [self._slow]
            load = asyncio.create_task(work_until_lost(ready.url, self.history, [*self._workers, *backlog]))
            await self._wait_for_work(load)
            self.history.breaks_ns.append(time.monotonic_ns())
            await asyncio.to_thread(self.broker.kill, victims[number % len(victims)])
            await load
            orphan = ready.storage_pid
            self.survived += 1

    async def _wait_for_work(self, load: "asyncio.Task[None]") -> None:
        """Let the load run for some time, and until its operations are enough."""
        enough = len(self.history.operations) + LEAST_OPERATIONS
        await asyncio.wait([load], timeout=self._chance.uniform(*LOAD_SECONDS))
        await eventually(lambda: load.done() or len(self.history.operations) >= enough)
        assert not load.done(), f"the load ended before the kill: {load}\n{self.broker.log_tail()}"

    async def drain(self) -> None:
        ready = await asyncio.to_thread(self.broker.start)
        self.history.breaks_ns.append(time.monotonic_ns())
        session = await Session.connect(ready.url, self.history)
        for producer in self._numbered:
            await producer.repeat_unanswered(session)
        for producer in self._dedup:
            await producer.repeat_unanswered(session)
        await deliver_all(session, self.endpoints, seconds=DRAIN_SECONDS)
        await drain_all(session, [*self._owner.names, *TOPIC_QUEUES], seconds=DRAIN_SECONDS)
        session.close()
        assert await asyncio.to_thread(self.broker.stop) == 0

    async def _create_all(self, url: str) -> None:
        session = await Session.connect(url, self.history)
        await create_queues(session)
        await create_topic(session, self.endpoints)
        session.close()


async def test_kill_nine_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    print(f"CMQD_KILL_SEED={SEED}")
    rounds = Rounds(tmp_path)
    try:
        async with rounds.endpoints.receiver:
            await rounds.run(ROUNDS)
            await rounds.drain()
    finally:
        rounds.broker.clean_up()

    violations = check(rounds.history, drained=True)

    counts = outcomes(rounds.history.operations)
    told = "\n".join(map(str, violations[:20]))
    summary = f"{rounds.survived} rounds, {len(violations)} promises broken, seed {SEED}"
    print(f"kill -9: {summary}: {counts}")
    assert not violations, f"{summary}\n{told}\n{counts}"
    assert rounds.survived >= ROUNDS, summary
    assert shortfalls(rounds.history) == [], summary
    assert {push.status for push in pushes_of(rounds.history, DOWN)} == {200, 503}
    drained = {told.queue for told in rounds.history.of_kind(GetAttributes) if told.done}
    assert drained >= set(QUEUES)


def shortfalls(history: History) -> list[str]:
    """Name the kinds of events that did not happen yet: answers lost at kills, leases that outlived a kill."""
    counts = outcomes(history.operations)
    reasons = Counter(
        delivery.origin.reason
        for one in history.of_kind(Receive)
        for delivery in one.deliveries
        if delivery.origin is not None
    )
    refused = Counter(name for one in history.of_kind(EndTransactions) for name in one.failed.values())
    deliveries = [delivery for one in history.of_kind(Receive) for delivery in one.deliveries]
    seen = {
        "sends": counts.get("Send done", 0),
        "unknown outcomes": sum(not one.done and one.possible for one in history.operations),
        "receives": counts.get("Receive done", 0),
        "deletes": counts.get("Delete done", 0),
        "deletes in receives": counts.get("Acknowledge done", 0),
        "deletes in receives without an answer": counts.get("Acknowledge unknown", 0),
        "deliveries again": sum(delivery.receive_count > 1 for delivery in deliveries),
        "dead letters": reasons["receives"],
        "rejected messages": reasons["rejected"],
        "rejections without an answer": counts.get("DeadLetter unknown", 0),
        "redriven messages": reasons["redrive"],
        "rewound messages": sum(rewind.messages for rewind in history.of_kind(Rewind)),
        "commits refused": refused["already_committed"],
        "rollbacks refused": refused["already_rolled_back"],
        "checks repeated": sum(check.attempt > 1 for check in history.of_kind(Check)),
        "publishes": counts.get("Publish done", 0),
        "pushes": len(pushes_of(history, HEALTHY)),
        "pushes without an answer": sum(push.status == 0 for push in pushes_of(history, FLAKY)),
        "late copies": late_copies(history),
        "dropped deliveries": counts.get("DropDelivery done", 0),
        "drops without an answer": counts.get("DropDelivery unknown", 0),
        "retries of a delivery": counts.get("RetryDelivery done", 0),
    }
    return [name for name, number in seen.items() if not number]
