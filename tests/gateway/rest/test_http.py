"""The JSON API over HTTP: keys, paths, idempotency keys, long polls, exact bytes, limits and the page."""

import asyncio
import base64
import gzip
import json
import logging
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any

import aiohttp
import pytest

from cmqd_client import Message, Queue
from cmqd_client.errors import ServerUnreachable
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.rest.table import BASE
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig
from support.gateway.lost_answers import fail, lose_next_answer
from support.gateway.rest_calls import RestCalls


@pytest.fixture
async def rig() -> AsyncGenerator[GatewayRig]:
    """A gateway that knows the key, so that frequent requests are direct ones; other tests send theirs over aiohttp."""
    async with GatewayRig() as rig:
        await rig.gateway.secrets.find(rig.own_key.secret_id, None)
        yield rig


# ---------------------------------------------------------------- keys


def basic(pair: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


async def test_a_key_is_given_as_bearer_or_as_basic_auth(rest: RestCalls):
    pair = f"{rest.key.secret_id}:{rest.key.secret_key}"
    for headers in (
        {"Authorization": f"Bearer {pair}"},
        {"Authorization": f"bearer   {pair}"},
        basic(pair),
        {"Authorization": basic(pair)["Authorization"].replace("Basic", "BASIC")},
    ):
        assert (await rest.send("GET", "/queues", headers=headers)).status == 200


async def test_a_wrong_key_is_refused_without_a_word_about_the_reason(rest: RestCalls):
    secret_id, secret = rest.key.secret_id, rest.key.secret_key
    wrong = [f"{secret_id}:{secret}x", f"{secret_id}x:{secret}", f"{secret_id}:{secret[:-1]}", "AKIDnone:x"]
    answers = [await rest.send("GET", "/queues", headers={"Authorization": f"Bearer {pair}"}) for pair in wrong]
    answers += [await rest.send("GET", "/queues", headers=basic(pair)) for pair in wrong]

    assert {answer.status for answer in answers} == {401}
    assert len({answer.body for answer in answers}) == 1
    assert secret.encode() not in answers[0].body


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer onlyone",
        "Bearer :x",
        "Bearer x:",
        "Basic !!!",
        "Basic eA==",
        "Digest a:b",
        "x:y",
    ],
)
async def test_a_malformed_authorization_is_refused(authorization: str, rest: RestCalls):
    answer = await rest.send("GET", "/queues", headers={"Authorization": authorization})

    assert (answer.status, answer.problem().name) == (401, "unauthorized")


async def test_a_disabled_key_is_refused(rest: RestCalls, rig: GatewayRig):
    rig.table.keys["AKIDoff"] = KeySecret("AKIDoff", "secret", enabled=False)

    assert (await rest.send("GET", "/queues", headers={"Authorization": "Bearer AKIDoff:secret"})).status == 401


async def test_a_browser_is_not_offered_basic_auth(rest: RestCalls):
    """A browser would ask for the key in a window of its own and send it with each later request."""
    answer = await rest.send("GET", "/queues", headers={"Sec-Fetch-Site": "same-origin"})

    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="cmqd"'


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_site_cannot_use_the_key_of_a_browser(site: str, rest: RestCalls):
    await rest.rig.server.put("orders", b"kept")
    headers = rest.bearer() | {"Sec-Fetch-Site": site}

    answer = await rest.send("POST", "/queues/orders/clear", headers=headers)

    assert (answer.status, answer.problem().name) == (403, "cross_site_request")
    assert await rest.rig.server.bodies("orders") == [b"kept"]
    own = await rest.send("POST", "/queues/orders/clear", headers=rest.bearer() | {"Sec-Fetch-Site": "same-origin"})
    assert own.status == 204


