"""Messages of queues: sent, received, deleted, looked at."""

import asyncio
from collections.abc import Callable
from typing import Any

from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_types.messages import CopyOf, Headers, PeekedMessage, ReceivedMessage
from support.fake_server.listener import Listener
from support.fake_server.peer import Peer
from support.fake_server.state import FakeQueue, Stored, now_ms


class MessageRequests(Listener):
    """Sends, receives and what is done with what was received."""

    def put(
        self,
        queue: str,
        *bodies: bytes,
        headers: Headers | None = None,
        delayed: bool = False,
        copy_of: CopyOf | None = None,
    ) -> list[int]:
        """Messages out of nowhere; those who wait get them."""
        found = self.queues[queue]
        stored = [Stored(self._number(), body, headers, now_ms(), delayed, copy_of=copy_of) for body in bodies]
        found.active.extend(stored)
        self._serve_waiting(found)
        return [message.message_id for message in stored]

    def _SendMessages(self, peer: Peer, request: wire.SendMessages) -> wire.AnyReply:
        found = self.queues[request.queue]
        number = (request.session, request.sequence)
        limit = found.attributes["max_message_bytes"]
        for index, body in enumerate(request.bodies):
            if not 1 <= len(body) <= limit:
                text = f"body {index} has {len(body)} bytes; queue {found.name!r} takes 1 to {limit}"
                return wire.error(request.request_id, ErrorCode.MESSAGE_TOO_LARGE, text, details={"limit": limit})
        if number not in self._answers or not request.sequence:
            if request.after is not None and request.after not in found.dedup:
                return wire.error(request.request_id, ErrorCode.OUT_OF_ORDER, f"{request.after!r} is not remembered")
            headers = request.headers or [None] * len(request.bodies)
            delays = (
                request.delay_ms if isinstance(request.delay_ms, list) else [request.delay_ms] * len(request.bodies)
            )
            dedup_ids = request.dedup_ids or [None] * len(request.bodies)
            ids: list[int] = []
            for body, entry, delay, dedup_id in zip(request.bodies, headers, delays, dedup_ids, strict=True):
                found_id = None if dedup_id is None else found.dedup.get(dedup_id)
                if found_id is None:
                    (found_id,) = self.put(request.queue, body, headers=entry, delayed=bool(delay))
                    if dedup_id is not None:
                        found.dedup[dedup_id] = found_id
                ids.append(found_id)
            self._answers[number] = ids
        return wire.MessagesSent(request.request_id, self._answers[number])

    def _ReceiveMessages(self, peer: Peer, request: wire.ReceiveMessages) -> wire.AnyReply | None:
        found = self.queues[request.queue]
        messages = self._take(found, request.max_messages)
        wait_ms = found.attributes["polling_wait_ms"] if request.wait_ms is None else request.wait_ms
        if messages or not wait_ms:
            return wire.MessagesReceived(request.request_id, messages)
        waiting = (peer, request)
        found.waiting.append(waiting)
        asyncio.get_running_loop().call_later(wait_ms / 1000, self._end_wait, found, waiting)
        return None

    def _take(self, queue: FakeQueue, count: int) -> list[ReceivedMessage]:
        taken: list[ReceivedMessage] = []
        for message in [message for message in queue.active if not message.delayed][:count]:
            queue.active.remove(message)
            handle = 2**63 + self._number()
            message.receive_count += 1
            message.first_receive_ms = message.first_receive_ms or now_ms()
            queue.in_flight[handle] = message
            taken.append(
                ReceivedMessage(
                    message.message_id,
                    handle,
                    message.body,
                    message.enqueue_ms,
                    message.first_receive_ms,
                    now_ms() + queue.attributes["visibility_timeout_ms"],
                    message.receive_count,
                    message.headers,
                    message.origin,
                    message.copy_of,
                )
            )
        return taken

    def _serve_waiting(self, queue: FakeQueue) -> None:
        while queue.waiting:
            messages = self._take(queue, queue.waiting[0][1].max_messages)
            if not messages:
                return
            peer, request = queue.waiting.pop(0)
            peer.answer(wire.MessagesReceived(request.request_id, messages))

    def _end_wait(self, queue: FakeQueue, waiting: tuple[Peer, wire.ReceiveMessages]) -> None:
        if waiting in queue.waiting:
            queue.waiting.remove(waiting)
            waiting[0].answer(wire.MessagesReceived(waiting[1].request_id, []))

    def _Cancel(self, peer: Peer, request: wire.Cancel) -> None:
        request_id = request.request_id
        for queue in self.queues.values():
            for waiting in queue.waiting:
                if waiting[0] is peer and waiting[1].request_id == request_id:
                    queue.waiting.remove(waiting)
                    peer.answer(wire.error(request_id, ErrorCode.CANCELLED, "cancelled"))
                    return

    def _handles(self, request: Any, use: Callable[[FakeQueue, int], None], next_visible_ms: int = 0) -> wire.AnyReply:
        found = self.queues[request.queue]
        failures: list[wire.HandleFailure] = []
        for handle in request.receipt_handles:
            if handle in found.in_flight:
                use(found, handle)
            else:
                code = int(ErrorCode.RECEIPT_HANDLE_INVALID)
                failures.append(wire.HandleFailure(handle, code, f"receipt handle {handle} is not valid"))
        all_failed = len(failures) == len(request.receipt_handles)
        return wire.HandlesDone(request.request_id, failures, 0 if all_failed else next_visible_ms)

    def _DeleteMessages(self, peer: Peer, request: wire.DeleteMessages) -> wire.AnyReply:
        def delete(queue: FakeQueue, handle: int) -> None:
            message = queue.in_flight.pop(handle)
            if queue.attributes["rewind_ms"]:
                queue.rewindable.append(message)

        return self._handles(request, delete)

    def _ChangeVisibility(self, peer: Peer, request: wire.ChangeVisibility) -> wire.AnyReply:
        timeout_ms = request.visibility_timeout_ms
        if not timeout_ms:
            return self._handles(request, lambda queue, handle: self._give_back(queue, handle, True))
        return self._handles(request, lambda queue, handle: None, now_ms() + timeout_ms)

    def _ReleaseMessages(self, peer: Peer, request: wire.ReleaseMessages) -> wire.AnyReply:
        return self._handles(request, lambda queue, handle: self._give_back(queue, handle, request.count_receive))

    def _give_back(self, queue: FakeQueue, handle: int, count: bool) -> None:
        message = queue.in_flight.pop(handle)
        if not count:
            message.receive_count -= 1
        queue.active.appendleft(message)
        self._serve_waiting(queue)

    def _PeekMessages(self, peer: Peer, request: wire.PeekMessages) -> wire.AnyReply:
        found = self.queues[request.queue]
        everything = [(one, "delayed" if one.delayed else "active") for one in found.active]
        everything += [(one, "in_flight") for one in found.in_flight.values()]
        everything += [(one.stored, "half") for one in found.half.values()]
        everything += [(one, "rewindable") for one in found.rewindable]
        wanted = request.states or ["active", "in_flight", "delayed", "half"]
        everything = [(one, state) for one, state in everything if state in wanted]
        everything.sort(key=lambda pair: pair[0].message_id)
        page = everything[request.start : request.start + request.max_messages]
        end = request.start + len(page)
        return wire.MessagesPeeked(
            request.request_id,
            messages=[
                PeekedMessage(
                    one.message_id,
                    state,
                    one.body,
                    one.enqueue_ms,
                    one.enqueue_ms * one.delayed,
                    one.receive_count,
                    one.headers,
                    one.origin,
                    one.copy_of,
                )
                for one, state in page
            ],
            next_start=end if end < len(everything) else None,
        )
