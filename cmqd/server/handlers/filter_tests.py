"""Tests of labels against the subscriptions of a topic, answered at once or in slices.

A usual topic needs a single step. A longer test begins anew in slices (``sliced_work``), which finish a test of the
account before the next one begins: pipelined tests keep no half-finished results in memory. Later requests of the
connection are carried out meanwhile: a gateway has a connection for all HTTP requests of a key, and the console tests
the labels at each pause of the typing.
"""

from collections.abc import Callable, Generator

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import DomainError
from cmqd.server.access.permissions import Permissions
from cmqd.server.access.shown_names import shown_to
from cmqd.server.admission.entries_ahead import EntriesAhead
from cmqd.server.admission.sliced_work import SlicedWork
from cmqd.server.clients.client import Client
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.requests.handler import handles
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.topics import TopicMatch

HALTED = "the broker stopped while the subscriptions were examined"
CHANGED = "the roles or names of the key changed while the subscriptions were examined; repeat the request"


@part
class MatchRequests:
    """Answers requests for the subscriptions that would get a message; see the module."""

    broker: Broker
    answering: Answering
    work: SlicedWork
    entries_ahead: EntriesAhead
    schedule: Callable[[], None]

    @handles(wire.MatchSubscriptions)
    def match(self, client: Client, request: wire.MatchSubscriptions) -> None:
        """Answer at once if one step is enough, else in slices.

        Raises:
            DomainError: the core refuses the request.
        """
        if not self.entries_ahead.has_room():
            client.answer(self.entries_ahead.refusal(request.request_id))
            return
        steps = self.broker.match_subscriptions(client.account, request.topic, request.tags, request.routing_key)
        try:
            next(steps)
        except StopIteration as end:
            self._answer(client, request, end.value)
            return
        self.work.add(client.account, self._in_slices(client, request, client.permissions))

    def _in_slices(
        self, client: Client, request: wire.MatchSubscriptions, permissions: Permissions | None
    ) -> Generator[None]:
        if not self.entries_ahead.has_room():
            client.answer(self.entries_ahead.refusal(request.request_id))
            self.schedule()
            return
        steps = self.broker.match_subscriptions(client.account, request.topic, request.tags, request.routing_key)
        while not client.is_gone:
            if self.answering.is_halted:
                client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, HALTED))
                break
            if client.permissions is not permissions:
                # The changed key may lack the role or the names of the request.
                client.answer(error(request.request_id, ErrorCode.PERMISSION_DENIED, CHANGED))
                break
            try:
                next(steps)
            except StopIteration as end:
                self._answer(client, request, end.value)
                break
            except DomainError as refusal:
                self.answering.refuse(client, request.request_id, refusal)
                break
            yield
        else:
            return
        self.schedule()

    def _answer(self, client: Client, request: wire.MatchSubscriptions, match: TopicMatch) -> None:
        self.entries_ahead.add(len(match.subscriptions))
        reply = wire.SubscriptionsMatched(request.request_id, match.filter_type, match.matched, match.subscriptions)
        self.answering.answer_lookup(client, shown_to(client, reply))
