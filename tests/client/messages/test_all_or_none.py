"""``all_or_none`` of sends, half sends and publishes: a batch comes whole or came whole."""

from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from cmqd_client import Client, connect
from cmqd_client.errors import InvalidArgument, NotSupported
from cmqd_client.results import SentBatch
from cmqd_protocol import messages as wire
from cmqd_protocol.features import Feature
from support.client.local_server import LocalServer


class Batches:
    """Batches of a kind under dedup ids."""

    def __init__(self, client: Client, kind: str) -> None:
        self.client = client
        self._kind = kind

    def send(self, *dedup_ids: str) -> Awaitable[Any]:
        bodies = [name.encode() for name in dedup_ids]
        if self._kind == "publish":
            return self.client.topic("news").publish_batch(bodies, dedup_ids=dedup_ids, all_or_none=True)
        queue = self.client.queue("orders")
        send = queue.send_half_batch if self._kind == "half" else queue.send_batch
        return send(bodies, dedup_ids=dedup_ids, all_or_none=True)

    async def ids(self, *dedup_ids: str) -> Sequence[str]:
        sent = await self.send(*dedup_ids)
        return sent.ids if isinstance(sent, SentBatch) else [message.id for message in sent]


@pytest.fixture(params=["send", "half", "publish"])
async def batches(request: pytest.FixtureRequest, server: LocalServer, client: Client) -> Batches:
    if request.param == "half":
        await server.admin.delete_queue("orders")
        await server.admin.create_queue("orders", transactional=True)
    if request.param == "publish":
        topic = await server.admin.create_topic("news")
        await topic.subscribe("all", queue="orders")
    return Batches(client, request.param)


async def test_a_batch_is_stored_whole_or_was(batches: Batches) -> None:
    first = await batches.ids("x", "y")

    assert await batches.ids("x", "y") == first
    with pytest.raises(InvalidArgument, match="1 of the 2 messages of this batch before") as refused:
        await batches.send("x", "z")
    assert refused.value.details["field"] == "all_or_none"
    assert len(await batches.ids("z")) == 1


async def test_an_older_server_is_not_asked(batches: Batches, server: LocalServer) -> None:
    server.link.features = [word for word in Feature if word is not Feature.ALL_OR_NONE]
    server.link.handled.clear()

    async with connect(server.url) as client:
        batches.client = client
        with pytest.raises(NotSupported, match="all_or_none"):
            await batches.send("x", "y")

    kinds = (wire.SendMessages, wire.SendHalfMessages, wire.PublishMessages)
    assert not any(server.link.of(kind) for kind in kinds)


async def test_every_step_of_a_split_batch_is_judged_by_itself(client: Client) -> None:
    queue = client.queue("orders")
    names = [str(number) for number in range(257)]
    await queue.send_batch([b"x"] * 256, dedup_ids=names[:256])

    sent = await queue.send_batch([b"x"] * 257, dedup_ids=names, split=True, all_or_none=True)

    assert len(sent.ids) == 257
