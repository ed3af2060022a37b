"""Histories of messages, and the search for messages by dedup id or header: the log tells lives and messages, the core
the owners and names of the queues and topics in them.

A message of another account is answered as an id that was never given: a refusal must not tell that the message exists.
For the same reason a search passes over messages of other accounts, and its answer does not count them.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import asdict, replace

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import InvalidArgument, MessageNotFound, QueueNotFound
from cmqd.core.limits import check_range
from cmqd.log.interface import Log
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import HistoryAnswer, MessagesAnswer
from cmqd.server.access.shown_names import names_shown_to, shown_to
from cmqd.server.clients.client import Client
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.requests.handler import handles
from cmqd.server.requests.refusals import BUSY_RETRY_MS
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_reading.life_events import UNNAMED, unnamed_number
from cmqd_reading.message_search import MessageQuery
from cmqd_segment.manifest import SourceName
from cmqd_types.actors import Actor
from cmqd_types.histories import FoundMessage, LifeEvent, MessageHistory
from cmqd_types.messages import printed_id
from cmqd_types.shards import SHARD_SHIFT

MAX_MESSAGE_ID: Final = (1 << 64) - 1
MAX_READINGS: Final = 8
"""Histories and searches of an account under way. The log reads one at a time, and a long log takes seconds: with more,
other accounts would wait behind this one."""
MAX_MESSAGES: Final = 256
"""Messages of the answer of a search."""
SEARCHED_MS: Final = 24 * 3_600_000
"""Age of the oldest messages that a search without a begin finds."""
LOOK_SECONDS: Final = 1.0
"""Time after which a reading whose client is gone ends."""
HALTED: Final = "the broker stopped while the log was read"
CHANGED: Final = "the roles or names of the key changed while the log was read; repeat the request"

_Request = TypeVar("_Request", wire.GetMessageHistory, wire.FindMessages)
_Answer = TypeVar("_Answer")


@part
class HistoryRequests:
    """Answers ``GetMessageHistory`` and ``FindMessages``; see the module."""

    broker: Broker
    log: Log
    answering: Answering
    shard: int
    now_ms: Callable[[], int]
    spawn: Callable[[Coroutine[None, None, None]], None]
    schedule: Callable[[], None]
    _readings: Counter[str] = dataclasses.field(default_factory=Counter[str], init=False)
    """Histories and searches under way, by account."""

    @handles(wire.GetMessageHistory)
    def handle(self, client: Client, request: wire.GetMessageHistory) -> None:
        """Have the log read, and answer.

        Raises:
            InvalidArgument: the request has no id and no handle, or both, or an id of another shard.
        """
        self._begin(client, request, self._check, self._read_history, self._reply)

    @handles(wire.FindMessages)
    def handle_search(self, client: Client, request: wire.FindMessages) -> None:
        """Have the log searched, and answer.

        Raises:
            InvalidArgument: the request has no dedup id and no header, or both, or an empty range of time.
            QueueNotFound: neither a queue nor a topic of the account has the name.
        """
        self._begin(
            client, request, partial(self._check_search, client), partial(self._search, client), self._reply_found
        )

    def _begin(
        self,
        client: Client,
        request: _Request,
        check: Callable[[_Request], None],
        read: Callable[[_Request], Awaitable[_Answer]],
        reply: Callable[[Client, _Request, _Answer], None],
    ) -> None:
        if client.is_slow:
            client.park(request)
            return
        check(request)
        if self._readings[client.account] >= MAX_READINGS:
            text = f"{MAX_READINGS} histories are being read for account {client.account!r}; try again"
            client.answer(error(request.request_id, ErrorCode.BUSY, text, retry_after_ms=BUSY_RETRY_MS))
            return
        self._readings[client.account] += 1
        self.spawn(self._answer(client, request, read, reply))

    def _check(self, request: wire.GetMessageHistory) -> None:
        if (request.message_id is None) == (request.receipt_handle is None):
            raise InvalidArgument(
                "a history is that of a message_id or of a receipt_handle: give one of them",
                field="message_id",
                value=request.message_id,
                limit="a message_id or a receipt_handle",
            )
        if request.message_id is not None:
            check_range("message_id", request.message_id, 1, MAX_MESSAGE_ID)
            shard = request.message_id >> SHARD_SHIFT
            if shard != self.shard:
                raise InvalidArgument(
                    f"message {printed_id(request.message_id)} is of shard {shard}, and this server has shard"
                    f" {self.shard}",
                    field="message_id",
                    value=printed_id(request.message_id),
                    limit=f"an id of shard {self.shard}",
                )

    def _check_search(self, client: Client, request: wire.FindMessages) -> None:
        if (request.dedup_id is None) == (request.header is None):
            raise InvalidArgument(
                "a search is by a dedup_id or by a header: give one of them",
                field="dedup_id",
                value=request.dedup_id,
                limit="a dedup_id or a header",
            )
        check_range("max_messages", request.max_messages, 1, MAX_MESSAGES)
        if request.to_ms is not None and request.from_ms is not None and request.to_ms <= request.from_ms:
            raise InvalidArgument(
                f"a search from {request.from_ms} to {request.to_ms} has no time; to_ms is behind from_ms",
                field="to_ms",
                value=request.to_ms,
                limit="a time behind from_ms",
            )
        if request.source is not None:
            facts = self.broker.facts
            if not any(
                request.source in names.get(client.account, {}) for names in (facts.queues.names, facts.topics.names)
            ):
                raise QueueNotFound(request.source)

    async def _answer(
        self,
        client: Client,
        request: _Request,
        read: Callable[[_Request], Awaitable[_Answer]],
        reply: Callable[[Client, _Request, _Answer], None],
    ) -> None:
        permissions = client.permissions
        try:
            answer = await self._read(client, read(request))
        except LogFailed as failure:
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, str(failure)))
        else:
            if answer is None or client.is_gone:
                return
            if self.answering.is_halted:
                client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, HALTED))
            elif client.permissions is not permissions:
                client.answer(error(request.request_id, ErrorCode.PERMISSION_DENIED, CHANGED))
            else:
                reply(client, request, answer)
        finally:
            self._readings[client.account] -= 1
            self._readings += Counter()  # without the accounts that have none
            self.schedule()

    async def _read_history(self, request: wire.GetMessageHistory) -> HistoryAnswer:
        if request.receipt_handle is None:
            return await self.log.read_history(request.message_id or 0)
        lease = self.broker.handles.lease(request.receipt_handle)
        return await self.log.read_history(0, lease) if lease >= 0 else HistoryAnswer(None, [], [])

    async def _read(self, client: Client, call: Awaitable[_Answer]) -> _Answer | None:
        """Read the log; None if the client is gone before."""
        reading = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait((reading,), timeout=LOOK_SECONDS))[0]:
                if client.is_gone:
                    return None
            return reading.result()
        finally:
            reading.cancel()

    def _reply(self, client: Client, request: wire.GetMessageHistory, answer: HistoryAnswer) -> None:
        history = self._told(client, answer)
        if history is None:
            asked = f"receipt handle {request.receipt_handle}"
            if request.message_id is not None:
                asked = f"message {printed_id(request.message_id)}"
            self.answering.refuse(client, request.request_id, MessageNotFound(asked))
            return
        reply = wire.MessageHistory(request.request_id, **asdict(history))
        self.answering.answer_lookup(client, shown_to(client, reply))

    async def _search(self, client: Client, request: wire.FindMessages) -> "_Searched":
        from_ms = request.from_ms
        if from_ms is None:
            from_ms = max(0, self.now_ms() - SEARCHED_MS)
        start_lsn, start_index = request.start or (0, 0)
        query = MessageQuery(
            request.dedup_id,
            request.header,
            client.account,
            request.source or "",
            from_ms,
            request.to_ms,
            start_lsn,
            start_index,
        )
        return _Searched(from_ms, await self.log.find_messages(query))

    def _reply_found(self, client: Client, request: wire.FindMessages, searched: "_Searched") -> None:
        answer = searched.answer
        found = answer.found
        names = {
            number: name
            for number, (account, name) in self._owners(
                {message.source_id for message in found.messages}, answer.owners
            ).items()
            if account == client.account and request.source in (None, name)
        }
        messages = [message for message in found.messages if message.source_id in names]
        following = (found.next_lsn, found.next_index) if found.next_lsn else None
        if len(messages) > request.max_messages:
            behind = messages[request.max_messages]
            following = behind.lsn, behind.row_index
        reply = wire.MessagesFound(
            request.request_id,
            [
                FoundMessage(
                    message_id=message.message_id,
                    source=names[message.source_id],
                    sent_ms=message.sent_ms,
                    lsn=message.lsn,
                )
                for message in messages[: request.max_messages]
            ],
            # Rows behind a message that waits for the next request are told with it.
            [each for each in found.missing if following is None or each[0] < following[0]],
            searched.from_ms,
            following,
        )
        self.answering.answer_lookup(client, reply)

    def _told(self, client: Client, answer: HistoryAnswer) -> MessageHistory | None:
        """Return the history with its names; None if it is not for this client."""
        history = answer.history
        owners = self._owners(answer.sources, answer.owners)
        if history is None or client.account not in {account for account, _ in owners.values()}:
            return None
        names = {number: name for number, (account, name) in owners.items() if account == client.account}
        named = _Names(self.broker, client.account, names)
        events = [replace(_named(event, named), actor=self._client_of(event, answer)) for event in history.events]
        places = [replace(place, queue=named.of(place.queue)) for place in history.places]
        is_shown = names_shown_to(client)
        if not any(map(is_shown, {one.queue for one in (*events, *places) if one.queue})):
            return None
        return replace(history, events=events, places=places)

    def _client_of(self, event: LifeEvent, answer: HistoryAnswer) -> Actor | None:
        """Return the client of an event, None if not known."""
        if event.actor is None:
            return None
        number = unnamed_number(event.actor)
        if not number:
            return event.actor
        return self.broker.facts.actors.find(number) or answer.actors.get(number)

    def _owners(self, sources: Iterable[int], told: Iterable[SourceName]) -> dict[int, tuple[str, str]]:
        """Return account and name of the queues and topics, by id: those of today first, then those of the log."""
        owners = {owner.id: (owner.account, owner.name) for owner in told}
        for number in sources:
            source = self.broker.queues.get(number) or self.broker.topics.get(number)
            if source is not None:
                owners[number] = (source.account, source.name)
        return owners


class _Searched(NamedTuple):
    """The answer of a search, with the begin of its range of time."""

    from_ms: int
    answer: MessagesAnswer


class _Names:
    """Names in place of the texts that stand for them."""

    def __init__(self, broker: Broker, account: str, known: Mapping[int, str]) -> None:
        self._broker = broker
        self._account = account
        self._known = dict(known)

    def of(self, text: str) -> str:
        """Return a name, empty if it is not known."""
        if not text.startswith(UNNAMED):
            return text
        number = int(text.removeprefix(UNNAMED))
        if number not in self._known:
            self._known[number] = self._find(number)
        return self._known[number]

    def _find(self, number: int) -> str:
        broker = self._broker
        subscription = broker.facts.topics.subscriptions.get(number)
        if subscription is not None:
            return subscription.name if subscription.topic.account == self._account else ""
        found = broker.queues.get(number) or broker.topics.get(number) or broker.schedules.get(number)
        return found.name if found is not None and found.account == self._account else ""


def _named(event: LifeEvent, names: _Names) -> LifeEvent:
    return replace(
        event,
        queue=names.of(event.queue),
        from_queue=names.of(event.from_queue),
        subscription=names.of(event.subscription),
        schedule=names.of(event.schedule),
    )
