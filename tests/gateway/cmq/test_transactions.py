"""Actions on half messages."""

from typing import Any

import pytest

from cmqd_gateway.cmq.reasons import Reason
from support.client.local_server import LocalServer
from support.gateway.cmq_calls import CmqCalls


@pytest.fixture
async def tx(calls: CmqCalls) -> CmqCalls:
    await calls.ok("CreateQueue", queueName="tx", transaction=1)
    return calls


async def half(calls: CmqCalls, *bodies: str, **parameters: Any) -> list[str]:
    answer = await calls.ok("BatchSendHalfMessage", queueName="tx", msgBody=list(bodies), **parameters)
    return [message["msgId"] for message in answer["msgList"]]


async def test_a_committed_message_is_delivered(tx: CmqCalls, server: LocalServer) -> None:
    sent = await tx.ok("SendHalfMessage", queueName="tx", msgBody="paid")
    assert await server.bodies("tx") == []

    for _ in range(2):  # the same decision again succeeds
        assert await tx.ok("CommitHalfMessage", queueName="tx", msgId=sent["msgId"]) == {}

    assert await server.bodies("tx") == [b"paid"]


async def test_a_message_that_was_rolled_back_is_gone(tx: CmqCalls, server: LocalServer) -> None:
    ids = await half(tx, "a", "b")

    assert await tx.ok("RollbackHalfMessage", queueName="tx", msgId=ids) == {}

    assert await server.bodies("tx") == []
    assert await tx.ok("ListHalfMessage", queueName="tx") == {"halfMsgList": []}


async def test_undecided_messages_are_listed_in_pages(tx: CmqCalls, server: LocalServer) -> None:
    ids = await half(tx, "a", "b", "c", firstQueryInterval=3600)

    listed: list[dict[str, Any]] = []
    start = 0
    while start is not None:
        page = await tx.ok("ListHalfMessage", queueName="tx", start=start, limit=2)
        assert len(page["halfMsgList"]) <= 2
        listed += page["halfMsgList"]
        start = page.get("nextStart")

    assert [message["msgId"] for message in listed] == ids
    first = listed[0]
    assert (first["queryCount"], first["lastQueryTime"], first["lastAnswer"]) == (0, 0, "")
    assert first["nextQueryTime"] - first["enqueueTime"] in (3600, 3601)


async def test_the_opposite_decision_is_refused(tx: CmqCalls) -> None:
    committed, rolled_back = await half(tx, "a", "b")
    await tx.ok("CommitHalfMessage", queueName="tx", msgId=committed)
    await tx.ok("RollbackHalfMessage", queueName="tx", msgId=rolled_back)

    for action, message_id in (("RollbackHalfMessage", committed), ("CommitHalfMessage", rolled_back)):
        refusal = await tx.refused(action, queueName="tx", msgId=message_id)

        assert (refusal.code, refusal.reason) == (4490, Reason.DECISION_CONFLICT)


async def test_decisions_of_a_batch_are_independent(tx: CmqCalls, server: LocalServer) -> None:
    ids = await half(tx, "a", "b")
    await tx.ok("RollbackHalfMessage", queueName="tx", msgId=ids[0])
    unknown = "Msg-00000000000fffff"

    refusal = await tx.refused("CommitHalfMessage", queueName="tx", msgId=[*ids, unknown])

    assert (refusal.code, refusal.reason) == (6040, Reason.DECISIONS_PARTLY_FAILED)
    codes = {error["msgId"]: error["code"] for error in refusal.fields["errorList"]}
    assert codes == {ids[0]: 4490, unknown: 4490}
    assert await server.bodies("tx") == [b"b"]


async def test_a_batch_of_which_all_decisions_failed(tx: CmqCalls) -> None:
    unknown = ["Msg-00000000000fffff", "Msg-00000000000ffffe"]

    refusal = await tx.refused("CommitHalfMessage", queueName="tx", msgId=unknown)

    assert (refusal.code, refusal.reason) == (6040, Reason.DECISIONS_FAILED)
    assert [error["msgId"] for error in refusal.fields["errorList"]] == unknown


@pytest.mark.parametrize("message_id", ["Msg-00000000000fffff", "17", "Msg-x"])
async def test_an_id_of_no_half_message_is_invalid(message_id: str, tx: CmqCalls) -> None:
    refusal = await tx.refused("CommitHalfMessage", queueName="tx", msgId=message_id)

    assert (refusal.code, refusal.reason) == (4490, Reason.MESSAGE_ID_INVALID)


async def test_a_queue_that_is_not_transactional_takes_no_half_messages(calls: CmqCalls) -> None:
    refusal = await calls.refused("SendHalfMessage", queueName="orders", msgBody="a")

    assert (refusal.code, refusal.reason) == (4490, Reason.NOT_TRANSACTIONAL)
