"""The model's own list of callers, against the clients that records name."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, cast

from cmqd.core.broker import Broker
from cmqd.core.outcome import Outcome, ReceivedAfterDeletes
from cmqd_segment.actor_runs import actor_numbers
from cmqd_segment.checkpoint import ActorsSlice, AnyPart, CheckpointHeader
from cmqd_segment.records import (
    ActorSeen,
    AnyRecord,
    MessagesDeadLettered,
    MessagesDeleted,
    MessagesPublished,
    MessagesReceived,
    MessagesReleased,
    MessagesSent,
    ScheduleFired,
    TransactionsEnded,
    TransactionsUndecided,
    VisibilityChanged,
    unpack_runs,
)
from cmqd_types.actors import Actor
from cmqd_types.messages import ReceivedMessage
from support.core.naive_broker import NaiveQueue

SHARE = 3
"""Most actors of a key: fewer than the names of the first key."""
CLIENTS = [Actor("admin", "AKIDone", f"worker {number}", "10.0.0.1") for number in range(5)] + [
    Actor("admin", "AKIDtwo", "worker 0", "10.0.0.1"),
    Actor("admin", "AKIDtwo", "worker 0", "10.0.0.2", "10.0.0.1"),
]


class Callers:
    """Gives every operation of a broker a client, and checks that the records name it."""

    def __init__(self) -> None:
        self._turns = count()
        self._caller = CLIENTS[0]
        """Of the last operation."""
        self._of_waiter: dict[int, Actor] = {}
        self._last_waiter = 0
        self._deciders: dict[int, set[Actor]] = {}
        """Clients that decided about a half message, by its id."""
        self._known: dict[int, Actor] = {}
        """By number, over the whole log."""
        self._names = Counter[str]()
        """Names that ever got a number, by key."""

    def give_clients(self, broker: Broker) -> None:
        """Let each operation of a broker be made by the next client."""
        for name in ("send_all", "delete_all", "publish", "receive_all"):
            setattr(broker, name, self._joined(getattr(broker, name), has_waiters=name == "receive_all"))
        for name in ("change_visibility", "release", "send_half", "end_transactions", "dead_letter"):
            setattr(broker, name, self._single(getattr(broker, name), name))

    def _next(self) -> Actor:
        # Several operations in a row by one client, then the next.
        self._caller = CLIENTS[next(self._turns) * 3 // 4 % len(CLIENTS)]
        return self._caller

    def _joined(self, call: Callable[..., Any], *, has_waiters: bool) -> Callable[..., Any]:
        def acting(account: str, name: str, requests: Sequence[Any], *more: Any, **named: Any) -> Any:
            assert len(requests) == 1, "the machines make one request at a time"
            actor = self._next()
            if has_waiters:
                (self._last_waiter,) = more[0]
                self._of_waiter[self._last_waiter] = actor
            return call(account, name, requests, *more, **named, actors=[actor])

        return acting

    def _single(self, call: Callable[..., Any], operation: str) -> Callable[..., Any]:
        def acting(account: str, name: str, first: Any, *more: Any) -> Any:
            actor = self._next()
            if operation in ("end_transactions", "dead_letter"):
                self._of_waiter[first] = actor
            if operation == "end_transactions":
                for message_id in more[0]:
                    self._deciders.setdefault(message_id, set()).add(actor)
            return call(account, name, first, *more, actor=actor)

        return acting

    # ------------------------------------------------------------------ records

    def judge(self, outcome: Outcome[Any], queue_of: Callable[[int], NaiveQueue], broker: Broker) -> None:
        """Judge the clients in the records of an outcome, before the model takes them over."""
        received: dict[int, Actor | None] = {}
        new: set[int] = set()
        is_firing = any(isinstance(record, ScheduleFired) for record in outcome.records)
        committed = 0
        for record in outcome.records:
            named = list(self._named(record))
            new -= set(self._numbers(record))
            match record:
                case ActorSeen():
                    self._take(record)
                    new.add(record.number)
                case MessagesSent() if committed and not record.origins and not record.copies_of:
                    committed -= len(record.sizes)
                    for offset, actor in enumerate(named):
                        self._check(actor, self._deciders[record.first_message_id + offset])
                case MessagesSent() if record.origins or record.copies_of or is_firing:
                    assert not record.actors, "the broker made these messages"
                case MessagesSent() | MessagesPublished() | MessagesDeleted() | MessagesReleased():
                    assert len(record.actors) == 1, "one request makes the record"
                    self._check(named[0], {self._caller})
                case VisibilityChanged():
                    self._check(named[0], {self._caller})
                case MessagesReceived():
                    received.update(enumerate(named, record.first_lease))
                case MessagesDeadLettered():
                    messages = queue_of(record.queue_id).messages
                    for position, actor in zip(unpack_runs(record.positions), named, strict=True):
                        self._check(actor, {self._of_waiter[messages[position].rejected_by]})
                case TransactionsEnded() | TransactionsUndecided():
                    halves = {half.position: half for half in queue_of(record.queue_id).halves.values()}
                    for position, actor in zip(unpack_runs(record.positions), named, strict=True):
                        self._check(actor, self._deciders[halves[position].message_id])
                    if isinstance(record, TransactionsEnded) and record.committed:
                        committed += len(named)
                case _:
                    pass
        assert not new, "an actor got a number, and no record names it"
        self._judge_received(outcome, received, broker)

    def _judge_received(self, outcome: Outcome[Any], received: dict[int, Actor | None], broker: Broker) -> None:
        """Check that the client of each receive is the client of its leases."""
        replies: list[tuple[int, Any]] = [(woken.waiter_id, woken.reply) for woken in outcome.woken]
        own: object = outcome.reply
        direct = cast("list[Any]", own) if isinstance(own, list) else []
        if direct and type(direct[0]) is ReceivedAfterDeletes:
            replies.append((self._last_waiter, cast("Any", direct[0]).reply))
        else:
            replies.append((self._last_waiter, direct))
        for waiter_id, reply in replies:
            messages = cast("list[Any]", reply) if isinstance(reply, list) else []
            if messages and isinstance(messages[0], ReceivedMessage):
                for lease in broker.handles.leases([message.receipt_handle for message in messages]):
                    self._check(received.pop(lease), {self._of_waiter[waiter_id]})
        assert not received, "messages were received by no receive"

    def _take(self, record: ActorSeen) -> None:
        assert record.number > max(self._known, default=0), "a number was used twice"
        self._known[record.number] = record.actor
        if record.actor.name:
            self._names[record.actor.secret_id] += 1

    def _check(self, actor: Actor | None, expected: set[Actor]) -> None:
        if actor in expected:
            return
        # Beyond its share, the clients of a key are one actor.
        keys = {Actor(each.account, each.secret_id) for each in expected}
        assert actor in keys, "a record names another client"
        assert self._names[actor.secret_id] >= SHARE, "a key has less than its share"

    def _named(self, record: AnyRecord) -> Iterator[Actor | None]:
        """The client of each message of a record."""
        match record:
            case MessagesSent() | MessagesPublished():
                size = len(record.sizes)
            case MessagesReceived() | MessagesDeleted() | MessagesDeadLettered():
                size = len(unpack_runs(record.positions))
            case TransactionsEnded() | TransactionsUndecided():
                size = len(unpack_runs(record.positions))
            case MessagesReleased() | VisibilityChanged():
                size = len(unpack_runs(record.leases))
            case _:
                return
        for number in actor_numbers(record.actors, size):
            yield self._known[number] if number else None

    def _numbers(self, record: AnyRecord) -> Sequence[int]:
        actors: Sequence[int] = getattr(record, "actors", ())
        return actors if len(actors) == 1 else actors[1::2]

    # ------------------------------------------------------------------ checkpoints

    def check_checkpoint(self, parts: list[AnyPart], records: list[tuple[int, AnyRecord]], sealed_upto: int) -> None:
        """A checkpoint has every actor that a row outside of sealed segments names."""
        header = parts[0]
        assert isinstance(header, CheckpointHeader)
        kept = {number: actor for part in parts if isinstance(part, ActorsSlice) for number, actor in part.actors}
        for lsn, record in records:
            if sealed_upto < lsn <= header.lsn:
                for number in self._numbers(record):
                    assert number == 0 or kept[number] == self._known[number], "a row names an actor that is forgotten"

    def check_same(self, broker: Broker, recovered: Broker) -> None:
        """A recovered broker gives an actor the same number or a new one, and a new actor a number that no actor had.

        The checkpoint may have forgotten an actor that a start from the whole log has made known again.
        """
        live, same = broker.facts.actors, recovered.facts.actors
        same.check_invariants()
        for actor, entry in live._entries.items():  # pyright: ignore[reportPrivateUsage]
            recovered_entry = same._entries.get(actor, entry)  # pyright: ignore[reportPrivateUsage]
            assert recovered_entry.number == entry.number
        assert same.next_number > max(self._known, default=0)
