"""The receives of a broker of the core, as its memory shows them after each row, and a random work with receives.

The model looks at no record: it compares the leases in memory before and after each row, and knows the operation under
way. So a reader of the log can be compared with it.
"""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyroaring import BitMap64

from cmqd.core.domain_errors import DomainError
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.records import AnyRecord
from cmqd_types.actors import Actor
from support.core import alone
from support.core.builders import NaiveLog, Rig

ACCOUNTS = ("first", "second")
CLIENTS = [Actor("first", f"AKID{number}", name=f"worker-{number}") for number in range(3)]


@dataclass
class Seen:
    """A receive as the model saw it."""

    account: str
    queue: str
    queue_id: int
    position: int
    lease: int
    message_id: int
    from_ms: int
    from_lsn: int
    until_ms: int
    received_by: str
    changes: list[int] = field(default_factory=list[int])
    """Rows that changed the lease."""
    ended_ms: int = 0
    ended_lsn: int = 0
    ended_by: str = ""
    hows: tuple[str, ...] = ()
    """Ways in which the receive may have ended; empty = it is under way."""


class ModelLog(NaiveLog):
    """A log that looks at the broker after each row."""

    def __init__(self) -> None:
        super().__init__()
        self.rig: Rig | None = None
        self.times: list[int] = []
        """Time of each row."""
        self.seen: dict[int, Seen] = {}
        """By lease."""
        self.under_way: dict[int, Seen] = {}
        self.stored_lsn: dict[tuple[int, int], int] = {}
        self.left: dict[tuple[int, int], tuple[int, int]] = {}
        """Time and row at which each message left its queue, by queue id and position."""
        self._live: dict[int, BitMap64] = {}
        self.clears = False
        """True while a queue is cleared."""
        self.answers: dict[int, str] = {}
        """By lease: how the client answers in the call under way."""
        self.client = ""

    def append(self, records: Sequence[AnyRecord], bodies: Sequence[bytes] = ()) -> None:
        super().append(records, bodies)
        if records:
            assert self.rig is not None
            self.times.append(self.rig.now_ms)
            self.stored_lsn |= dict.fromkeys(self.stored.keys() - self.stored_lsn.keys(), self.last_lsn)
            self._look(self.rig)
            self._look_at_messages(self.rig)

    def _look(self, rig: Rig) -> None:
        queues = rig.broker.queues
        for lease, seen in list(self.under_way.items()):
            queue = queues.get(seen.queue_id)
            if queue is None:
                self._end(seen, rig, "queue_deleted")
                continue
            entry = queue.index.leases.by_number.get(lease)
            is_cut = seen.position < queue.index.floor
            if is_cut and entry is None and not self.clears:
                # A row may end leases before or after it cuts the queue.
                self._end(seen, rig, "expired", "lease_ended")
            elif is_cut:
                self._end(seen, rig, "cleared" if self.clears else "expired")
            elif entry is None:
                self._end(seen, rig, self.answers.get(lease, "lease_ended"))
            elif entry.deadline_ms != seen.until_ms:
                seen.until_ms = entry.deadline_ms
                seen.changes.append(self.last_lsn)
        for queue_id, queue in queues.items():
            for lease, entry in queue.index.leases.by_number.items():
                if lease not in self.seen:
                    message_id = self.stored[queue_id, entry.position].message_id
                    seen = Seen(
                        queue.account,
                        queue.name,
                        queue_id,
                        entry.position,
                        lease,
                        message_id,
                        rig.now_ms,
                        self.last_lsn,
                        entry.deadline_ms,
                        self.client,
                    )
                    self.seen[lease] = self.under_way[lease] = seen

    def _look_at_messages(self, rig: Rig) -> None:
        queues = rig.broker.queues
        for queue_id in self._live.keys() | queues.keys():
            before = self._live.get(queue_id, BitMap64())
            now = queues[queue_id].index.live.copy() if queue_id in queues else BitMap64()
            self.left |= {(queue_id, position): (rig.now_ms, self.last_lsn) for position in before - now}
            for position in now - before:
                self.left.pop((queue_id, position), None)
            self._live[queue_id] = now

    def _end(self, seen: Seen, rig: Rig, *hows: str) -> None:
        seen.hows, seen.ended_ms, seen.ended_lsn = hows, rig.now_ms, self.last_lsn
        if hows[0] in self.answers.values():
            seen.ended_by = self.client
        del self.under_way[seen.lease]


