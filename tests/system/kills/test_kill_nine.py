"""kill -9 under load, again and again on the same data folder: no acknowledged fact may change.

The load sends, receives, delays, lets messages die and redrives them, rewinds, and decides half messages or leaves them
to checkers that go away: never lost, never in two queues, never half-committed. It also publishes to a topic with
queues that refuse copies for a time, and with URLs that fail: every matching subscriber gets all messages, and no other
subscriber gets a message. Single messages of a subscription are retried and dropped: an acknowledged drop stays.

The first half of the kills comes at random moments. The others bring on purpose the kinds of events that have not
happened, so that few rounds suffice on a machine of any speed.

``CMQD_KILL_ROUNDS`` asks for more rounds (default 6; ``make test-all`` has more), ``CMQD_KILL_SEED`` repeats the
choices of an earlier run.
"""

import asyncio
import os
import random
import time
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from support.crash.broker import WAY_COMMITS, CrashingBroker, Victim, has_ended
from support.crash.events import Events, strike_during
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
    pushes_of,
)
from support.crash.load_transactions import Books, Checker, TransactionalProducer
from support.crash.promises.checker import check
from support.crash.promises.history import GetAttributes, History
from support.crash.session import Session
from support.eventually import eventually

ROUNDS = int(os.environ.get("CMQD_KILL_ROUNDS", "6"))
SEED = int(os.environ.get("CMQD_KILL_SEED", "0")) or random.SystemRandom().getrandbits(32)

# The smallest possible segments, so that rolls, seals, checkpoints and drops happen while the killing goes on.
FLAGS = ("--segment-bytes", str(1 << 20), *PUSH_FLAGS)
LOAD_SECONDS = (0.2, 1.0)
MOST_ROUNDS = ROUNDS + 6
"""Rounds beyond the asked number are for kinds of events that have not happened."""
LEAST_OPERATIONS = 200
"""Minimum number of operations of a round: on a slow machine a round lasts longer than its seconds."""
PURPOSE_SECONDS = 60.0
"""Longest wait of a round for missing kinds of events; the next round waits again."""
MORTAL = (0.5, 0.2, 0.05, 0.05, 0.05, 0.15)
"""Fates of messages that are to die, see ``Consumer.fates``."""
SHORT = (1_000,)
DRAIN_SECONDS = 600.0
"""After this time the checker names the remaining messages, before the time limit of the suite."""

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200 + 30 * ROUNDS)]


class Rounds:
    """The broker, the workers, and the history of all rounds."""

    def __init__(self, folder: Path) -> None:
        self.broker = CrashingBroker(folder, flags=FLAGS, way_commits=WAY_COMMITS)
        self.history = History(wall_offset_ms=time.time() * 1e3 - time.monotonic() * 1e3)
        self.events = Events(self.history)
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
        """Run at least the given rounds, and up to ``MOST_ROUNDS`` until each kind of event has happened.

        Raises BrokerFailedError, or the exception of a worker, in the failed round.
        """
        victims = list(Victim)
        cycle = min(rounds, 12)
        """Rounds in which the backlog grows and goes."""
        orphan: int | None = None
        for number in count():
            before = self.events.happened()
            if number >= rounds and (not self.events.missing() or number >= MOST_ROUNDS):
                break
            ready = await asyncio.to_thread(self.broker.start)
            self.history.breaks_ns.append(time.monotonic_ns())
            # The lock of the folder passed to the new broker, so the old storage process must be gone or going.
            if orphan is not None:
                await eventually(partial(has_ended, orphan))
            if number == 0:
                await self._create_all(ready.url)
            backlog = self._fast if number % cycle >= cycle * 2 // 3 else [self._slow]
            load = asyncio.create_task(work_until_lost(ready.url, self.history, [*self._workers, *backlog]))
            await self._wait_for_work(load)
            if number >= rounds - 1:
                await self._complete_life()
            assert not load.done(), f"the load ended before the kill: {load}\n{self.broker.log_tail()}"
            await self._strike(victims[number % len(victims)], on_purpose=number >= rounds // 2)
            await asyncio.to_thread(self.broker.wait_for_death)
            await load
            orphan = ready.storage_pid
            self.survived += 1
            print(f"round {number}: first {', '.join(sorted(self.events.happened() - before)) or 'nothing'}")

    async def _wait_for_work(self, load: "asyncio.Task[None]") -> None:
        """Let the load run for some time, and until its operations are enough."""
        enough = len(self.history.operations) + LEAST_OPERATIONS
        await asyncio.wait([load], timeout=self._chance.uniform(*LOAD_SECONDS))
        await eventually(lambda: load.done() or len(self.history.operations) >= enough)

    async def _complete_life(self) -> None:
        """Let the load run until all kinds of events that need no kill have happened."""
        with suppress(TimeoutError):
            await asyncio.wait_for(eventually(self.events.is_life_complete), PURPOSE_SECONDS)

    async def _strike(self, victim: Victim, *, on_purpose: bool) -> None:
        """Kill, on purpose during an operation that no kill has cut off so far."""

        def strike() -> None:
            self.history.breaks_ns.append(time.monotonic_ns())
            self.broker.strike(victim)

        missing = self.events.missing_cut_off() if on_purpose else []
        if missing:
            await strike_during(missing[0], strike, self.history, self._chance, seconds=PURPOSE_SECONDS)
        else:
            strike()

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
    assert rounds.events.missing() == [], summary
    assert {push.status for push in pushes_of(rounds.history, DOWN)} == {200, 503}
    drained = {told.queue for told in rounds.history.of_kind(GetAttributes) if told.done}
    assert drained >= set(QUEUES)