async def test_no_log_has_a_secret_or_a_body(rest: RestCalls, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    await rest.ok("send_message", queue="orders", body={"body": "card 4000"})
    await rest.answer("send_message", queue="orders", body={"body": "card 4000", "wrong": 1})
    made = await rest.ok("create_key")

    assert made.secret_key not in caplog.text
    assert rest.key.secret_key not in caplog.text
    assert "card 4000" not in caplog.text


# ---------------------------------------------------------------- paths


async def test_an_unknown_path_is_a_problem(rest: RestCalls):
    for path in ("/nope", "/queues/", "/queues/orders/", "/queues/orders/nope", "/queues//messages"):
        answer = await rest.send("GET", path, headers=rest.bearer())
        assert (answer.status, answer.problem().name) == (404, "path_not_found"), path


async def test_an_unknown_method_is_a_problem_that_names_the_others(rest: RestCalls):
    for method, path, allowed in (
        ("DELETE", "/queues/orders/receive", {"POST"}),
        ("PUT", "/queues/orders/messages", {"POST", "GET"}),
        ("OPTIONS", "/queues", {"GET"}),
    ):
        answer = await rest.send(method, path, headers=rest.bearer())
        assert (answer.status, answer.problem().name) == (405, "method_not_allowed")
        assert set(answer.headers["Allow"].split(", ")) == allowed


async def test_head_is_answered_like_get_without_a_body(rest: RestCalls):
    answer = await rest.send("HEAD", "/queues/orders", headers=rest.bearer())

    assert (answer.status, answer.content_type, answer.body) == (200, "application/json", b"")


@pytest.mark.parametrize("name", ["%2e%2e", "a%2fb", "%00", "%ff", "a b", "%c3%a4", "x" * 300, "%25"])
async def test_a_strange_name_is_refused(name: str, rest: RestCalls):
    answer = await rest.send("PUT", f"/queues/{name.replace(' ', '%20')}", headers=rest.bearer())

    assert answer.status in (400, 404)
    answer.problem()


async def raw_status(rest: RestCalls, head: bytes) -> int:
    """Return the status of the answer to a request with these bytes as head."""
    reader, writer = await rest.rig.open_raw()
    writer.write(head + b"\r\n\r\n")
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


@pytest.mark.parametrize(
    "target", ["/queues?search=%ff", "/queues?search=%00", "/queues?%ff=1", "/queues/%c3%28", "/%ff"]
)
async def test_bytes_that_are_no_text_in_a_target_are_refused_or_match_nothing(target: str, rest: RestCalls):
    authorization = rest.bearer()["Authorization"]
    head = f"GET {BASE}{target} HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}"

    assert await raw_status(rest, head.encode()) in (200, 400, 404)


async def test_bytes_that_are_no_text_in_a_header_are_refused(rest: RestCalls):
    start = f"POST {BASE}/queues/orders/messages HTTP/1.1\r\nHost: x\r\n".encode()
    key = f"Authorization: {rest.bearer()['Authorization']}".encode()

    assert await raw_status(rest, start + b"Authorization: Bearer " + rest.key.secret_id.encode() + b":\xff") in (
        400,
        401,
    )
    assert await raw_status(rest, start + key + b"\r\nIdempotency-Key: \xff") == 400
    content = b"\r\nContent-Length: 2\r\nContent-Type: \xff\xfe"
    assert await raw_status(rest, start + key + content + b"\r\n\r\n{}") in (400, 415)


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    "content",
    [
        b"\x00",
        bytes(range(256)),
        "héllo ✓ 𐀀".encode(),
        b"\xef\xbb\xbfbom",
        b"\r\n\t ",
        b'{"a": 1}',
        b"\xed\xa0\x80",
        b"\xff" * 3,
    ],
    ids=["nul", "all bytes", "text", "bom", "space", "json", "surrogate", "binary"],
)
async def test_bytes_of_other_clients_round_trip_exactly(content: bytes, rest: RestCalls):
    await rest.rig.server.put("orders", content)
    (peeked,) = (await rest.ok("peek_messages", queue="orders")).messages
    (message,) = await rest.received("orders")
    again = {"body": message.body, "encoding": message.encoding}
    await rest.ok("send_message", queue="orders", body=again)

    assert (peeked.body, peeked.encoding) == (message.body, message.encoding)
    assert await rest.rig.server.bodies("orders") == [content]
    assert message.encoding == ("base64" if content in (bytes(range(256)), b"\xed\xa0\x80", b"\xff" * 3) else "utf-8")


async def test_a_large_message_goes_through(rest: RestCalls):
    await rest.ok("set_queue", queue="orders", body={"max_message_bytes": 1_048_576})
    text = base64.b64encode(b"\xff" * 1_048_576).decode()
    await rest.ok("send_message", queue="orders", body={"body": text, "encoding": "base64"})

    (message,) = await rest.received("orders")
    assert (message.body == text, message.encoding) == (True, "base64")


