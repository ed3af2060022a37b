"""Actions on topics."""

from typing import Final

from cmqd_client import TopicInfo
from cmqd_gateway.cmq.api3.action import Fields, action, number, text, texts, truth
from cmqd_gateway.cmq.api3.answers import topic_fields, topic_page
from cmqd_gateway.cmq.api3.faults import Code, Fault
from cmqd_gateway.cmq.api3.no_counterpart import check_tags, check_topic_retention, check_trace, is_filtered_by_tags
from cmqd_gateway.cmq.api3.parameters import Kind, Parameter, Values
from cmqd_gateway.cmq.identifiers import topic_id
from cmqd_gateway.cmq.operations import OPERATIONS
from cmqd_gateway.cmq.operations.descriptions import DESCRIBE_TOPICS
from cmqd_gateway.process.gateway_settings import Settings

MAX_NAME_BYTES: Final = 64
_TOPIC_NAME: Final = text("TopicName", "topic_name", required=True)
_ATTRIBUTES: Final = (
    _TOPIC_NAME,
    number("MaxMsgSize", "max_msg_size"),
    number("MsgRetentionSeconds"),
    truth("Trace"),
)


def _attributes(values: Values, settings: Settings) -> Values:
    check_trace(values)
    check_tags(values)
    check_topic_retention(values)
    return values


def _new_attributes(values: Values, settings: Settings) -> Values:
    # The broker cuts a longer name, which API 2.0 tells in its answer.
    if len(values["TopicName"].encode()) > MAX_NAME_BYTES:
        raise Fault(
            Code.INVALID_PARAMETER_VALUE, f"TopicName has {len(values['TopicName'].encode())} bytes; the limit is 64"
        )
    return _attributes(values, settings)


def _selection(values: Values, settings: Settings) -> Values:
    if is_filtered_by_tags(values):
        values["TopicNameList"] = []
    return values


def _created(info: TopicInfo) -> Fields:
    return {"TopicId": topic_id(info.id)}


def _detail(info: TopicInfo) -> Fields:
    return {"TopicDescribe": topic_fields(info)}


ACTIONS: Final = [
    action(
        "CreateCmqTopic",
        OPERATIONS["CreateTopic"],
        *_ATTRIBUTES,
        number("FilterType", "filter_type"),
        Parameter("Tags", Kind.TAGS),
        encode=_created,
        adapt=_new_attributes,
    ),
    action("ModifyCmqTopicAttribute", OPERATIONS["SetTopicAttributes"], *_ATTRIBUTES, adapt=_attributes),
    action("DeleteCmqTopic", OPERATIONS["DeleteTopic"], _TOPIC_NAME),
    action(
        "DescribeCmqTopics",
        DESCRIBE_TOPICS,
        number("Offset", "offset"),
        number("Limit", "limit"),
        text("TopicName", "search_word"),
        texts("TopicNameList", "names"),
        truth("IsTagFilter"),
        Parameter("Filters", Kind.FILTERS),
        encode=topic_page,
        adapt=_selection,
    ),
    action("DescribeCmqTopicDetail", OPERATIONS["GetTopicAttributes"], _TOPIC_NAME, encode=_detail),
]
