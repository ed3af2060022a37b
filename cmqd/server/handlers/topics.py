"""The handlers of topics and subscriptions.

Publishes are collected, as sends are: see ``handlers.collecting``.

**Secrets.** A subscription to a URL has a secret for signatures, which is not in the log but in the accounts file. It
is written as soon as the core has decided, beside the commit, and the reply leaves when both are on disk. So after a
crash there may be a secret without its subscription, which the start drops, or a subscription without its secret, of
which nobody had the answer: the start makes a new one, which nobody knows, and ``rotate_secret`` tells the next.
Until there is one, nothing is posted (``Outbox``).
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, cast

from msgspec.structs import asdict, replace

from cmqd.core import errors as domain
from cmqd.core.limits import check_range, headers_bytes
from cmqd.core.operations.publish import WHOLE
from cmqd.core.operations.publish_plan import PublishPlan
from cmqd.core.outcome import Outcome, Published, PublishRequest, PushResult
from cmqd.server.accounts import PushUnavailable
from cmqd.server.handlers.collecting import PUBLISH, Collected, Collecting
from cmqd.server.handlers.outcomes import Client, translate
from cmqd.server.log_lines import get_logger
from cmqd.server.publish_lines import SLICE_UNITS, PlannedPublish
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error
from cmqd_types.messages import Labels
from cmqd_types.topics import SubscriptionInfo, SubscriptionSummary, TopicInfo

_log = get_logger()

DEFAULT_OVERLAP_MS: Final = 86_400_000
MAX_OVERLAP_MS: Final = 604_800_000
"""How long an old secret may stay valid beside the new one: time to bring the new one to every receiver."""


class TopicHandlers(Collecting):
    """Topics and subscriptions; see the module."""

    # ------------------------------------------------------------------ publishing

    def _publish_messages(self, client: Client, request: wire.PublishMessages) -> None:
        if self._is_disk_behind(client, request.request_id):
            return
        bodies = request.bodies
        size = sum(map(len, bodies))
        if request.headers is not None:
            size += sum(headers_bytes(entry) for entry in request.headers if entry)
        asked = PublishRequest(
            bodies,
            request.headers,
            _labels(request),
            request.session,
            request.sequence,
            request.dedup_ids,
            request.after,
        )
        self._collect(PUBLISH, client, request, request.topic, asked, len(bodies), size)

    def _decide_publishes(
        self, collected: Collected, now_ms: int
    ) -> tuple[Sequence[Published | domain.DomainError], int] | None:
        account, topic = collected.account, collected.name
        plan = None
        if not self._publish_lines.has_line(account, topic):
            plan = self._broker.plan_publish(account, topic, collected.requests, now_ms)
            if plan.advance(SLICE_UNITS):
                return self._apply_publishes(plan, now_ms)
        self._publish_lines.add(PlannedPublish(collected, plan))
        self._collected_bytes += collected.size
        for client, _ in collected.askers:
            client.hold()
        self._schedule()
        return None

    def _apply_publishes(self, plan: PublishPlan, now_ms: int) -> tuple[Sequence[Published | domain.DomainError], int]:
        outcome = self._broker.apply_publish(plan, now_ms)
        return outcome.reply, self._settle(outcome, now_ms)

    def _go_on_publishing(self, units: int = 0) -> bool:
        """Do a slice of the publish whose turn it is, and answer it if that was the last one; False if it was not."""
        units = units or SLICE_UNITS
        publish = self._publish_lines.take()

        def decide(collected: Collected, now_ms: int) -> tuple[Sequence[Published | domain.DomainError], int] | None:
            plan = publish.plan
            if plan is None:
                plan = self._broker.plan_publish(collected.account, collected.name, collected.requests, now_ms)
                publish.plan = plan
            return self._apply_publishes(plan, now_ms) if plan.advance(units) else None

        if not self._carry_out(publish.collected, decide, self._answer_publishes):
            self._publish_lines.put_back(publish)
            return False
        self._collected_bytes -= publish.collected.size
        for client, _ in publish.collected.askers:
            client.release()
        return True

    def finish_publishing(self) -> None:
        """Carry out every publish in line, in one go."""
        while self._publish_lines.lines:
            self._go_on_publishing(WHOLE)

    def _answer_publishes(
        self, collected: Collected, replies: Sequence[Published | domain.DomainError], lsn: int
    ) -> None:
        for (client, request_id), reply in zip(collected.askers, replies, strict=True):
            if isinstance(reply, Published):
                self._counters.published += len(reply.message_ids)
                answer = wire.MessagesPublished(request_id, list(reply.message_ids), list(reply.matched))
                self._gate.hold(lsn, client, answer)
            else:
                self._refuse(client, request_id, reply, lsn)

    def pushes_ended(self, results: list[PushResult]) -> None:
        """What came of posts; recorded in a drain too, so that nothing that arrived is posted again."""
        if self._halted:
            return
        failed = sum(result.error is not None for result in results)
        self._counters.pushes_failed += failed
        self._counters.pushes_delivered += len(results) - failed
        now_ms = self._now_ms()
        try:
            self._settle(self._broker.pushes_ended(results, now_ms), now_ms)
        except Exception as bug:
            self._broke(bug, "pushes_ended")
        self._schedule()

    # ------------------------------------------------------------------ topics

    def _create_topic(self, client: Client, request: wire.CreateTopic) -> None:
        self._accounts.check_exists(client.account)
        now_ms = self._now_ms()
        outcome = self._broker.create_topic(client.account, request.topic, request.attributes, now_ms)
        self._answer_topic(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _ensure_topic(self, client: Client, request: wire.EnsureTopic) -> None:
        self._accounts.check_exists(client.account)
        now_ms = self._now_ms()
        outcome = self._broker.ensure_topic(client.account, request.topic, request.attributes, now_ms)
        self._answer_topic(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _list_topics(self, client: Client, request: wire.ListTopics) -> None:
        total, topics = self._broker.list_topics(client.account, request.search, request.offset, request.limit)
        self._gate.hold(self._log.last_lsn, client, wire.TopicList(request.request_id, total, topics))

    def _get_topic_attributes(self, client: Client, request: wire.GetTopicAttributes) -> None:
        info = self._broker.topic_info(client.account, request.topic)
        self._answer_topic(client, request.request_id, info, self._log.last_lsn)

    def _set_topic_attributes(self, client: Client, request: wire.SetTopicAttributes) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.set_topic_attributes(client.account, request.topic, request.attributes, now_ms)
        self._answer_topic(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _delete_topic(self, client: Client, request: wire.DeleteTopic) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.delete_topic(client.account, request.topic)
        self._gate.hold(self._settle(outcome, now_ms), client, wire.Done(request.request_id))

    def _answer_topic(self, client: Client, request_id: int, info: TopicInfo, lsn: int) -> None:
        info = replace(info, facts=info.facts | self.location)
        reply = wire.TopicInfo(request_id, **asdict(info))
        self._gate.hold(lsn, client, reply)

    # ------------------------------------------------------------------ subscriptions

    def _subscribe(self, client: Client, request: wire.Subscribe) -> None:
        self._need_pusher(request.attributes)
        now_ms = self._now_ms()
        outcome = self._broker.subscribe(
            client.account, request.topic, request.subscription, request.attributes, now_ms
        )
        self._answer_subscribed(client, request.request_id, outcome, now_ms)

    def _ensure_subscription(self, client: Client, request: wire.EnsureSubscription) -> None:
        self._need_pusher(request.attributes)
        now_ms = self._now_ms()
        outcome = self._broker.ensure_subscription(
            client.account, request.topic, request.subscription, request.attributes, now_ms
        )
        self._answer_subscribed(client, request.request_id, outcome, now_ms)

    def _need_pusher(self, attributes: dict[str, Any]) -> None:
        endpoint = attributes.get("endpoint")
        if isinstance(endpoint, str) and "://" in endpoint and not self._outbox.can_push:
            raise PushUnavailable

    def _answer_subscribed(
        self, client: Client, request_id: int, outcome: Outcome[SubscriptionInfo], now_ms: int
    ) -> None:
        lsn = self._settle(outcome, now_ms)
        info = outcome.reply
        if not info.created or info.attributes["protocol"] == "queue":
            self._gate.hold(lsn, client, _subscription_info(request_id, info))
            return
        account = client.account
        subscription_id = self._broker.facts.topics.find_subscription(
            account, info.topic, info.subscription
        ).subscription_id

        async def make() -> wire.AnyReply:
            try:
                secret = await self._accounts.make_secret(subscription_id)
            except OSError:
                # Without its secret it would be of no use, and nobody has been told that it exists.
                self._undo_subscription(account, subscription_id)
                raise
            self._outbox.secret_made(subscription_id)
            return _subscription_info(request_id, info, secret)

        self._when_written(client, request_id, make)

    def _undo_subscription(self, account: str, subscription_id: int) -> None:
        subscription = self._broker.subscriptions.get(subscription_id)
        if self._halted or subscription is None:
            return
        now_ms = self._now_ms()
        try:
            self._settle(self._broker.unsubscribe(account, subscription.topic.name, subscription.name, now_ms), now_ms)
        except Exception as bug:
            self._broke(bug, "unsubscribe")
        self._outbox.forget(subscription_id, now_ms)

    def _list_subscriptions(self, client: Client, request: wire.ListSubscriptions) -> None:
        total, found = self._broker.list_subscriptions(
            client.account, request.topic, request.search, request.offset, request.limit, self._now_ms()
        )
        reply = wire.SubscriptionList(request.request_id, total, [_summary(info) for info in found])
        self._gate.hold(self._log.last_lsn, client, reply)

    def _get_subscription(self, client: Client, request: wire.GetSubscription) -> None:
        info = self._broker.subscription_info(client.account, request.topic, request.subscription, self._now_ms())
        self._gate.hold(self._log.last_lsn, client, _subscription_info(request.request_id, info))

    def _set_subscription_attributes(self, client: Client, request: wire.SetSubscriptionAttributes) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.set_subscription_attributes(
            client.account, request.topic, request.subscription, request.attributes, now_ms
        )
        reply = _subscription_info(request.request_id, outcome.reply)
        self._gate.hold(self._settle(outcome, now_ms), client, reply)

    def _unsubscribe(self, client: Client, request: wire.Unsubscribe) -> None:
        now_ms = self._now_ms()
        subscription = self._broker.facts.topics.find_subscription(client.account, request.topic, request.subscription)
        outcome = self._broker.unsubscribe(client.account, request.topic, request.subscription, now_ms)
        self._gate.hold(self._settle(outcome, now_ms), client, wire.Done(request.request_id))
        if subscription.attributes.protocol != "queue":
            self._outbox.forget(subscription.subscription_id, now_ms)
            self._spawn(self._forget_secret(subscription.subscription_id))

    async def _forget_secret(self, subscription_id: int) -> None:
        try:
            await self._accounts.forget_secret(subscription_id)
        except OSError:
            # It signs nothing any more; the next start drops it.
            _log.exception("secret_not_forgotten", subscription_id=subscription_id)

    def _retry_deliveries(self, client: Client, request: wire.RetryDeliveries) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.retry_deliveries(client.account, request.topic, request.subscription, now_ms)
        reply = wire.DeliveriesDone(request.request_id, outcome.reply)
        self._gate.hold(self._settle(outcome, now_ms), client, reply)

    def _drop_deliveries(self, client: Client, request: wire.DropDeliveries) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.drop_deliveries(client.account, request.topic, request.subscription, now_ms)
        reply = wire.DeliveriesDone(request.request_id, outcome.reply)
        self._gate.hold(self._settle(outcome, now_ms), client, reply)

    def _rotate_secret(self, client: Client, request: wire.RotateSecret) -> None:
        overlap_ms = DEFAULT_OVERLAP_MS if request.overlap_ms is None else request.overlap_ms
        check_range("overlap_ms", overlap_ms, 0, MAX_OVERLAP_MS)
        subscription = self._broker.facts.topics.find_subscription(client.account, request.topic, request.subscription)
        if subscription.attributes.protocol == "queue":
            raise domain.InvalidArgument(
                "subscription", subscription.name, "one to a URL: only what is posted is signed"
            )
        subscription_id = subscription.subscription_id

        async def change() -> wire.AnyReply:
            # Another request may have ended the subscription while this one waited for its turn.
            await self._accounts.settled()
            if subscription_id not in self._broker.subscriptions:
                raise domain.SubscriptionNotFound(request.topic, request.subscription)
            until_ms = self._now_ms() + overlap_ms
            secret = await self._accounts.rotate_secret(subscription_id, until_ms)
            return wire.SubscriptionSecret(request.request_id, secret, until_ms)

        self._when_written(client, request.request_id, change)

    def _when_written(
        self, client: Client, request_id: int, work: Callable[[], Coroutine[Any, Any, wire.AnyReply]]
    ) -> None:
        """Answer when the accounts file is written and all that was decided until then is durable."""

        async def run() -> None:
            try:
                reply = await work()
            except domain.DomainError as refusal:
                self._counters.refusals += 1
                reply = translate(request_id, refusal)
            except OSError as failure:
                _log.exception("accounts_not_written")
                text = f"the accounts file could not be written ({failure.strerror}); nothing was changed"
                reply = error(request_id, ErrorCode.INTERNAL_ERROR, text)
            if self._halted:
                reply = error(request_id, ErrorCode.OUTCOME_UNKNOWN, "the server failed meanwhile")
                client.answer(reply)
            else:
                self._gate.hold(self._log.last_lsn, client, reply)
            self._schedule()

        self._spawn(run())


def _labels(request: wire.PublishMessages) -> list[Labels] | None:
    """Tags or keys, whichever the client has sent. Which of them the topic takes, the core says."""
    tags = cast("list[Labels] | None", request.tags)
    keys = cast("list[Labels] | None", request.routing_keys)
    if keys is None or tags is None:
        return tags if keys is None else keys
    if not any(tags):
        return keys
    if any(keys):
        raise domain.InvalidArgument("routing_keys", keys, "empty where there are tags: a message has one or the other")
    return tags


def _subscription_info(request_id: int, info: SubscriptionInfo, secret: str | None = None) -> wire.SubscriptionInfo:
    return wire.SubscriptionInfo(request_id, **asdict(replace(info, secret=secret)))


def _summary(info: SubscriptionInfo) -> SubscriptionSummary:
    attributes, counts = info.attributes, info.counts
    return SubscriptionSummary(
        name=info.subscription,
        protocol=attributes["protocol"],
        endpoint=attributes["endpoint"],
        paused=attributes["paused"],
        waiting=counts["waiting"],
        in_retry=counts["in_retry"],
        last_error=info.facts["last_error"],
    )
