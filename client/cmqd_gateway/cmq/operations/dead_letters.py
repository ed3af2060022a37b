"""Dead-letter queues: the policy of a queue as JSON, the unbinding, and the move of dead letters to their queues.

    deadLetterPolicy = {"deadLetterQueue": "orders-dead", "policy": 0, "maxReceiveCount": 5}
    deadLetterPolicy = {"deadLetterQueue": "orders-dead", "policy": 1, "maxTimeToLive": 3600}

``deadLetterQueue`` is a name in requests and an id in answers, as in CMQ. Programs send a policy of an answer back;
therefore requests take an id too.
"""

from typing import Annotated, Any, Final

import msgspec

from cmqd_client import Client, QueueAttributes, QueueInfo, Redrive
from cmqd_client.errors import PermissionDenied, QueueNotFound
from cmqd_gateway.cmq.identifiers import QUEUE_ID, queue_id
from cmqd_gateway.cmq.numbers import seconds, whole_seconds
from cmqd_gateway.cmq.operation import Call, Fields, operation
from cmqd_gateway.cmq.parameters import OperationRequest, QueueName, Whole, range_of
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_types.attributes import QUEUE

RECEIVES: Final = 0
"""``policy`` of a limit of receives."""
AGE: Final = 1
"""``policy`` of a limit of time."""


class Policy(msgspec.Struct, frozen=True, rename="camel"):
    """A dead-letter policy in a request. Numbers may be texts: some SDKs write all values as texts."""

    dead_letter_queue: str = ""
    """Name or id of a queue; empty = none."""
    policy: int | str = RECEIVES
    max_receive_count: int | str | None = None
    max_time_to_live: int | str | None = None


class ShownPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A dead-letter policy in an answer."""

    dead_letter_queue: str
    """The id, as in CMQ; empty if the queue cannot be read with this key."""
    dead_letter_queue_name: str
    policy: int
    max_receive_count: int | None = None
    max_time_to_live: int | None = None


_POLICIES = msgspec.json.Decoder(Policy)


def parse_policy(text: bytes | None) -> Policy | None:
    """Read ``deadLetterPolicy``; None = the request has none. An empty text is the policy without a queue.

    Raises:
        Refusal: the text is not JSON, or not of this form, or a number is missing or out of range.
    """
    if text is None:
        return None
    try:
        policy = _POLICIES.decode(text) if text.strip() else Policy()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(Reason.PARAMETERS_ERROR, f"deadLetterPolicy is not a dead-letter policy: {error}") from None
    except RecursionError:
        raise Refusal(Reason.PARAMETERS_ERROR, "deadLetterPolicy is nested too deeply") from None
    if policy.dead_letter_queue:
        _limit_of(policy)
    return policy


def _limit_of(policy: Policy) -> tuple[int, int]:
    """Return the kind of a policy, and its limit (receives, or seconds)."""
    kind = _number("policy", policy.policy, Whole(RECEIVES, AGE))
    if kind == RECEIVES:
        return kind, _number("maxReceiveCount", policy.max_receive_count, range_of(QUEUE["dead_letter_max_receives"]))
    return kind, _number("maxTimeToLive", policy.max_time_to_live, range_of(QUEUE["dead_letter_after_ms"]))


def _number(name: str, value: int | str | None, allowed: Whole) -> int:
    if value is None:
        raise Refusal(Reason.MISSING_PARAMETER, f"{name} of deadLetterPolicy")
    try:
        number = int(value)
    except ValueError:
        raise Refusal(Reason.WRONG_TYPE, f"{name} of deadLetterPolicy must be a whole number") from None
    if not allowed.low <= number <= allowed.high:
        limits = f"{allowed.low} to {allowed.high}"
        raise Refusal(Reason.OUT_OF_RANGE, f"{name} of deadLetterPolicy is {number}; the range is {limits}")
    return number


async def policy_attributes(client: Client, policy: Policy | None) -> QueueAttributes:
    """Return the attributes of a queue for a policy; none without a policy."""
    if policy is None:
        return {}
    if not policy.dead_letter_queue:
        return {"dead_letter_queue": ""}
    kind, limit = _limit_of(policy)
    return {
        "dead_letter_queue": await _name_of(client, policy.dead_letter_queue),
        # CMQ's queues have a single policy. The other limit is set to 0, or the former policy would stay in effect.
        "dead_letter_max_receives": limit if kind == RECEIVES else 0,
        "dead_letter_after": limit if kind == AGE else 0,
    }


async def _name_of(client: Client, given: str) -> str:
    """Return the name of a queue that is given by name or id.

    A name has precedence. An id of no queue is returned as it is: the broker then refuses it as a missing queue.
    """
    match = QUEUE_ID.fullmatch(given)
    if match is None:
        return given
    number, found, offset = int(match[1], 16), given, 0
    while True:
        page = await client.queues(offset=offset, limit=1_000)
        if given in page.names:
            return given
        if number in page.ids:
            found = page.names[page.ids.index(number)]
        offset += len(page.names)
        if not page.names or offset >= page.total:
            return found


async def shown_policy(client: Client, info: QueueInfo) -> ShownPolicy | None:
    """Return the policy of a queue for an answer; None without a dead-letter queue."""
    name = info.dead_letter_queue
    if not name:
        return None
    try:
        shown_id = queue_id((await client.queue(name).attributes()).id)
    except (QueueNotFound, PermissionDenied):
        # The queue was unbound and deleted meanwhile, or no pattern of this key matches its name.
        shown_id = ""
    if info.dead_letter_max_receives:
        return ShownPolicy(shown_id, name, RECEIVES, max_receive_count=info.dead_letter_max_receives)
    return ShownPolicy(shown_id, name, AGE, max_time_to_live=whole_seconds(info.dead_letter_after))


class UnbindDeadLetter(OperationRequest, frozen=True):
    """Parameters of UnbindDeadLetter; the documents of CMQ's later APIs call the queue ``sourceQueueName``."""

    queue_name: str | None = None
    source_queue_name: str | None = None


