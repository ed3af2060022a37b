"""Two brokers over three PostgreSQL servers under load, a fault in each round: no acknowledged fact may change.

The faults hit leaders and standbys of both kinds, processes and links (``support.mixed_faults.faults``). The history
has the answers of both brokers, also of a leader that was stopped and goes on, and the checker of the crash tests
judges it: nothing is lost, delivered after an acknowledged delete, or undone, and receive counts are exact. The rows of
the servers are judged too: one leader an epoch, and numbers without gaps.

``CMQD_FAULT_ROUNDS`` asks for more rounds (default 3; ``make test-all`` has more), ``CMQD_FAULT_SEED`` repeats the
choices of an earlier run, and ``CMQD_FAULTS`` names the faults to draw from, in place of all.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

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
)
from support.crash.load_moves import DedupProducer, Redriver, Rewinder
from support.crash.load_topics import APPLES, FILTERS, PEARS, STRICT, TOPIC, NumberedPublisher, Publisher
from support.crash.load_transactions import Books, TransactionalProducer
from support.crash.promises.checker import check
from support.crash.promises.history import GetAttributes, History
from support.crash.session import Session
from support.eventually import eventually
from support.mixed_faults.brokers import Pair
from support.mixed_faults.faults import CLOCKS, FAULTS, Scene, leader_killed
from support.mixed_faults.roles import Roles
from support.mixed_faults.stored import broken_rows, digest, foreign_rows, stored_rows
from support.postgresql.installation import Installation
from support.postgresql.servers import PostgresCluster

ROUNDS = int(os.environ.get("CMQD_FAULT_ROUNDS", "3"))
SEED = int(os.environ.get("CMQD_FAULT_SEED", "0")) or random.SystemRandom().getrandbits(32)
SHORT = [*sorted(FAULTS.keys() - CLOCKS.keys()), random.Random(SEED).choice(sorted(CLOCKS))]
"""Takeovers by a wrong clock have three changes of leaders each: a short run draws from one of them."""
NAMES = os.environ.get("CMQD_FAULTS", "").split() or (SHORT if len(SHORT) > ROUNDS else sorted(FAULTS))

# The smallest possible segments, so that seals, checkpoints and trims happen while the faults go on.
FLAGS = ("--segment-bytes", str(1 << 20))
OPERATIONS_BETWEEN = 150
"""Answered operations between two faults: the load has found its way."""
MORTAL = (0.5, 0.2, 0.05, 0.05, 0.05, 0.15)
"""Fates of messages that are to die, see ``Consumer.fates``."""
ROUND_SECONDS = 180.0
"""After this time a round is stuck: the state of brokers and servers is shown before the time limit of the suite."""
DRAIN_SECONDS = 300.0
COPIED = (APPLES, PEARS, STRICT)
"""Queues that subscribe to the topic; the last one gets every message."""

pytestmark = [pytest.mark.system, pytest.mark.postgresql, pytest.mark.timeout(600 + 60 * ROUNDS)]


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster(Installation.of_session()) as cluster:
        yield cluster


class Load:
    """The workers of all rounds, with the knowledge that they keep over faults."""

    def __init__(self, chance: random.Random, history: History) -> None:
        def seed() -> int:
            return chance.getrandbits(32)

        self._owner = Owner(seed(), 0.1)
        self._numbered = [NumberedProducer("numbered", seed(), 0.1), NumberedPublisher("publish", seed(), 0.3)]
        self._dedup = DedupProducer("dedup", seed(), 0.2)
        self.workers: Sequence[Worker] = (
            *(producer.work for producer in self._numbered),
            self._dedup.work,
            *(Producer(f"plain-{number}", seed(), 0.15).work for number in range(2)),
            Publisher("plain-publish", seed(), 0.2).work,
            TransactionalProducer("half", seed(), Books(), 0.2).work,
            *(Consumer(queue, seed(), 0.05, acknowledges=queue == MAIN).work for queue in (MAIN, MAIN, DELAYED)),
            *(Consumer(queue, seed(), 0.1, acknowledges=queue == APPLES).work for queue in COPIED),
            Consumer(TRANSACTIONAL, seed(), 0.1, fates=MORTAL).work,
            Consumer(FRAGILE, seed(), 0.1, fates=MORTAL, visibilities_ms=(1_000,)).work,
            Consumer(REWOUND, seed(), 0.1, fates=MORTAL, visibilities_ms=(1_000,)).work,
            Consumer(BACKLOG, seed(), 0.5).work,
            Consumer(DEAD, seed(), 0.2).work,
            Rewinder(seed(), history.wall_offset_ms).work,
            Redriver(seed()).work,
            self._owner.work,
        )

    async def create_all(self, session: Session) -> None:
        await create_queues(session)
        await session.create_topic(TOPIC)
        for name in COPIED:
            await session.create_queue(name, {})
            await session.subscribe(TOPIC, name, endpoint=name, filter_tags=FILTERS.get(name, ()))

    async def drain(self, session: Session) -> None:
        for producer in self._numbered:
            await producer.repeat_unanswered(session)
        await self._dedup.repeat_unanswered(session)
        await drain_all(session, [*self._owner.names, *COPIED], seconds=DRAIN_SECONDS)
        await session.get_topic(TOPIC)


async def test_no_fault_of_a_broker_a_server_or_a_link_changes_an_acknowledged_fact(
    cluster: PostgresCluster, tmp_path: Path
) -> None:
    print(f"CMQD_FAULT_SEED={SEED}")
    chance = random.Random(SEED)
    history = History(wall_offset_ms=time.time() * 1e3 - time.monotonic() * 1e3)
    load = Load(chance, history)
    roles = Roles(cluster)
    async with Pair(cluster, tmp_path, FLAGS, history) as pair:
        scene = Scene(cluster, roles, pair, chance)
        pair.start()
        session = await Session.connect((await pair.wait_for_leader()).broker.ready.url, history)
        await load.create_all(session)
        session.close()
        await pair.load(load.workers)
        names = [name for _ in range(0, ROUNDS, len(NAMES)) for name in chance.sample(NAMES, len(NAMES))]
        for number, name in enumerate(names[:ROUNDS]):
            began = time.monotonic()
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await eventually(_operations(history, OPERATIONS_BETWEEN))
                    await FAULTS[name](scene)
                    await asyncio.to_thread(roles.wait_until_whole)
                    await eventually(_operations(history, OPERATIONS_BETWEEN))
            except TimeoutError:
                pytest.fail(f"round {number}, {name}, seed {SEED}, is stuck\n{_state(scene)}")
            assert list(broken_rows(await asyncio.to_thread(stored_rows, roles.primary))) == [], name
            print(f"round {number}: {name}, {time.monotonic() - began:.1f} s, {len(history.operations)} operations")
        pair.unload()
        await leader_killed(scene)
        session = await Session.connect((await pair.wait_for_leader()).broker.ready.url, history)
        await load.drain(session)
        session.close()

    rows = stored_rows(roles.primary)
    assert list(broken_rows(rows)) == []
    roles.wait_until_whole()
    assert len({digest(server) for server in cluster.servers.values()}) == 1
    for broker in pair.brokers:
        assert list(foreign_rows(broker.broker.data, roles.primary)) == []
    assert set(pair.epochs) <= {row.epoch for row in rows}
    violations = check(history, drained=True)
    counts = outcomes(history.operations)
    summary = f"{ROUNDS} rounds, {len(violations)} promises broken, seed {SEED}"
    print(f"mixed faults: {summary}, {pair.leads} leaders, {pair.fenced} of them fenced, {len(rows)} rows: {counts}")
    told = "\n".join(map(str, violations[:20]))
    assert not violations, f"{summary}\n{told}\n{counts}"
    assert pair.faults == [], summary
    drained = {told.queue for told in history.of_kind(GetAttributes) if told.done}
    assert drained >= set(QUEUES)


def _operations(history: History, count: int) -> Callable[[], bool]:
    """Return a condition: so many operations were answered from now on."""
    start = len(history.operations)
    return lambda: sum(one.done for one in history.operations[start:]) >= count


def _state(scene: Scene) -> str:
    told = [f"leader: {scene.pair.leader and scene.pair.leader.name}; primary: {scene.roles.primary.name}"]
    told += [f"--- {broker.name}\n{broker.broker.log_tail()}" for broker in scene.pair.brokers]
    query = (
        "SELECT application_name, state, wait_event, query FROM pg_stat_activity WHERE backend_type = 'client backend'"
    )
    told += map(str, scene.roles.primary.ask(query))
    return "\n".join(told)
