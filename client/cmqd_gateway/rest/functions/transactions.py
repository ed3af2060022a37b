"""Half messages of a transactional queue: send, decide, list."""

from cmqd_client import TransactionStatus
from cmqd_gateway.rest.functions.messages import body_of, outgoing, page_end, page_start
from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.problems import invalid, problem_of
from cmqd_gateway.rest.replies import DecisionResult, DecisionResults, HalfMessage, HalfMessages, Sent, SentBatch
from cmqd_gateway.rest.types import Decision, Decisions, HalfMessageQuery, Nothing, SendHalfMessage, SendHalfMessages

_STATUSES = {
    "commit": TransactionStatus.COMMIT,
    "rollback": TransactionStatus.ROLLBACK,
    "unknown": TransactionStatus.UNKNOWN,
}


async def send_half_message(call: Call[Nothing, SendHalfMessage]) -> Sent:
    """Store a half message; no consumer receives the message before its commit.

    Commit or roll back the message after the local transaction. The checks of an undecided half message go to connected
    producers of the native protocol; a producer with HTTP alone lists and decides its undecided half messages.
    """
    body = call.body
    content = body_of(body.body, body.encoding, "body")
    batch = await call.client.queue(call.names["queue"]).send_half_batch(
        [content],
        headers=body.headers or None,
        first_check=body.first_check,
        dedup_ids=[call.dedup_id(body.dedup_id)],
    )
    return Sent(id=batch.ids[0])


async def send_half_messages(call: Call[Nothing, SendHalfMessages]) -> SentBatch:
    """Store up to 256 half messages in one step, all of them or none."""
    body = call.body
    batch = await call.client.queue(call.names["queue"]).send_half_batch(
        outgoing(body.messages),
        first_check=body.first_check,
        dedup_ids=call.dedup_ids([message.dedup_id for message in body.messages]),
    )
    return SentBatch(results=[Sent(id=message_id) for message_id in batch.ids])


async def decide_half_message(call: Call[Nothing, Decision]) -> None:
    """Commit or roll back a half message. The first decision stays; the same decision again succeeds."""
    body = call.body
    queue = call.client.queue(call.names["queue"])
    result = await queue.end_transactions([body.message_id], _STATUSES[body.decision], check=False)
    for failure in result.failures:
        raise failure.error


async def decide_half_messages(call: Call[Nothing, Decisions]) -> DecisionResults:
    """Commit or roll back half messages, each independently."""
    decisions = call.body.decisions
    ids = [decision.message_id for decision in decisions]
    if len(set(ids)) < len(ids):
        # The broker answers by message id, so the results of two decisions about a message would mix.
        raise invalid("decisions", "decisions must name each message once")
    statuses = [_STATUSES[decision.decision] for decision in decisions]
    result = await call.client.queue(call.names["queue"]).end_transactions(ids, statuses, check=False)
    problems = {str(failure.id): problem_of(failure.error) for failure in result.failures}
    results = [DecisionResult(message_id=message_id, problem=problems.get(message_id)) for message_id in ids]
    return DecisionResults(results=results, failed=sum(result.problem is not None for result in results))


async def list_half_messages(call: Call[HalfMessageQuery, Nothing]) -> HalfMessages:
    """List half messages without a decision, in the order of sending."""
    query = call.query
    queue = call.client.queue(call.names["queue"])
    page = await queue.half_messages(query.max_messages, start=page_start(query.start))
    return HalfMessages(messages=[HalfMessage.of(half) for half in page], next_start=page_end(page.next_start))
