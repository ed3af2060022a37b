"""Actions of API 2.0 on queues."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from cmqd_gateway.cmq.api2.dead_letter_json import policy_fields
from cmqd_gateway.cmq.numbers import bounded, whole_seconds
from cmqd_gateway.cmq.operations.dead_letters import shown_queue
from cmqd_gateway.cmq.reasons import Reason
from support.client.local_server import LocalServer
from support.gateway.cmq_calls import CmqCalls


async def attributes(calls: CmqCalls, name: str) -> dict[str, Any]:
    return await calls.ok("GetQueueAttributes", queueName=name)


async def test_a_new_queue_has_cmqs_defaults_and_an_id(calls: CmqCalls) -> None:
    created = await calls.ok("CreateQueue", queueName="jobs")

    fields = await attributes(calls, "jobs")
    assert created == {"queueId": fields["queueId"]}
    assert fields["queueId"].startswith("queue-")
    expected: dict[str, Any] = {
        "queueName": "jobs",
        "maxMsgHeapNum": 100_000_000,
        "pollingWaitSeconds": 0,
        "visibilityTimeout": 30,
        "maxMsgSize": 65_536,
        "msgRetentionSeconds": 345_600,
        "rewindSeconds": 0,
        "activeMsgNum": 0,
        "inactiveMsgNum": 0,
        "delayMsgNum": 0,
        "rewindMsgNum": 0,
        "rewindmsgNum": 0,
        "minMsgTime": 0,
        "transaction": 0,
    }
    assert {name: fields[name] for name in expected} == expected
    assert fields["createTime"] == fields["lastModifyTime"] > 1_000_000_000
    assert "deadLetterPolicy" not in fields


async def test_a_queue_is_created_with_all_attributes(calls: CmqCalls) -> None:
    given = {
        "maxMsgHeapNum": 2_000_000,
        "pollingWaitSeconds": 3,
        "visibilityTimeout": 43_200,
        "maxMsgSize": 1_048_576,
        "msgRetentionSeconds": 1_296_000,
        "rewindSeconds": 1_296_000,
    }

    await calls.ok("CreateQueue", queueName="jobs", **given)

    fields = await attributes(calls, "jobs")
    assert {name: fields[name] for name in given} == given


async def test_the_named_attributes_change_and_the_others_stay(calls: CmqCalls) -> None:
    await calls.ok("CreateQueue", queueName="jobs", visibilityTimeout=60, rewindSeconds=100)

    answer = await calls.ok("SetQueueAttributes", queueName="jobs", pollingWaitSeconds=30)

    assert answer == await attributes(calls, "jobs")
    assert (answer["pollingWaitSeconds"], answer["visibilityTimeout"], answer["rewindSeconds"]) == (30, 60, 100)


async def test_counts_and_times_are_whole_numbers_of_32_bits(calls: CmqCalls, server: LocalServer) -> None:
    await calls.ok("CreateQueue", queueName="jobs", rewindSeconds=3600)
    await server.put("jobs", *[b"a"] * 7)
    await server.put("jobs", b"later", b"later", b"later", delay=60)
    queue = server.admin.queue("jobs")
    await queue.delete((await queue.receive(wait=0))[0])
    await queue.receive(2, wait=0)

    fields = await attributes(calls, "jobs")

    counts = {name: fields[name] for name in ("activeMsgNum", "inactiveMsgNum", "delayMsgNum", "rewindMsgNum")}
    assert counts == {"activeMsgNum": 4, "inactiveMsgNum": 2, "delayMsgNum": 3, "rewindMsgNum": 1}
    assert fields["rewindmsgNum"] == 1
    for name in ("createTime", "lastModifyTime", "minMsgTime"):
        assert type(fields[name]) is int
        assert 1_000_000_000 < fields[name] < 2**31


def test_a_count_of_more_than_32_bits_is_the_largest_of_32_bits() -> None:
    assert [bounded(count) for count in (0, 2**31 - 1, 2**31, 2**40)] == [0, 2**31 - 1, 2**31 - 1, 2**31 - 1]
    assert [whole_seconds(duration) for duration in (0.0, 0.001, 1.0, 1.5)] == [0, 1, 1, 2]


async def test_a_transactional_queue_shows_its_checks(calls: CmqCalls) -> None:
    await calls.ok("CreateQueue", queueName="tx", transaction=1, firstQueryInterval=7, maxQueryCount=3)

    fields = await attributes(calls, "tx")

    assert (fields["transaction"], fields["firstQueryInterval"], fields["maxQueryCount"]) == (1, 7, 3)
    assert fields["halfMsgNum"] == 0


async def test_queues_are_listed_by_name_in_pages(calls: CmqCalls) -> None:
    for number in range(25):
        await calls.ok("CreateQueue", queueName=f"jobs-{number:02}")

    first = await calls.ok("ListQueue", searchWord="jobs")
    last = await calls.ok("ListQueue", searchWord="jobs", offset=20, limit=50)
    none = await calls.ok("ListQueue", searchWord="jobs", limit=0)

    assert [queue["queueName"] for queue in first["queueList"]] == [f"jobs-{number:02}" for number in range(20)]
    assert [queue["queueName"] for queue in last["queueList"]] == [f"jobs-{number:02}" for number in range(20, 25)]
    assert (first["totalCount"], last["totalCount"], none) == (25, 25, {"totalCount": 25, "queueList": []})
    assert first["queueList"][3]["queueId"] == (await attributes(calls, "jobs-03"))["queueId"]


async def test_a_deleted_queue_is_gone_and_its_name_is_free_at_once(calls: CmqCalls) -> None:
    first = await calls.ok("CreateQueue", queueName="jobs")

    assert await calls.ok("DeleteQueue", queueName="jobs") == {}

    assert (await calls.refused("GetQueueAttributes", queueName="jobs")).reason is Reason.QUEUE_NOT_FOUND
    assert await calls.ok("CreateQueue", queueName="jobs") != first


async def test_a_cleared_queue_is_empty(calls: CmqCalls, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b")

    assert await calls.ok("ClearQueue", queueName="orders") == {}

    assert (await attributes(calls, "orders"))["activeMsgNum"] == 0


# ---------------------------------------------------------------------- rewind


async def deleted_message(calls: CmqCalls, server: LocalServer) -> int:
    """Make a queue with a rewind window of an hour and a message deleted; return the second of the message's send."""
    await calls.ok("CreateQueue", queueName="jobs", rewindSeconds=3600)
    await server.put("jobs", b"a")
    queue = server.admin.queue("jobs")
    (message,) = await queue.receive(wait=0)
    await queue.delete(message)
    return int(message.enqueue_time.timestamp())


