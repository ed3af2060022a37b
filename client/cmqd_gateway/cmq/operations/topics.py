"""Operations on topics: create, list, read and change attributes, delete."""

from typing import Annotated, Final

from cmqd_client import TopicInfo
from cmqd_client.topic import FilterType, TopicAttributes
from cmqd_gateway.cmq.operation import Call, operation
from cmqd_gateway.cmq.operations.listing import Listed, ListRequest, listed
from cmqd_gateway.cmq.parameters import OperationRequest, Whole, range_of
from cmqd_types.attributes import TOPIC

BY_TAGS: Final = 1
"""The filter type of a topic that filters by tags; also the meaning of an absent parameter."""
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


async def create_topic(call: Call, request: CreateTopic) -> TopicInfo:
    """Create a topic. A name of more than 64 bytes is cut."""
    return await call.client.create_topic_info(request.topic_name, **topic_attributes(request))


class SetTopicAttributes(OperationRequest, frozen=True):
    """Parameters of SetTopicAttributes."""

    topic_name: str
    max_msg_size: MessageSize | None = None


async def set_topic_attributes(call: Call, request: SetTopicAttributes) -> None:
    """Change the largest size of a message, the only attribute that can be changed."""
    topic = call.client.topic(request.topic_name)
    if request.max_msg_size is None:
        await topic.attributes()
    else:
        await topic.set_attributes(max_message_bytes=request.max_msg_size)


async def get_topic_attributes(call: Call, request: TopicRequest) -> TopicInfo:
    """Return the attributes and counts of a topic."""
    return await call.client.topic(request.topic_name).attributes()


async def list_topic(call: Call, request: ListRequest) -> Listed:
    """List a page of the account's topics, by name."""
    # The broker refuses a limit of 0, which CMQ takes.
    page = await call.client.topics(search=request.search_word, offset=request.offset, limit=max(1, request.limit))
    return listed(page, request.limit)


async def delete_topic(call: Call, request: TopicRequest) -> None:
    """Delete a topic that has no subscriptions."""
    await call.client.delete_topic(request.topic_name)


OPERATIONS: Final = [
    operation("CreateTopic", CreateTopic, create_topic),
    operation("SetTopicAttributes", SetTopicAttributes, set_topic_attributes),
    operation("GetTopicAttributes", TopicRequest, get_topic_attributes),
    operation("ListTopic", ListRequest, list_topic),
    operation("DeleteTopic", TopicRequest, delete_topic),
]
