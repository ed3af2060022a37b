"""All 20 actions of API 3.0 in turn, each answer compared with the same object over API 2.0.

    await Scenario(rig, call).run()

``call`` makes a request and returns the fields of its answer without ``RequestId``, so that own requests and an SDK
run the same scenario.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from support.gateway.cmq_calls import CmqCalls
from support.gateway.gateway_rig import GatewayRig

Call: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

QUEUE_TWINS = {
    "QueueId": "queueId",
    "QueueName": "queueName",
    "MaxMsgHeapNum": "maxMsgHeapNum",
    "PollingWaitSeconds": "pollingWaitSeconds",
    "MsgRetentionSeconds": "msgRetentionSeconds",
    "VisibilityTimeout": "visibilityTimeout",
    "MaxMsgSize": "maxMsgSize",
    "RewindSeconds": "rewindSeconds",
    "ActiveMsgNum": "activeMsgNum",
    "InactiveMsgNum": "inactiveMsgNum",
    "DelayMsgNum": "delayMsgNum",
    "RewindMsgNum": "rewindMsgNum",
    "MinMsgTime": "minMsgTime",
    "Transaction": "transaction",
}
"""Fields of ``CmqQueue`` with the fields of API 2.0."""
TOPIC_TWINS = {
    "TopicId": "topicId",
    "TopicName": "topicName",
    "MsgRetentionSeconds": "msgRetentionSeconds",
    "MaxMsgSize": "maxMsgSize",
    "FilterType": "filterType",
    "MsgCount": "msgCount",
}
SUBSCRIPTION_TWINS = {
    "SubscriptionId": "subscriptionId",
    "SubscriptionName": "subscriptionName",
    "MsgCount": "msgCount",
    "BindingKey": "bindingKey",
    "Endpoint": "endpoint",
    "FilterTags": "filterTags",
    "Protocol": "protocol",
    "NotifyStrategy": "notifyStrategy",
    "NotifyContentFormat": "notifyContentFormat",
    "TopicName": "topicName",
}
OF_ANY_OBJECT: Mapping[str, Any] = {
    "CreateUin": None,
    "Tags": [],
    "Trace": False,
    "TenantId": "",
    "NamespaceName": "",
    "Status": 1,
}
COUNTS = {"queue": 31, "topic": 17, "subscription": 13}
"""Numbers of fields."""

ATTRIBUTES = {
    "MaxMsgHeapNum": 2_000_000,
    "PollingWaitSeconds": 3,
    "VisibilityTimeout": 60,
    "MaxMsgSize": 2_048,
    "RewindSeconds": 600,
    "Trace": False,
    "RetentionSizeInMB": 10_240,
    "DeadLetterQueueName": "dead",
    "Policy": 1,
    "MaxTimeToLive": 300,
}


class Scenario:
    """See the module."""

    def __init__(self, rig: GatewayRig, call: Call) -> None:
        """Make a scenario.

        Args:
            rig: the gateway.
            call: makes a request.
        """
        self.call = call
        self.api2 = CmqCalls(rig)

    async def run(self) -> None:
        """Run the scenario with an empty account, and leave an empty account."""
        await self._queues()
        await self._messages()
        await self._topics()
        await self._subscriptions()
        await self._publishing()
        await self._ends()

    # ------------------------------------------------------------------ steps

    async def _queues(self) -> None:
        created = await self.call("CreateCmqQueue", {"QueueName": "dead"})
        assert created["QueueId"] == (await self._queue("dead"))["QueueId"]
        await self.call("CreateCmqQueue", {"QueueName": "orders", **ATTRIBUTES})
        await self.call(
            "CreateCmqQueue", {"QueueName": "tx", "Transaction": 1, "FirstQueryInterval": 7, "MaxQueryCount": 3}
        )

        dead, orders, tx = [await self._queue(name) for name in ("dead", "orders", "tx")]
        assert (dead["MaxMsgSize"], dead["MaxMsgHeapNum"]) == (1_048_576, 100_000_000)
        assert dead["DeadLetterSource"] == [{"QueueId": orders["QueueId"], "QueueName": "orders"}]
        assert {name: orders[name] for name in ATTRIBUTES if name in orders} == {
            **{name: value for name, value in ATTRIBUTES.items() if name in orders},
            "RetentionSizeInMB": 0,
        }
        assert orders["DeadLetterPolicy"] == {
            "DeadLetterQueue": "dead",
            "Policy": 1,
            "MaxTimeToLive": 300,
            "MaxReceiveCount": 0,
        }
        assert tx["TransactionPolicy"] == {"FirstQueryInterval": 7, "MaxQueryCount": 3}
        assert tx["Transaction"] is True

        modified = await self.call(
            "ModifyCmqQueueAttribute",
            {"QueueName": "orders", "VisibilityTimeout": 90, "DeadLetterQueueName": "dead", "MaxReceiveCount": 4},
        )
        assert modified == {}
        orders = await self._queue("orders")
        assert (orders["VisibilityTimeout"], orders["PollingWaitSeconds"]) == (90, 3)
        assert (orders["DeadLetterPolicy"]["Policy"], orders["DeadLetterPolicy"]["MaxReceiveCount"]) == (0, 4)
        assert orders["LastModifyTime"] >= orders["CreateTime"] > 1_600_000_000_000
        assert await self.call("UnbindCmqDeadLetter", {"SourceQueueName": "orders"}) == {}
        assert (await self._queue("orders")).get("DeadLetterPolicy") is None

        for parameters, names, total in (
            ({}, ["dead", "orders", "tx"], 3),
            ({"Offset": 1, "Limit": 1}, ["orders"], 3),
            ({"Limit": 0}, [], 3),
            ({"QueueName": "e"}, ["dead", "orders"], 2),
            ({"QueueNameList": ["tx", "missing", "dead", "tx"]}, ["dead", "tx"], 2),
            ({"QueueNameList": ["tx", "dead"], "Offset": 1, "Limit": 5}, ["tx"], 2),
            ({"QueueNameList": ["tx", "dead"], "QueueName": "ea"}, ["dead"], 1),
            ({"IsTagFilter": True, "Filters": [{"Name": "tag:owner", "Values": ["me", "you"]}]}, [], 0),
        ):
            page = await self.call("DescribeCmqQueues", parameters)
            assert [each["QueueName"] for each in page["QueueList"]] == names, parameters
            assert page["TotalCount"] == total
            for each in page["QueueList"]:
                assert each == await self._queue(each["QueueName"])

    async def _messages(self) -> None:
        sent = await self.call("SendCmqMsg", {"QueueName": "orders", "MsgContent": "a+b é&=%", "DelaySeconds": 0})
        assert sent["Result"] is True
        delayed = await self.call("SendCmqMsg", {"QueueName": "orders", "MsgContent": "later", "DelaySeconds": 3_600})
        assert re.fullmatch(r"Msg-[0-9a-f]{16}", delayed["MsgId"])

        received = await self.api2.ok("ReceiveMessage", queueName="orders", pollingWaitSeconds=0)
        assert (received["msgId"], received["msgBody"]) == (sent["MsgId"], "a+b é&=%")
        queue = await self._queue("orders")
        assert (queue["ActiveMsgNum"], queue["InactiveMsgNum"], queue["DelayMsgNum"]) == (0, 1, 1)

        await self.api2.ok("DeleteMessage", queueName="orders", receiptHandle=received["receiptHandle"])
        assert (await self._queue("orders"))["RewindMsgNum"] == 1
        for factor in (1, 1000):
            rewound = await self.call(
                "RewindCmqQueue", {"QueueName": "orders", "StartConsumeTime": received["enqueueTime"] * factor}
            )
            assert rewound == {}
        assert (await self._queue("orders"))["ActiveMsgNum"] == 1
        assert await self.call("ClearCmqQueue", {"QueueName": "orders"}) == {}
        queue = await self._queue("orders")
        assert (queue["ActiveMsgNum"], queue["DelayMsgNum"], queue["RewindMsgNum"]) == (0, 0, 0)

    async def _topics(self) -> None:
        created = await self.call("CreateCmqTopic", {"TopicName": "news", "MaxMsgSize": 4_096, "Trace": False})
        await self.call("CreateCmqTopic", {"TopicName": "routed", "FilterType": 2, "MsgRetentionSeconds": 86_400})
        assert await self.call("ModifyCmqTopicAttribute", {"TopicName": "news", "MaxMsgSize": 8_192}) == {}
        news, routed = await self._topic("news"), await self._topic("routed")

        assert created["TopicId"] == news["TopicId"]
        assert (news["MaxMsgSize"], news["FilterType"], routed["MaxMsgSize"], routed["FilterType"]) == (
            8_192,
            1,
            65_536,
            2,
        )
        for parameters, names in (
            ({}, ["news", "routed"]),
            ({"TopicName": "new"}, ["news"]),
            ({"TopicNameList": ["routed", "missing"]}, ["routed"]),
            ({"Filters": [{"Name": "tag:owner", "Values": ["me"]}]}, []),
        ):
            page = await self.call("DescribeCmqTopics", parameters)
            assert [each["TopicName"] for each in page["TopicList"]] == names, parameters
            assert page["TotalCount"] == len(names)
            for each in page["TopicList"]:
                assert each == await self._topic(each["TopicName"])
        assert (await self.call("DescribeCmqTopics", {"Offset": 1, "Limit": 1}))["TopicList"] == [routed]

    async def _subscriptions(self) -> None:
        created = await self.call(
            "CreateCmqSubscribe",
            {
                "TopicName": "news",
                "SubscriptionName": "red",
                "Protocol": "queue",
                "Endpoint": "orders",
                "NotifyStrategy": "BACKOFF_RETRY",
                "NotifyContentFormat": "SIMPLIFIED",
                "FilterTag": ["red", "big"],
            },
        )
        await self.call(
            "CreateCmqSubscribe",
            {
                "TopicName": "routed",
                "SubscriptionName": "keyed",
                "Protocol": "queue",
                "Endpoint": "orders",
                "BindingKey": ["a.*", "b.#"],
            },
        )
        await self.call(
            "CreateCmqSubscribe",
            {
                "TopicName": "news",
                "SubscriptionName": "web",
                "Protocol": "http",
                "Endpoint": "http://127.0.0.1:9/a?b=c",
            },
        )

        page = await self.call("DescribeCmqSubscriptionDetail", {"TopicName": "news"})
        assert page["TotalCount"] == 2
        red, web = page["SubscriptionSet"]
        for each in (red, web):
            await self._compare_subscription(each)
        assert red["SubscriptionId"] == created["SubscriptionId"]
        assert (red["NotifyStrategy"], red["FilterTags"]) == ("BACKOFF_RETRY", ["red", "big"])
        searched = await self.call("DescribeCmqSubscriptionDetail", {"TopicName": "news", "SubscriptionName": "e"})
        assert searched["SubscriptionSet"] == [red, web]
        second = await self.call("DescribeCmqSubscriptionDetail", {"TopicName": "news", "Offset": 1, "Limit": 1})
        assert (second["SubscriptionSet"], second["TotalCount"]) == ([web], 2)
        missing = await self.call("DescribeCmqSubscriptionDetail", {"TopicName": "missing"})
        assert missing == {"TotalCount": 0, "SubscriptionSet": []}

        of_queue = await self.call(
            "DescribeCmqSubscriptionDetail", {"TopicName": "news", "QueueName": "orders", "QueryType": "queue"}
        )
        assert of_queue["TotalCount"] == 2
        assert [each["SubscriptionName"] for each in of_queue["SubscriptionSet"]] == ["red", "keyed"]
        assert of_queue["SubscriptionSet"][0] == red
        await self._compare_subscription(of_queue["SubscriptionSet"][1])

        changes = {"NotifyStrategy": "EXPONENTIAL_DECAY_RETRY", "NotifyContentFormat": "JSON", "FilterTags": ["small"]}
        names = {"TopicName": "news", "SubscriptionName": "red"}
        assert await self.call("ModifyCmqSubscriptionAttribute", {**names, **changes}) == {}
        (red,) = (await self.call("DescribeCmqSubscriptionDetail", names))["SubscriptionSet"]
        assert {name: red[name] for name in changes} == changes
        assert await self.call("ClearCmqSubscriptionFilterTags", names) == {}
        (red,) = (await self.call("DescribeCmqSubscriptionDetail", names))["SubscriptionSet"]
        await self._compare_subscription(red)
        assert red["FilterTags"] == []
        # A topic that filters by tags ignores binding keys.
        assert await self.call("ModifyCmqSubscriptionAttribute", {**names, "BindingKey": ["a"]}) == {}
        keys = {**names, "SubscriptionName": "keys", "Protocol": "queue", "Endpoint": "dead", "BindingKey": ["a"]}
        await self.call("CreateCmqSubscribe", keys)
        await self.call("DeleteCmqSubscribe", {**names, "SubscriptionName": "keys"})

    async def _publishing(self) -> None:
        ids = [
            (await self.call("PublishCmqMsg", {"TopicName": topic, "MsgContent": topic, **tags}))["MsgId"]
            for topic, tags in (("news", {}), ("news", {"MsgTag": ["a", "b"]}), ("routed", {"MsgTag": ["a.x"]}))
        ]
        long = await self.call("PublishCmqMsg", {"TopicName": "routed", "MsgContent": "x", "MsgTag": ["b." + "k" * 60]})

        assert len({*ids, long["MsgId"]}) == 4
        received = await self.api2.ok("BatchReceiveMessage", queueName="orders", numOfMsg=16, pollingWaitSeconds=0)
        assert [each["msgBody"] for each in received["msgInfoList"]] == ["news", "news", "routed", "x"]
        assert (await self._topic("news"))["SubscriptionCount"] == 2

    async def _ends(self) -> None:
        for topic, name in (("news", "red"), ("news", "web"), ("routed", "keyed")):
            assert await self.call("DeleteCmqSubscribe", {"TopicName": topic, "SubscriptionName": name}) == {}
        for topic in ("news", "routed"):
            assert await self.call("DeleteCmqTopic", {"TopicName": topic}) == {}
        for queue in ("orders", "tx", "dead"):
            assert await self.call("DeleteCmqQueue", {"QueueName": queue}) == {}
        assert (await self.api2.ok("ListQueue"))["totalCount"] == 0
        assert (await self.api2.ok("ListTopic"))["totalCount"] == 0

    # ------------------------------------------------------------------ comparisons

    async def _queue(self, name: str) -> dict[str, Any]:
        """Return a queue; its answer has the values of API 2.0."""
        answer = await self.call("DescribeCmqQueueDetail", {"QueueName": name})
        queue: dict[str, Any] = answer["QueueDescribe"]
        twin = await self.api2.ok("GetQueueAttributes", queueName=name)
        assert {field: queue[field] for field in QUEUE_TWINS} == {
            field: twin[other] for field, other in QUEUE_TWINS.items()
        }
        self._check_rest(queue, "queue", OF_ANY_OBJECT)
        assert [queue[each] // 1000 for each in ("CreateTime", "LastModifyTime")] == [
            twin["createTime"],
            twin["lastModifyTime"],
        ]
        assert [each["QueueName"] for each in queue["DeadLetterSource"]] == twin.get("deadLetterSource", [])
        return queue

    async def _topic(self, name: str) -> dict[str, Any]:
        answer = await self.call("DescribeCmqTopicDetail", {"TopicName": name})
        topic: dict[str, Any] = answer["TopicDescribe"]
        twin = await self.api2.ok("GetTopicAttributes", topicName=name)
        assert {field: topic[field] for field in TOPIC_TWINS} == {
            field: twin[other] for field, other in TOPIC_TWINS.items()
        }
        self._check_rest(topic, "topic", OF_ANY_OBJECT)
        assert topic["CreateTime"] // 1000 == twin["createTime"]
        return topic

    async def _compare_subscription(self, subscription: dict[str, Any]) -> None:
        twin = await self.api2.ok(
            "GetSubscriptionAttributes",
            topicName=subscription["TopicName"],
            subscriptionName=subscription["SubscriptionName"],
        )
        assert {field: subscription[field] for field in SUBSCRIPTION_TWINS} == {
            field: twin[other] for field, other in SUBSCRIPTION_TWINS.items()
        }
        self._check_rest(subscription, "subscription", {"TopicOwner": None})
        assert subscription["CreateTime"] // 1000 == twin["createTime"]

    def _check_rest(self, fields: dict[str, Any], kind: str, rest: Mapping[str, Any]) -> None:
        """Check the fields that have no counterpart, and the number of fields."""
        assert {field: fields.get(field) for field in rest} == rest
        assert len(fields) == COUNTS[kind], sorted(fields)
