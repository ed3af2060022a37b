"""Workers with transactions: producers that decide their half messages, or not, and checkers that decide the rest.

The outcome of a local transaction stands in ``Books``, like in a producer's own database: no kill touches the books. A
producer writes the outcome before telling the broker; a checker reads the books.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from support.crash.link import SessionLostError
from support.crash.load import TRANSACTIONAL, new_bodies
from support.crash.promises.history import Check, Decision, Outcome
from support.crash.session import Session

_UNDER_WAY = 4
_ANSWERED_AT_ONCE = 20


@dataclass
class Books:
    """Local transactions by the body of their message; a missing transaction did not happen (yet)."""

    outcomes: dict[bytes, Decision] = field(default_factory=dict[bytes, Decision])

    def close(self, body: bytes, outcome: Decision) -> Decision:
        """End a local transaction; returns its earlier end, if there is one."""
        return self.outcomes.setdefault(body, outcome)


@dataclass
class _HalfSend:
    bodies: Sequence[bytes]
    sequence: int
    dedup_ids: Sequence[str]
    first_check_ms: int
    headers: Mapping[str, str] | None

    @property
    def is_repeatable(self) -> bool:
        return bool(self.sequence or self.dedup_ids)


@dataclass
class TransactionalProducer:
    """Sends half messages, ends their local transactions and decides them; leaves some to the checkers, and a few
    undecided. Repeats requests without an answer, where a repeat is safe; repeats decisions, and tries opposite
    decisions.
    """

    name: str
    seed: int
    books: Books
    pause_seconds: float
    _unanswered: list[_HalfSend] = field(default_factory=list[_HalfSend], init=False)
    _undecided: list[dict[int, Decision]] = field(default_factory=list[dict[int, Decision]], init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._numbers = count()
        self._sequences = count(1)
        self._session_number = self._chance.getrandbits(62) + 1

    async def work(self, session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(_UNDER_WAY):
                group.create_task(self._produce(session))

    async def _produce(self, session: Session) -> None:
        while True:
            if self._undecided:
                await self._decide(session, self._undecided.pop(0))
            send = self._unanswered.pop(0) if self._unanswered else self._new_send()
            answered = False
            try:
                done = await session.send_half(
                    TRANSACTIONAL,
                    send.bodies,
                    headers=send.headers,
                    first_check_ms=send.first_check_ms,
                    session=self._session_number if send.sequence else 0,
                    sequence=send.sequence,
                    dedup_ids=send.dedup_ids,
                )
                answered = done.outcome is not Outcome.UNKNOWN
            finally:
                if not answered and send.is_repeatable:
                    self._unanswered.append(send)
            if done.done:
                await self._decide(session, self._run_local(send, done.message_ids))
            await asyncio.sleep(self.pause_seconds)

    def _new_send(self) -> _HalfSend:
        chance = self._chance
        bodies = new_bodies(chance, self.name, self._numbers, chance.choice((1, 1, 3, 8)))
        way = chance.randrange(3)
        return _HalfSend(
            bodies,
            sequence=next(self._sequences) if way == 0 else 0,
            dedup_ids=[body.split(b"/")[1].decode() + f"-{self.name}" for body in bodies] if way == 1 else (),
            first_check_ms=chance.choice((0, 0, 1_200, 2_500)),
            headers={"worker": self.name} if chance.random() < 0.2 else None,
        )

    def _run_local(self, send: _HalfSend, message_ids: Sequence[int]) -> dict[int, Decision]:
        """The half messages to decide at once, and their decisions."""
        chance = self._chance
        decisions: dict[int, Decision] = {}
        for body, message_id in zip(send.bodies, message_ids, strict=True):
            outcome = chance.choices((Decision.COMMIT, Decision.ROLL_BACK, None), (6, 3, 1))[0]
            if outcome is None:
                continue  # the local transaction never ends
            outcome = self.books.close(body, outcome)
            if chance.random() < 0.75:
                decisions[message_id] = outcome
            elif chance.random() < 0.2:
                decisions[message_id] = Decision.UNKNOWN
        return decisions

    async def _decide(self, session: Session, decisions: dict[int, Decision]) -> None:
        if not decisions:
            return
        answered = False
        try:
            done = await session.end_transactions(TRANSACTIONAL, decisions)
            answered = done.outcome is not Outcome.UNKNOWN
        finally:
            if not answered and self._chance.random() < 0.7:
                self._undecided.append(decisions)
        if self._chance.random() < 0.1:
            await session.end_transactions(TRANSACTIONAL, decisions)
        if self._chance.random() < 0.1:
            turned = {Decision.COMMIT: Decision.ROLL_BACK, Decision.ROLL_BACK: Decision.COMMIT}
            opposite = {number: turned.get(decision, decision) for number, decision in decisions.items()}
            await session.end_transactions(TRANSACTIONAL, opposite)


@dataclass
class Checker:
    """Answers checks from the books, on connections that end again and again with checks unanswered."""

    seed: int
    books: Books

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    async def work(self, session: Session) -> None:
        while not session.is_lost:
            own = await session.another()
            try:
                await self._answer_for_a_while(own)
            finally:
                own.close()
        raise SessionLostError

    async def _answer_for_a_while(self, session: Session) -> None:
        chance = self._chance
        checks: asyncio.Queue[Check] = asyncio.Queue()
        session.on_check = checks.put_nowait
        await session.register_checker(TRANSACTIONAL)
        clock = asyncio.get_running_loop().time
        until = clock() + chance.uniform(0.05, 1.0)
        while clock() < until and not session.is_lost:
            try:
                check = await asyncio.wait_for(checks.get(), 0.05)
            except TimeoutError:
                continue
            found = [check]
            while not checks.empty() and len(found) < _ANSWERED_AT_ONCE:
                found.append(checks.get_nowait())
            decisions = {check.message_id: self._find(check) for check in found if chance.random() < 0.85}
            if decisions:
                await session.end_transactions(TRANSACTIONAL, decisions)

    def _find(self, check: Check) -> Decision:
        found = self.books.outcomes.get(check.body)
        if found is None and check.attempt > 2 and self._chance.random() < 0.5:
            # The transaction will never happen: later checkers read that in the books.
            return self.books.close(check.body, Decision.ROLL_BACK)
        return found or Decision.UNKNOWN
