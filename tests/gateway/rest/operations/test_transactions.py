"""The operations of the JSON API with the tag transactions: each succeeds, and has its own errors."""

from typing import Any

from support.gateway.operation_checks import check_tag, checks, half
from support.gateway.rest_calls import RestCalls


@checks("send_half_message")
async def check_send_half_message(rest: RestCalls) -> None:
    message_id = await half(rest)
    (message,) = (await rest.ok("list_half_messages", queue="half")).messages
    assert (message.id, message.checks, message.last_check_time) == (message_id, 0, None)
    assert await rest.received("half") == []


@checks("send_half_messages")
async def check_send_half_messages(rest: RestCalls) -> None:
    await half(rest)
    messages = [{"body": "a"}, {"body": "b", "headers": {"c": "d"}}]
    batch = await rest.ok("send_half_messages", queue="half", body={"messages": messages, "first_check": 60})
    assert len(batch.results) == 2
    for result in batch.results:
        await rest.ok("decide_half_message", queue="half", body={"message_id": result.id, "decision": "commit"})
    assert [(message.body, message.headers) for message in await rest.received("half")] == [
        ("a", {}),
        ("b", {"c": "d"}),
    ]
    empty = await rest.refused("send_half_messages", queue="half", body={"messages": []})
    assert empty.field == "messages"


@checks("list_half_messages")
async def check_list_half_messages(rest: RestCalls) -> None:
    ids = [await half(rest) for _ in range(3)]
    seen: list[str] = []
    start: str | None = "0"
    while start is not None:
        page = await rest.ok("list_half_messages", queue="half", query={"max_messages": 1, "start": start})
        seen += [message.id for message in page.messages]
        start = page.next_start
    assert seen == ids


@checks("decide_half_message")
async def check_decide_half_message(rest: RestCalls) -> None:
    async def decide(message_id: str, decision: str) -> Any:
        return await rest.answer(
            "decide_half_message", queue="half", body={"message_id": message_id, "decision": decision}
        )

    committed, rolled_back = await half(rest), await half(rest)
    await rest.ok("decide_half_message", queue="half", body={"message_id": committed, "decision": "unknown"})
    assert (await decide(committed, "commit")).status == (await decide(committed, "commit")).status == 204
    assert (await decide(rolled_back, "rollback")).status == 204
    assert [message.id for message in await rest.received("half")] == [committed]
    for message_id, decision, status, name in (
        (committed, "rollback", 409, "already_committed"),
        (rolled_back, "commit", 409, "already_rolled_back"),
        ("Msg-00000000ffffffff", "commit", 404, "transaction_not_found"),
    ):
        problem = (await decide(message_id, decision)).problem()
        assert (problem.status, problem.name, problem.details) == (status, name, {"message_id": message_id})


@checks("decide_half_messages")
async def check_decide_half_messages(rest: RestCalls) -> None:
    first, second = await half(rest), await half(rest)
    decisions = [
        {"message_id": first, "decision": "commit"},
        {"message_id": "Msg-00000000ffffffff", "decision": "commit"},
        {"message_id": second, "decision": "rollback"},
    ]
    reply = await rest.ok("decide_half_messages", queue="half", body={"decisions": decisions})
    assert [result.message_id for result in reply.results] == [entry["message_id"] for entry in decisions]
    assert [result.problem and result.problem.name for result in reply.results] == [None, "transaction_not_found", None]
    assert reply.failed == 1
    assert [message.id for message in await rest.received("half")] == [first]
    for wrong in ([], decisions[:1] * 2, decisions[:1] * 257):
        assert (
            await rest.refused("decide_half_messages", queue="half", body={"decisions": wrong})
        ).field == "decisions"


async def test_each_operation_succeeds_and_has_its_own_errors(rest: RestCalls):
    await check_tag("transactions", rest)
