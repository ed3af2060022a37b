"""Workers that use every operation of a broker at once, and resume their work after each restart of the killed broker.

The knowledge of a worker (numbered sends without an answer, receipt handles) outlives the connection: in the next round
the worker repeats the sends and uses the handles. All choices come from a seeded generator; the progress of a worker
before a kill does not.
"""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from support.crash.link import SessionLostError
from support.crash.promises.history import Decision, Delivery, History, Operation, Outcome
from support.crash.session import Session

MAIN, BACKLOG, DELAYED = "main", "backlog", "delayed"
"""A queue consumed as fast as filled; a queue filled faster than consumed; a queue with half its messages delayed."""
FRAGILE, REWOUND, TRANSACTIONAL, DEAD = "fragile", "rewound", "transactional", "dead"
"""A queue with early dead letters; a queue rewound repeatedly; a queue of half messages; their dead-letter queue."""
REWIND_MS = 30_000
"""On a busy machine seconds pass from a send to the delete, and a later rewind must still find the message."""
MOST_CHECKS = 6
QUEUES: Mapping[str, Mapping[str, int | str | bool]] = {
    DEAD: {},
    MAIN: {},
    BACKLOG: {},
    DELAYED: {},
    FRAGILE: {"dead_letter_queue": DEAD, "dead_letter_max_receives": 2},
    REWOUND: {"dead_letter_queue": DEAD, "dead_letter_max_receives": 3, "rewind_ms": REWIND_MS},
    TRANSACTIONAL: {
        "dead_letter_queue": DEAD,
        "dead_letter_max_receives": 4,
        "transactional": True,
        "first_check_ms": 1_000,
        "max_checks": MOST_CHECKS,
    },
}
"""Queues with their attributes, in a possible order of creation."""
DEAD_LETTERED = defaultdict(bool, {name: "dead_letter_queue" in attributes for name, attributes in QUEUES.items()})
"""True if consumers of a queue can reject its messages."""
REJECTED = 0.2
"""Share of the messages that a consumer would delete, and rejects."""
_SENT_TO = {MAIN: 5, BACKLOG: 3, DELAYED: 2, FRAGILE: 1, REWOUND: 1, TRANSACTIONAL: 0.5}
"""Weights of the queues in the choice for a plain send."""

MOST_DELAY_MS = 2_000
MOST_LEASE_MS = 5_000
_PIPELINED = 6
_SOMETIMES_LARGE = 30_000

_DRAIN_LEASE_MS = 30_000

Worker = Callable[[Session], Awaitable[None]]


@dataclass
class NumberedSend:
    """A send to be repeated, with the same number, until answered."""

    target: str
    """A queue, or a topic."""
    bodies: Sequence[bytes]
    sequence: int


def new_bodies(chance: random.Random, name: str, numbers: "count[int]", size: int) -> list[bytes]:
    """Make unique bodies: worker, number, and random bytes that no file system compresses."""
    bodies: list[bytes] = []
    for _ in range(size):
        length = _SOMETIMES_LARGE if chance.random() < 0.01 else chance.choice((0, 30, 200, 800))
        bodies.append(f"{name}/{next(numbers)}/".encode() + chance.randbytes(length))
    return bodies


def any_queue(chance: random.Random) -> str:
    return chance.choices(list(_SENT_TO), list(_SENT_TO.values()))[0]