async def unbind_dead_letter(call: Call, request: UnbindDeadLetter) -> Fields:
    """Remove the dead-letter policy of a queue."""
    name = request.queue_name or request.source_queue_name
    if name is None:
        raise Refusal(Reason.MISSING_PARAMETER, "queueName")
    await call.client.queue(name).set_attributes(dead_letter_queue="")
    return {}


class RedriveDeadLetters(OperationRequest, frozen=True):
    """Parameters of RedriveDeadLetters."""

    queue_name: QueueName
    """The dead-letter queue."""
    target_queue_name: str | None = None
    """Absent = each message returns to the queue from which it came."""
    max_per_second: Annotated[int, Whole(1, 1_000_000)] | None = None


class RedriveRequest(OperationRequest, frozen=True):
    """Parameters of GetRedrive and CancelRedrive."""

    queue_name: QueueName


def redrive_fields(redrive: Redrive) -> Fields:
    """Return the progress of a redrive as fields of an answer."""
    fields: dict[str, Any] = {
        "queueName": redrive.queue,
        "running": int(redrive.running),
        "reason": redrive.reason,
        "movedMsgNum": redrive.moved,
        "remainingMsgNum": redrive.remaining,
        "missingOrigins": redrive.missing_origins,
        "startTime": seconds(redrive.start_time),
        "endTime": seconds(redrive.end_time),
    }
    if redrive.target is not None:
        fields["targetQueueName"] = redrive.target
    if redrive.max_per_second is not None:
        fields["maxPerSecond"] = redrive.max_per_second
    return fields


async def redrive_dead_letters(call: Call, request: RedriveDeadLetters) -> Fields:
    """Start to move the messages of a dead-letter queue to their queues, or to one queue, in the background."""
    queue = call.client.queue(request.queue_name)
    return redrive_fields(await queue.redrive(request.target_queue_name, max_per_second=request.max_per_second))


async def get_redrive(call: Call, request: RedriveRequest) -> Fields:
    """Return the progress of the redrive of a queue, or the result of its last redrive."""
    return redrive_fields(await call.client.queue(request.queue_name).redrive_status())


async def cancel_redrive(call: Call, request: RedriveRequest) -> Fields:
    """End a redrive; moved messages stay moved."""
    return redrive_fields(await call.client.queue(request.queue_name).cancel_redrive())


OPERATIONS: Final = [
    operation("UnbindDeadLetter", UnbindDeadLetter, unbind_dead_letter),
    operation("RedriveDeadLetters", RedriveDeadLetters, redrive_dead_letters),
    operation("GetRedrive", RedriveRequest, get_redrive),
    operation("CancelRedrive", RedriveRequest, cancel_redrive),
]