async def test_a_list_that_is_far_too_long_is_refused(rest: RestCalls):
    raw = b'{"receipt_handles": [%s]}' % b",".join([b'"1"'] * 1_000_000)

    answer = await rest.send(
        "POST", "/queues/orders/delete/batch", raw, rest.bearer() | {"Content-Type": "application/json"}
    )

    assert (answer.status, answer.problem().name) == (400, "invalid_argument")
    assert "more than 257 strings" in answer.problem().detail


async def test_a_body_over_the_limit_is_refused(rest: RestCalls):
    limit = rest.rig.settings.max_request_bytes
    answer = await rest.answer("send_message", queue="orders", body={"body": "x" * limit})

    assert (answer.status, answer.problem().name) == (413, "request_too_large")


async def test_a_stranger_cannot_make_the_gateway_read_a_body(rest: RestCalls):
    reader, writer = await rest.rig.open_raw()
    head = f"POST {BASE}/queues/orders/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    writer.write(head.encode())

    # The answer comes although no byte of the body has been sent.
    assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
    writer.close()


# ---------------------------------------------------------------- idempotency keys


async def test_a_send_with_the_same_idempotency_key_is_stored_once(rest: RestCalls):
    key = {"Idempotency-Key": "order-17"}
    first = await rest.ok("send_message", queue="orders", body={"body": "a"}, headers=key)
    quoted = {"Idempotency-Key": '"order-17"'}
    repeat = await rest.ok("send_message", queue="orders", body={"body": "b"}, headers=quoted)
    field = await rest.ok("send_message", queue="orders", body={"body": "c", "dedup_id": "order-17"})
    other = await rest.ok("send_message", queue="orders", body={"body": "d"}, headers={"Idempotency-Key": "order-18"})

    assert first.id == repeat.id == field.id != other.id
    assert await rest.rig.server.bodies("orders") == [b"a", b"d"]


async def test_a_batch_with_the_same_idempotency_key_is_stored_once(rest: RestCalls):
    key = {"Idempotency-Key": "x" * 62}
    batch = {"messages": [{"body": "a"}, {"body": "b"}]}
    first = await rest.ok("send_messages", queue="orders", body=batch, headers=key)
    repeat = await rest.ok("send_messages", queue="orders", body=batch, headers=key)

    assert first == repeat
    assert first.results[0] != first.results[1]
    assert await rest.rig.server.bodies("orders") == [b"a", b"b"]
    long = await rest.refused("send_messages", queue="orders", body=batch, headers={"Idempotency-Key": "x" * 63})
    assert (long.status, long.field, long.details["limit"]) == (400, "Idempotency-Key", 62)


async def test_publishes_and_half_messages_have_idempotency_keys_too(rest: RestCalls):
    await rest.ok("create_topic", topic="news")
    await rest.ok("create_subscription", topic="news", subscription="copies", body={"queue": "orders"})
    await rest.ok("create_queue", queue="half", body={"transactional": True})
    one, batch = {"body": "a"}, {"messages": [{"body": "b"}, {"body": "c"}]}
    key = {"Idempotency-Key": "k"}
    for _ in range(2):
        await rest.ok("publish_message", topic="news", body=one, headers=key)
        await rest.ok("publish_messages", topic="news", body=batch, headers=key)
        await rest.ok("send_half_message", queue="half", body=one, headers=key)
        await rest.ok("send_half_messages", queue="half", body=batch, headers=key)

    assert await rest.rig.server.bodies("orders") == [b"a", b"b", b"c"]
    assert await rest.rig.server.bodies("half", "half") == [b"a", b"b", b"c"]


async def test_an_idempotency_key_and_a_dedup_id_exclude_each_other(rest: RestCalls):
    key = {"Idempotency-Key": "k"}
    one = await rest.refused("send_message", queue="orders", body={"body": "a", "dedup_id": "d"}, headers=key)
    batch = {"messages": [{"body": "a"}, {"body": "b", "dedup_id": "d"}]}
    many = await rest.refused("send_messages", queue="orders", body=batch, headers=key)

    assert one.field == many.field == "dedup_id"


# ---------------------------------------------------------------- long polls


