"""Requests that an SDK sends again after a dropped connection, and requests that only look like repeats."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from cmqd.core.facts.dedup import DedupIds
from cmqd.core.limits import Limits
from cmqd_gateway.cmq.api2.repeats import (
    ANSWER_BYTES,
    ANSWER_SECONDS,
    ID_CHARACTERS,
    DeleteAnswers,
    dedup_ids,
    request_digest,
)
from cmqd_gateway.process.gateway_settings import DEDUP_SECONDS, MAX_VALID_SECONDS, Settings
from cmqd_protocol.messages import DeleteMessages, SendMessages
from support.gateway.cmq_requests import PATH, encoded
from support.gateway.gateway_rig import GatewayRig
from support.server.fake_clock import StoppedTimer

DOCS = Path(__file__).parents[3] / "docs" / "gateway.md"
SEND = {"Action": "SendMessage", "queueName": "orders", "msgBody": "one"}


def without_request_id(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "requestId"}


async def test_a_send_that_comes_again_is_stored_once_and_answered_with_the_first_id(rig: GatewayRig):
    form = rig.sign(SEND)

    first, second = await rig.post(form), await rig.post(form)

    assert without_request_id(first) == without_request_id(second)
    assert first["requestId"] != second["requestId"]
    assert await rig.server.bodies("orders") == [b"one"]


async def test_a_batch_that_comes_again_is_stored_once(rig: GatewayRig):
    # Equal bodies are different messages of the batch.
    batch = {"Action": "BatchSendMessage", "queueName": "orders", "msgBody.1": "a", "msgBody.2": "a", "msgBody.3": "b"}
    form = rig.sign(batch)

    first, second = await rig.post(form), await rig.post(form)

    assert without_request_id(first) == without_request_id(second)
    assert len({message["msgId"] for message in first["msgList"]}) == 3
    assert await rig.server.bodies("orders") == [b"a", b"a", b"b"]


async def test_a_send_whose_client_left_before_the_answer_is_stored_once(rig: GatewayRig):
    form = rig.sign(SEND)
    await rig.call("ListQueue")  # the connection to the broker is open
    rig.server.link.hold()
    _, writer = await rig.open_raw()
    body = encoded(form)
    head = f"POST {PATH} HTTP/1.1\r\nHost: {rig.host}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    while await rig.server.bodies("orders") != [b"one"]:
        pass
    writer.transport.abort()
    await rig.handlers_ended()
    rig.server.link.let_go()

    repeat = await rig.post(form)

    assert repeat["code"] == 0
    assert await rig.server.bodies("orders") == [b"one"]


async def test_a_send_whose_answer_the_broker_could_not_give_is_stored_once(rig: GatewayRig):
    rig.server.link.lose_answer(SendMessages)

    answer = await rig.post(rig.sign(SEND))

    assert answer["code"] == 0
    assert await rig.server.bodies("orders") == [b"one"]


@pytest.mark.parametrize(
    "change",
    [
        {"msgBody": "two"},
        {"queueName": "others"},
        {"delaySeconds": 0},
        {"RequestClient": "SDK_Python_1.3"},
        {"SignatureMethod": "HmacSHA256"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_any_other_parameter_makes_another_request(rig: GatewayRig, change: dict[str, Any]):
    await rig.server.admin.create_queue("others")
    common = {"Nonce": 1 << 40, "Timestamp": int(time.time())}

    first = await rig.post(rig.sign(SEND | common))
    second = await rig.post(rig.sign(SEND | common | change))

    assert first["code"] == second["code"] == 0
    assert first["msgId"] != second["msgId"]
    assert len(await rig.server.bodies("orders") + await rig.server.bodies("others")) == 2


async def test_a_value_that_the_signature_does_not_cover_makes_no_other_request(rig: GatewayRig):
    common = {"Nonce": 1 << 40, "Timestamp": int(time.time())}
    first = rig.sign(SEND | common | {"msgBody": "@one"}, leave_out_at=True)
    second = rig.sign(SEND | common | {"msgBody": "@two"}, leave_out_at=True)
    assert first["Signature"] == second["Signature"]

    await rig.post(first)
    await rig.post(second)

    assert await rig.server.bodies("orders") == [b"@one"]


async def test_a_captured_send_is_stored_once_for_as_long_as_it_is_valid(rig: GatewayRig):
    # The worst case: a client with a clock as far ahead as the gateway accepts: its request is valid for longest.
    form = rig.sign(SEND | {"Timestamp": int(time.time()) + rig.settings.timestamp_ahead_seconds - 10})
    first = await rig.post(form)
    answers: list[Any] = []
    for _ in range(35):
        rig.wall_offset += 10
        rig.server.advance(10)
        answers.append(await rig.post(form))

    assert first["code"] == 0
    assert {answer["code"] for answer in answers} == {0, 4100}
    assert {answer["msgId"] for answer in answers if not answer["code"]} == {first["msgId"]}
    assert await rig.server.bodies("orders") == [b"one"]


@pytest.mark.parametrize(("behind", "ahead"), [(240, 60), (300, 0), (1, 280), (86_400, 60)])
def test_a_window_longer_than_the_memory_of_sends_is_refused(behind: int, ahead: int):
    with pytest.raises(ValueError, match=f"are {behind + ahead} together; the limit is 280: the broker remembers"):
        Settings(timestamp_behind_seconds=behind, timestamp_ahead_seconds=ahead)


def test_the_limit_of_the_window_is_below_the_memory_of_the_broker():
    assert Limits().dedup_life_ms == DEDUP_SECONDS * 1000
    assert MAX_VALID_SECONDS < DEDUP_SECONDS
    assert Settings(timestamp_behind_seconds=270, timestamp_ahead_seconds=10).timestamp_behind_seconds == 270


async def test_a_request_with_a_nonce_of_16_bits_is_never_taken_for_a_repeat(rig: GatewayRig):
    common = {"Timestamp": int(time.time())}

    for nonce in (65_535, 65_535, 65_536, 65_536):
        assert (await rig.post(rig.sign(SEND | common | {"Nonce": nonce})))["code"] == 0

    assert await rig.server.bodies("orders") == [b"one", b"one", b"one"]


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_messages_of_one_second_with_equal_nonces_of_16_bits_are_all_stored(rig: GatewayRig):
    timestamp = int(time.time())
    draw = random.Random(15)
    nonces = [draw.randint(1, 65_535) for _ in range(2_000)]
    assert len(set(nonces)) < 1_980, "too few pairs of nonce and time stamp come twice"

    async def send(numbers: range) -> None:
        """Send messages over a connection of their own, pipelined."""
        reader, writer = await rig.open_raw()
        for start in range(numbers.start, numbers.stop, 50):
            for number in range(start, start + 50):
                form = rig.sign(SEND | {"msgBody": number, "Timestamp": timestamp, "Nonce": nonces[number]})
                body = encoded(form)
                head = f"POST {PATH} HTTP/1.1\r\nHost: {rig.host}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
            for _ in range(50):
                head_lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head_lines.partition("content-length: ")[2].partition("\r\n")[0])
                assert b'"code":0,' in await reader.readexactly(length)
        writer.close()

    await asyncio.gather(*(send(range(start, start + 250)) for start in range(0, 2_000, 250)))

    assert (await rig.server.info("orders")).active == 2_000
    assert sorted(int(body) for body in await rig.server.bodies("orders")) == list(range(2_000))


async def test_a_delete_that_comes_again_is_answered_like_the_first(rig: GatewayRig):
    await rig.server.put("orders", b"a")
    handle = (await rig.call("ReceiveMessage", queueName="orders"))["receiptHandle"]
    form = rig.sign({"Action": "DeleteMessage", "queueName": "orders", "receiptHandle": handle, "Nonce": 7})

    answers = [await rig.post(form) for _ in range(3)]
    another = await rig.call("DeleteMessage", queueName="orders", receiptHandle=handle)
    rig.clock.advance(ANSWER_SECONDS + 1)
    late = await rig.post(form)

    assert [answer["code"] for answer in answers] == [0, 0, 0]
    assert another["code"] == 4430
    assert late["code"] == 4430


async def test_a_batch_of_deletes_that_comes_again_is_answered_like_the_first(rig: GatewayRig):
    await rig.server.put("orders", b"a")
    handle = (await rig.call("ReceiveMessage", queueName="orders"))["receiptHandle"]
    parameters = {
        "Action": "BatchDeleteMessage", "queueName": "orders", "receiptHandle.1": handle, "receiptHandle.2": "77",
    }  # fmt: skip
    form = rig.sign(parameters)

    first, second = await rig.post(form), await rig.post(form)

    assert first["code"] == 6010
    assert without_request_id(first) == without_request_id(second)


async def test_a_delete_whose_client_left_before_the_answer_is_answered_to_its_repeat(rig: GatewayRig):
    await rig.server.put("orders", b"a")
    handle = (await rig.call("ReceiveMessage", queueName="orders"))["receiptHandle"]
    form = rig.sign({"Action": "DeleteMessage", "queueName": "orders", "receiptHandle": handle})
    rig.server.link.hold()
    _, writer = await rig.open_raw()
    body = encoded(form)
    head = f"POST {PATH} HTTP/1.1\r\nHost: {rig.host}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    while (await rig.server.info("orders")).in_flight:
        pass
    writer.transport.abort()
    await rig.handlers_ended()
    repeat = asyncio.create_task(rig.post(form))
    rig.server.link.let_go()

    assert (await repeat)["code"] == 0


async def test_a_delete_that_failed_is_tried_again(rig: GatewayRig):
    rig.retries = 0
    await rig.server.put("orders", b"a")
    handle = (await rig.call("ReceiveMessage", queueName="orders"))["receiptHandle"]
    form = rig.sign({"Action": "DeleteMessage", "queueName": "orders", "receiptHandle": handle})
    rig.server.link.drop_request(DeleteMessages)

    first = await rig.post(form)
    second = await rig.post(form)

    assert (first["code"], second["code"]) in {(6000, 0), (0, 0)}
    assert (await rig.server.info("orders")).in_flight == 0


# ---------------------------------------------------------------------- the parts


def test_a_digest_tells_apart_what_joined_text_would_not():
    parts = [("id", b"a"), ("ida", b""), ("i", b"da"), ("", b"ida"), ("id", b""), ("", b"")]

    assert len({request_digest(secret_id, signature) for secret_id, signature in parts}) == len(parts)


def test_dedup_ids_tell_apart_requests_and_places_in_a_batch():
    requests = [request_digest("id", str(number).encode()) for number in range(1_000)]

    ids = [dedup_id for digest in requests for dedup_id in dedup_ids(digest, 65_536, 16)]

    assert len(set(ids)) == 16_000


def test_the_documented_rate_of_sends_follows_from_the_memory_of_an_id():
    (dedup_id,) = dedup_ids(request_digest("id", b""), 65_536, 1)
    assert dedup_id is not None
    limits = Limits(budget_bytes=512 * 1024 * 1024)
    table = DedupIds(limits)
    table.note(dedup_id, 1, 0)
    text = " ".join(DOCS.read_text(encoding="utf-8").split())

    assert f"at {table.size_bytes} bytes for API 2.0" in text
    for gigabytes in (1, 2, 4):
        # A quarter of the memory is the budget, and an account may hold half of the budget for the life of an id.
        held_bytes = gigabytes * 1024**3 // 4 // 2
        rate = held_bytes // table.size_bytes * 1_000 // limits.dedup_life_ms
        assert f"| {gigabytes} GiB | {rate:,} |" in text


def test_dedup_ids_have_at_most_64_bytes():
    digest = request_digest("id" * 64, b"x" * 44)

    ids = dedup_ids(digest, 65_536, 16)

    assert len(set(ids)) == 16
    assert all(dedup_id is not None and dedup_id.isascii() and len(dedup_id) == ID_CHARACTERS for dedup_id in ids)
    assert dedup_ids(digest, 65_535, 2) == [None, None]


async def no_failures() -> dict[str, Any]:
    return {}


async def test_remembered_answers_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd_gateway.cmq.api2.repeats.MAX_BYTES", 200 * ANSWER_BYTES)
    answers = DeleteAnswers()

    async def some_failures() -> dict[str, Any]:
        return {"code": 6010, "errorList": ["x" * ANSWER_BYTES]}

    for number in range(1_000):
        await answers.answer(f"key {number % 3}", str(number), no_failures if number % 2 else some_failures)
        assert answers.bytes_in_use <= 200 * ANSWER_BYTES

    assert 60 <= len(answers) <= 150


async def test_a_busy_key_does_not_push_out_the_answers_of_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd_gateway.cmq.api2.repeats.MAX_BYTES", 200 * ANSWER_BYTES)
    answers = DeleteAnswers(StoppedTimer())
    executed: list[str] = []

    async def delete(secret_id: str, name: str) -> None:
        async def execute() -> dict[str, Any]:
            executed.append(name)
            return {}

        await answers.answer(secret_id, name, execute)

    for number in range(20):
        await delete("calm", f"calm {number}")
    for number in range(1_000):
        await delete("busy", f"busy {number}")
    executed.clear()

    for number in range(20):
        await delete("calm", f"calm {number}")
    await delete("busy", "busy 999")
    await delete("busy", "busy 900")
    await delete("busy", "busy 0")

    assert executed == ["busy 0"]


async def test_expired_answers_are_forgotten_also_of_keys_without_requests():
    now = StoppedTimer()
    answers = DeleteAnswers(now)
    for number in range(100):
        await answers.answer(f"key {number % 7}", f"old {number}", no_failures)

    now.seconds = ANSWER_SECONDS
    for number in range(40):
        await answers.answer("another", f"new {number}", no_failures)

    assert len(answers) == 40
    assert answers.bytes_in_use == 40 * ANSWER_BYTES


async def test_an_answer_is_remembered_for_a_minute_from_its_decision():
    now, executed = StoppedTimer(), list[float]()
    answers = DeleteAnswers(now)

    async def execute() -> dict[str, Any]:
        executed.append(now.seconds)
        return {}

    for seconds in (0.0, 59.0, 60.0, 119.0, 121.0):
        now.seconds = seconds
        await answers.answer("key", "digest", execute)

    assert executed == [0.0, 60.0, 121.0]
    assert len(answers) == 1


async def test_a_delete_whose_client_left_keeps_its_connection_to_the_broker_until_it_is_answered():
    async with GatewayRig(key_idle_seconds=1) as rig:
        await rig.server.put("orders", b"one")
        received = await rig.call("ReceiveMessage", queueName="orders", pollingWaitSeconds=0)
        form = rig.sign({"Action": "DeleteMessage", "queueName": "orders", "receiptHandle": received["receiptHandle"]})
        rig.server.link.hold()
        _, writer = await rig.open_raw()
        body = encoded(form)
        head = f"POST {PATH} HTTP/1.1\r\nHost: {rig.host}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        while (await rig.server.info("orders")).in_flight:
            pass
        writer.transport.abort()
        await rig.handlers_ended()

        rig.clock.advance(2)
        rig.gateway.connections.close_idle()
        assert len(rig.gateway.connections) == 1
        rig.server.link.let_go()

        assert (await rig.post(form))["code"] == 0
