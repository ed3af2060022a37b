"""Requests about half messages: sends and decisions."""

from cmqd_client.errors import CmqError, DecisionFailure
from cmqd_client.links.channel import Channel
from cmqd_client.messages.message_ids import printed_id
from cmqd_client.messages.outgoing import Batch
from cmqd_client.messages.sending import send_traced
from cmqd_client.results import DecisionResult, SentBatch, decision_failure
from cmqd_protocol import messages as wire
from cmqd_protocol.limits import MAX_BATCH


async def send_half(
    channel: Channel, queue: str, batch: Batch, check_ms: int | None, *, all_or_none: bool = False
) -> SentBatch:
    """Store half messages; see :meth:`Queue.send_half_batch`."""
    if not batch.bodies:
        return SentBatch([], 0)
    session, sequence = channel.numbering.next()
    request = wire.SendHalfMessages(
        channel.next_request_id(),
        queue=queue,
        bodies=batch.bodies,
        headers=batch.headers,
        first_check_ms=check_ms,
        session=session.number,
        sequence=sequence,
        dedup_ids=batch.dedup_ids,
        all_or_none=all_or_none,
    )
    if channel.tracing is not None:
        reply = await send_traced(channel.tracing, "send_half", channel, request, session, sequence)
    else:
        reply = await channel.send_numbered(request, wire.MessagesSent, session, sequence)
    return SentBatch([printed_id(number) for number in reply.message_ids], reply.request_id, (reply.request_id,))


async def decide(channel: Channel, queue: str, numbers: list[int], decisions: list[int]) -> DecisionResult:
    """Decide half messages, in slices of at most 256 (the server's limit); a decision per number."""
    tracing = channel.tracing
    if tracing is None or not numbers:
        return await _decide(channel, queue, numbers, decisions)
    with tracing.settle("end_transactions", queue, len(numbers)):
        return await _decide(channel, queue, numbers, decisions)


async def _decide(channel: Channel, queue: str, numbers: list[int], decisions: list[int]) -> DecisionResult:
    failures: list[DecisionFailure] = []
    request_ids: list[int] = []
    for start in range(0, len(numbers), MAX_BATCH):
        end = start + MAX_BATCH
        request = wire.EndTransactions(channel.next_request_id(), queue, numbers[start:end], decisions[start:end])
        try:
            reply, _, connection_id = await channel.call_with_facts(request, wire.TransactionsEnded)
        except CmqError as error:
            if not start:
                raise
            # The earlier requests stay done: the error becomes the error of the other messages, and hides no success.
            failures += [DecisionFailure(printed_id(number), error) for number in numbers[start:]]
            break
        request_ids.append(reply.request_id)
        failures += [decision_failure(refusal, reply.request_id, connection_id) for refusal in reply.failures]
    refused = {refusal.id for refusal in failures}
    done = [message_id for number in numbers if (message_id := printed_id(number)) not in refused]
    return DecisionResult(done, failures, request_ids[-1] if request_ids else 0, tuple(request_ids))
