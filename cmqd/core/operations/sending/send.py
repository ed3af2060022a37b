"""Sending: batches, delays and numbered sends. (:mod:`cmqd.core.operations.sending.batch_checks` checks a batch.)

All checks come before the first change. Message ids are taken and the record is applied only when the whole batch is
valid, so a refused send leaves no trace.

The order of the checks of a send:

1. A repeat of a numbered send. The repeat is answered with its ids even if its batch would be refused by now: the
   messages are stored, and a refusal would say that they are not.
2. The predecessor (``after``): a dedup id that the queue must remember. A producer with several sends under way names
   in every send the last message of the send before, so no send is stored before its predecessor, even if sends are
   refused, lost or repeated. An earlier check could be overtaken. A send behind a missing predecessor is refused as out
   of order, whatever else is wrong with the send: the producer must repeat the predecessor first.
3. The batch: sizes, dedup ids, promises, room (``batch_checks``), then the delays. A delay is shorter
   than the retention; a message with a longer delay would expire before a consumer could receive the message.

Plain sends of a call are checked one by one, against the state before the call plus the earlier sends of the call. The
record is applied once, at the end, so index and sessions do not know these sends.

- A repeat within the call is found among the sends of the call; a producer may have repeated a send over a second
  connection. With the sessions alone the repeat would be stored a second time.
- A session counts against the share of its account once, however many of its sends are in the call.
- Room is checked last, because it depends on the earlier sends. A refused send takes no room, so a smaller send behind
  it can still fit.

After a send the receives in line are served in the same outcome. Send and receive share a row, and the message goes out
with a single commit.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

from cmqd.core.domain_errors import BacklogFull, DomainError, InvalidArgument, OutOfOrder
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import check_range, checked_sizes
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.operations.sending.batch_checks import Batches
from cmqd.core.operations.sending.repeats import at_places
from cmqd.core.operations.sending.storing import Store
from cmqd.core.outcome import Effects, Outcome, SendRequest
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import AnyRecord, MessagesSent
from cmqd_types.actors import Actor
from cmqd_types.sentences import duration, sentence, time

_ONE_EACH: Final = repeat(1)


class Send:
    """Sends to a queue."""

    def __init__(self, facts: Facts, runtime: Runtime, batches: Batches, store: Store, serving: Serving) -> None:
        self._limits = facts.limits
        self._numbers = facts.numbers
        self._actors = facts.actors
        self._promises = facts.promises
        self._sessions = facts.promises.sessions
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._batches = batches
        self._store = store
        self._serving = serving

    def send_one(
        self, queue: Queue, request: SendRequest, now_ms: int, actors: Sequence[Actor] = ()
    ) -> Outcome[Sequence[int]]:
        """Store a batch, whole or not at all; the reply is its message ids. ``actors``: the client, or empty.

        A numbered send (``session`` and ``sequence`` not 0) that was stored before gets the same ids again. A body with
        a dedup id that the queue remembers, or that an earlier body of the batch has, is not stored: its id in the
        reply is the id of the first message with that dedup id.

        Raises:
            InvalidArgument, MessageTooLarge, BatchTooLarge, BacklogFull, SequenceTooOld, OutOfOrder, TooManyRemembered.
        """
        index = queue.index
        ids = self._batches.stored_before(queue, request, now_ms)
        if ids is not None:
            return Outcome(ids)
        if request.after is not None and queue.dedup_ids.find(request.after, now_ms) is None:
            raise OutOfOrder("queue", queue.name, request.after)
        # From here on a refusal is still free of traces; after ``take_message_ids`` none may come.
        batch = self._batches.check(queue, request, now_ms)
        # Times of a queue never decrease, even if the clock does: the floor of the retention is a single position.
        enqueue_ms = max(now_ms, index.last_enqueue_ms)
        delay_ms = self._delay_ms(request, index.attributes.delay_ms, enqueue_ms)
        if batch.repeats is not None:
            # A list of delays is checked for all bodies, repeats included: its length must fit the request and not the
            # bodies that remain to be stored.
            if isinstance(delay_ms, list):
                self._visible_ms(queue, delay_ms, len(request.bodies), enqueue_ms)
                delay_ms = at_places(delay_ms, batch.repeats.new)
            if not batch.sizes:
                return Outcome(batch.message_ids(0))
        # From the time of the queue and not from now: after a step back of the clock a delay ends its full length after
        # the send time that the record has.
        visible_ms = None if delay_ms == 0 else self._visible_ms(queue, delay_ms, len(batch.sizes), enqueue_ms)
        records: list[AnyRecord] = []
        # The reservation of ids, if one is needed, comes before the record that uses the ids, in the same row.
        # Otherwise a crash could give the ids to other messages.
        first_id = self._numbers.take_message_ids(len(batch.sizes), records)
        # The positions are the next of the index. No other operation runs between this look and ``store``, which
        # applies the record.
        record = MessagesSent(
            queue_id=index.queue_id,
            first_position=index.next_position,
            first_message_id=first_id,
            enqueue_ms=enqueue_ms,
            sizes=batch.sizes,
            headers=batch.headers,
            visible_ms=visible_ms,
            session=request.session,
            sequence=request.sequence,
            dedup_ids=batch.dedup_ids,
            actors=self._actors.joined(actors, _ONE_EACH, len(batch.sizes), records),
        )
        records.append(record)
        self._store.store(queue, record, batch.bodies)
        ids = batch.message_ids(first_id)
        if index.active_count and self._runtime[queue.queue_id].line.waiting:
            return self._serving.served(queue, Effects(records, batch.bodies), ids, now_ms)
        return Outcome(ids, records, batch.bodies)

    def send_all(
        self,
        account: str,
        name: str,
        requests: Sequence[SendRequest],
        now_ms: int,
        actors: Sequence[Actor] = (),
    ) -> Outcome[list[Sequence[int] | DomainError]]:
        """Apply the sends of several clients to one queue, in this order, each send independent of the others.

        ``actors``: the client of each request, empty = not known.

        Neighbours that carry only bodies and sequence numbers share a record: a send costs a fraction of a separate
        send. A lone such send takes the same way, the shortest. A refused send has its error at its index of the reply
        and does not affect the others.

        Raises:
            QueueNotFound.
        """
        # The search of ``Queues.find`` in line: a call less in the most frequent request.
        queue = self._queues.names.get(account, {}).get(name) or self._queues.find(account, name)
        attributes = queue.index.attributes
        delay_ms = attributes.delay_ms
        if attributes.auto_delete_after_ms:
            # Here, and not only where messages are stored: a repeated send is a use too.
            self._runtime[queue.queue_id].used_ms = now_ms
        replies: list[Sequence[int] | DomainError] = []
        end, bodies, is_usual = _plain_run(requests, 0, delay_ms)
        if end == len(requests):
            # Plain sends alone, the usual call.
            return self._send_plain(queue, requests, bodies, is_usual, replies, now_ms, actors)
        effects = Effects()
        # Requests are taken in their order, never sorted by kind: the positions of a queue are the order in which its
        # producers were heard. A run of plain sends shares a record; any other send ends the run and stands alone.
        place = 0
        while place < len(requests):
            if end > place:
                some = requests[place:end]
                effects.add(self._send_plain(queue, some, bodies, is_usual, replies, now_ms, actors[place:end]))
                place = end
                continue
            try:
                outcome = self.send_one(queue, requests[place], now_ms, actors[place : place + 1])
            except DomainError as refusal:
                replies.append(refusal)
            else:
                replies.append(outcome.reply)
                if len(requests) == 1:
                    # A single request, the usual case while few clients send, needs no copies of lists.
                    return Outcome(replies, outcome.records, outcome.bodies, outcome.woken, outcome.reads)
                effects.add(outcome)
            place += 1
            end, bodies, is_usual = _plain_run(requests, place, delay_ms)
        return effects.outcome(replies)

    def _send_plain(
        self,
        queue: Queue,
        requests: Sequence[SendRequest],
        bodies: list[bytes],
        is_usual: bool,
        replies: list[Sequence[int] | DomainError],
        now_ms: int,
        actors: Sequence[Actor],
    ) -> Outcome[list[Sequence[int] | DomainError]]:
        """Store plain sends (:func:`_plain_run`) in a record, by the rules of ``send_one``; append their replies."""
        index, limits = queue.index, self._limits
        attributes = index.attributes
        next_id = self._numbers.next_message_id
        sizes = list(map(len, bodies))
        count = len(sizes)
        numbered: list[int] = []
        is_within = (
            # Within all limits together, so each request is.
            0 < count <= limits.max_batch
            and count <= attributes.max_backlog - index.live_count
            and max(sizes) <= attributes.max_message_bytes
            and min(sizes) > 0
            and sum(sizes) <= limits.max_batch_bytes
        )
        counts: Iterable[int] = _ONE_EACH
        if is_within and is_usual:
            # None can be a repeat.
            if count == len(requests):
                replies += [[message_id] for message_id in range(next_id, next_id + count)]
            else:
                counts = [len(request.bodies) for request in requests]
                replies += _consecutive_ids(counts, next_id)
        else:
            sizes, bodies, numbered = self._examined(queue, requests, is_within, replies, now_ms)
            count = len(sizes)
            if not count:
                return Outcome(replies)
            counts = _new_of_each(replies[-len(requests) :], next_id)
        records: list[AnyRecord] = []
        self._numbers.take_message_ids(len(sizes), records)
        # A replay answers a repeat by ``numbered``; a lone send has all ids of the record, so its number is enough.
        is_lone = len(requests) == 1
        record = MessagesSent(
            queue_id=index.queue_id,
            first_position=index.next_position,
            first_message_id=next_id,
            enqueue_ms=max(now_ms, index.last_enqueue_ms),
            sizes=sizes,
            session=requests[0].session if is_lone else 0,
            sequence=requests[0].sequence if is_lone else 0,
            numbered=[] if is_lone else numbered,
            actors=self._actors.joined(actors, counts, count, records),
        )
        records.append(record)
        self._store.store(queue, record, bodies)
        # After all sends: the receives in line share a record then.
        if index.active_count and self._runtime[queue.queue_id].line.waiting:
            return self._serving.served(queue, Effects(records, bodies), replies, now_ms)
        return Outcome(replies, records, bodies)

    def _examined(
        self,
        queue: Queue,
        requests: Sequence[SendRequest],
        is_within: bool,
        replies: list[Sequence[int] | DomainError],
        now_ms: int,
    ) -> tuple[list[int], list[bytes], list[int]]:
        """Examine plain sends one by one; return sizes and bodies of the sends that are stored now, and session,
        sequence, first id and count of each numbered send among them.

        ``is_within``: the limits need no look, because all requests together are within them.
        """
        index = queue.index
        limit = index.attributes.max_backlog
        sessions = self._sessions.of(queue.account)
        sizes: list[int] = []
        taken: list[bytes] = []
        numbered: list[int] = []
        ids_by_number: dict[tuple[int, int], range] = {}
        new_sessions: set[int] = set()
        ended_ms = now_ms - self._limits.session_life_ms
        next_id = self._numbers.next_message_id
        for request in requests:
            session, sequence = number = request.session, request.sequence
            is_numbered = session and sequence
            known = sessions.get(session) if is_numbered else None
            try:
                stored = ids_by_number.get(number)
                if stored is None and known is not None:
                    stored = known.find(sequence)
                if stored is not None:
                    replies.append(stored)
                    continue
                own = list(map(len, request.bodies))
                if not (is_within and own):
                    max_bytes = index.attributes.max_message_bytes
                    own = checked_sizes(queue.name, request.bodies, None, max_bytes, self._limits)
                is_new = (
                    is_numbered
                    and (known is None or known.last_use_ms <= ended_ms)
                    and self._promises.check_session(queue.account, session, new_sessions, now_ms)
                )
                if len(sizes) + len(own) > limit - index.live_count:
                    raise BacklogFull(queue.name, index.live_count + len(sizes), len(own), limit)
            except DomainError as refusal:
                replies.append(refusal)
                continue
            # Promised here and taken by the caller; between the two no other operation runs, so the ids are the same.
            first_id = next_id + len(sizes)
            ids = range(first_id, first_id + len(own))
            if is_numbered:
                ids_by_number[number] = ids
                numbered += (session, sequence, first_id, len(own))
            if is_new:
                new_sessions.add(session)
            sizes += own
            taken += request.bodies
            replies.append(ids)
        return sizes, taken, numbered

    def _visible_ms(
        self, queue: Queue, delay_ms: int | list[int], count: int, enqueue_ms: int
    ) -> int | list[int] | None:
        if isinstance(delay_ms, int):
            self._check_delay(queue, delay_ms)
            return enqueue_ms + delay_ms if delay_ms else None
        if len(delay_ms) != count:
            raise InvalidArgument(
                f"there are {len(delay_ms)} delays for {count} bodies; give one delay, or one for each body",
                field="delay_ms",
                value=len(delay_ms),
                limit=f"one number, or {count}",
            )
        for delay in delay_ms:
            self._check_delay(queue, delay)
        return [enqueue_ms + delay for delay in delay_ms] if any(delay_ms) else None

    def _delay_ms(self, request: SendRequest, queue_delay_ms: int, enqueue_ms: int) -> int | list[int]:
        """Return the delay of a send; a time that has passed is no delay, also when a send is repeated late."""
        at_ms = request.at_ms
        if at_ms is None:
            return queue_delay_ms if request.delay_ms is None else request.delay_ms
        if request.delay_ms is not None:
            raise InvalidArgument(
                sentence("a send has {delay_ms} or {at_ms}, not both"),
                field="at_ms",
                value=at_ms,
                limit="null beside delay_ms",
            )
        if at_ms - enqueue_ms > self._limits.max_delay_ms:
            raise InvalidArgument(
                sentence(
                    "{at_ms} is {}, {} ahead; this server takes a delay of at most {}",
                    time(at_ms),
                    duration(at_ms - enqueue_ms),
                    duration(self._limits.max_delay_ms),
                ),
                field="at_ms",
                value=at_ms,
                limit=f"a delay of at most {self._limits.max_delay_ms} ms",
                range=(0, enqueue_ms + self._limits.max_delay_ms),
            )
        # From the time of the queue and not from now: ``_visible_ms`` adds the same time again, so the message becomes
        # active at ``at_ms`` even after a step back of the clock.
        return max(0, at_ms - enqueue_ms)

    def _check_delay(self, queue: Queue, delay_ms: int) -> None:
        check_range("delay_ms", delay_ms, 0, self._limits.max_delay_ms)
        # The retention counts from the send, so all of it is left.
        retention_ms = queue.index.attributes.retention_ms
        if delay_ms >= retention_ms:
            raise InvalidArgument(
                sentence(
                    "a delay of {} is not shorter than the retention of queue {}, {}: the message would expire before"
                    " it becomes active",
                    duration(delay_ms),
                    repr(queue.name),
                    duration(retention_ms),
                ),
                field="delay_ms",
                value=delay_ms,
                limit=f"less than retention_ms ({retention_ms})",
                range=(0, retention_ms - 1),
            )


def _plain_run(requests: Sequence[SendRequest], start: int, queue_delay_ms: int) -> tuple[int, list[bytes], bool]:
    """Return the run of plain sends from ``start`` on: its end, its bodies, and whether the run is usual.

    A plain send has only bodies, active at once, and perhaps a session and sequence. In a usual run no send is
    numbered, and each has a body.
    """
    bodies: list[bytes] = []
    is_usual = True
    for place in range(start, len(requests)):
        request = requests[place]
        if (
            request.headers is not None
            or request.dedup_ids is not None
            or request.after is not None
            # Even a passed time must be checked against the field ``delay_ms``, and a plain send has no check of both
            # fields.
            or request.at_ms is not None
            or (queue_delay_ms if request.delay_ms is None else request.delay_ms) != 0
        ):
            return place, bodies, is_usual
        if request.sequence or not request.bodies:
            is_usual = False
        bodies += request.bodies
    return len(requests), bodies, is_usual


def _consecutive_ids(counts: Sequence[int], first_id: int) -> Iterator[range]:
    """Yield the ids of each request, given the numbers of their messages."""
    for count in counts:
        yield range(first_id, first_id + count)
        first_id += count


def _new_of_each(replies: Sequence[Sequence[int] | DomainError], next_id: int) -> Iterator[int]:
    """Yield the number of messages that each request of a record stores, whose ids begin with ``next_id``.

    Refused requests and repeats store none; the ids of a repeat within the call lie below the next id.
    """
    for reply in replies:
        if isinstance(reply, DomainError) or reply[0] != next_id:
            yield 0
        else:
            yield len(reply)
            next_id += len(reply)