def poll_bytes(rest: RestCalls, **body: Any) -> bytes:
    content = json.dumps({"wait": 30} | body).encode()
    head = (
        f"POST {BASE}/queues/orders/receive HTTP/1.1\r\nHost: {rest.rig.host}\r\nContent-Length: {len(content)}\r\n"
        f"Content-Type: application/json\r\nAuthorization: {rest.bearer()['Authorization']}\r\n\r\n"
    )
    return head.encode() + content


async def waiting_receives(rest: RestCalls, count: int) -> None:
    while await rest.rig.server.status("waiting_receives") != count:
        pass


def close(writer: asyncio.StreamWriter) -> None:
    writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_a_poll_is_answered_by_the_message_that_comes(rest: RestCalls):
    poll = asyncio.create_task(rest.ok("receive_messages", queue="orders", body={"wait": 30}))
    await waiting_receives(rest, 1)
    await rest.rig.server.put("orders", b"late")

    assert [message.body for message in (await poll).messages] == ["late"]


async def test_a_poll_of_a_deleted_queue_ends_with_410(rest: RestCalls):
    poll = asyncio.create_task(rest.refused("receive_messages", queue="orders", body={"wait": 30}))
    await waiting_receives(rest, 1)
    await rest.ok("delete_queue", queue="orders")

    problem = await poll
    assert (problem.status, problem.name) == (410, "queue_deleted")


@pytest.mark.parametrize("end", [close, reset])
async def test_a_poll_ends_with_its_connection(rest: RestCalls, end: Callable[[asyncio.StreamWriter], None]):
    _, writer = await rest.rig.open_raw()
    writer.write(poll_bytes(rest))
    await waiting_receives(rest, 1)

    end(writer)
    await waiting_receives(rest, 0)
    await rest.rig.server.put("orders", b"kept")

    (message,) = await rest.received("orders")
    assert (message.body, message.receive_count) == ("kept", 1)


async def test_messages_that_arrive_as_the_client_closes_come_back_uncounted(
    rest: RestCalls, monkeypatch: pytest.MonkeyPatch
):
    """The client closes when the messages are here and the event loop has not seen the close yet."""
    await rest.rig.server.put("orders", b"a", b"b")
    connection = socket.create_connection(rest.rig.http_server.addresses[0])
    receive = Queue.receive
    closed: list[int] = []

    async def receive_and_lose(*arguments: Any, **named: Any) -> list[Message[bytes]]:
        monkeypatch.setattr(Queue, "receive", receive)
        messages = await receive(*arguments, **named)
        connection.close()
        closed.append(len(messages))
        return messages

    monkeypatch.setattr(Queue, "receive", receive_and_lose)
    connection.sendall(poll_bytes(rest, max_messages=16))
    await eventually(lambda: closed)
    while (await rest.rig.server.info("orders")).active != 2:
        pass

    assert [message.receive_count for message in await rest.received("orders")] == [1, 1]


@pytest.mark.parametrize("wait", [0, 30])
async def test_messages_come_back_uncounted_also_if_the_client_of_their_receive_is_closed_by_then(
    rest: RestCalls, monkeypatch: pytest.MonkeyPatch, wait: int
):
    await rest.rig.server.put("orders", b"kept")
    lost = lose_next_answer(rest.rig, monkeypatch)
    _, writer = await rest.rig.open_raw()
    writer.write(poll_bytes(rest, wait=wait))
    await lost.wait()
    while not (await rest.rig.server.info("orders")).active:
        pass
    writer.close()

    (message,) = await rest.received("orders")
    assert (message.body, message.receive_count) == ("kept", 1)


@pytest.mark.parametrize(
    "function", ["cmqd_gateway.rest.functions.messages._received", "cmqd_gateway.rest.operation.Operation.status"]
)
async def test_messages_of_an_answer_that_cannot_be_made_come_back_uncounted(
    rest: RestCalls, monkeypatch: pytest.MonkeyPatch, function: str
):
    await rest.rig.server.put("orders", b"kept")
    with monkeypatch.context() as faulty:
        faulty.setattr(function, fail)
        problem = await rest.refused("receive_messages", queue="orders", body={"wait": 0})
    while not (await rest.rig.server.info("orders")).active:
        pass

    assert (problem.status, problem.name) == (500, "internal_error")
    (message,) = await rest.received("orders")
    assert (message.body, message.receive_count) == ("kept", 1)


# ---------------------------------------------------------------- the gateway and its broker