@dataclass
class Producer:
    """Plain sends: single, in batches, delayed, with headers; several under way at once."""

    name: str
    seed: int
    pause_seconds: float

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._numbers = count()

    async def work(self, session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(_PIPELINED):
                group.create_task(self._send_on(session))

    async def _send_on(self, session: Session) -> None:
        chance = self._chance
        while True:
            queue = any_queue(chance)
            bodies = new_bodies(chance, self.name, self._numbers, chance.choice((1, 1, 1, 4, 16)))
            await session.send(
                queue,
                bodies,
                headers={"worker": self.name, "größe": str(len(bodies))} if chance.random() < 0.3 else None,
                delay_ms=chance.randint(1, MOST_DELAY_MS) if queue == DELAYED and chance.random() < 0.7 else 0,
            )
            await asyncio.sleep(self.pause_seconds)


@dataclass
class NumberedProducer:
    """Numbered sends, repeated until answered, and now and then once more."""

    REMEMBERED = 100
    """Answered sends that may be repeated all the same; well within the broker's last 1,024 of a session."""

    name: str
    seed: int
    pause_seconds: float
    _unanswered: list[NumberedSend] = field(default_factory=list[NumberedSend], init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._numbers = count()
        self._sequences = count(1)
        self._session_number = self._chance.getrandbits(62) + 1
        self._answered: deque[NumberedSend] = deque(maxlen=self.REMEMBERED)

    async def work(self, session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(_PIPELINED):
                group.create_task(self._send_on(session))

    async def repeat_unanswered(self, session: Session) -> None:
        """Send all unanswered sends again."""
        for send in list(self._unanswered):
            if (await self._send(session, send)).outcome is not Outcome.UNKNOWN:
                self._unanswered.remove(send)

    async def _send_on(self, session: Session) -> None:
        chance = self._chance
        while True:
            # Taken off the list while in progress, so that a single task of this worker repeats the send.
            send = self._unanswered.pop(0) if self._unanswered else self._new_send()
            answered = False
            try:
                done = await self._send(session, send)
                answered = done.outcome is not Outcome.UNKNOWN
            finally:
                if not answered:
                    self._unanswered.append(send)
            self._answered.append(send)
            if chance.random() < 0.1:
                # Usually an older handle, often from before the last crash.
                await self._send(session, chance.choice(self._answered))
            await asyncio.sleep(self.pause_seconds)

    def _new_send(self) -> NumberedSend:
        chance = self._chance
        bodies = self._new_bodies(chance.choice((1, 1, 3, 8)))
        return NumberedSend(self._any_target(), bodies, next(self._sequences))

    def _any_target(self) -> str:
        return any_queue(self._chance)

    def _new_bodies(self, size: int) -> list[bytes]:
        return new_bodies(self._chance, self.name, self._numbers, size)

    async def _send(self, session: Session, send: NumberedSend) -> Operation:
        return await session.send(send.target, send.bodies, session=self._session_number, sequence=send.sequence)


@dataclass
class _Held:
    """A message that a consumer keeps for a while, over a crash or until its lease has run out."""

    delivery: Delivery
    queue: str


@dataclass
class Consumer:
    """Receives, and uses every possible operation on the messages."""

    queue: str
    seed: int
    pause_seconds: float = 0.0
    fates: Sequence[float] = (0.84, 0.03, 0.03, 0.03, 0.04, 0.03)
    """Weights of the fates of a message: deleted, released, released uncounted, hidden for a new time and kept, kept,
    and left alone until its visibility timeout ends."""
    visibilities_ms: Sequence[int] = (1_000, 1_000, 2_000, MOST_LEASE_MS)
    acknowledges: bool = False
    """Delete messages with the next receive, and repeat the deletes of a receive without an answer."""
    _held: list[_Held] = field(default_factory=list[_Held], init=False)
    _handled: list[int] = field(default_factory=list[int], init=False)
    """Receipt handles to delete with the next receive."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    async def work(self, session: Session) -> None:
        chance = self._chance
        while True:
            received = await session.receive(
                self.queue,
                max_messages=chance.choice((1, 4, 16, 64)),
                wait_ms=chance.choice((0, 50, 300)),
                visibility_ms=chance.choice(self.visibilities_ms),
                acknowledge=self._handled,
            )
            self._handled.clear()
            await self._handle(session, received.deliveries)
            await self._use_held(session)
            await asyncio.sleep(self.pause_seconds)

    async def _handle(self, session: Session, deliveries: Sequence[Delivery]) -> None:
        chance = self._chance
        delete: list[int] = []
        reject: list[int] = []
        hand_back: dict[bool, list[int]] = {True: [], False: []}
        for delivery in deliveries:
            match chance.choices(range(6), self.fates)[0]:
                case 0 if DEAD_LETTERED[self.queue] and chance.random() < REJECTED:
                    reject.append(delivery.handle)
                case 0:
                    delete.append(delivery.handle)
                case 1:
                    hand_back[True].append(delivery.handle)
                case 2:
                    hand_back[False].append(delivery.handle)
                case 3:
                    visibility_ms = chance.choice((100, 1_500, MOST_LEASE_MS))
                    await session.change_visibility(self.queue, [delivery.handle], visibility_ms)
                    self._held.append(_Held(delivery, self.queue))
                case 4:
                    self._held.append(_Held(delivery, self.queue))
                case _:
                    pass
        if self.acknowledges:
            self._handled += delete
        elif delete:
            await session.delete(self.queue, delete)
        if reject:
            await session.dead_letter(self.queue, reject, f"of {len(deliveries)}")
        for counted, handles in hand_back.items():
            if handles:
                await session.release(self.queue, handles, counted=counted)

    async def _use_held(self, session: Session) -> None:
        """Use kept handles: valid handles, also from before a crash, and expired handles."""
        chance = self._chance
        while len(self._held) > 20 or (self._held and chance.random() < 0.3):
            handle = self._held.pop(chance.randrange(len(self._held))).delivery.handle
            match chance.randrange(4):
                case _ if DEAD_LETTERED[self.queue] and chance.random() < REJECTED:
                    await session.dead_letter(self.queue, [handle], "held")
                case 0:
                    await session.release(self.queue, [handle], counted=False)
                case 1:
                    await session.change_visibility(self.queue, [handle], 1_000)
                case _:
                    await session.delete(self.queue, [handle])


@dataclass
class Owner:
    """Creates queues of its own, changes, fills, clears and deletes them, in sequence."""

    seed: int
    pause_seconds: float
    names: Sequence[str] = ("owned-1", "owned-2")
    prefix: str = "owner"

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._numbers = count()

    async def work(self, session: Session) -> None:
        chance = self._chance
        while True:
            name = chance.choice(self.names)
            match chance.choices(range(7), (3, 1, 3, 4, 3, 3, 2))[0]:
                case 0:
                    await session.create_queue(name, {"polling_wait_ms": chance.randint(0, 100)})
                case 1:
                    await session.delete_queue(name)
                case 2:
                    changes = {"visibility_timeout_ms": chance.randint(1_000, 9_000)}
                    if chance.random() < 0.5:
                        changes["max_message_bytes"] = chance.randint(40_000, 1_048_576)
                    await session.set_attributes(name, changes)
                case 3:
                    await session.send(name, new_bodies(chance, self.prefix, self._numbers, chance.choice((1, 5))))
                case 4:
                    await self._receive(session, name)
                case 5:
                    await session.get_attributes(name)
                case _:
                    await session.clear(name)
            await asyncio.sleep(self.pause_seconds)

    async def _receive(self, session: Session, name: str) -> None:
        received = await session.receive(name, max_messages=3, wait_ms=0, visibility_ms=1_000)
        handles = [delivery.handle for delivery in received.deliveries]
        if handles and self._chance.random() < 0.6:
            await session.delete(name, handles)


async def work_until_lost(url: str, history: History, workers: Sequence[Worker]) -> None:
    """Run every worker on a separate connection, until the broker is gone."""

    async def one(worker: Worker) -> None:
        session: Session | None = None
        try:
            session = await Session.connect(url, history)
            await worker(session)
        except* SessionLostError:
            pass  # the history has the lost requests
        finally:
            if session is not None:
                session.close()

    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(one(worker))


async def create_queues(session: Session) -> None:
    """Create the queues of the load; in a later life of the broker they usually exist."""
    for queue, attributes in QUEUES.items():
        await session.create_queue(queue, {"polling_wait_ms": 50, **attributes})


async def drain_all(session: Session, others: Sequence[str], *, seconds: float) -> None:
    """Drain the broker: list the half messages and commit undecided messages, rewind once more, and empty
    all queues of the load and ``others``; the dead-letter queue comes last, because messages may still move there.
    """
    await session.cancel_redrive(DEAD)
    start: int | None = 0
    undecided: list[int] = []
    while start is not None:
        page = await session.list_half(TRANSACTIONAL, start)
        undecided += page.message_ids
        start = page.next_start
    for first in range(0, len(undecided), 200):
        decisions = dict.fromkeys(undecided[first : first + 200], Decision.COMMIT)
        await session.end_transactions(TRANSACTIONAL, decisions)
    await drain(session, [REWOUND], seconds=seconds)
    await session.rewind(REWOUND, 0)
    last = [queue for queue in QUEUES if queue != DEAD]
    await drain(session, [*last, *others, DEAD], seconds=seconds)


async def drain(session: Session, queues: Sequence[str], *, seconds: float) -> None:
    """Receive and delete until the counts of every queue are 0; the last counts are in the history.

    Gives up after ``seconds``: then the counts in the history show the rest.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    for queue in queues:
        while True:
            received = await session.receive(queue, max_messages=256, wait_ms=100, visibility_ms=_DRAIN_LEASE_MS)
            if received.deliveries:
                await session.delete(queue, [delivery.handle for delivery in received.deliveries])
                continue
            told = await session.get_attributes(queue)
            waiting = sum(told.counts.get(name, 0) for name in ("active", "in_flight", "delayed"))
            if told.outcome is not Outcome.DONE or not waiting or asyncio.get_running_loop().time() > deadline:
                break


def outcomes(operations: Sequence[Operation]) -> dict[str, int]:
    """Count the operations by kind and outcome."""
    table: dict[str, int] = {}
    for operation in operations:
        name = f"{type(operation).__name__} {operation.error or operation.outcome.name.lower()}"
        table[name] = table.get(name, 0) + 1
    return dict(sorted(table.items()))
