"""Requests that end or change the leases of received messages, in slices of at most 256 (the server's limit)."""

from collections.abc import Callable, Mapping

from cmqd_client.durations import to_datetime
from cmqd_client.errors import CmqError, Failure
from cmqd_client.links.channel import Channel
from cmqd_client.results import BatchResult, HandleResult, failure, was_done_before
from cmqd_protocol import messages as wire
from cmqd_protocol.limits import MAX_BATCH
from cmqd_types.messages import GONE_DELETED, GONE_MOVED


class Settlements:
    """Settles messages of a queue by their receipt handles; each handle at most once in a call."""

    __slots__ = ("_channel", "_queue")

    def __init__(self, channel: Channel, queue: str) -> None:
        """Settle messages of the queue of this name."""
        self._channel = channel
        self._queue = queue

    async def delete(self, handles: list[int]) -> BatchResult:
        """Delete messages; see :meth:`Queue.delete_batch` with ``check=False``, as for the other methods."""
        next_id, queue = self._channel.next_request_id, self._queue
        return await self._settle(
            "delete", handles, lambda part: wire.DeleteMessages(next_id(), queue, part), GONE_DELETED
        )

    async def change_visibility(self, handles: list[int], timeout_ms: int) -> BatchResult:
        """Set the visibility timeout of messages."""
        next_id, queue = self._channel.next_request_id, self._queue
        return await self._settle(
            "change_visibility",
            handles,
            lambda part: wire.ChangeVisibility(next_id(), queue, part, timeout_ms),
            None if timeout_ms else 0,
        )

    async def release(self, handles: list[int], *, count_receive: bool) -> BatchResult:
        """Make messages active again at once."""
        next_id, queue = self._channel.next_request_id, self._queue
        return await self._settle(
            "release", handles, lambda part: wire.ReleaseMessages(next_id(), queue, part, count_receive), 0
        )

    async def reject(self, handles: list[int], reason: str | Mapping[int, str]) -> BatchResult:
        """Move messages to the dead-letter queue, with a reason for all or a reason by handle."""
        next_id, queue = self._channel.next_request_id, self._queue

        def request(part: list[int]) -> wire.DeadLetterMessages:
            reasons = [reason] if isinstance(reason, str) else [reason[handle] for handle in part]
            return wire.DeadLetterMessages(next_id(), queue, part, reasons)

        return await self._settle("reject", handles, request, GONE_MOVED)

    # ------------------------------------------------------------------ a single handle, with less work for the client

    async def delete_one(self, handle: int) -> HandleResult:
        """Delete a message.

        Raises:
            ServerError: the handle failed; as for the other methods for a single handle.
        """
        request = wire.DeleteMessages(self._channel.next_request_id(), self._queue, [handle])
        return await self._settle_one("delete", request, GONE_DELETED)

    async def change_visibility_one(self, handle: int, timeout_ms: int) -> HandleResult:
        """Set the visibility timeout of a message."""
        request = wire.ChangeVisibility(self._channel.next_request_id(), self._queue, [handle], timeout_ms)
        return await self._settle_one("change_visibility", request, None if timeout_ms else 0)

    async def release_one(self, handle: int, *, count_receive: bool) -> HandleResult:
        """Make a message active again at once."""
        request = wire.ReleaseMessages(self._channel.next_request_id(), self._queue, [handle], count_receive)
        return await self._settle_one("release", request, 0)

    async def reject_one(self, handle: int, reason: str) -> HandleResult:
        """Move a message to the dead-letter queue."""
        request = wire.DeadLetterMessages(self._channel.next_request_id(), self._queue, [handle], [reason])
        return await self._settle_one("reject", request, GONE_MOVED)

    async def _settle_one(self, operation: str, request: wire.Request, gone: int | None) -> HandleResult:
        channel = self._channel
        if channel.tracing is None:
            reply, uncertain, connection_id = await channel.call_with_facts(request, wire.HandlesDone)
            return _single(reply, connection_id, gone=gone if uncertain else None)
        with channel.tracing.settle(operation, self._queue, 1):
            reply, uncertain, connection_id = await channel.call_with_facts(request, wire.HandlesDone)
            return _single(reply, connection_id, gone=gone if uncertain else None)

    # ------------------------------------------------------------------ inside

    async def _settle(
        self,
        operation: str,
        handles: list[int],
        request: Callable[[list[int]], wire.Request],
        gone: int | None,
    ) -> BatchResult:
        """Make the request for all handles; ``operation`` names it in a span.

        ``gone``: how a lease ends with the request (:func:`was_done_before`); None = it leaves the lease valid.
        """
        tracing = self._channel.tracing
        if tracing is None or not handles:
            return await self._each_slice(handles, request, gone)
        with tracing.settle(operation, self._queue, len(handles)):
            return await self._each_slice(handles, request, gone)

    async def _each_slice(
        self, handles: list[int], request: Callable[[list[int]], wire.Request], gone: int | None
    ) -> BatchResult:
        failures: list[Failure] = []
        request_ids: list[int] = []
        next_visible_ms = 0
        for start in range(0, len(handles), MAX_BATCH):
            part = handles[start : start + MAX_BATCH]
            try:
                reply, uncertain, connection_id = await self._channel.call_with_facts(request(part), wire.HandlesDone)
            except CmqError as error:
                if not start:
                    raise
                # The caller must learn what the earlier requests did, so the error becomes that of the other handles.
                failures += [Failure(handle, error) for handle in handles[start:]]
                break
            request_ids.append(reply.request_id)
            failures += [
                failure(refusal, reply.request_id, connection_id)
                for refusal in reply.failures
                if not (uncertain and gone is not None and was_done_before(refusal, gone))
            ]
            if reply.next_visible_ms:
                next_visible_ms = min(next_visible_ms or reply.next_visible_ms, reply.next_visible_ms)
        failed = {failure.receipt_handle for failure in failures}
        return BatchResult(
            [handle for handle in handles if handle not in failed] if failed else handles,
            failures,
            request_ids[-1] if request_ids else 0,
            tuple(request_ids),
            to_datetime(next_visible_ms) if next_visible_ms else None,
        )


def _single(reply: wire.HandlesDone, connection_id: int, *, gone: int | None) -> HandleResult:
    """Return the result; ``gone``: how an earlier attempt may have ended the lease, None = there was none."""
    for refusal in reply.failures:
        if gone is None or not was_done_before(refusal, gone):
            raise failure(refusal, reply.request_id, connection_id).error
    return HandleResult(reply.request_id, to_datetime(reply.next_visible_ms) if reply.next_visible_ms else None)
