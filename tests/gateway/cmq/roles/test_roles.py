"""Actions of API 2.0 with keys of some roles and names."""

import json

from cmqd_gateway.cmq.reasons import Reason
from support.gateway.cmq_calls import CmqCalls
from support.gateway.gateway_rig import GatewayRig


async def calls_with_key(rig: GatewayRig, *roles: str, names: list[str] | None = None) -> CmqCalls:
    """Return calls with a new key of these roles."""
    created = await rig.server.admin.accounts.create_key(roles=roles, names=names)
    assert created.secret_key is not None
    return CmqCalls(rig, key=rig.add_key(created.secret_id, created.secret_key))


async def test_a_key_has_the_permissions_over_http_that_it_has_natively(rig: GatewayRig, calls: CmqCalls) -> None:
    sender, consumer = await calls_with_key(rig, "send"), await calls_with_key(rig, "consume")

    await sender.ok("SendMessage", queueName="orders", msgBody="a")
    received = await consumer.ok("ReceiveMessage", queueName="orders")
    await consumer.ok("DeleteMessage", queueName="orders", receiptHandle=received["receiptHandle"])

    for refused in (
        await sender.refused("ReceiveMessage", queueName="orders"),
        await sender.refused("CreateQueue", queueName="jobs"),
        await consumer.refused("SendMessage", queueName="orders", msgBody="a"),
        await consumer.refused("ClearQueue", queueName="orders"),
    ):
        assert (refused.code, refused.reason) == (4000, Reason.NO_PERMISSION)


async def test_a_list_has_the_names_of_the_key(rig: GatewayRig, calls: CmqCalls) -> None:
    await calls.ok("CreateQueue", queueName="jobs-1")
    reader = await calls_with_key(rig, "read", names=["jobs-*"])

    listed = await reader.ok("ListQueue")

    assert (listed["totalCount"], [queue["queueName"] for queue in listed["queueList"]]) == (1, ["jobs-1"])
    assert (await reader.refused("GetQueueAttributes", queueName="orders")).reason is Reason.NO_PERMISSION


async def test_a_publish_that_matches_nothing_fails_also_for_a_key_that_reads_nothing(
    rig: GatewayRig, calls: CmqCalls
) -> None:
    await calls.ok("CreateTopic", topicName="news")
    sender = await calls_with_key(rig, "send")

    refusal = await sender.refused("PublishMessage", topicName="news", msgBody="a")

    assert (refusal.code, refusal.reason) == (6030, Reason.NOTHING_MATCHES)


async def test_a_dead_letter_queue_of_another_name_is_shown_without_name_and_id(
    rig: GatewayRig, calls: CmqCalls
) -> None:
    await calls.ok("CreateQueue", queueName="dead")
    policy = json.dumps({"deadLetterQueue": "dead", "policy": 0, "maxReceiveCount": 5})
    await calls.ok("SetQueueAttributes", queueName="orders", deadLetterPolicy=policy)
    reader = await calls_with_key(rig, "read", names=["orders"])

    fields = await reader.ok("GetQueueAttributes", queueName="orders")

    assert fields["deadLetterPolicy"]["deadLetterQueue"] == ""
    assert fields["deadLetterPolicy"]["deadLetterQueueName"] == "(hidden)"
