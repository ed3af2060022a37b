"""Metrics of queues, topics and the server, for monitoring systems."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from cmqd.core.broker import Broker
from cmqd.server.accounts import Accounts
from cmqd.server.accounts_file import ADMIN
from cmqd.server.answering import Answering
from cmqd.server.authorization import names_shown_to
from cmqd.server.client import Client
from cmqd.server.part import part
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error
from cmqd_types.metrics import ServerMetrics

_T = TypeVar("_T")

Name: TypeAlias = tuple[str, str]
"""An account, and the name of a queue or topic."""
ReadSlice: TypeAlias = Callable[[Name, int], tuple[list[_T], Name | None]]
"""Reads at most a number of entries behind a name; returns them and the name behind which the next begin."""

SLICES_A_PAGE: Final = 8
"""Slices behind the first: enough for a page of 1,000 queues."""
HALTED: Final = "the broker stopped while the figures were read"


@part
class MetricsRequests:
    """Answers requests for metrics. Replies wait for the disk like every look-up: a monitoring system must not see a
    count that a crash can take back.
    """

    broker: Broker
    answering: Answering
    accounts: Accounts
    server_metrics: Callable[[], ServerMetrics]
    now_ms: Callable[[], int]
    schedule: Callable[[], None]
    spawn: Callable[[Coroutine[Any, Any, None]], None]

    def totals(self, client: Client, request: wire.GetMetrics) -> None:
        """Add up the totals in steps, with the loop free in between, and answer."""
        account = client.account

        async def add_up() -> None:
            for _ in self.broker.count_totals():
                await asyncio.sleep(0)
            if self.answering.is_halted:
                client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, HALTED))
                return
            is_admin = account == ADMIN
            broker = self.broker
            totals = broker.account_totals(None if is_admin else account)
            queues, topics, subscriptions = broker.count_objects(None if is_admin else account)
            reply = wire.Metrics(
                request.request_id,
                self.now_ms(),
                totals.queues,
                totals.topics,
                totals.subscriptions,
                queues,
                topics,
                subscriptions,
                self.server_metrics() if is_admin else None,
            )
            self.answering.answer_lookup(client, reply)
            self.schedule()

        self.spawn(add_up())

    def queues(self, client: Client, request: wire.GetQueueMetrics) -> None:
        """Answer with a page of queues."""
        account, shows = self._account(client, request.all_accounts), names_shown_to(client)
        after = (request.after_account, request.after_queue)
        self._answer_page(
            client,
            request.request_id,
            lambda after, limit: self.broker.queue_metrics(account, after, limit, shows),
            after,
            request.limit,
            wire.QueueMetricsPage,
        )

    def topics(self, client: Client, request: wire.GetTopicMetrics) -> None:
        """Answer with a page of topics."""
        account, shows = self._account(client, request.all_accounts), names_shown_to(client)
        after = (request.after_account, request.after_topic)
        self._answer_page(
            client,
            request.request_id,
            lambda after, limit: self.broker.topic_metrics(account, after, limit, shows),
            after,
            request.limit,
            wire.TopicMetricsPage,
        )

    def _answer_page(
        self,
        client: Client,
        request_id: int,
        read: ReadSlice[_T],
        after: Name,
        limit: int,
        make_reply: Callable[[int, int, list[_T], Name | None], wire.AnyReply],
    ) -> None:
        """Join slices of the core to a page, with the loop free in between, and answer.

        Large replies save time: a reply waits for the disk, and a reader asks for the next page only after the reply.

        Raises:
            InvalidArgument: the limit is out of range.
        """
        entries, next_after = read(after, limit)
        if next_after is None or len(entries) >= limit:
            self.answering.answer_lookup(client, make_reply(request_id, self.now_ms(), entries, next_after))
            return

        async def go_on(next_after: Name) -> None:
            behind: Name | None = next_after
            # Slices without entries end the page too: the patterns of a key may match few of very many names.
            for _ in range(SLICES_A_PAGE):
                await asyncio.sleep(0)
                if self.answering.is_halted:
                    client.answer(error(request_id, ErrorCode.OUTCOME_UNKNOWN, HALTED))
                    return
                more, behind = read(behind, limit - len(entries))
                entries.extend(more)
                if behind is None or len(entries) >= limit:
                    break
            self.answering.answer_lookup(client, make_reply(request_id, self.now_ms(), entries, behind))
            self.schedule()

        self.spawn(go_on(next_after))

    def _account(self, client: Client, all_accounts: bool) -> str | None:
        """Return the account of a page, None for all accounts.

        Raises:
            PermissionDenied: all accounts were asked for, and the account is not ``admin``.
        """
        if not all_accounts:
            return client.account
        self.accounts.must_be_admin(client.account, "read the metrics of all accounts")
        return None
