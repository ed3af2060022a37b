"""Messages over API 2.0: send, receive and delete, single and in batches, with their answers and errors."""

from support.gateway_rig import GatewayRig


async def test_a_message_is_sent_received_and_deleted(rig: GatewayRig):
    sent = await rig.call("SendMessage", queueName="orders", msgBody="one espresso")
    received = await rig.call("ReceiveMessage", queueName="orders")
    deleted = await rig.call("DeleteMessage", queueName="orders", receiptHandle=received["receiptHandle"])

    assert (sent["code"], sent["message"]) == (0, "")
    assert received["msgBody"] == "one espresso"
    assert received["msgId"] == sent["msgId"]
    assert received["dequeueCount"] == 1
    assert received["nextVisibleTime"] - received["firstDequeueTime"] == 30
    assert deleted["code"] == 0
    assert len({sent["requestId"], received["requestId"], deleted["requestId"]}) == 3
    assert (await rig.server.admin.queue("orders").attributes()).active == 0


async def test_requests_by_get_are_answered_too(rig: GatewayRig):
    sent = await rig.call("SendMessage", method="GET", queueName="orders", msgBody="a b+c&d=e%f")
    received = await rig.call("ReceiveMessage", method="GET", queueName="orders")

    assert sent["code"] == 0
    assert received["msgBody"] == "a b+c&d=e%f"
