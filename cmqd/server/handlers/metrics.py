"""Metrics of queues, topics and the server, for monitoring systems."""

import dataclasses
from collections.abc import Callable, Generator
from typing import Final, TypeAlias, TypeVar

from cmqd.core.broker import Broker
from cmqd.server.accounts import Accounts
from cmqd.server.accounts_file import ADMIN
from cmqd.server.answering import Answering
from cmqd.server.client import Client
from cmqd.server.part import part
from cmqd.server.shown_names import names_shown_to
from cmqd.server.sliced_work import SlicedWork
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error
from cmqd_types.metrics import ServerMetrics

_T = TypeVar("_T")

Name: TypeAlias = tuple[str, str]
"""An account, and the name of a queue or topic."""
ReadSlice: TypeAlias = Callable[[Name, int], tuple[list[_T], Name | None]]
"""Reads at most a number of entries behind a name; returns them and the name behind which the next begin."""
Asker: TypeAlias = tuple[Client, int]
"""A client and the id of its request."""

SLICES_A_PAGE: Final = 9
"""Slices of a reply: more than a page of 1,000 queues takes. Slices without entries end the page too: the patterns of
a key may match few of very many names."""
HALTED: Final = "the broker stopped while the figures were read"


@part
class MetricsRequests:
    """Answers requests for metrics. Replies wait for the disk like every look-up: a monitoring system must not see a
    count that a crash can take back.

    A request without a client to answer is dropped at its next slice.
    """

    broker: Broker
    answering: Answering
    accounts: Accounts
    server_metrics: Callable[[], ServerMetrics]
    now_ms: Callable[[], int]
    schedule: Callable[[], None]
    work: SlicedWork
    _waiting: dict[str | None, list[Asker]] = dataclasses.field(
        default_factory=dict[str | None, list[Asker]], init=False
    )
    """By account (None = all accounts): the requests for totals that the next adding-up answers."""

    def totals(self, client: Client, request: wire.GetMetrics) -> None:
        """Add up the totals in steps and answer.

        Requests that wait for the same totals share an adding-up. A request does not join an adding-up that has begun:
        the figures would be older than answers that the client got before its request.
        """
        account = None if client.account == ADMIN else client.account
        askers = self._waiting.get(account)
        if askers is None:
            askers = self._waiting[account] = []
            self.work.add(client.account, self._add_up(account))
        askers.append((client, request.request_id))

    def _add_up(self, account: str | None) -> Generator[None]:
        askers = self._waiting.pop(account)
        steps = self.broker.add_up_totals(account)
        while True:
            askers = self._still_there(askers)
            if not askers:
                return
            try:
                next(steps)
            except StopIteration as end:
                totals = end.value
                break
            yield
        queues, topics, subscriptions = self.broker.count_objects(account)
        now_ms, server = self.now_ms(), self.server_metrics() if account is None else None
        for client, request_id in askers:
            reply = wire.Metrics(
                request_id,
                now_ms,
                totals.queues,
                totals.topics,
                totals.subscriptions,
                queues,
                topics,
                subscriptions,
                server,
            )
            self.answering.answer_lookup(client, reply)
        self.schedule()

    def _still_there(self, askers: list[Asker]) -> list[Asker]:
        """Return the requests that can still be answered; after a failure of the broker they get an error instead."""
        present = [(client, request_id) for client, request_id in askers if not client.is_gone]
        if not self.answering.is_halted:
            return present
        for client, request_id in present:
            client.answer(error(request_id, ErrorCode.OUTCOME_UNKNOWN, HALTED))
        return []

    def queues(self, client: Client, request: wire.GetQueueMetrics) -> None:
        """Answer with a page of queues."""
        account, shows = self._account(client, request.all_accounts), names_shown_to(client)
        after = (request.after_account, request.after_queue)
        self._add_page(
            client,
            request,
            lambda after, limit: self.broker.queue_metrics(account, after, limit, shows),
            after,
            wire.QueueMetricsPage,
        )

    def topics(self, client: Client, request: wire.GetTopicMetrics) -> None:
        """Answer with a page of topics."""
        account, shows = self._account(client, request.all_accounts), names_shown_to(client)
        after = (request.after_account, request.after_topic)
        self._add_page(
            client,
            request,
            lambda after, limit: self.broker.topic_metrics(account, after, limit, shows),
            after,
            wire.TopicMetricsPage,
        )

    def _add_page(
        self,
        client: Client,
        request: wire.GetQueueMetrics | wire.GetTopicMetrics,
        read: ReadSlice[_T],
        after: Name,
        make_reply: Callable[[int, int, list[_T], Name | None], wire.AnyReply],
    ) -> None:
        """Join slices of the core to a page and answer.

        Large replies save time: a reply waits for the disk, and a reader asks for the next page only after the reply.

        Raises:
            InvalidArgument: the limit is out of range.
        """
        self.broker.check_metrics_limit(request.limit)
        limit, request_id = request.limit, request.request_id

        def page() -> Generator[None]:
            if client.is_slow:
                # The memory of finished pages would grow with each further request of a client that does not read.
                client.park(request)
                return
            entries: list[_T] = []
            behind: Name | None = after
            for _ in range(SLICES_A_PAGE):
                if not self._still_there([(client, request_id)]):
                    return
                assert behind is not None
                more, behind = read(behind, limit - len(entries))
                entries.extend(more)
                if behind is None or len(entries) >= limit:
                    break
                yield
            self.answering.answer_lookup(client, make_reply(request_id, self.now_ms(), entries, behind))
            self.schedule()

        self.work.add(client.account, page())

    def _account(self, client: Client, all_accounts: bool) -> str | None:
        """Return the account of a page, None for all accounts.

        Raises:
            PermissionDenied: all accounts were asked for, and the account is not ``admin``.
        """
        if not all_accounts:
            return client.account
        self.accounts.must_be_admin(client.account, "read the metrics of all accounts")
        return None
