"""Rewind, dead letters and the way back."""

from collections import deque

import msgspec

from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_types.messages import Origin
from support.fake_server.peer import Peer
from support.fake_server.queues import QueueRequests
from support.fake_server.state import FakeQueue, Stored, now_ms


class DeadLetterRequests(QueueRequests):
    """Messages that come back, or go elsewhere."""

    def _RewindQueue(self, peer: Peer, request: wire.RewindQueue) -> wire.AnyReply:
        found = self.queues[request.queue]
        window_ms = found.attributes["rewind_ms"]
        nearest_ms = now_ms() - window_ms
        asked_ms = request.time_ms if request.ago_ms is None else now_ms() - request.ago_ms
        if not window_ms or (request.strict and asked_ms < nearest_ms) or asked_ms > now_ms():
            text = f"queue {found.name!r} cannot be rewound to {asked_ms}"
            details = {"nearest_ms": nearest_ms if window_ms else None}
            return wire.error(request.request_id, ErrorCode.TIME_NOT_REWINDABLE, text, details=details)
        time_ms = max(asked_ms, nearest_ms)
        back = [one for one in found.rewindable if one.enqueue_ms >= time_ms]
        for one in back:
            found.rewindable.remove(one)
            one.receive_count = 0
        found.active = deque(sorted([*found.active, *back], key=lambda one: one.message_id))
        self._serve_waiting(found)
        return wire.Rewound(request.request_id, messages=len(back), time_ms=time_ms, clamped=asked_ms < time_ms)

    def _ListDeadLetterSources(self, peer: Peer, request: wire.ListDeadLetterSources) -> wire.AnyReply:
        sources = self._sources(self.queues[request.queue].name)
        return wire.QueueList(request.request_id, len(sources), sources)

    def bury(self, queue: str, dead_letters: str, count: int = 1) -> None:
        """Move the first active messages of a queue to a dead-letter queue."""
        source, target = self.queues[queue], self.queues[dead_letters]
        for _ in range(count):
            self._move(source, target, source.active[0], "receives")

    def _move(self, source: FakeQueue, target: FakeQueue, message: Stored, reason: str) -> None:
        source.active.remove(message)
        origin = Origin(source.name, message.message_id, message.enqueue_ms, message.receive_count, reason)
        target.active.append(
            Stored(self._number(), message.body, message.headers, now_ms(), origin=origin, copy_of=message.copy_of)
        )
        self._serve_waiting(target)

    def _StartRedrive(self, peer: Peer, request: wire.StartRedrive) -> wire.AnyReply:
        found = self.queues[request.queue]
        if found.redrive is not None and found.redrive.ended_ms is None:
            return wire.error(request.request_id, ErrorCode.REDRIVE_RUNNING, f"{found.name!r} is being redriven")
        if request.target is not None and request.target not in self.queues:
            text = f"target is {request.target!r}; it must be the name of a queue"
            return wire.error(request.request_id, ErrorCode.INVALID_ARGUMENT, text)
        found.redrive = wire.RedriveStatus(
            request.request_id,
            queue=found.name,
            target=request.target,
            max_per_second=request.max_per_second,
            started_ms=now_ms(),
            ended_ms=None,
            reason=found.hold_redrive,
            moved=0,
            remaining=len(found.active),
            missing_origins={},
        )
        if not found.hold_redrive:
            self.finish_redrive(found.name)
        return msgspec.structs.replace(found.redrive, request_id=request.request_id)

    def finish_redrive(self, name: str) -> None:
        """Move everything and end."""
        found = self.queues[name]
        assert found.redrive is not None
        missing: dict[str, int] = {}
        moved = 0
        for message in list(found.active):
            target = found.redrive.target or (message.origin.queue if message.origin else "(no origin)")
            if target in self.queues:
                self._move(found, self.queues[target], message, "redrive")
                moved += 1
            else:
                missing[target] = missing.get(target, 0) + 1
        found.redrive = msgspec.structs.replace(
            found.redrive, ended_ms=now_ms(), reason="done", moved=moved, remaining=0, missing_origins=missing
        )

    def _GetRedrive(self, peer: Peer, request: wire.GetRedrive) -> wire.AnyReply:
        found = self.queues[request.queue]
        if found.redrive is None:
            text = f"queue {found.name!r} was never redriven"
            return wire.error(request.request_id, ErrorCode.INVALID_ARGUMENT, text)
        return msgspec.structs.replace(found.redrive, request_id=request.request_id)

    def _CancelRedrive(self, peer: Peer, request: wire.CancelRedrive) -> wire.AnyReply:
        found = self.queues[request.queue]
        if found.redrive is not None and found.redrive.ended_ms is None:
            found.redrive = msgspec.structs.replace(found.redrive, ended_ms=now_ms(), reason="cancelled")
        return self._GetRedrive(peer, wire.GetRedrive(request.request_id, request.queue))
