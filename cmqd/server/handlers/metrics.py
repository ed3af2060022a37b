"""Metrics of queues, topics and the server, for monitoring systems."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

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
                text = "the broker stopped while the totals were added up"
                client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, text))
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
        account = self._account(client, request.all_accounts)
        after = (request.after_account, request.after_queue)
        page, next_after = self.broker.queue_metrics(account, after, request.limit, names_shown_to(client))
        reply = wire.QueueMetricsPage(request.request_id, self.now_ms(), page, next_after)
        self.answering.answer_lookup(client, reply)

    def topics(self, client: Client, request: wire.GetTopicMetrics) -> None:
        """Answer with a page of topics."""
        account = self._account(client, request.all_accounts)
        after = (request.after_account, request.after_topic)
        page, next_after = self.broker.topic_metrics(account, after, request.limit, names_shown_to(client))
        reply = wire.TopicMetricsPage(request.request_id, self.now_ms(), page, next_after)
        self.answering.answer_lookup(client, reply)

    def _account(self, client: Client, all_accounts: bool) -> str | None:
        """Return the account of a page, None for all accounts.

        Raises:
            PermissionDenied: all accounts were asked for, and the account is not ``admin``.
        """
        if not all_accounts:
            return client.account
        self.accounts.must_be_admin(client.account, "read the metrics of all accounts")
        return None
