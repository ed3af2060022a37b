"""Plans of publishes: the subscriptions that get each message, found in slices.

Matching a batch of 256 messages with different tags against 500 subscriptions takes some ten milliseconds. Therefore
planning stops when the given units are used up, and goes on at the next call of :meth:`PublishPlan.advance`, with other
clients served in between. A plan changes nothing: message ids, positions and times are given when the plan is applied
(:mod:`cmqd.core.operations.topics.publish`), in a single step.

A plan is made against the present subscriptions of the topic. If the subscriptions change between two slices
(``Topic.revision``), the plan begins anew. Otherwise a message would be stored for a subscription that was removed
before the publish, or not stored for a subscription that was answered before the publish. Queues are examined when the
plan is applied, because a queue can fill up between two slices. The caller keeps the publishes of a topic in order: no
publish is applied while the plan of an earlier publish is unfinished, because a plan relies on the dedup ids that the
topic remembers.

Units are about microseconds of work. The core has no clock, and the same calls give the same slices.

The order for every request:

1. Is the publish a repeat? A stored publish stays stored, even if a check would refuse it by now.
2. Is its predecessor stored, or in this plan? A publish that came too early is refused before any work is done for it.
3. Sizes, labels and the match. These can take several slices; until they are done, the request is not in the plan.
4. Dedup ids, against the topic and against the requests in front. They come after the last slice of the match, because
   requests are planned one by one, and the answer must hold when the request joins the plan. With ``all_or_none`` a
   batch of repeats and new messages is refused here.
5. Promises, the last refusal. Then the messages join the plan, and no step behind this one can refuse the request.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec

from cmqd.core.domain_errors import DomainError, InvalidArgument, OutOfOrder, shown
from cmqd.core.facts.dedup import DedupIds
from cmqd.core.facts.promised_memory import Promises
from cmqd.core.facts.topic import Topic
from cmqd.core.limits import Limits, checked_sizes
from cmqd.core.operations.sending.repeats import Repeats, at_places, check_all_or_none, stored_before, unrepeated
from cmqd.core.outcome import Published, PublishRequest
from cmqd.core.runtime.topic import TopicRuntime
from cmqd_types.actors import Actor
from cmqd_types.messages import Headers, Labels
from cmqd_types.sentences import field_name, sentence

NO_TAGS: list[str] = []
MATCH_UNITS = 16
"""Of labels that are not remembered: their check and the match, 7 to 40 microseconds."""
MAX_RESTARTS = 16
"""Restarts of a plan after which the plan is finished in a single call. Without this bound a client that changes the
topic's subscriptions without end would hold up the publishes forever."""


class Part(msgspec.Struct, gc=False):
    """Messages of a plan that become a record."""

    union: int
    """The set of all subscriptions that get messages of the part."""
    bodies: list[bytes] = []
    sizes: list[int] = []
    bytes: int = 0
    headers: list[Headers | None] = []
    labels: list[Labels] = []
    dedup_ids: list[str | None] = []
    numbers: list[int] = []
    """Numbers of the messages among the plan's new messages; the id of a message is the first id plus its number."""
    numbered: list[int] = []
    """As in ``MessagesPublished``, with numbers of the plan in place of first ids."""
    members: list[int] = []
    """For every message the set of subscriptions that get the message."""
    is_alike: bool = True
    """All messages have the same subscriptions."""
    message_sets: dict[int, int] = {}
    """Sets of messages by subscription id; made by ``turn`` unless ``is_alike``."""

    def turn(self, topic: TopicRuntime) -> int:
        """Turn subscriptions by message into messages by subscription; returns the units of work."""
        # The usual part has the same subscriptions for all messages, and ``union`` says it all.
        if self.is_alike:
            return 0
        subscriptions = topic.subscribers(self.union)
        self.message_sets = dict(zip(subscriptions, turned(self.members, self.union), strict=True))
        return len(self.members) + len(subscriptions)


