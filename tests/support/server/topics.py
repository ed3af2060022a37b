"""Topics of a server rig: made, subscribed to and published to."""

from typing import Any

from cmqd_protocol import messages as wire
from support.server.server_rig import RigClient

URL = "https://example.com/hook"


async def a_topic(client: RigClient, topic: str = "news", **attributes: Any) -> wire.TopicInfo:
    return await client.expect(wire.TopicInfo, wire.EnsureTopic, topic, attributes)


async def to_queue(client: RigClient, queue: str, topic: str = "news", **attributes: Any) -> wire.SubscriptionInfo:
    """A subscription of the queue of its name."""
    await client.expect(wire.QueueInfo, wire.EnsureQueue, queue, {})
    return await client.expect(wire.SubscriptionInfo, wire.Subscribe, topic, queue, {"endpoint": queue, **attributes})


async def to_url(client: RigClient, name: str = "hook", **attributes: Any) -> str:
    """A subscription to a URL; its secret."""
    made = await client.expect(wire.SubscriptionInfo, wire.Subscribe, "news", name, {"endpoint": URL, **attributes})
    assert made.secret is not None
    return made.secret


async def publish(client: RigClient, *bodies: bytes, topic: str = "news", **named: Any) -> wire.MessagesPublished:
    return await client.expect(wire.MessagesPublished, wire.PublishMessages, topic, list(bodies), **named)
