"""Actions on queues."""

from typing import Final

from cmqd_client import QueueInfo
from cmqd_gateway.cmq.api3.action import Fields, action, number, text, texts, truth
from cmqd_gateway.cmq.api3.answers import queue_fields, queue_page
from cmqd_gateway.cmq.api3.faults import Code, Fault
from cmqd_gateway.cmq.api3.no_counterpart import (
    check_retention,
    check_rewind_space,
    check_tags,
    check_trace,
    is_filtered_by_tags,
)
from cmqd_gateway.cmq.api3.parameters import Kind, Parameter, Values
from cmqd_gateway.cmq.identifiers import queue_id
from cmqd_gateway.cmq.operations import OPERATIONS
from cmqd_gateway.cmq.operations.dead_letters import DeadLetterPolicy
from cmqd_gateway.cmq.operations.descriptions import DESCRIBE_QUEUE, DESCRIBE_QUEUES, DescribedQueue
from cmqd_gateway.process.gateway_settings import Settings

LARGEST_MESSAGE: Final = 1_048_576
"""The default of ``MaxMsgSize`` in API 3.0; API 2.0 has another."""

_QUEUE_NAME: Final = text("QueueName", "queue_name", required=True)
_ATTRIBUTES: Final = (
    _QUEUE_NAME,
    number("MaxMsgHeapNum", "max_msg_heap_num"),
    number("PollingWaitSeconds", "polling_wait_seconds"),
    number("VisibilityTimeout", "visibility_timeout"),
    number("MaxMsgSize", "max_msg_size"),
    number("MsgRetentionSeconds", "msg_retention_seconds"),
    number("RewindSeconds", "rewind_seconds"),
    number("Transaction", "transaction"),
    number("FirstQueryInterval", "first_query_interval"),
    number("MaxQueryCount", "max_query_count"),
    text("DeadLetterQueueName", "dead_letter_policy.dead_letter_queue"),
    number("Policy", "dead_letter_policy.policy"),
    number("MaxReceiveCount", "dead_letter_policy.max_receive_count"),
    number("MaxTimeToLive", "dead_letter_policy.max_time_to_live"),
    truth("Trace"),
    number("RetentionSizeInMB"),
)
_OF_POLICY: Final = {"Policy": "policy", "MaxReceiveCount": "max_receive_count", "MaxTimeToLive": "max_time_to_live"}


def _attributes(values: Values, settings: Settings) -> Values:
    check_trace(values)
    check_tags(values)
    check_retention(values, settings)
    check_rewind_space(values)
    numbers = {field: values.pop(name) for name, field in _OF_POLICY.items() if name in values}
    queue = values.pop("DeadLetterQueueName", None)
    if queue is not None:
        values["DeadLetterPolicy"] = DeadLetterPolicy(queue, **numbers)
    elif numbers:
        raise Fault(
            Code.MISSING_PARAMETER,
            "Policy, MaxReceiveCount and MaxTimeToLive belong to a dead-letter queue; DeadLetterQueueName is missing",
        )
    return values


def _new_attributes(values: Values, settings: Settings) -> Values:
    values.setdefault("MaxMsgSize", LARGEST_MESSAGE)
    return _attributes(values, settings)


def _selection(values: Values, settings: Settings) -> Values:
    if is_filtered_by_tags(values):
        values["QueueNameList"] = []
    return values


def _created(info: QueueInfo) -> Fields:
    return {"QueueId": queue_id(info.id)}


def _detail(described: DescribedQueue) -> Fields:
    return {"QueueDescribe": queue_fields(described)}


ACTIONS: Final = [
    action(
        "CreateCmqQueue",
        OPERATIONS["CreateQueue"],
        *_ATTRIBUTES,
        Parameter("Tags", Kind.TAGS),
        encode=_created,
        adapt=_new_attributes,
    ),
    action("ModifyCmqQueueAttribute", OPERATIONS["SetQueueAttributes"], *_ATTRIBUTES, adapt=_attributes),
    action(
        "DescribeCmqQueues",
        DESCRIBE_QUEUES,
        number("Offset", "offset"),
        number("Limit", "limit"),
        text("QueueName", "search_word"),
        texts("QueueNameList", "names"),
        truth("IsTagFilter"),
        Parameter("Filters", Kind.FILTERS),
        encode=queue_page,
        adapt=_selection,
    ),
    action("DescribeCmqQueueDetail", DESCRIBE_QUEUE, _QUEUE_NAME, encode=_detail),
    action("DeleteCmqQueue", OPERATIONS["DeleteQueue"], _QUEUE_NAME),
    action("ClearCmqQueue", OPERATIONS["ClearQueue"], _QUEUE_NAME),
    action(
        "RewindCmqQueue",
        OPERATIONS["RewindQueue"],
        _QUEUE_NAME,
        # Seconds, or milliseconds from 100,000,000,000 on.
        number("StartConsumeTime", "start_consume_time", required=True),
    ),
    action(
        "UnbindCmqDeadLetter",
        OPERATIONS["UnbindDeadLetter"],
        text("SourceQueueName", "queue_name", required=True),
    ),
]
