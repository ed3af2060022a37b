"""A second wire protocol: a face that shares no code with ``binary`` serves requests through the same parts."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from cmqd.server.access.permissions import Permissions
from cmqd.server.clients.client import Client
from cmqd.server.replies.reply_gate import Outgoing
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.dispatch import Dispatcher
from cmqd_protocol import messages as wire
from cmqd_types.actors import Actor
from cmqd_types.inspection import ConnectionInfo
from support.server.server_rig import ServerRig, code_of


class Face:
    """A client of a face: requests are calls, replies are futures. The interface is described in ARCHITECTURE."""

    def __init__(self, rig: ServerRig, secret_id: str) -> None:
        key = rig.accounts.find_key(secret_id)
        assert key is not None
        self.account, self.secret_id, self.peer = key.account, key.secret_id, "[::1]:80"
        self.product = "a face"
        self.actor = Actor(self.account, self.secret_id, "a face", "::1")
        self.permissions = rig.accounts.permissions_of(secret_id)
        self.waiting: dict[int, int] | None = None
        self.checked_queues: set[str] | None = None
        self.unread_receives = 0
        self.understands_stalls = False
        self.is_held = self.is_slow = self.is_gone = False
        self.is_private = True
        self.connection_id = 1_000_000 + len(rig.server.connections)
        self.ended: str | None = None
        server = self._server = rig.server
        self._behind: deque[wire.Request] = deque()
        self._replies: dict[int, asyncio.Future[Any]] = {}
        server.connections.add(self)
        server.connections.authenticated(self)

    def begin(self, make: Callable[..., wire.Request], *arguments: Any) -> "asyncio.Future[Any]":
        request = make(len(self._replies) + 1, *arguments)
        future = self._replies[request.request_id] = asyncio.get_running_loop().create_future()
        self._server.io_batch.take_input(100)
        self._server.part(Dispatcher).dispatch(self, request)
        return future

    async def call(self, make: Callable[..., wire.Request], *arguments: Any) -> Any:
        return await self.begin(make, *arguments)

    def leave(self) -> None:
        self.is_gone = True
        self._server.connections.remove(self)
        self._server.client_events.disconnected(self)

    # The interface ``Client``.

    def answer(self, reply: Outgoing, queue: str | None = None) -> None:
        self.unread_receives -= queue is not None
        if not self.is_gone:
            self._replies[getattr(reply, "request_id", 0)].set_result(reply)
        elif queue and isinstance(reply, wire.MessagesReceived):
            self._server.client_events.give_back(self.account, queue, reply.messages)

    def use_permissions(self, permissions: Permissions | None) -> None:
        self.permissions = permissions
        self._server.client_events.permissions_changed(self)

    def hold(self) -> None:
        self.is_held = True

    def put_back(self, request: wire.Request) -> None:
        self._behind.appendleft(request)

    def park(self, request: wire.Request) -> None:
        self._behind.append(request)

    def release(self) -> None:
        self.is_held = False
        while self._behind and not self.is_held:
            self._server.part(Dispatcher).dispatch(self, self._behind.popleft())

    def note_held_replies(self, size: int) -> None:
        pass

    # The interface ``Connection``.

    def info(self, now_ms: int) -> ConnectionInfo:
        figures = (now_ms, now_ms, len(self._replies), 0, 0, 0, len(self.waiting or ()), 0, 0)
        return ConnectionInfo(self.connection_id, self.account, self.secret_id, self.peer, self.product, True, *figures)

    def end(self, code: object, text: str, retry_after_ms: int | None = None) -> None:
        self.ended = text
        self.leave()

    def abort(self) -> None:
        self.leave()


def connected(rig: ServerRig) -> Face:
    return Face(rig, rig.accounts.first_key("admin").secret_id)


async def test_a_face_sends_receives_with_a_long_poll_and_deletes(rig: ServerRig) -> None:
    producer, consumer = connected(rig), connected(rig)
    as_client: Client = producer
    assert isinstance(await producer.call(wire.CreateQueue, "jobs", {}), wire.QueueInfo), as_client
    polling = consumer.begin(wire.ReceiveMessages, "jobs", 16, 10_000)
    await rig.turn()
    assert not polling.done()

    sent = await producer.call(wire.SendMessages, "jobs", [b"one", b"two"])
    received = await polling

    assert [message.message_id for message in received.messages] == sent.message_ids
    handles = [message.receipt_handle for message in received.messages]
    assert (await consumer.call(wire.DeleteMessages, "jobs", handles)).failures == []
    counts = (await producer.call(wire.GetQueueAttributes, "jobs")).counts
    assert (counts["active"], counts["in_flight"]) == (0, 0)
    assert consumer.unread_receives == 0


async def test_messages_for_a_face_that_left_return_to_the_queue_uncounted(rig: ServerRig) -> None:
    leaving, staying = connected(rig), connected(rig)
    await staying.call(wire.CreateQueue, "jobs", {})
    leaving.begin(wire.ReceiveMessages, "jobs", 1, 10_000)
    await rig.turn()
    rig.log.hold()
    staying.begin(wire.SendMessages, "jobs", [b"x"])
    await rig.turn()
    leaving.leave()
    rig.log.let_go()

    (message,) = (await staying.call(wire.ReceiveMessages, "jobs", 1, 10_000)).messages

    assert (message.body, message.receive_count) == (b"x", 1)
    waiting = connected(rig)
    polling = waiting.begin(wire.ReceiveMessages, "jobs", 1, 10_000)
    await rig.turn()
    assert len(rig.server.part(WaitingRequests)) == 1
    waiting.leave()
    assert len(rig.server.part(WaitingRequests)) == 0
    assert not polling.done()


async def test_a_binary_client_and_a_face_share_queues_refusals_and_limits(rig: ServerRig) -> None:
    binary, face = await rig.client(), connected(rig)
    await binary.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    await face.call(wire.SendMessages, "jobs", [b"x"])

    assert [message.body for message in await binary.receive("jobs")] == [b"x"]
    assert code_of(await face.call(wire.SendMessages, "gone", [b"x"])) == "queue_not_found"
    rig.server.connections.revoke(face.secret_id)
    assert face.ended == "the key was disabled or deleted"