class Work:
    """Random operations of two accounts with receives of all ends, with checkpoints in between."""

    def __init__(self, seed: int, *, steps_back: bool = False) -> None:
        self._choose = random.Random(seed)
        self._steps_back = steps_back
        self.log = ModelLog()
        self.rig = self.log.rig = Rig(log=self.log)
        self.checkpoints: list[list[AnyPart]] = []
        self._handles: dict[tuple[str, str], list[int]] = {}
        for account in ACCOUNTS:
            self._create(account, "dead", rewind_ms=60_000)
            self._create(
                account, "q", dead_letter_queue="dead", dead_letter_max_receives=3, rewind_ms=60_000, max_delayed=3
            )
            self._create(account, "plain", retention_ms=60_000)

    def _create(self, account: str, name: str, **attributes: int | str | bool) -> None:
        self.rig.done(self.rig.broker.create_queue(account, name, attributes, self.rig.now_ms))

    def run(self, steps: int) -> None:
        """Make steps; each is a few rows."""
        under_way = None
        for _ in range(steps):
            if under_way is None and self._choose.random() < 0.05:
                under_way = self.rig.broker.checkpoint(lambda: self.log.last_lsn, self.rig.now_ms)
                self.checkpoints.append([])
            if under_way is not None:
                part = next(under_way, None)
                if part is None:
                    under_way = None
                else:
                    self.checkpoints[-1].append(part)
            with suppress(DomainError):  # not possible at this moment
                self._step(self._choose.choice(ACCOUNTS), self._choose.choice(("q", "q", "plain", "dead")))
            self.log.answers.clear()
            self.log.clears = False
            self.rig.settle()
        if under_way is not None:
            self.checkpoints[-1].extend(under_way)
        for account in ACCOUNTS:
            self._received(account, "q", CLIENTS[0], 50_000)

    def _step(self, account: str, name: str) -> None:
        choose, rig, log = self._choose, self.rig, self.log
        broker, now_ms = rig.broker, rig.now_ms
        held = self._handles.setdefault((account, name), [])
        choose.shuffle(held)
        some = [held.pop() for _ in range(min(len(held), choose.randrange(1, 4)))]
        actor = choose.choice(CLIENTS)
        log.client = f"{actor.name} ({actor.secret_id})"
        match choose.randrange(16):
            case 0 | 1 | 2:
                bodies = [b"x"] * choose.randrange(1, 6)
                delay_ms = choose.choice([None, None, 500])
                rig.done(
                    alone.send(broker, account, choose.choice(("q", "plain")), bodies, None, delay_ms, 0, 0, now_ms)
                )
            case 3 | 4 | 5 | 6:
                held += some
                held += self._received(account, name, actor, choose.choice([1000, 4000, 50_000]))
            case 7 | 8:
                self._answers("deleted", account, some)
                rig.done(broker.delete_all(account, name, [some], now_ms, actors=[actor]))
            case 9:
                self._answers("released", account, some)
                rig.done(broker.release(account, name, some, choose.random() < 0.5, now_ms, actor=actor))
            case 10:
                self._answers("dead_lettered", account, some)
                rig.ask(lambda waiter: broker.dead_letter(account, name, waiter, some, ["no"], now_ms, actor=actor))
            case 11:
                held += some
                timeout_ms = choose.choice([1000, 3000, 30_000])
                rig.done(broker.change_visibility(account, name, some, timeout_ms, now_ms, actor=actor))
            case 12 if choose.random() < 0.5:
                rig.ask(lambda waiter: broker.rewind(account, name, waiter, now_ms - 30_000, False, now_ms))
            case 13 if choose.random() < 0.3:
                log.clears = True
                rig.done(broker.clear_queue(account, name, now_ms))
            case 14 if choose.random() < 0.4:
                if name == "plain":
                    self._received(account, name, actor, 50_000)
                    rig.done(broker.delete_queue(account, name, now_ms))
                    self._create(account, name, retention_ms=60_000)
                elif name == "dead":
                    rig.done(broker.start_redrive(account, "dead", None, None, now_ms))
            case 15 if self._steps_back and choose.random() < 0.2:
                rig.now_ms -= 40_000_000
                rig.done(broker.set_clock_offset(0, rig.now_ms, stepped=True))
            case _:
                held += some
                rig.settle(choose.choice([10, 400, 1100, 4000, 30_000]))

    def _received(self, account: str, name: str, actor: Actor, visibility_timeout_ms: int) -> list[int]:
        rig = self.rig
        self.log.client = f"{actor.name} ({actor.secret_id})"
        request = alone.Receive(self._choose.randrange(1, 5), 0, visibility_timeout_ms)
        got = rig.ask(
            lambda waiter: alone.only(
                rig.broker.receive_all(account, name, [request], [waiter], rig.now_ms, actors=[actor])
            )
        )
        return [message.receipt_handle for message in got]

    def _answers(self, how: str, account: str, handles: list[int]) -> None:
        leases = self.rig.broker.handles.leases(handles)
        self.log.answers.update(dict.fromkeys(leases, how))