class Entry(msgspec.Struct, gc=False):
    """A request of a plan, and the parts of its reply."""

    first: int = 0
    """Number of its first new message in the plan."""
    count: int = 0
    """Its new messages."""
    matched: list[int | None] = []
    """For every new message the number of subscriptions that get the message."""
    repeats: Repeats | None = None
    """Repeated bodies, with numbers of the plan; None = all bodies are new."""
    same_as: "Entry | None" = None
    """The earlier entry with the same session and sequence."""
    reply: Published | DomainError | None = None
    """The reply, if it does not depend on the ids of new messages."""

    def reply_from(self, first_id: int) -> Published | DomainError:
        """The reply once the plan's new messages have ids from ``first_id`` on."""
        if self.reply is not None:
            return self.reply
        if self.same_as is not None:
            earlier = self.same_as.reply_from(first_id)
            # Only a request that joined the plan can be repeated within it, and such a request has a reply with ids.
            assert isinstance(earlier, Published)
            return Published(earlier.message_ids, [None] * len(earlier.message_ids))
        if self.repeats is None:
            first = first_id + self.first
            return Published(range(first, first + self.count), self.matched)
        ids = self.repeats.message_ids(first_id)
        matched: list[int | None] = [None] * len(ids)
        own = dict(enumerate(self.matched, self.first))
        for place, number in self.repeats.numbers.items():
            # A body that repeats a body of the same batch finds the entry taken: the repeat is not a new message.
            matched[place] = own.pop(number, None)
        return Published(ids, matched)


