"""Topics: published to, subscribed to. Copies for queues are there at once; nothing is posted to a URL."""

from typing import Any

from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_types.messages import CopyOf, Headers
from cmqd_types.topics import SubscriptionSummary
from support.fake_server.listener import Refused
from support.fake_server.messages import MessageRequests
from support.fake_server.peer import Peer
from support.fake_server.state import FakeSubscription, FakeTopic, now_ms

_DAY_MS = 86_400_000


class TopicRequests(MessageRequests):
    """Topics and their subscriptions."""

    def topic(self, name: str, **attributes: Any) -> FakeTopic:
        """A topic, made if it is not there."""
        if name not in self.topics:
            self.topics[name] = FakeTopic(self._number(), name, attributes)
        return self.topics[name]

    def subscription(self, topic: str, name: str, endpoint: str, **attributes: Any) -> FakeSubscription:
        """A subscription out of nowhere."""
        scheme, separator, _ = endpoint.partition("://")
        common: dict[str, Any] = {
            "strategy": "exponential_decay",
            "content_format": "json",
            "filter_tags": [],
            "binding_keys": [],
        }
        found = {"protocol": scheme if separator else "queue", "endpoint": endpoint, "paused": False}
        made = FakeSubscription(topic, name, found | common | attributes)
        self.topics[topic].subscriptions[name] = made
        return made

    # ------------------------------------------------------------------ topics

    def _found_topic(self, name: str) -> FakeTopic:
        if name not in self.topics:
            raise Refused(ErrorCode.TOPIC_NOT_FOUND, f"topic {name!r} does not exist; create it first", topic=name)
        return self.topics[name]

    def _topic_info(self, request_id: int, topic: FakeTopic, created: bool = False) -> wire.AnyReply:
        retained = {body for one in topic.subscriptions.values() for body in one.waiting}
        counts = {"retained": len(retained), "subscriptions": len(topic.subscriptions)}
        facts: dict[str, Any] = {
            "created_ms": topic.created_ms,
            "modified_ms": topic.created_ms,
            "lifecycle_ms": _DAY_MS,
            "oldest_message_ms": topic.created_ms if retained else None,
        }
        return wire.TopicInfo(
            request_id,
            topic=topic.name,
            topic_id=topic.number,
            attributes=topic.attributes,
            counts=counts,
            facts=facts,
            created=created,
        )

    def _CreateTopic(self, peer: Peer, request: wire.CreateTopic) -> wire.AnyReply:
        name = request.topic[:64]
        if name in self.topics:
            raise Refused(ErrorCode.TOPIC_EXISTS, f"topic {name!r} already exists")
        return self._topic_info(request.request_id, self.topic(name, **request.attributes), created=True)

    def _EnsureTopic(self, peer: Peer, request: wire.EnsureTopic) -> wire.AnyReply:
        if request.topic not in self.topics:
            return self._topic_info(request.request_id, self.topic(request.topic, **request.attributes), created=True)
        found = self.topics[request.topic]
        if difference := _difference(found.attributes, request.attributes):
            text = f"topic {found.name!r} exists with other attributes"
            raise Refused(ErrorCode.TOPIC_DIFFERS, text, difference=difference)
        return self._topic_info(request.request_id, found)

    def _ListTopics(self, peer: Peer, request: wire.ListTopics) -> wire.AnyReply:
        found = sorted((topic.name, topic.number) for topic in self.topics.values() if request.search in topic.name)
        page = [(number, name) for name, number in found[request.offset :][: request.limit]]
        return wire.TopicList(request.request_id, len(found), page)

    def _GetTopicAttributes(self, peer: Peer, request: wire.GetTopicAttributes) -> wire.AnyReply:
        return self._topic_info(request.request_id, self._found_topic(request.topic))

    def _SetTopicAttributes(self, peer: Peer, request: wire.SetTopicAttributes) -> wire.AnyReply:
        found = self._found_topic(request.topic)
        found.attributes |= request.attributes
        return self._topic_info(request.request_id, found)

    def _DeleteTopic(self, peer: Peer, request: wire.DeleteTopic) -> wire.AnyReply:
        found = self._found_topic(request.topic)
        if found.subscriptions:
            text = f"topic {found.name!r} has {len(found.subscriptions)} subscriptions; unsubscribe them first"
            raise Refused(ErrorCode.TOPIC_IN_USE, text, subscriptions=len(found.subscriptions))
        del self.topics[found.name]
        return wire.Done(request.request_id)

    # ------------------------------------------------------------------ publish

    def _PublishMessages(self, peer: Peer, request: wire.PublishMessages) -> wire.AnyReply:
        topic = self._found_topic(request.topic)
        routing = topic.attributes["filter_type"] == "routing"
        if routing != bool(request.routing_keys) or (routing and request.tags):
            wanted = "a routing key" if routing else "tags"
            raise Refused(ErrorCode.INVALID_ARGUMENT, f"topic {topic.name!r} takes {wanted}", field="tags")
        count = len(request.bodies)
        for index, body in enumerate(request.bodies):
            limit = topic.attributes["max_message_bytes"]
            if not 1 <= len(body) <= limit:
                text = f"body {index} has {len(body)} bytes; topic {topic.name!r} takes 1 to {limit}"
                raise Refused(ErrorCode.MESSAGE_TOO_LARGE, text, limit=limit)
        number = (request.session, request.sequence)
        if number in self._answers and request.sequence:
            ids = self._answers[number]
            return wire.MessagesPublished(request.request_id, ids, [None] * len(ids))
        if request.after is not None and request.after not in topic.dedup:
            raise Refused(ErrorCode.OUT_OF_ORDER, f"{request.after!r} is not remembered")
        tags = request.tags or [[]]
        keys: list[str] | list[None] = request.routing_keys or [None]
        ids: list[int] = []
        matched: list[int | None] = []
        for body, headers, labels, key, dedup_id in zip(
            request.bodies,
            request.headers or [None] * count,
            tags * count if len(tags) == 1 else tags,
            keys * count if len(keys) == 1 else keys,
            request.dedup_ids or [None] * count,
            strict=True,
        ):
            if dedup_id in topic.dedup:
                ids.append(topic.dedup[dedup_id])
                matched.append(None)
                continue
            ids.append(self._number())
            subscribers = [one for one in topic.subscriptions.values() if one.matches(labels, key)]
            if dedup_id is not None and subscribers:
                topic.dedup[dedup_id] = ids[-1]
            for one in subscribers:
                copy_of = CopyOf(topic.name, one.name, ids[-1], now_ms(), key or labels or None)
                self._deliver(one, body, headers, copy_of)
            matched.append(len(subscribers))
        self._answers[number] = ids
        return wire.MessagesPublished(request.request_id, ids, matched)

    def _deliver(self, subscription: FakeSubscription, body: bytes, headers: Headers | None, copy_of: CopyOf) -> None:
        attributes = subscription.attributes
        if attributes["protocol"] == "queue" and attributes["endpoint"] in self.queues and not attributes["paused"]:
            self.put(attributes["endpoint"], body, headers=headers, copy_of=copy_of)
            subscription.delivered += 1
        else:
            subscription.waiting.append(body)

    # ------------------------------------------------------------------ subscriptions

    def _found_subscription(self, request: Any) -> FakeSubscription:
        topic = self._found_topic(request.topic)
        if request.subscription not in topic.subscriptions:
            text = f"topic {topic.name!r} has no subscription {request.subscription!r}"
            raise Refused(ErrorCode.SUBSCRIPTION_NOT_FOUND, text, subscription=request.subscription)
        return topic.subscriptions[request.subscription]

    def _subscription_info(self, request_id: int, one: FakeSubscription, created: bool = False) -> wire.AnyReply:
        counts = {
            "waiting": len(one.waiting) - one.in_retry,
            "in_retry": one.in_retry,
            "delivered": one.delivered,
            "dropped": one.dropped,
        }
        facts: dict[str, Any] = {
            "created_ms": one.created_ms,
            "modified_ms": one.created_ms,
            "blocked": one.blocked,
            "last_error": one.last_error,
            "last_error_ms": one.last_error_ms,
            "next_attempt_ms": one.next_attempt_ms,
        }
        secret = one.secret if created and one.attributes["protocol"] != "queue" else None
        return wire.SubscriptionInfo(
            request_id,
            topic=one.topic,
            subscription=one.name,
            attributes=one.attributes,
            counts=counts,
            facts=facts,
            created=created,
            secret=secret,
        )

    def _made_subscription(self, request: Any) -> wire.AnyReply:
        attributes: dict[str, Any] = dict(request.attributes)
        endpoint = attributes.pop("endpoint")
        if "://" not in endpoint and endpoint not in self.queues:
            raise Refused(ErrorCode.QUEUE_NOT_FOUND, f"queue {endpoint!r} does not exist")
        made = self.subscription(request.topic, request.subscription, endpoint, **attributes)
        return self._subscription_info(request.request_id, made, created=True)

    def _Subscribe(self, peer: Peer, request: wire.Subscribe) -> wire.AnyReply:
        if request.subscription in self._found_topic(request.topic).subscriptions:
            text = f"subscription {request.subscription!r} of topic {request.topic!r} already exists"
            raise Refused(ErrorCode.SUBSCRIPTION_EXISTS, text)
        return self._made_subscription(request)

    def _EnsureSubscription(self, peer: Peer, request: wire.EnsureSubscription) -> wire.AnyReply:
        if request.subscription not in self._found_topic(request.topic).subscriptions:
            return self._made_subscription(request)
        found = self._found_subscription(request)
        if difference := _difference(found.attributes, request.attributes):
            text = f"subscription {found.name!r} exists with other attributes"
            raise Refused(ErrorCode.SUBSCRIPTION_DIFFERS, text, difference=difference)
        return self._subscription_info(request.request_id, found)

    def _ListSubscriptions(self, peer: Peer, request: wire.ListSubscriptions) -> wire.AnyReply:
        found = sorted(
            (one for one in self._found_topic(request.topic).subscriptions.values() if request.search in one.name),
            key=lambda one: one.name,
        )
        page = [
            SubscriptionSummary(
                one.name,
                one.attributes["protocol"],
                one.attributes["endpoint"],
                one.attributes["paused"],
                len(one.waiting) - one.in_retry,
                one.in_retry,
                one.last_error,
            )
            for one in found[request.offset :][: request.limit]
        ]
        return wire.SubscriptionList(request.request_id, len(found), page)

    def _GetSubscription(self, peer: Peer, request: wire.GetSubscription) -> wire.AnyReply:
        return self._subscription_info(request.request_id, self._found_subscription(request))

    def _SetSubscriptionAttributes(self, peer: Peer, request: wire.SetSubscriptionAttributes) -> wire.AnyReply:
        found = self._found_subscription(request)
        found.attributes |= request.attributes
        return self._subscription_info(request.request_id, found)

    def _Unsubscribe(self, peer: Peer, request: wire.Unsubscribe) -> wire.AnyReply:
        found = self._found_subscription(request)
        del self.topics[request.topic].subscriptions[found.name]
        return wire.Done(request.request_id)

    def _RetryDeliveries(self, peer: Peer, request: wire.RetryDeliveries) -> wire.AnyReply:
        found = self._found_subscription(request)
        count, found.in_retry = found.in_retry, 0
        return wire.DeliveriesDone(request.request_id, count)

    def _DropDeliveries(self, peer: Peer, request: wire.DropDeliveries) -> wire.AnyReply:
        found = self._found_subscription(request)
        count = len(found.waiting)
        found.dropped += count
        found.in_retry = 0
        found.waiting.clear()
        return wire.DeliveriesDone(request.request_id, count)

    def _RotateSecret(self, peer: Peer, request: wire.RotateSecret) -> wire.AnyReply:
        found = self._found_subscription(request)
        if found.attributes["protocol"] == "queue":
            raise Refused(ErrorCode.INVALID_ARGUMENT, f"subscription {found.name!r} delivers to a queue")
        found.secret += "-again"
        overlap_ms = _DAY_MS if request.overlap_ms is None else request.overlap_ms
        return wire.SubscriptionSecret(request.request_id, found.secret, now_ms() + overlap_ms)


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: {"is": found[name], "wanted": value} for name, value in wanted.items() if found[name] != value}
