"""Workers about moves and repeats: redrives, rewinds, and sends with dedup ids."""

import asyncio
import random
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from support.crash.load import DEAD, MAIN, REWIND_MS, REWOUND, any_queue, new_bodies
from support.crash.promises.history import Operation, Outcome
from support.crash.session import Session


@dataclass
class Redriver:
    """Sends dead letters back to their origins, or to a given queue; slowly at times; cancels at times."""

    seed: int

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    async def work(self, session: Session) -> None:
        chance = self._chance
        while True:
            await asyncio.sleep(chance.uniform(0.05, 0.5))
            await session.start_redrive(
                DEAD,
                target=MAIN if chance.random() < 0.2 else "",
                max_per_second=chance.choice((None, None, 50)),
            )
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0.0, 0.2))
                await session.cancel_redrive(DEAD)


@dataclass
class Rewinder:
    """Rewinds to times in the window, near its end as a rule, and before it."""

    seed: int
    wall_offset_ms: float

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    async def work(self, session: Session) -> None:
        chance = self._chance
        while True:
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            now_ms = time.monotonic() * 1e3 + self.wall_offset_ms
            back_ms = chance.choice((0.1, 0.3, 0.95, 1.0, 1.2)) * REWIND_MS
            await session.rewind(REWOUND, int(now_ms - back_ms), strict=chance.random() < 0.2)


@dataclass
class DedupSend:
    target: str
    """A queue, or a topic."""
    bodies: list[bytes]
    dedup_ids: list[str]
    made: float


@dataclass
class DedupProducer:
    """Sends with dedup ids, repeated until answered, and now and then once more, also next to new messages."""

    REMEMBERED_SECONDS = 200.0
    """Well within the five minutes for which a broker remembers dedup ids."""

    name: str
    seed: int
    pause_seconds: float
    _unanswered: list[DedupSend] = field(default_factory=list[DedupSend], init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._numbers = count()
        self._answered: deque[DedupSend] = deque(maxlen=100)

    async def work(self, session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(self._send_on(session))

    async def repeat_unanswered(self, session: Session) -> None:
        """Send all messages without an answer again."""
        for send in [send for send in self._unanswered if self._is_remembered(send)]:
            await self._send(session, send)

    async def _send_on(self, session: Session) -> None:
        while True:
            # Taken off the list while under way, so that a single task of this worker repeats the send.
            send = self._unanswered.pop(0) if self._unanswered else self._new_send()
            if not self._is_remembered(send):
                continue
            answered = False
            try:
                answered = (await self._send(session, send)).outcome is not Outcome.UNKNOWN
            finally:
                if not answered:
                    self._unanswered.append(send)
            self._answered.append(send)
            await asyncio.sleep(self.pause_seconds)

    def _new_send(self) -> DedupSend:
        chance = self._chance
        while self._answered and not self._is_remembered(self._answered[0]):
            self._answered.popleft()
        if self._answered and chance.random() < 0.15:
            old = chance.choice(self._answered)
            if chance.random() < 0.5:
                return old
            # Some messages that are stored already, and a new message.
            new = self._new(old.target, 1)
            bodies, dedup_ids = [*old.bodies[:2], *new.bodies], [*old.dedup_ids[:2], *new.dedup_ids]
            return DedupSend(old.target, bodies, dedup_ids, old.made)
        return self._new(self._any_target(), chance.choice((1, 1, 4)))

    def _any_target(self) -> str:
        return any_queue(self._chance)

    def _new_bodies(self, size: int) -> list[bytes]:
        return new_bodies(self._chance, self.name, self._numbers, size)

    def _new(self, target: str, size: int) -> DedupSend:
        bodies = self._new_bodies(size)
        dedup_ids = [body.split(b"/")[1].decode() + f"-{self.name}" for body in bodies]
        return DedupSend(target, bodies, dedup_ids, time.monotonic())

    def _is_remembered(self, send: DedupSend) -> bool:
        return time.monotonic() - send.made < self.REMEMBERED_SECONDS

    async def _send(self, session: Session, send: DedupSend) -> Operation:
        return await session.send(send.target, send.bodies, dedup_ids=send.dedup_ids)
