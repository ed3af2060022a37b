"""Operations on dead-letter queues: the policy of a queue, the unbinding, and the move of dead letters to their queues.

A dead-letter queue is a name in requests and an id in answers, as in CMQ. Programs send a policy of an answer back;
therefore requests take an id too.
"""

from typing import Annotated, Final

import msgspec

from cmqd_client import Client, QueueAttributes, QueueInfo, Redrive
from cmqd_client.errors import PermissionDenied, QueueNotFound
from cmqd_gateway.cmq.identifiers import QUEUE_ID
from cmqd_gateway.cmq.operation import Call, operation
from cmqd_gateway.cmq.parameters import OperationRequest, QueueName, Whole, range_of
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_types.attributes import QUEUE

RECEIVES: Final = 0
"""The policy of a limit of receives."""
AGE: Final = 1
"""The policy of a limit of time."""


class DeadLetterPolicy(msgspec.Struct, frozen=True):
    """The dead-letter policy of a queue in a request."""

    dead_letter_queue: str = ""
    """Name or id of a queue; empty = none."""
    policy: int = RECEIVES
    max_receive_count: int | None = None
    max_time_to_live: int | None = None
    """Seconds."""


def _limit_of(call: Call, policy: DeadLetterPolicy) -> tuple[int, int]:
    """Return the kind of a policy, and its limit (receives, or seconds)."""
    kind = _number(call, "policy", policy.policy, Whole(RECEIVES, AGE))
    if kind == RECEIVES:
        allowed = range_of(QUEUE["dead_letter_max_receives"])
        return kind, _number(call, "max_receive_count", policy.max_receive_count, allowed)
    return kind, _number(call, "max_time_to_live", policy.max_time_to_live, range_of(QUEUE["dead_letter_after_ms"]))


def _number(call: Call, field: str, value: int | None, allowed: Whole) -> int:
    name = call.shown(f"dead_letter_policy.{field}")
    if value is None:
        raise Refusal(Reason.MISSING_PARAMETER, name)
    if not allowed.low <= value <= allowed.high:
        raise Refusal(Reason.OUT_OF_RANGE, f"{name} is {value}; the range is {allowed.low} to {allowed.high}")
    return value


async def policy_attributes(call: Call, policy: DeadLetterPolicy | None) -> QueueAttributes:
    """Return the attributes of a queue for a policy; none without a policy.

    Raises:
        Refusal: a number is missing or out of range.
    """
    if policy is None:
        return {}
    if not policy.dead_letter_queue:
        return {"dead_letter_queue": ""}
    kind, limit = _limit_of(call, policy)
    return {
        "dead_letter_queue": await _name_of(call.client, policy.dead_letter_queue),
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


class ShownQueue(msgspec.Struct, frozen=True):
    """A queue with its dead-letter queue."""

    info: QueueInfo
    dead_letter_queue_id: int | None
    """None = no dead-letter queue, or a queue that cannot be read with this key."""


async def shown_queue(client: Client, info: QueueInfo) -> ShownQueue:
    """Return a queue with its dead-letter queue."""
    if not info.dead_letter_queue:
        return ShownQueue(info, None)
    try:
        return ShownQueue(info, (await client.queue(info.dead_letter_queue).attributes()).id)
    except (QueueNotFound, PermissionDenied):
        # The queue was unbound and deleted meanwhile, or no pattern of this key matches its name.
        return ShownQueue(info, None)


class UnbindDeadLetter(OperationRequest, frozen=True):
    """Parameters of UnbindDeadLetter."""

    queue_name: str


async def unbind_dead_letter(call: Call, request: UnbindDeadLetter) -> None:
    """Remove the dead-letter policy of a queue."""
    await call.client.queue(request.queue_name).set_attributes(dead_letter_queue="")


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


async def redrive_dead_letters(call: Call, request: RedriveDeadLetters) -> Redrive:
    """Start to move the messages of a dead-letter queue to their queues, or to one queue, in the background."""
    queue = call.client.queue(request.queue_name)
    return await queue.redrive(request.target_queue_name, max_per_second=request.max_per_second)


async def get_redrive(call: Call, request: RedriveRequest) -> Redrive:
    """Return the progress of the redrive of a queue, or the result of its last redrive."""
    return await call.client.queue(request.queue_name).redrive_status()


async def cancel_redrive(call: Call, request: RedriveRequest) -> Redrive:
    """End a redrive; moved messages stay moved."""
    return await call.client.queue(request.queue_name).cancel_redrive()


OPERATIONS: Final = [
    operation("UnbindDeadLetter", UnbindDeadLetter, unbind_dead_letter),
    operation("RedriveDeadLetters", RedriveDeadLetters, redrive_dead_letters),
    operation("GetRedrive", RedriveRequest, get_redrive),
    operation("CancelRedrive", RedriveRequest, cancel_redrive),
]
