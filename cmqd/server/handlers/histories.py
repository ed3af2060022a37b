"""Histories of messages: the log tells a life, the core the owners and names of the queues and topics in it.

A message of another account is answered as an id that was never given: a refusal must not tell that the message exists.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

from msgspec.structs import asdict, replace

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import InvalidArgument, MessageNotFound
from cmqd.core.limits import check_range
from cmqd.log.interface import Log
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import HistoryAnswer
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
from cmqd_types.actors import Actor
from cmqd_types.histories import LifeEvent, MessageHistory
from cmqd_types.messages import printed_id
from cmqd_types.shards import SHARD_SHIFT

MAX_MESSAGE_ID: Final = (1 << 64) - 1
MAX_READINGS: Final = 8
"""Histories of an account under way. The log reads one at a time, and a long log takes seconds: with more, other
accounts would wait behind this one."""
LOOK_SECONDS: Final = 1.0
"""Time after which a reading whose client is gone ends."""
HALTED: Final = "the broker stopped while the log was read"
CHANGED: Final = "the roles or names of the key changed while the log was read; repeat the request"


@part
class HistoryRequests:
    """Answers ``GetMessageHistory``; see the module."""

    broker: Broker
    log: Log
    answering: Answering
    shard: int
    spawn: Callable[[Coroutine[None, None, None]], None]
    schedule: Callable[[], None]
    _readings: Counter[str] = dataclasses.field(default_factory=Counter[str], init=False)
    """Histories under way, by account."""

    @handles(wire.GetMessageHistory)
    def handle(self, client: Client, request: wire.GetMessageHistory) -> None:
        """Have the log read, and answer.

        Raises:
            InvalidArgument: the request has no id and no handle, or both, or an id of another shard.
        """
        if client.is_slow:
            client.park(request)
            return
        self._check(request)
        if self._readings[client.account] >= MAX_READINGS:
            text = f"{MAX_READINGS} histories are being read for account {client.account!r}; try again"
            client.answer(error(request.request_id, ErrorCode.BUSY, text, retry_after_ms=BUSY_RETRY_MS))
            return
        self._readings[client.account] += 1
        self.spawn(self._answer(client, request))

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

    async def _answer(self, client: Client, request: wire.GetMessageHistory) -> None:
        permissions = client.permissions
        try:
            answer = await self._read(client, request)
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
                self._reply(client, request, answer)
        finally:
            self._readings[client.account] -= 1
            self._readings += Counter()  # without the accounts that have none
            self.schedule()

    async def _read(self, client: Client, request: wire.GetMessageHistory) -> HistoryAnswer | None:
        """Read the log; None if the client is gone before."""
        if request.receipt_handle is None:
            call = self.log.read_history(request.message_id or 0)
        else:
            lease = self.broker.handles.lease(request.receipt_handle)
            if lease < 0:
                return HistoryAnswer(None, [], [])
            call = self.log.read_history(0, lease)
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

    def _told(self, client: Client, answer: HistoryAnswer) -> MessageHistory | None:
        """Return the history with its names; None if it is not for this client."""
        history = answer.history
        owners = self._owners(answer)
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

    def _owners(self, answer: HistoryAnswer) -> dict[int, tuple[str, str]]:
        """Return account and name of the queues and topics, by id: those of today first, then those of the log."""
        owners = {owner.id: (owner.account, owner.name) for owner in answer.owners}
        for number in answer.sources:
            source = self.broker.queues.get(number) or self.broker.topics.get(number)
            if source is not None:
                owners[number] = (source.account, source.name)
        return owners


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
