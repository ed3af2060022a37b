"""Requests of API 3.0 that are refused: their parameters, codes and parts of their messages."""

from collections.abc import Mapping
from typing import Any

import msgspec

from support.gateway.api3_requests import Fault
from support.gateway.cmq_calls import CmqCalls
from support.gateway.gateway_rig import GatewayRig


class Refused(msgspec.Struct, frozen=True):
    """A request that is refused."""

    action: str
    parameters: Mapping[str, Any]
    code: str
    text: str
    """A part of the message."""

    @property
    def is_of_json(self) -> bool:
        """True for a value that a form cannot have."""
        return isinstance(self.parameters.get("VisibilityTimeout"), str)

    def matches(self, fault: Fault) -> bool:
        """Return True for the expected error."""
        return fault.code == self.code and self.text in fault.message


async def stage(rig: GatewayRig) -> None:
    """Make queues, topics and subscriptions beside the queue ``orders``."""
    calls = CmqCalls(rig)
    await calls.ok("CreateQueue", queueName="dead")
    await calls.ok("CreateQueue", queueName="tx", transaction=1)
    await calls.ok("CreateQueue", queueName="rewindable", rewindSeconds=600)
    await calls.ok("CreateTopic", topicName="news")
    await calls.ok("CreateTopic", topicName="routed", filterType=2)
    await calls.ok("CreateTopic", topicName="bare")
    policy = '{"deadLetterQueue": "dead", "maxReceiveCount": 5}'
    await calls.ok("SetQueueAttributes", queueName="orders", deadLetterPolicy=policy)
    to_queue = {"protocol": "queue", "endpoint": "orders"}
    await calls.ok("Subscribe", topicName="news", subscriptionName="sub", filterTag=["red"], **to_queue)
    await calls.ok("Subscribe", topicName="routed", subscriptionName="sub", bindingKey=["a"], **to_queue)


VALUE, UNSUPPORTED = "InvalidParameterValue", "UnsupportedOperation"
NEW = {"QueueName": "new"}
ORDERS = {"QueueName": "orders"}
NEWS = {"TopicName": "news", "SubscriptionName": "other", "Protocol": "queue", "Endpoint": "orders"}
SUB = {"TopicName": "news", "SubscriptionName": "sub"}
PUBLISH = {"TopicName": "news", "MsgContent": "a"}
ROUTED = {"TopicName": "routed", "MsgContent": "a"}
QUERY = {"TopicName": "news", "QueueName": "orders"}