class PublishPlan:
    """The plan of the publishes of a call; see the module."""

    __slots__ = (
        "_dedup_ids",
        "_limits",
        "_numbered",
        "_now_ms",
        "_requests",
        "_restarts",
        "_runtime",
        "_revision",
        "_new_sessions",
        "_promises",
        "_steps",
        "_units",
        "actors",
        "count",
        "entries",
        "parts",
        "topic",
    )

    def __init__(
        self,
        topic: Topic,
        runtime: TopicRuntime,
        requests: Sequence[PublishRequest],
        promises: Promises,
        limits: Limits,
        now_ms: int,
        actors: Sequence[Actor],
    ) -> None:
        """``now_ms``: as of when dedup ids are remembered; ``actors``: the client of each request, or empty."""
        self.topic = topic
        self.actors = actors
        self._runtime = runtime
        self._requests = requests
        self._promises = promises
        self._limits = limits
        self._now_ms = now_ms
        self._units = 0
        self._restarts = -1
        self._revision = -1
        self._steps: Iterator[None] | None = None

    def advance(self, units: int) -> bool:
        """Work for about ``units``; True once the plan is whole.

        A whole plan is applied at once. If the topic changed before that, ``advance`` begins anew.
        """
        self._units = units
        # Asked at every call, also of a whole plan: between the last slice and ``apply_publish`` other clients are
        # served.
        if self._revision != self.topic.revision:
            self._begin()
        if self._steps is None:
            return True
        # Without steps the plan is whole, and stays whole until the topic changes.
        for _ in self._steps:
            # The units are used up. After too many restarts the plan is finished here instead, see ``MAX_RESTARTS``.
            if self._restarts < MAX_RESTARTS:
                return False
            self._units = units
        self._steps = None
        return True

    def replies(self, first_id: int) -> list[Published | DomainError]:
        """Return the replies to all requests, given that the new messages have ids from ``first_id`` on."""
        return [entry.reply_from(first_id) for entry in self.entries]

    def counts(self, part: Part) -> list[int]:
        """Return the number of messages that each request has in a part."""
        numbers = part.numbers
        return [
            # A request with a reply is a repeat, or was refused.
            bisect_left(numbers, entry.first + entry.count) - bisect_left(numbers, entry.first)
            if entry.reply is None
            else 0
            for entry in self.entries
        ]

    # ------------------------------------------------------------------ the work

    def _begin(self) -> None:
        self._revision = self.topic.revision
        # The matcher belongs to the topic: the plans of many calls share the labels that it remembers.
        self._runtime.follow()
        self._restarts += 1
        self.count: int = 0
        """New messages, including messages that match no subscription."""
        # All tables begin anew. The sets of subscriptions in old parts have bits of a matcher that is gone.
        self.entries: list[Entry] = []
        self.parts: list[Part] = []
        self._numbered: dict[tuple[int, int], Entry] = {}
        """Numbered publishes of this plan: a producer may have repeated a publish over a second connection."""
        self._dedup_ids: dict[str, int] = {}
        """Numbers of new messages by the dedup ids of this plan."""
        self._new_sessions: set[int] = set()
        """Sessions that begin with a publish of this plan."""
        self._steps = self._work()

    def _work(self) -> Iterator[None]:
        """Do all the work; yields where the units are used up."""
        for request in self._requests:
            entry = Entry()
            # Before any check: the replies are in the order of the requests, whether a request is refused or not.
            self.entries.append(entry)
            # Repeats before order and checks, as for sends: a stored publish stays stored.
            try:
                if self._is_repeated(request, entry):
                    continue
                self._check_order(request)
                yield from self._take(request, entry)
            except DomainError as refusal:
                entry.reply = refusal
        # Turned when all messages are in: a part has a set of messages for each subscription, and every message of a
        # later request could still join the last part.
        for part in self.parts:
            self._units -= part.turn(self._runtime)
            if self._units <= 0:
                yield

    def _is_repeated(self, request: PublishRequest, entry: Entry) -> bool:
        session, sequence = request.session, request.sequence
        if not session or not sequence:
            return False
        # Before all checks: a stored publish stays stored even if a limit was lowered since.
        # This plan first: sessions do not know its publishes before the record is applied. A refused publish is not in
        # the table, so its repeat is examined anew.
        entry.same_as = self._numbered.get((session, sequence))
        if entry.same_as is not None:
            return True
        topic = self.topic
        stored = self._promises.sessions.find(topic.account, session, sequence)
        if stored is None:
            return False
        known = topic.known_dedup_ids or DedupIds(self._limits)
        ids = stored_before(
            known=known,
            stored=stored,
            sequence=sequence,
            count=len(request.bodies),
            dedup_ids=request.dedup_ids,
            now_ms=self._now_ms,
            limits=self._limits,
            may_be_new=True,
        )
        # Sessions remember ids alone, so the number of subscriptions that matched is unknown for a repeat.
        entry.reply = Published(ids, [None] * len(ids))
        return True

    def _check_order(self, request: PublishRequest) -> None:
        """Check that the topic remembers the message that a request names in ``after``, or that this plan stores it.

        The plan is the right place: the publishes of a topic are planned and applied one after the other, so every
        earlier publish is stored or refused by now, and the earlier requests of this plan are known.

        Raises:
            OutOfOrder: the message is not stored.
        """
        after = request.after
        if after is None or after in self._dedup_ids:
            return
        known = self.topic.known_dedup_ids
        if known is None or known.find(after, self._now_ms) is None:
            raise OutOfOrder("topic", self.topic.name, after)

    def _take(self, request: PublishRequest, entry: Entry) -> Iterator[None]:
        """Check a request and match its messages. A refused request leaves nothing in the plan."""
        topic, runtime = self.topic, self._runtime
        bodies, headers, dedup_ids = request.bodies, request.headers, request.dedup_ids
        # Cheap checks first: a batch that is too large is refused before a match that takes milliseconds.
        sizes = checked_sizes(topic.name, bodies, headers, topic.attributes.max_message_bytes, self._limits)
        labels: list[Labels] = []
        members: list[int] = []
        for label in self._listed(request.labels, len(sizes)):
            known = None if not label and topic.is_routing else runtime.known_members(label)
            # Remembered labels were checked when the matcher first saw the labels.
            if known is None:
                # Only labels that are not remembered cost a match, so only their requests wait for units here.
                if self._units <= 0:
                    yield
                self._units = runtime.prepare(self._units)
                while self._units <= 0:
                    yield
                    self._units = runtime.prepare(self._units)
                label = runtime.checked(label, self._limits.max_tags) if label or topic.is_routing else NO_TAGS
                known = runtime.find_members(label)
                self._units -= MATCH_UNITS
            labels.append(label)
            members.append(known)
        self._units -= 2 + len(sizes)
        entry.first = self.count
        if dedup_ids is not None:
            entry.repeats = self._unpublished(dedup_ids, len(sizes), request.all_or_none)
            new = entry.repeats.new
            if len(new) < len(sizes):
                sizes, bodies = at_places(sizes, new), at_places(bodies, new)
                headers = None if headers is None else at_places(headers, new)
                # A single label stands for all messages, whatever number of them is new.
                if len(labels) > 1:
                    labels, members = at_places(labels, new), at_places(members, new)
                dedup_ids = at_places(dedup_ids, new)
        entry.count = len(sizes)
        # Repeats alone join nothing: the reply has the ids of stored messages, or of messages in front in the plan.
        if not sizes:
            return
        # The last refusal. Behind it the request is in the plan, and the requests behind it may refer to its messages.
        self._check_promises(request, dedup_ids)
        self._add(
            request=request,
            entry=entry,
            sizes=sizes,
            bodies=bodies,
            headers=headers,
            labels=labels,
            members=members,
            dedup_ids=dedup_ids,
        )
        self.count += len(sizes)
        if request.session and request.sequence:
            self._numbered[request.session, request.sequence] = entry
        if self._units <= 0:
            yield

    def _check_promises(self, request: PublishRequest, dedup_ids: list[str | None] | None) -> None:
        """Check that the account may have the session and dedup ids of a request that is about to join the plan.

        Raises:
            TooManyRemembered: it has no room for new ones.
        """
        account, session = self.topic.account, request.session
        # Asked before the record is made: a replay applies promises without asking, so no promise may be in a record
        # without room for it.
        if dedup_ids is not None and any(dedup_ids):
            self._promises.check_dedup_ids(account, self._now_ms)
        if (
            session
            and request.sequence
            and self._promises.check_session(account, session, self._new_sessions, self._now_ms)
        ):
            # A session counts once against the share of its account, however many of its publishes are in the plan.
            self._new_sessions.add(session)

    def _listed(self, labels: list[Labels] | None, count: int) -> list[Labels]:
        """Return a single entry for all messages, or an entry per message, of the kind that the topic filters by.

        Raises:
            InvalidArgument: too few or too many entries, or entries of the other kind.
        """
        is_routing = self.topic.is_routing
        field, other = ("routing_keys", "tags") if is_routing else ("tags", "routing_keys")
        if labels is None or not any(labels):
            if is_routing:
                raise InvalidArgument(
                    sentence(
                        "topic {} filters by {routing_keys}; give a key for all messages, or one for each",
                        repr(self.topic.name),
                    ),
                    field=field,
                    value=labels,
                    limit="one routing key, or one for each message",
                )
            return [NO_TAGS]
        if len(labels) not in (1, count):
            raise InvalidArgument(
                sentence(
                    "{} has {} entries for {} bodies; give one entry, or one for each body",
                    field_name(field),
                    len(labels),
                    count,
                ),
                field=field,
                value=len(labels),
                limit=f"one entry, or {count}",
            )
        listed: list[Labels] = []
        for label in labels:
            if isinstance(label, str) != is_routing:
                if label:
                    raise InvalidArgument(
                        sentence(
                            "topic {} filters by {}; {} must be empty",
                            repr(self.topic.name),
                            field_name(field),
                            field_name(other),
                        ),
                        field=other,
                        value=label,
                        limit="empty",
                    )
                label = NO_TAGS
            if is_routing and not isinstance(label, str):
                raise InvalidArgument(
                    f"topic {self.topic.name!r} filters by routing key; {shown(label)} is not a routing key",
                    field=field,
                    value=label,
                    limit="one routing key, or one for each message",
                )
            listed.append(label or NO_TAGS if not is_routing else label)
        return listed

    def _unpublished(self, dedup_ids: list[str | None], count: int, all_or_none: bool) -> Repeats:
        """Return the result of ``unrepeated`` with numbers of the plan, and repeats within the plan."""
        known = self.topic.known_dedup_ids or DedupIds(self._limits)
        in_request = unrepeated(known, dedup_ids, count, self._now_ms, self._limits)
        kept: list[int] = []
        numbers: list[int] = []
        for place in in_request.new:
            dedup_id = dedup_ids[place]
            number = None if dedup_id is None else self._dedup_ids.get(dedup_id)
            if number is None:
                # A number of the plan and not an id. Ids are taken when the plan is applied, and a plan that begins
                # anew has used none.
                number = self.count + len(kept)
                kept.append(place)
            numbers.append(number)
        plan_numbers = {place: numbers[number] for place, number in in_request.numbers.items()}
        if all_or_none:
            # Numbers below the count of the plan are messages of the requests in front.
            in_front = sum(number < self.count for number in plan_numbers.values())
            check_all_or_none("topic", self.topic.name, count, len(in_request.stored) + in_front, len(kept))
        return Repeats(kept, in_request.stored, plan_numbers)

    def _add(
        self,
        request: PublishRequest,
        entry: Entry,
        sizes: list[int],
        bodies: list[bytes],
        headers: list[Headers | None] | None,
        labels: list[Labels],
        members: list[int],
        dedup_ids: list[str | None] | None,
    ) -> None:
        """Put the messages that match a subscription into parts."""
        limits = self._limits
        matched = entry.matched
        part = self.parts[-1] if self.parts else None
        is_numbered = bool(request.session and request.sequence)
        one_label = len(labels) == 1
        label, subscriptions = labels[0], members[0]
        size_of_all = subscriptions.bit_count() if one_label else 0
        for place, body in enumerate(bodies):
            if not one_label:
                label, subscriptions = labels[place], members[place]
            if not subscriptions:
                # Discarded, and still a message of the reply: its id is taken, so that the ids of a batch are
                # consecutive.
                matched.append(0)
                continue
            matched.append(size_of_all or subscriptions.bit_count())
            size = sizes[place]
            # Parts fill up in order of the messages, and a part may hold messages of several requests. A message goes
            # to the last part alone, never back into an earlier part with room: that would change the order of the
            # topic.
            if part is None or len(part.sizes) >= limits.max_batch or part.bytes + size > limits.max_batch_bytes:
                part = Part(subscriptions)
                self.parts.append(part)
            elif part.members[0] != subscriptions:
                # The order of messages counts more than equal subscriptions: a message never goes to another part to
                # keep a part alike.
                part.is_alike = False
                part.union |= subscriptions
            # In the part with the first message that matches. All parts of the plan are in one row, so the answer is
            # durable together with the whole batch.
            if is_numbered:
                part.numbered += (request.session, request.sequence, entry.first, len(bodies))
                is_numbered = False
            part.bodies.append(body)
            part.sizes.append(size)
            part.bytes += size
            part.headers.append(headers[place] if headers is not None else None)
            part.labels.append(label)
            dedup_id = dedup_ids[place] if dedup_ids is not None else None
            part.dedup_ids.append(dedup_id)
            part.numbers.append(entry.first + place)
            part.members.append(subscriptions)
            if dedup_id is not None:
                self._dedup_ids[dedup_id] = entry.first + place


def turned(rows: Sequence[int], columns: int) -> list[int]:
    """Return for every bit of ``columns``, from the lowest, the set of rows with that bit; bit n means ``rows[n]``.

    The rows are written side by side as binary digits, and a column is every n-th digit. For 256 rows and 500 columns
    this takes some 750 string operations instead of 51,000 steps of Python.
    """
    width = columns.bit_length()
    digits = "".join([format(row, f"0{width}b") for row in reversed(rows)])
    return [int(digits[width - 1 - place :: width], 2) for place in range(width) if columns >> place & 1]