@pytest.mark.parametrize("unit", [1, 1000], ids=["seconds", "milliseconds"])
async def test_a_rewind_makes_deleted_messages_active(unit: int, calls: CmqCalls, server: LocalServer) -> None:
    sent = await deleted_message(calls, server)

    assert await calls.ok("RewindQueue", queueName="jobs", startConsumeTime=sent * unit) == {}

    assert await server.bodies("jobs") == [b"a"]


@pytest.mark.parametrize("start", [0, 1, 1_000_000_000])
async def test_a_time_before_the_window_is_an_error_that_says_what_was_done(
    start: int, calls: CmqCalls, server: LocalServer
) -> None:
    await deleted_message(calls, server)

    refusal = await calls.refused("RewindQueue", queueName="jobs", startConsumeTime=start)

    assert (refusal.code, refusal.reason) == (4000, Reason.REWIND_TIME)
    assert "was rewound to" in refusal.message
    assert "1 messages are active again" in refusal.message
    assert await server.bodies("jobs") == [b"a"]


@pytest.mark.parametrize("start", [-1, 10**17, 10**20 - 1])
async def test_a_number_that_is_no_time_is_shown_as_it_was_given(start: int, calls: CmqCalls) -> None:
    refusal = await calls.refused("RewindQueue", queueName="orders", startConsumeTime=start)

    assert refusal.reason is Reason.REWIND_TIME
    assert f"startConsumeTime is {start}; " in refusal.message


async def test_a_time_in_the_future_changes_no_message(calls: CmqCalls, server: LocalServer) -> None:
    sent = await deleted_message(calls, server)

    refusal = await calls.refused("RewindQueue", queueName="jobs", startConsumeTime=sent + 86_400)

    assert refusal.reason is Reason.REWIND_TIME
    assert "no message was changed" in refusal.message
    assert await server.bodies("jobs") == []


async def test_a_queue_without_a_window_cannot_be_rewound(calls: CmqCalls) -> None:
    refusal = await calls.refused("RewindQueue", queueName="orders", startConsumeTime=1_700_000_000)

    assert (refusal.code, refusal.reason) == (6050, Reason.NOT_REWINDABLE)


# ---------------------------------------------------------------------- dead letters

RECEIVES = {"deadLetterQueue": "dead", "policy": 0, "maxReceiveCount": 5}
AGE = {"deadLetterQueue": "dead", "policy": 1, "maxTimeToLive": 300}


@pytest.mark.parametrize("policy", [RECEIVES, AGE], ids=["receives", "age"])
async def test_a_policy_is_set_by_name_and_shown_with_the_id(policy: dict[str, Any], calls: CmqCalls) -> None:
    dead = await calls.ok("CreateQueue", queueName="dead")

    answer = await calls.ok("SetQueueAttributes", queueName="orders", deadLetterPolicy=json.dumps(policy))

    shown = policy | {"deadLetterQueue": dead["queueId"], "deadLetterQueueName": "dead"}
    assert answer["deadLetterPolicy"] == shown
    assert (await attributes(calls, "orders"))["deadLetterPolicy"] == shown
    assert (await attributes(calls, "dead"))["deadLetterSource"] == ["orders"]


