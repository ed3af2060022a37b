"""Answers of operations on queues and dead-letter queues, as fields of API 2.0."""

from typing import Any, Final

from cmqd_client import QueueInfo, Redrive
from cmqd_gateway.cmq.api2.dead_letter_json import policy_fields
from cmqd_gateway.cmq.api2.fields import Fields
from cmqd_gateway.cmq.identifiers import queue_id
from cmqd_gateway.cmq.numbers import bounded, seconds, whole_seconds
from cmqd_gateway.cmq.operations.dead_letters import ShownQueue
from cmqd_gateway.cmq.operations.listing import Listed
from cmqd_gateway.cmq.operations.queues import NUMBERS

_OF_TRANSACTIONS: Final = ("firstQueryInterval", "maxQueryCount")


def created_queue(info: QueueInfo) -> Fields:
    """Return the fields of a new queue."""
    return {"queueId": queue_id(info.id)}


def queue_page(page: Listed) -> Fields:
    """Return the fields of a page of queues."""
    return {
        "totalCount": page.total,
        "queueList": [{"queueId": queue_id(number), "queueName": name} for number, name in page.entries],
    }


def queue_fields(queue: ShownQueue) -> Fields:
    """Return a queue's attributes and counts as fields of an answer.

    The SDKs differ in the spelling of the number of rewindable messages, so both spellings are in the answer.
    """
    info = queue.info
    numbers = {each.cmq: whole_seconds(getattr(info, each.argument)) for each in NUMBERS.values()}
    fields: dict[str, Any] = {
        "queueName": info.name,
        "queueId": queue_id(info.id),
        **{name: number for name, number in numbers.items() if info.transactional or name not in _OF_TRANSACTIONS},
        # Whole seconds, as CMQ: the default of 200 ms is shown as 0, which CMQ's documents describe as such a wait.
        "pollingWaitSeconds": int(info.polling_wait),
        "createTime": seconds(info.create_time),
        "lastModifyTime": seconds(info.modify_time),
        "activeMsgNum": bounded(info.active),
        "inactiveMsgNum": bounded(info.in_flight),
        "delayMsgNum": bounded(info.delayed),
        "rewindMsgNum": bounded(info.rewindable),
        "rewindmsgNum": bounded(info.rewindable),
        "minMsgTime": seconds(info.oldest_message_time),
        "transaction": int(info.transactional),
    }
    if info.transactional:
        fields["halfMsgNum"] = bounded(info.half)
    if info.dead_letter_queue:
        fields["deadLetterPolicy"] = policy_fields(queue)
    if info.dead_letter_sources:
        fields["deadLetterSource"] = info.dead_letter_sources
    return fields


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
