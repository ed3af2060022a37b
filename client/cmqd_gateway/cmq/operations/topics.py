"""Actions on topics: create, list, read and change attributes, delete."""

from typing import Annotated, Final

from cmqd_client import TopicInfo
from cmqd_client.topic import FilterType, TopicAttributes
from cmqd_gateway.cmq.identifiers import topic_id
from cmqd_gateway.cmq.numbers import bounded, seconds, whole_seconds
from cmqd_gateway.cmq.operation import Call, Fields, operation
from cmqd_gateway.cmq.parameters import OperationRequest, Whole, range_of
from cmqd_types.attributes import TOPIC

BY_TAGS: Final = 1
"""``filterType`` of a topic that filters by tags; also the meaning of an absent parameter."""
BY_ROUTING_KEYS: Final = 2

MessageSize = Annotated[int, range_of(TOPIC["max_message_bytes"])]


class TopicRequest(OperationRequest, frozen=True):
    """A request about a topic without further parameters."""

    topic_name: str


class CreateTopic(OperationRequest, frozen=True):
    """Parameters of CreateTopic."""

    topic_name: str
    max_msg_size: MessageSize | None = None
    filter_type: Annotated[int, Whole(BY_TAGS, BY_ROUTING_KEYS)] = BY_TAGS


def topic_attributes(request: CreateTopic) -> TopicAttributes:
    """Return the attributes of a new topic."""
    is_routing = request.filter_type == BY_ROUTING_KEYS
    return {
        "max_message_bytes": request.max_msg_size,
        "filter_type": FilterType.ROUTING if is_routing else FilterType.TAG,
    }


def topic_fields(info: TopicInfo) -> Fields:
    """Return a topic's attributes and counts as fields of an answer."""
    return {
        "topicName": info.name,
        "topicId": topic_id(info.id),
        "msgCount": bounded(info.retained),
        "maxMsgSize": info.max_message_bytes,
        "msgRetentionSeconds": whole_seconds(info.lifecycle),
        "createTime": seconds(info.create_time),
        "lastModifyTime": seconds(info.modify_time),
        "filterType": BY_ROUTING_KEYS if info.filter_type == FilterType.ROUTING else BY_TAGS,
    }


async def create_topic(call: Call, request: CreateTopic) -> Fields:
    """Create a topic. The answer has its id, and its name: a name of more than 64 bytes is cut."""
    info = await call.client.create_topic_info(request.topic_name, **topic_attributes(request))
    return {"topicId": topic_id(info.id), "topicName": info.name}


class SetTopicAttributes(OperationRequest, frozen=True):
    """Parameters of SetTopicAttributes."""

    topic_name: str
    max_msg_size: MessageSize | None = None


async def set_topic_attributes(call: Call, request: SetTopicAttributes) -> Fields:
    """Change the largest size of a message, the only attribute that can be changed."""
    topic = call.client.topic(request.topic_name)
    if request.max_msg_size is None:
        await topic.attributes()
    else:
        await topic.set_attributes(max_message_bytes=request.max_msg_size)
    return {}


async def get_topic_attributes(call: Call, request: TopicRequest) -> Fields:
    """Return the attributes and counts of a topic."""
    return topic_fields(await call.client.topic(request.topic_name).attributes())


class ListTopic(OperationRequest, frozen=True):
    """Parameters of ListTopic."""

    search_word: str = ""
    offset: Annotated[int, Whole(0, 2**31 - 1)] = 0
    limit: Annotated[int, Whole(0, 50)] = 20


async def list_topic(call: Call, request: ListTopic) -> Fields:
    """List a page of the account's topics, by name; ``totalCount`` counts all that match."""
    page = await call.client.topics(search=request.search_word, offset=request.offset, limit=max(1, request.limit))
    listed = list(zip(page.ids, page.names, strict=True))[: request.limit]
    return {
        "totalCount": page.total,
        "topicList": [{"topicId": topic_id(number), "topicName": name} for number, name in listed],
    }


async def delete_topic(call: Call, request: TopicRequest) -> Fields:
    """Delete a topic that has no subscriptions."""
    await call.client.delete_topic(request.topic_name)
    return {}


OPERATIONS: Final = [
    operation("CreateTopic", CreateTopic, create_topic),
    operation("SetTopicAttributes", SetTopicAttributes, set_topic_attributes),
    operation("GetTopicAttributes", TopicRequest, get_topic_attributes),
    operation("ListTopic", ListTopic, list_topic),
    operation("DeleteTopic", TopicRequest, delete_topic),
]
