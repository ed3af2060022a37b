"""Queues: made, listed, changed, deleted."""

from typing import Any

from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from support.fake_server.messages import MessageRequests
from support.fake_server.peer import Peer
from support.fake_server.state import FakeQueue


class QueueRequests(MessageRequests):
    """Requests about whole queues."""

    def _info(self, request_id: int, queue: FakeQueue, created: bool = False) -> wire.AnyReply:
        counts = {
            "active": sum(not message.delayed for message in queue.active),
            "in_flight": len(queue.in_flight),
            "delayed": sum(message.delayed for message in queue.active),
            "half": len(queue.half),
            "rewindable": len(queue.rewindable),
        }
        oldest = min((one.enqueue_ms for one in (*queue.active, *queue.in_flight.values())), default=None)
        facts: dict[str, Any] = {
            "created_ms": queue.created_ms,
            "modified_ms": queue.created_ms,
            "oldest_message_ms": oldest,
        }
        if sources := self._sources(queue.name):
            facts["dead_letter_sources"] = [name for _, name in sources]
        return wire.QueueInfo(
            request_id,
            queue=queue.name,
            queue_id=queue.number,
            attributes=queue.attributes,
            counts=counts,
            facts=facts,
            created=created,
        )

    def _check(self, request: Any) -> wire.AnyReply | None:
        for name, value in request.attributes.items():
            if name == "visibility_timeout_ms" and not 1000 <= value <= 43_200_000:
                text = f"{name} is {value}; it must be an integer from 1000 to 43200000"
                details = {"field": name, "value": value, "limit": "an integer from 1000 to 43200000"}
                return wire.error(request.request_id, ErrorCode.INVALID_ARGUMENT, text, details=details)
        return None

    def _CreateQueue(self, peer: Peer, request: wire.CreateQueue) -> wire.AnyReply:
        if request.queue in self.queues:
            return wire.error(request.request_id, ErrorCode.QUEUE_EXISTS, f"queue {request.queue!r} already exists")
        return self._check(request) or self._info(
            request.request_id, self.queue(request.queue, **request.attributes), True
        )

    def _EnsureQueue(self, peer: Peer, request: wire.EnsureQueue) -> wire.AnyReply:
        found = self.queues.get(request.queue)
        if found is None:
            return self._CreateQueue(peer, wire.CreateQueue(request.request_id, request.queue, request.attributes))
        difference = {
            name: {"is": found.attributes[name], "wanted": value}
            for name, value in request.attributes.items()
            if found.attributes[name] != value
        }
        if difference:
            text = f"queue {found.name!r} exists with other attributes"
            return wire.error(request.request_id, ErrorCode.QUEUE_DIFFERS, text, details={"difference": difference})
        return self._info(request.request_id, found)

    def _ListQueues(self, peer: Peer, request: wire.ListQueues) -> wire.AnyReply:
        found = sorted((queue.name, queue.number) for queue in self.queues.values() if request.search in queue.name)
        page = [(number, name) for name, number in found[request.offset :][: request.limit]]
        return wire.QueueList(request.request_id, len(found), page)

    def _GetQueueAttributes(self, peer: Peer, request: wire.GetQueueAttributes) -> wire.AnyReply:
        return self._info(request.request_id, self.queues[request.queue])

    def _SetQueueAttributes(self, peer: Peer, request: wire.SetQueueAttributes) -> wire.AnyReply:
        found = self.queues[request.queue]
        refused = self._check(request)
        if refused is None:
            found.attributes |= request.attributes
        return refused or self._info(request.request_id, found)

    def _DeleteQueue(self, peer: Peer, request: wire.DeleteQueue) -> wire.AnyReply:
        if sources := [name for _, name in self._sources(request.queue)]:
            text = f"queue {request.queue!r} is the dead-letter queue of {', '.join(sources)}"
            details = {"sources": sources}
            return wire.error(request.request_id, ErrorCode.DEAD_LETTER_QUEUE_IN_USE, text, details=details)
        for waiter, receive in self.queues.pop(request.queue).waiting:
            waiter.answer(wire.error(receive.request_id, ErrorCode.QUEUE_DELETED, "the queue was deleted"))
        return wire.Done(request.request_id)

    def _ClearQueue(self, peer: Peer, request: wire.ClearQueue) -> wire.AnyReply:
        found = self.queues[request.queue]
        found.active.clear()
        found.in_flight.clear()
        return wire.Done(request.request_id)

    def _sources(self, name: str) -> list[tuple[int, str]]:
        sources = [one for one in self.queues.values() if one.attributes["dead_letter_queue"] == name]
        return sorted(((one.number, one.name) for one in sources), key=lambda pair: pair[1])
