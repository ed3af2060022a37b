"""The dead-letter policy of a queue as JSON, in requests and answers of API 2.0.

deadLetterPolicy = {"deadLetterQueue": "orders-dead", "policy": 0, "maxReceiveCount": 5}
deadLetterPolicy = {"deadLetterQueue": "orders-dead", "policy": 1, "maxTimeToLive": 3600}
"""

from typing import Any

import msgspec

from cmqd_gateway.cmq.identifiers import queue_id
from cmqd_gateway.cmq.numbers import whole_seconds
from cmqd_gateway.cmq.operations.dead_letters import AGE, RECEIVES, DeadLetterPolicy, ShownQueue
from cmqd_gateway.cmq.reasons import Reason, Refusal


class _Policy(msgspec.Struct, frozen=True, rename="camel"):
    """A dead-letter policy in a request. Numbers may be texts: some SDKs write all values as texts."""

    dead_letter_queue: str = ""
    policy: int | str = RECEIVES
    max_receive_count: int | str | None = None
    max_time_to_live: int | str | None = None


_POLICIES = msgspec.json.Decoder(_Policy)


def parse_policy(name: str, text: bytes) -> DeadLetterPolicy:
    """Read a policy. An empty text is the policy without a queue.

    Raises:
        Refusal: the text is not JSON, or not of this form.
    """
    try:
        policy = _POLICIES.decode(text) if text.strip() else _Policy()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(Reason.PARAMETERS_ERROR, f"{name} is not a dead-letter policy: {error}") from None
    except RecursionError:
        raise Refusal(Reason.PARAMETERS_ERROR, f"{name} is nested too deeply") from None
    queue = policy.dead_letter_queue
    if not queue:
        return DeadLetterPolicy()
    kind = _number(f"policy of {name}", policy.policy)
    # The limit of the other kind is ignored, whatever its value.
    if kind == AGE:
        seconds = _limit(f"maxTimeToLive of {name}", policy.max_time_to_live)
        return DeadLetterPolicy(queue, kind, max_time_to_live=seconds)
    receives = _limit(f"maxReceiveCount of {name}", policy.max_receive_count) if kind == RECEIVES else None
    return DeadLetterPolicy(queue, kind, max_receive_count=receives)


def _limit(name: str, value: int | str | None) -> int | None:
    return None if value is None else _number(name, value)


def _number(name: str, value: int | str) -> int:
    try:
        return int(value)
    except ValueError:
        raise Refusal(Reason.WRONG_TYPE, f"{name} must be a whole number") from None


def policy_fields(queue: ShownQueue) -> dict[str, Any]:
    """Return the policy of a queue that has a dead-letter queue; the id is empty if the key cannot read the queue."""
    info, number = queue.info, queue.dead_letter_queue_id
    is_by_receives = bool(info.dead_letter_max_receives)
    limit = (
        {"maxReceiveCount": info.dead_letter_max_receives}
        if is_by_receives
        else {"maxTimeToLive": whole_seconds(info.dead_letter_after)}
    )
    return {
        "deadLetterQueue": "" if number is None else queue_id(number),
        "deadLetterQueueName": info.dead_letter_queue,
        "policy": RECEIVES if is_by_receives else AGE,
        **limit,
    }
