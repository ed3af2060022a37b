"""Subscriptions to URLs: their secrets.

A subscription to a URL has a secret for signatures. The secret is not in the log but in the accounts file, because
segments of the log are handed on. Both are written in parallel: the file is written as soon as the core has decided,
and the reply leaves when both are on disk. Therefore a crash can leave a secret without its subscription, which the
start drops, or a subscription without its secret. In the second case no client had an answer: the start makes a secret,
and ``rotate_secret`` tells the client the next secret. Nothing is posted without a secret (``Outbox``).
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from msgspec.structs import asdict, replace

from cmqd.core import domain_errors as domain
from cmqd.core.broker import Broker
from cmqd.core.limits import check_range
from cmqd.core.operations.monitoring.audit import AuditAction
from cmqd.core.outcome import Outcome, PushResult
from cmqd.server.access.accounts import Accounts, PushUnavailable
from cmqd.server.access.audit_entries import AuditEntries, action_of
from cmqd.server.access.shown_names import shown_to
from cmqd.server.broker_logger import get_logger
from cmqd.server.clients.client import Client
from cmqd.server.handlers.accounts import Work, reply_when_written
from cmqd.server.monitoring.counters import Counters
from cmqd.server.part import part
from cmqd.server.push.outbox import Outbox
from cmqd.server.replies.answering import Answering
from cmqd.server.requests.handler import handles
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.topics import SubscriptionInfo

_log = get_logger()

DEFAULT_OVERLAP_MS: Final = 86_400_000
MAX_OVERLAP_MS: Final = 604_800_000
"""Longest time for which a replaced secret stays valid beside the new secret: time to distribute the new secret to
all receivers."""


@part
class Subscriptions:
    """Subscribe, unsubscribe, rotate a secret; see the module."""

    broker: Broker
    answering: Answering
    audit_entries: AuditEntries
    accounts: Accounts
    outbox: Outbox
    pushes_ended: Callable[[list[PushResult]], None]
    counters: Counters
    now_ms: Callable[[], int]
    schedule: Callable[[], None]
    spawn: Callable[[Coroutine[Any, Any, None]], None]

    @handles(wire.Subscribe, wire.EnsureSubscription)
    def subscribe(self, client: Client, request: wire.Subscribe | wire.EnsureSubscription) -> None:
        """Make a subscription; ``EnsureSubscription`` accepts an existing subscription."""
        endpoint = request.attributes.get("endpoint")
        if isinstance(endpoint, str) and "://" in endpoint and not self.outbox.can_push:
            raise PushUnavailable
        now_ms = self.now_ms()
        make = self.broker.subscribe if isinstance(request, wire.Subscribe) else self.broker.ensure_subscription
        outcome = make(client.account, request.topic, request.subscription, request.attributes, now_ms)
        outcome = self.audit_entries.with_entry(client, request, outcome, now_ms)
        self._answer_subscribed(client, request, outcome, now_ms)

    @handles(wire.Unsubscribe)
    def unsubscribe(self, client: Client, request: wire.Unsubscribe) -> None:
        """End a subscription, and forget its secret."""
        now_ms = self.now_ms()
        subscription = self.broker.facts.topics.find_subscription(client.account, request.topic, request.subscription)
        outcome = self.broker.unsubscribe(client.account, request.topic, request.subscription, now_ms)
        outcome = self.audit_entries.with_entry(client, request, outcome, now_ms)
        self.answering.answer(client, outcome, now_ms, wire.Done(request.request_id))
        if subscription.attributes.protocol != "queue":
            self._end_unsigned_pushes(subscription.subscription_id, now_ms)
            self.spawn(self._forget_secret(subscription.subscription_id))

    @handles(wire.RotateSecret)
    def rotate_secret(self, client: Client, request: wire.RotateSecret) -> None:
        """Replace the secret of a subscription; the old secret stays valid for a while."""
        overlap_ms = DEFAULT_OVERLAP_MS if request.overlap_ms is None else request.overlap_ms
        check_range("overlap_ms", overlap_ms, 0, MAX_OVERLAP_MS)
        subscription = self.broker.facts.topics.find_subscription(client.account, request.topic, request.subscription)
        if subscription.attributes.protocol == "queue":
            raise domain.InvalidArgument(
                f"subscription {subscription.name!r} delivers to a queue; only pushes to a URL are signed",
                field="subscription",
                value=subscription.name,
                limit="a subscription to a URL",
            )
        subscription_id = subscription.subscription_id

        async def change() -> wire.AnyReply:
            # An unsubscribe may have come in while earlier changes of the accounts were written.
            await self.accounts.settled()
            if subscription_id not in self.broker.subscriptions:
                raise domain.SubscriptionNotFound(request.topic, request.subscription)
            until_ms = self.now_ms() + overlap_ms
            secret = await self.accounts.rotate_secret(subscription_id, until_ms)
            return wire.SubscriptionSecret(request.request_id, secret, until_ms)

        self._when_written(client, request.request_id, change, action_of(client, request))

    def _answer_subscribed(
        self,
        client: Client,
        request: wire.Subscribe | wire.EnsureSubscription,
        outcome: Outcome[SubscriptionInfo],
        now_ms: int,
    ) -> None:
        info, request_id = outcome.reply, request.request_id
        if not info.created or info.attributes["protocol"] == "queue":
            self.answering.answer(client, outcome, now_ms, shown_to(client, _info(request_id, info)))
            return
        self.answering.carry_out(outcome, now_ms)
        account = client.account
        subscription_id = self.broker.facts.topics.find_subscription(
            account, info.topic, info.subscription
        ).subscription_id

        async def make_secret() -> wire.AnyReply:
            try:
                secret = await self.accounts.make_secret(subscription_id)
            except OSError:
                # A subscription without its secret posts no message, and no client knows that it exists.
                self._undo(client, account, subscription_id)
                raise
            self.outbox.secret_made(subscription_id)
            return _info(request_id, replace(info, secret=secret))

        # The entry is in the append of the subscription.
        self._when_written(client, request_id, make_secret, None)

    def _undo(self, client: Client, account: str, subscription_id: int) -> None:
        subscription = self.broker.subscriptions.get(subscription_id)
        if self.answering.is_halted or subscription is None:
            return
        now_ms = self.now_ms()
        try:
            topic, name = subscription.topic.name, subscription.name
            outcome = self.broker.unsubscribe(account, topic, name, now_ms)
            # An entry too, or the trail would show a subscription that does not exist.
            undone = wire.Unsubscribe(1, topic, name)
            self.answering.carry_out(self.audit_entries.with_entry(client, undone, outcome, now_ms), now_ms)
        except Exception as bug:
            self.answering.broke(bug, "unsubscribe")
        self._end_unsigned_pushes(subscription_id, now_ms)

    def _end_unsigned_pushes(self, subscription_id: int, now_ms: int) -> None:
        results = self.outbox.forget(subscription_id, now_ms)
        if results:
            self.pushes_ended(results)

    async def _forget_secret(self, subscription_id: int) -> None:
        try:
            await self.accounts.forget_secret(subscription_id)
        except OSError:
            # The secret signs no further post; the next start drops it.
            _log.exception("secret_not_forgotten", subscription_id=subscription_id)

    def _when_written(self, client: Client, request_id: int, work: Work, action: AuditAction | None) -> None:
        """Answer when the accounts file is written and all earlier decisions are durable; ``action`` has an entry."""

        async def run() -> None:
            reply = await reply_when_written(request_id, work, self.counters)
            if self.answering.is_halted:
                client.answer(error(request_id, ErrorCode.OUTCOME_UNKNOWN, "the server failed meanwhile"))
            elif action is None or isinstance(reply, wire.Error):
                self.answering.answer_lookup(client, reply)
            else:
                self.audit_entries.answer(client, action, request_id, reply)
            self.schedule()

        self.spawn(run())


def _info(request_id: int, info: SubscriptionInfo) -> wire.SubscriptionInfo:
    return wire.SubscriptionInfo(request_id, **asdict(info))