async def test_a_policy_that_was_read_can_be_sent_back(calls: CmqCalls) -> None:
    await calls.ok("CreateQueue", queueName="dead")
    first = await calls.ok("SetQueueAttributes", queueName="orders", deadLetterPolicy=json.dumps(RECEIVES))

    again = await calls.ok(
        "SetQueueAttributes", queueName="orders", deadLetterPolicy=json.dumps(first["deadLetterPolicy"])
    )

    assert again["deadLetterPolicy"] == first["deadLetterPolicy"]


async def test_a_name_has_precedence_over_an_id_of_the_same_text(calls: CmqCalls) -> None:
    other = await calls.ok("CreateQueue", queueName="other")
    named = await calls.ok("CreateQueue", queueName=other["queueId"])
    policy = json.dumps(RECEIVES | {"deadLetterQueue": other["queueId"]})

    answer = await calls.ok("SetQueueAttributes", queueName="orders", deadLetterPolicy=policy)

    assert answer["deadLetterPolicy"]["deadLetterQueue"] == named["queueId"]


@pytest.mark.parametrize(("first", "second"), [(RECEIVES, AGE), (AGE, RECEIVES)], ids=["age", "receives"])
async def test_the_other_policy_replaces_the_first(
    first: dict[str, Any], second: dict[str, Any], calls: CmqCalls
) -> None:
    dead = await calls.ok("CreateQueue", queueName="dead")
    await calls.ok("CreateQueue", queueName="jobs", deadLetterPolicy=json.dumps(first))

    answer = await calls.ok("SetQueueAttributes", queueName="jobs", deadLetterPolicy=json.dumps(second))

    shown = second | {"deadLetterQueue": dead["queueId"], "deadLetterQueueName": "dead"}
    assert answer["deadLetterPolicy"] == shown


async def test_numbers_of_a_policy_may_be_texts(calls: CmqCalls) -> None:
    await calls.ok("CreateQueue", queueName="dead")
    policy = json.dumps({"deadLetterQueue": "dead", "policy": "0", "maxReceiveCount": "7"})

    answer = await calls.ok("SetQueueAttributes", queueName="orders", deadLetterPolicy=policy)

    assert answer["deadLetterPolicy"]["maxReceiveCount"] == 7


@pytest.mark.parametrize(
    ("action", "parameters"),
    [
        ("UnbindDeadLetter", {"queueName": "orders"}),
        ("UnbindDeadLetter", {"sourceQueueName": "orders"}),
        ("SetQueueAttributes", {"queueName": "orders", "deadLetterPolicy": "{}"}),
        ("SetQueueAttributes", {"queueName": "orders", "deadLetterPolicy": '{"deadLetterQueue": ""}'}),
    ],
)
async def test_a_dead_letter_queue_is_unbound(action: str, parameters: dict[str, str], calls: CmqCalls) -> None:
    await calls.ok("CreateQueue", queueName="dead")
    await calls.ok("SetQueueAttributes", queueName="orders", deadLetterPolicy=json.dumps(RECEIVES))

    await calls.ok(action, **parameters)

    assert "deadLetterPolicy" not in await attributes(calls, "orders")
    await calls.ok("DeleteQueue", queueName="dead")


async def test_dead_letters_return_to_their_queue(calls: CmqCalls, server: LocalServer) -> None:
    await calls.ok("CreateQueue", queueName="dead")
    await server.put("orders", b"a", b"b")
    await server.bury("orders", "dead", 2)
    server.hold_moves()

    begun = await calls.ok("RedriveDeadLetters", queueName="dead", maxPerSecond=1000)
    running = await calls.refused("RedriveDeadLetters", queueName="dead")
    server.let_moves_go()
    await server.wait_bodies("orders", b"a", b"b")

    assert (begun["running"], begun["movedMsgNum"], begun["maxPerSecond"]) == (1, 0, 1000)
    assert running.reason is Reason.PARAMETERS_ERROR
    # The end is recorded after the last move.
    while (ended := await calls.ok("GetRedrive", queueName="dead"))["running"]:
        pass
    assert (ended["running"], ended["reason"], ended["movedMsgNum"], ended["missingOrigins"]) == (0, "done", 2, {})
    assert ended["endTime"] >= ended["startTime"] > 0


async def test_a_redrive_to_a_named_queue_can_be_cancelled(calls: CmqCalls, server: LocalServer) -> None:
    await calls.ok("CreateQueue", queueName="dead")
    await server.put("orders", b"a")
    await server.bury("orders", "dead")
    server.hold_moves()

    begun = await calls.ok("RedriveDeadLetters", queueName="dead", targetQueueName="orders")
    ended = await calls.ok("CancelRedrive", queueName="dead")

    assert begun["targetQueueName"] == "orders"
    assert (ended["running"], ended["reason"]) == (0, "cancelled")


async def test_a_dead_letter_queue_that_cannot_be_read_is_shown_by_name(server: LocalServer) -> None:
    info = replace(await server.info("orders"), dead_letter_queue="gone", dead_letter_max_receives=5)

    assert policy_fields(await shown_queue(server.admin, info)) == {
        "deadLetterQueue": "",
        "deadLetterQueueName": "gone",
        "policy": 0,
        "maxReceiveCount": 5,
    }
