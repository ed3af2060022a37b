"""The requests about topics, for ``Session``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cmqd_protocol.messages import (
    AnyReply,
    CreateTopic,
    DeliveriesDone,
    DeliveriesPeeked,
    DropDelivery,
    GetSubscription,
    GetTopicAttributes,
    MessagesPublished,
    PeekDeliveries,
    PublishMessages,
    RetryDeliveries,
    RetryDelivery,
    Subscribe,
    SubscriptionAttributes,
    SubscriptionInfo,
    TopicInfo,
)
from cmqd_types.messages import Headers
from support.crash.link import Link, now
from support.crash.promises import history as recorded


class TopicSession(Link):
    """The requests of a session about topics."""

    async def create_topic(self, topic: str) -> recorded.CreateTopic:
        request = CreateTopic(self.next_request_id(), topic, {})
        return await self.ask(request, recorded.CreateTopic(**now(topic)), lambda asked, _: asked)

    async def get_topic(self, topic: str) -> recorded.GetTopic:
        def answered(asked: recorded.GetTopic, reply: AnyReply) -> recorded.GetTopic:
            assert isinstance(reply, TopicInfo)
            return replace(asked, retained=reply.counts["retained"])

        return await self.ask(
            GetTopicAttributes(self.next_request_id(), topic), recorded.GetTopic(**now(topic)), answered
        )

    async def subscribe(
        self, topic: str, name: str, *, endpoint: str, filter_tags: Sequence[str] = (), content_format: str = "json"
    ) -> recorded.Subscribe:
        attributes: SubscriptionAttributes = {
            "endpoint": endpoint,
            "filter_tags": list(filter_tags),
            "content_format": content_format,
        }
        asked = recorded.Subscribe(
            **now(topic), subscription=name, endpoint=endpoint, filter_tags=frozenset(filter_tags)
        )

        def answered(asked: recorded.Subscribe, reply: AnyReply) -> recorded.Subscribe:
            assert isinstance(reply, SubscriptionInfo)
            return replace(asked, secret=reply.secret or "")

        return await self.ask(Subscribe(self.next_request_id(), topic, name, attributes), asked, answered)

    async def publish(
        self,
        topic: str,
        bodies: Sequence[bytes],
        tags: Sequence[Sequence[str]],
        *,
        headers: Mapping[str, str] | None = None,
        session: int = 0,
        sequence: int = 0,
        dedup_ids: Sequence[str] = (),
    ) -> recorded.Publish:
        """``tags``: an entry per body."""
        asked = recorded.Publish(
            **now(topic),
            bodies=tuple(map(self._history.shared, bodies)),
            tags=tuple(map(frozenset, tags)),
            headers=(headers,) * len(bodies) if headers else (),
            session=session,
            sequence=sequence,
            dedup_ids=tuple(dedup_ids),
        )
        request = PublishMessages(
            self.next_request_id(),
            topic,
            list(bodies),
            wire_headers(asked.headers),
            [list(some) for some in tags],
            None,
            session,
            sequence,
            list(dedup_ids) or None,
        )

        def answered(asked: recorded.Publish, reply: AnyReply) -> recorded.Publish:
            assert isinstance(reply, MessagesPublished)
            return replace(asked, message_ids=tuple(reply.message_ids), matched=tuple(reply.matched))

        return await self.ask(request, asked, answered)

    async def get_subscription(self, topic: str, name: str) -> recorded.GetSubscription:
        def answered(asked: recorded.GetSubscription, reply: AnyReply) -> recorded.GetSubscription:
            assert isinstance(reply, SubscriptionInfo)
            return replace(asked, counts=reply.counts)

        request = GetSubscription(self.next_request_id(), topic, name)
        return await self.ask(request, recorded.GetSubscription(**now(topic), subscription=name), answered)

    async def retry_now(self, topic: str, name: str) -> recorded.RetryNow:
        def answered(asked: recorded.RetryNow, reply: AnyReply) -> recorded.RetryNow:
            assert isinstance(reply, DeliveriesDone)
            return asked

        request = RetryDeliveries(self.next_request_id(), topic, name)
        return await self.ask(request, recorded.RetryNow(**now(topic), subscription=name), answered)

    async def peek_deliveries(self, topic: str, name: str, max_messages: int, start: int) -> recorded.PeekDeliveries:
        def answered(asked: recorded.PeekDeliveries, reply: AnyReply) -> recorded.PeekDeliveries:
            assert isinstance(reply, DeliveriesPeeked)
            bodies = (self._history.shared(message.body or b"") for message in reply.messages)
            numbers = (message.message_id for message in reply.messages)
            return replace(asked, messages=tuple(zip(numbers, bodies, strict=True)), next_start=reply.next_start)

        request = PeekDeliveries(self.next_request_id(), topic, name, max_messages, start)
        return await self.ask(request, recorded.PeekDeliveries(**now(topic), subscription=name), answered)

    async def drop_delivery(self, topic: str, name: str, message_id: int, body: bytes) -> recorded.DropDelivery:
        def answered(asked: recorded.DropDelivery, reply: AnyReply) -> recorded.DropDelivery:
            assert isinstance(reply, DeliveriesDone)
            assert reply.messages == 1
            return asked

        asked = recorded.DropDelivery(**now(topic), subscription=name, message_id=message_id, body=body)
        return await self.ask(DropDelivery(self.next_request_id(), topic, name, message_id), asked, answered)

    async def retry_delivery(self, topic: str, name: str, message_id: int, body: bytes) -> recorded.RetryDelivery:
        def answered(asked: recorded.RetryDelivery, reply: AnyReply) -> recorded.RetryDelivery:
            assert isinstance(reply, DeliveriesDone)
            return asked

        asked = recorded.RetryDelivery(**now(topic), subscription=name, message_id=message_id, body=body)
        return await self.ask(RetryDelivery(self.next_request_id(), topic, name, message_id), asked, answered)


def wire_headers(headers: Sequence[Mapping[str, str] | None]) -> list[Headers | None] | None:
    """Headers or tags of a request; an empty value is not sent."""
    return [None if one is None else dict(one) for one in headers] or None