async def test_a_broker_that_cannot_be_reached_is_answered_with_503(rest: RestCalls):
    rest.rig.gateway.secrets.forget()
    rest.rig.table.failure = ServerUnreachable("the broker cannot be reached")

    problem = await rest.refused("get_queue", queue="orders")

    assert (problem.status, problem.name, problem.retryable) == (503, "server_unreachable", True)


@pytest.fixture
async def limited() -> AsyncGenerator[RestCalls]:
    async with GatewayRig(max_requests_per_second_per_key=1) as rig:
        yield RestCalls(rig)


async def test_a_key_over_its_rate_is_answered_with_429(limited: RestCalls):
    limited.rig.clock.hold()
    answers = [await limited.answer("list_queues") for _ in range(3)]

    assert answers[0].status == 200
    assert answers[-1].status == 429
    assert (answers[-1].problem().name, answers[-1].problem().retryable) == ("too_many_requests", True)


async def test_a_poll_of_a_gateway_that_ends_is_answered_with_503(rest: RestCalls):
    poll = asyncio.create_task(rest.refused("receive_messages", queue="orders", body={"wait": 30}))
    await waiting_receives(rest, 1)
    await rest.rig.http_server.close()

    problem = await poll
    assert (problem.status, problem.name, problem.retryable) == (503, "shutting_down", True)


@pytest.fixture
async def narrow() -> AsyncGenerator[RestCalls]:
    async with GatewayRig(gateway_connections=2) as rig:
        yield RestCalls(rig)


async def test_a_key_without_a_free_connection_to_the_broker_is_answered_with_503(narrow: RestCalls):
    others = [await narrow.in_account(account) for account in ("shop", "mill")]
    link = narrow.rig.server.link
    link.hold()
    held = [asyncio.create_task(calls.ok("list_queues")) for calls in others]
    while len(link.held) != 2:
        await narrow.rig.server.status("waiting_receives")

    problem = await narrow.refused("list_queues")

    assert (problem.status, problem.name, problem.retryable) == (503, "too_many_connections", True)
    link.let_go()
    for answer in held:
        assert (await answer).total == 1
    await narrow.ok("list_queues")


async def test_polls_that_take_all_their_connections_refuse_further_polls_and_no_other_request(narrow: RestCalls):
    shop = await narrow.in_account("shop")
    poll = asyncio.create_task(shop.received("orders", wait=30))
    await waiting_receives(narrow, 1)

    problem = await narrow.refused("receive_messages", queue="orders", body={"wait": 30})
    of_queue = await narrow.refused("receive_messages", queue="orders", body={})

    assert (problem.status, problem.name, problem.retryable) == (503, "too_many_connections", True)
    assert (of_queue.status, of_queue.name) == (503, "too_many_connections")
    await narrow.ok("send_message", queue="orders", body={"body": "a"})
    (message,) = await narrow.received("orders")
    await narrow.ok("delete_message", queue="orders", body={"receipt_handle": message.receipt_handle})
    await shop.ok("send_message", queue="orders", body={"body": "x"})
    assert len(await poll) == 1


# ---------------------------------------------------------------- the page


async def test_the_page_and_the_document_need_no_key(rest: RestCalls):
    page = await rest.send("GET", "/")
    style = await rest.send("GET", "/reference.css")
    document = await rest.send("GET", "/openapi.json")

    assert (page.status, page.content_type) == (200, "text/html")
    assert (style.status, style.content_type) == (200, "text/css")
    assert (document.status, document.content_type) == (200, "application/json")
    assert json.loads(document.body)["openapi"] == "3.1.0"
    for answer in (page, style):
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_document_is_compressed_and_not_sent_twice(rest: RestCalls):
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        url = f"http://{rest.rig.host}{BASE}/openapi.json"
        async with session.get(url, headers={"Accept-Encoding": "gzip"}) as first:
            packed = await first.read()
        known = {"Accept-Encoding": "gzip", "If-None-Match": first.headers["ETag"]}
        async with session.get(url, headers=known) as again:
            nothing = await again.read()

    assert json.loads(gzip.decompress(packed))["openapi"] == "3.1.0"
    assert first.headers["Cache-Control"] == "no-cache"
    assert (again.status, nothing) == (304, b"")


async def test_the_path_without_a_slash_leads_to_the_page(rest: RestCalls):
    answer = await rest.send("GET", "")

    assert (answer.status, answer.headers["Location"]) == (308, "v1/")