_ROWS: list[tuple[str, Mapping[str, Any], str, str]] = [
    # parameters of any action
    ("DescribeCmqQueueDetail", {}, "MissingParameter", "the parameter QueueName of DescribeCmqQueueDetail is missing"),
    ("DescribeCmqQueueDetail", {**ORDERS, "queueName": "a"}, "UnknownParameter", "has no parameter 'queueName'"),
    ("CreateCmqQueue", {**NEW, "VisibilityTimeout": "5"}, VALUE, "VisibilityTimeout must be a whole"),
    ("CreateCmqQueue", {**NEW, "Tags": [{"Key": "a"}]}, "UnknownParameter", "'Tags.0.Key' is unknown"),
    # ranges
    *(
        (
            action,
            {"QueueName": name, parameter: value},
            VALUE,
            f"{parameter} is {value}; the range is",
        )
        for action, name in (("CreateCmqQueue", "new"), ("ModifyCmqQueueAttribute", "orders"))
        for parameter, value in {
            "MaxMsgHeapNum": 100_000_001,
            "PollingWaitSeconds": 31,
            "VisibilityTimeout": 0,
            "MaxMsgSize": 1_048_577,
            "RewindSeconds": 1_296_001,
            "Transaction": 2,
            "FirstQueryInterval": 3_601,
            "MaxQueryCount": 0,
            "RetentionSizeInMB": 10_239,
        }.items()
    ),
    ("CreateCmqQueue", {**NEW, "RetentionSizeInMB": 10_240, "RewindSeconds": 0}, VALUE, "Retention"),
    ("ModifyCmqQueueAttribute", {**ORDERS, "RetentionSizeInMB": 512_001}, VALUE, "Retention"),
    ("DescribeCmqQueues", {"Limit": 51}, VALUE, "Limit is 51; the range is 0 to 50"),
    ("DescribeCmqTopics", {"Offset": -1}, VALUE, "Offset is -1"),
    ("DescribeCmqQueues", {"QueueNameList": ["a"] * 101}, VALUE, "QueueNameList has 101 entries"),
    ("DescribeCmqQueues", {"Filters": [{"Name": "owner"}]}, VALUE, "must begin with 'tag:'"),
    ("DescribeCmqTopics", {"Filters": [{"Values": ["a"]}]}, VALUE, "must begin with 'tag:'"),
    # without a counterpart
    (
        "CreateCmqQueue",
        {**NEW, "MsgRetentionSeconds": 3_600},
        UNSUPPORTED,
        "MsgRetentionSeconds is 3600; in a",
    ),
    ("ModifyCmqQueueAttribute", {**ORDERS, "MsgRetentionSeconds": 60}, UNSUPPORTED, "api3_retention"),
    ("CreateCmqQueue", {**NEW, "Trace": True}, UNSUPPORTED, "Trace is true; in CMQ"),
    ("ModifyCmqQueueAttribute", {**ORDERS, "Trace": True}, UNSUPPORTED, "Trace"),
    ("CreateCmqTopic", {"TopicName": "new", "Trace": True}, UNSUPPORTED, "Trace"),
    ("ModifyCmqTopicAttribute", {"TopicName": "news", "Trace": True}, UNSUPPORTED, "Trace"),
    ("CreateCmqQueue", {**NEW, "Tags": [{"TagKey": "a", "TagValue": "b"}]}, UNSUPPORTED, "Tags has entries"),
    ("CreateCmqTopic", {"TopicName": "new", "Tags": [{"TagKey": "a"}]}, UNSUPPORTED, "Tags has entries"),
    ("CreateCmqTopic", {"TopicName": "new", "MsgRetentionSeconds": 60}, VALUE, "for 86400 s"),
    ("ModifyCmqQueueAttribute", {**ORDERS, "Transaction": 1}, UNSUPPORTED, "ransaction"),
    # dead-letter policies
    ("CreateCmqQueue", {**NEW, "MaxReceiveCount": 5}, "MissingParameter", "DeadLetterQueueName is missing"),
    ("CreateCmqQueue", {**NEW, "DeadLetterQueueName": "dead"}, "MissingParameter", "MaxReceiveCount"),
    ("CreateCmqQueue", {**NEW, "DeadLetterQueueName": "dead", "Policy": 1}, "MissingParameter", "MaxTimeToLive"),
    (
        "CreateCmqQueue",
        {**NEW, "DeadLetterQueueName": "dead", "Policy": 2},
        VALUE,
        "Policy is 2; the range is 0 to 1",
    ),
    (
        "CreateCmqQueue",
        {**NEW, "DeadLetterQueueName": "dead", "MaxReceiveCount": 1_001},
        VALUE,
        "MaxReceiveCount is 1001; the range is 1 to 1000",
    ),
    (
        "CreateCmqQueue",
        {**NEW, "DeadLetterQueueName": "missing", "MaxReceiveCount": 1},
        "InvalidParameter",
        "dead-letter queue 'missing' does not exist",
    ),
    ("DeleteCmqQueue", {"QueueName": "dead"}, "ResourceInUse", "dead"),
    # queues
    ("CreateCmqQueue", {"QueueName": "a b"}, VALUE, "QueueName is 'a b'"),
    ("CreateCmqQueue", ORDERS, "ResourceInUse.Queue", "orders"),
    *(
        (action, {"QueueName": "missing", **more}, "ResourceNotFound", "(10100)")
        for action, more in {
            "ModifyCmqQueueAttribute": {"VisibilityTimeout": 5},
            "DescribeCmqQueueDetail": {},
            "DeleteCmqQueue": {},
            "ClearCmqQueue": {},
            "RewindCmqQueue": {"StartConsumeTime": 1_700_000_000},
            "SendCmqMsg": {"MsgContent": "a", "DelaySeconds": 0},
        }.items()
    ),
    ("UnbindCmqDeadLetter", {"SourceQueueName": "missing"}, "ResourceNotFound", "missing"),
    ("UnbindCmqDeadLetter", {"QueueName": "orders"}, "UnknownParameter", "SourceQueueName"),
    ("RewindCmqQueue", {**ORDERS, "StartConsumeTime": 1_700_000_000}, "FailedOperation", "RewindSeconds"),
    (
        "RewindCmqQueue",
        {"QueueName": "rewindable", "StartConsumeTime": 1_000_000_000},
        VALUE,
        "StartConsumeTime is before the rewind window",
    ),
    (
        "RewindCmqQueue",
        {"QueueName": "rewindable", "StartConsumeTime": 4_000_000_000},
        VALUE,
        "(10680)",
    ),
    ("CreateCmqQueue", {**NEW, "RewindSeconds": 400_000}, VALUE, "RewindSeconds"),
    # messages
    (
        "SendCmqMsg",
        {**ORDERS, "MsgContent": "a", "DelaySeconds": 3_601},
        VALUE,
        "DelaySeconds is 3601",
    ),
    ("SendCmqMsg", {**ORDERS, "MsgContent": ""}, VALUE, "(10120)"),
    ("SendCmqMsg", {**ORDERS, "MsgContent": "a" * 65_537}, VALUE, "(10230)"),
    ("SendCmqMsg", {**ORDERS, "MsgContent": "a" * 1_048_577}, VALUE, "MsgContent has 1048577 bytes"),
    ("PublishCmqMsg", {**PUBLISH, "MsgTag": ["blue"]}, "FailedOperation.SendMsg", "(10730)"),
    ("PublishCmqMsg", {"TopicName": "bare", "MsgContent": "a"}, "FailedOperation.SendMsg", "(10650)"),
    ("PublishCmqMsg", {**PUBLISH, "MsgTag": list("abcdefghijk")}, VALUE, "MsgTag has 11 entries"),
    ("PublishCmqMsg", {**PUBLISH, "MsgTag": ["t" * 17]}, VALUE, "a tag of MsgTag has 1 to 16"),
    ("PublishCmqMsg", {**PUBLISH, "MsgTag": ["t" * 65]}, VALUE, "MsgTag has 1 to 64 bytes"),
    ("PublishCmqMsg", {**PUBLISH, "MsgTag": ["red", "t" * 17]}, VALUE, "a tag of MsgTag has 1 to 16"),
    ("PublishCmqMsg", ROUTED, "MissingParameter", "(10700)"),
    ("PublishCmqMsg", {**ROUTED, "MsgTag": ["a", "b"]}, "InvalidParameter", "tags in MsgTag must be empty"),
    (
        "PublishCmqMsg",
        {**ROUTED, "MsgTag": ["b"]},
        "FailedOperation.SendMsg",
        "(10730)",
    ),
    (
        "PublishCmqMsg",
        {**ROUTED, "MsgTag": ["." * 16]},
        VALUE,
        "dots",
    ),
    ("PublishCmqMsg", {"TopicName": "missing", "MsgContent": "a"}, "ResourceNotFound.Topic", "(10600)"),
    # topics
    ("CreateCmqTopic", {"TopicName": "ab"}, VALUE, "(10590)"),
    ("CreateCmqTopic", {"TopicName": "n" * 65}, VALUE, "TopicName has 65 bytes"),
    ("CreateCmqTopic", {"TopicName": "new", "FilterType": 3}, VALUE, "FilterType is 3"),
    ("CreateCmqTopic", {"TopicName": "News"}, "ResourceInUse.Topic", "(10550)"),
    ("DeleteCmqTopic", {"TopicName": "news"}, "ResourceInUse", "(10540)"),
    *(
        (action, {"TopicName": "missing", **more}, "ResourceNotFound.Topic", "(10600)topic")
        for action, more in {
            "ModifyCmqTopicAttribute": {"MaxMsgSize": 2_048},
            "DeleteCmqTopic": {},
            "DescribeCmqTopicDetail": {},
            "CreateCmqSubscribe": {"SubscriptionName": "s", "Protocol": "queue", "Endpoint": "orders"},
        }.items()
    ),
    # subscriptions
    ("CreateCmqSubscribe", {**NEWS, "SubscriptionName": "sub"}, "ResourceInUse.Subscription", "(10470)"),
    ("CreateCmqSubscribe", {**NEWS, "SubscriptionName": "a b"}, VALUE, "(10580)"),
    ("CreateCmqSubscribe", {**NEWS, "Protocol": "smtp"}, VALUE, "Protocol is 'smtp'"),
    ("CreateCmqSubscribe", {**NEWS, "Protocol": "http"}, VALUE, "Endpoint must begin with http://"),
    ("CreateCmqSubscribe", {**NEWS, "Endpoint": "missing"}, "ResourceNotFound", "missing"),
    ("CreateCmqSubscribe", {**NEWS, "NotifyStrategy": "x"}, VALUE, "NotifyStrategy is 'x'"),
    ("CreateCmqSubscribe", {**NEWS, "NotifyContentFormat": "x"}, VALUE, "NotifyContentFormat is 'x'"),
    ("CreateCmqSubscribe", {**NEWS, "FilterTag": list("abcdef")}, VALUE, "FilterTag has 6 entries"),
    ("CreateCmqSubscribe", {**NEWS, "FilterTag": ["a,b"]}, VALUE, "a tag of FilterTag"),
    ("ModifyCmqSubscriptionAttribute", {**SUB, "FilterTags": ["a,b"]}, VALUE, "a tag of FilterTags"),
    ("ModifyCmqSubscriptionAttribute", {**SUB, "FilterTag": ["a"]}, "UnknownParameter", "FilterTags"),
    ("CreateCmqSubscribe", {**NEWS, "TopicName": "routed"}, "MissingParameter", "(10710)"),
    ("CreateCmqSubscribe", {**NEWS, "BindingKey": list("abcdef")}, VALUE, "BindingKey has 6 entries"),
    *(
        (action, {"TopicName": "news", "SubscriptionName": "missing"}, "ResourceNotFound.Subscription", "(10600)")
        for action in ("ModifyCmqSubscriptionAttribute", "DeleteCmqSubscribe", "ClearCmqSubscriptionFilterTags")
    ),
    ("DescribeCmqSubscriptionDetail", {}, "MissingParameter", "TopicName"),
    ("DescribeCmqSubscriptionDetail", {**SUB, "QueryType": "both"}, VALUE, "QueryType is 'both'"),
    ("DescribeCmqSubscriptionDetail", {**SUB, "QueryType": "queue"}, "MissingParameter", "QueueName"),
    ("DescribeCmqSubscriptionDetail", QUERY, VALUE, "QueueName cannot be used with QueryType topic"),
    (
        "DescribeCmqSubscriptionDetail",
        {**SUB, **QUERY, "QueryType": "queue"},
        VALUE,
        "SubscriptionName cannot be used with QueryType queue",
    ),
    ("DescribeCmqSubscriptionDetail", {"QueueName": "missing", "QueryType": "queue"}, "ResourceNotFound", "missing"),
]

REFUSED = [Refused(*row) for row in _ROWS]
