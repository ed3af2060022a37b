"""Limits and memories of two gateway processes, equal to the limits and memories of a single gateway.

Both gateways run in the event loop of the test, with the shared memory, the channel and the socket of two processes.
"""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncGenerator, Mapping
from http.cookies import SimpleCookie
from typing import Any, NamedTuple

import pytest

from cmqd_gateway.console.signed_texts import SIGN_IN_SECONDS, Purpose, sign
from cmqd_gateway.rest.table import BASE
from support.eventually import eventually
from support.gateway.cmq_requests import PATH, encoded
from support.gateway.gateway_rig import GatewayRig

SESSION = "/console/session"
MIB = 1 << 20


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Two(GatewayRig):
    """A rig of two processes: the rig's gateway is the further one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.is_further = True

    @property
    def hosts(self) -> tuple[str, str]:
        """``host:port`` of the first process and of the further one."""
        assert self.first_server is not None
        host, port = self.first_server.addresses[0]
        return f"{host}:{port}", self.host

    async def send(self, host: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Make a request to a process; ``_`` in names of headers stands for a hyphen."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else io.BytesIO(body)
        async with self.session.request(method, f"http://{host}{path}", data=data, headers=named) as response:
            return Answer(response.status, response.headers, await response.read())

    async def sign_in(self, host: str, **fields: str) -> Answer:
        given = fields or {"secret_id": self.own_key.secret_id, "secret_key": self.own_key.secret_key}
        return await self.send(host, "POST", SESSION, json.dumps(given).encode(), Content_Type="application/json")

    @property
    def bearer(self) -> str:
        return f"Bearer {self.own_key.secret_id}:{self.own_key.secret_key}"


@pytest.fixture
async def two() -> AsyncGenerator[Two]:
    async with Two() as two:
        yield two


def cookie_of(answer: Answer) -> str:
    (morsel,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    return f"{morsel.key}={morsel.value}"


async def test_connections_of_both_have_one_limit() -> None:
    async with Two(max_connections=3) as two:
        first = two.console
        opened = [await asyncio.open_connection(*host.split(":")) for host in (*two.hosts, two.hosts[0])]
        await eventually(lambda: len(two.gateway.guards) == 1 and len(first.guards) == 2)

        for host in two.hosts:
            reader, writer = await asyncio.open_connection(*host.split(":"))
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        assert (two.gateway.guards.refused, first.guards.refused) == (1, 1)

        opened[0][1].close()
        await eventually(lambda: len(first.guards) == 1)
        assert (await two.send(two.hosts[1], "GET", "/healthz")).status == 200
        for _, writer in opened:
            writer.close()


async def test_bodies_of_both_have_one_budget() -> None:
    async with Two(body_memory_bytes=8 * MIB) as two:
        first = two.console
        held = first.bodies.hold(0, 5 * MIB)

        form = encoded(two.sign({"Action": "ListQueue", "filler": "x" * (2 * MIB)}))
        assert (await two.post_raw(form))["code"] == 4420
        first.bodies.hold(held, 0)
        assert (await two.post_raw(form))["code"] == 0
        assert two.gateway.bodies.bytes_in_use == 0


async def test_a_key_has_one_rate_over_both() -> None:
    async with Two(max_requests_per_second_per_key=4) as two:
        two.clock.hold()
        path = f"{BASE}/queues"
        codes = [(await two.send(host, "GET", path, Authorization=two.bearer)).status for host in two.hosts * 3]
        form = encoded(two.sign({"Action": "ListQueue"}))

        assert codes == [200] * 4 + [429] * 2
        assert (await two.post_raw(form))["code"] == 4480
        two.clock.advance(0.5)
        codes = [(await two.send(host, "GET", path, Authorization=two.bearer)).status for host in two.hosts * 2]
        assert codes == [200] * 2 + [429] * 2


async def test_both_together_ask_the_broker_for_no_more_unknown_keys_than_one(two: Two) -> None:
    two.clock.hold()
    for number in range(60):
        for host in two.hosts:
            answer = await two.send(host, "GET", f"{BASE}/queues", Authorization=f"Bearer {host}-{number}:secret")
            assert answer.status in (401, 429)
    assert len([asked for asked in two.table.questions if ":" in asked or "-" in asked]) <= 100


@pytest.mark.parametrize("signed_in_at", [0, 1])
async def test_a_session_holds_in_both_and_a_sign_out_too(two: Two, signed_in_at: int) -> None:
    here, there = two.hosts[signed_in_at], two.hosts[1 - signed_in_at]
    # The name of the cookie has the port of the request: a browser sees the same port, whichever process answers.
    signed_in = await two.send(
        here,
        "POST",
        SESSION,
        json.dumps({"secret_id": two.own_key.secret_id, "secret_key": two.own_key.secret_key}).encode(),
        Content_Type="application/json",
        Host="mq.example:80",
    )
    cookie, token = cookie_of(signed_in), signed_in.json["csrf_token"]

    async def lists(host: str) -> int:
        return (await two.send(host, "GET", f"{BASE}/queues", Cookie=cookie, Host="mq.example:80")).status

    assert (await lists(here), await lists(there)) == (200, 200)
    out = await two.send(there, "DELETE", SESSION, Cookie=cookie, Host="mq.example:80", X_CSRF_Token=token)
    assert out.status == 200
    assert (await lists(here), await lists(there)) == (401, 401)


@pytest.mark.parametrize("used_at", [0, 1])
async def test_a_sign_in_link_is_used_once_in_both(two: Two, used_at: int) -> None:
    key, now = two.own_key, int(two.gateway.wall_clock())
    link = str(sign(Purpose.SIGN_IN, key.secret_id, key.secret_key, now, now + SIGN_IN_SECONDS))

    assert (await two.sign_in(two.hosts[used_at], token=link)).status == 200
    for host in two.hosts:
        refused = await two.sign_in(host, token=link)
        assert (refused.status, "used already" in refused.json["detail"]) == (401, True)


@pytest.mark.parametrize("first_at", [0, 1])
async def test_a_delete_that_comes_again_elsewhere_is_answered_like_the_first(two: Two, first_at: int) -> None:
    await two.server.put("orders", b"one")
    received = await two.call("ReceiveMessage", queueName="orders")
    form = encoded(
        two.sign({"Action": "DeleteMessage", "queueName": "orders", "receiptHandle": received["receiptHandle"]})
    )
    codes = [
        (await two.send(host, "POST", PATH, form, Host=two.host)).json["code"]
        for host in (two.hosts[first_at], two.hosts[1 - first_at], two.hosts[first_at])
    ]

    assert codes == [0, 0, 0]


async def test_a_stream_of_the_console_ends_with_its_session_at_the_other_process(two: Two) -> None:
    signed_in = await two.sign_in(two.hosts[1])
    cookie, token = cookie_of(signed_in), signed_in.json["csrf_token"]
    async with two.session.get(f"http://{two.host}/console/events", headers={"Cookie": cookie}) as stream:
        assert stream.status == 200
        await stream.content.readuntil(b"event: hello")
        out = await two.send(two.hosts[0], "DELETE", SESSION, Cookie=cookie, Host=two.host, X_CSRF_Token=token)
        assert out.status == 200
        rest = await stream.read()

    assert b'event: bye\ndata: {"reason":"session_ended"}' in rest


async def test_the_end_of_a_further_process_says_so_to_its_pages(two: Two) -> None:
    cookie = cookie_of(await two.sign_in(two.hosts[1]))
    async with two.session.get(f"http://{two.host}/console/events", headers={"Cookie": cookie}) as stream:
        await stream.content.readuntil(b"event: hello")
        await two.http_server.close()
        assert (await stream.read()).endswith(b'event: bye\ndata: {"reason":"draining"}\n\n')


async def test_metrics_add_up_at_both(two: Two) -> None:
    for host in (two.hosts[0], two.hosts[1], two.hosts[1]):
        answer = await two.send(host, "GET", "/?Version=2019-03-04&Action=DescribeQueueDetail")
        assert b"AuthFailure" in answer.body or b"Error" in answer.body
    counted = "cmqd_gateway_api3_requests_total{"

    async def total(host: str) -> float:
        text = (await two.send(host, "GET", "/metrics", Authorization=two.bearer)).body.decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(counted))

    while await total(two.hosts[0]) < 3:  # noqa: ASYNC110 - the further process tells its figures once a second
        await asyncio.sleep(0.01)
    assert [await total(host) for host in two.hosts] == [3, 3]


async def test_a_client_cannot_name_its_own_origin(two: Two) -> None:
    answer = await two.send(
        two.hosts[1],
        "POST",
        SESSION,
        json.dumps({"secret_id": two.own_key.secret_id, "secret_key": two.own_key.secret_key}).encode(),
        Content_Type="application/json",
        X_Cmqd_Origin="192.0.2.1 https",
    )
    # Over HTTPS the cookie would be Secure.
    assert (answer.status, "Secure" in answer.headers["Set-Cookie"]) == (200, False)


@pytest.mark.parametrize("header", [b"Authorization: Bearer \xff:\xff", b"Cookie: cmqd_session=\xff", b"X: \xff\x80"])
async def test_headers_with_bytes_that_are_no_text_are_refused_and_not_passed_on(two: Two, header: bytes) -> None:
    reader, writer = await two.open_raw()
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header + b"\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
    writer.close()


@pytest.mark.parametrize("framing", [b"Content-Length: 400\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_a_body_that_ends_too_early_reaches_no_later_request(two: Two, framing: bytes) -> None:
    head = b"POST /console/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for _ in range(3):
        _, writer = await two.open_raw()
        writer.write(head + framing + b"\r\n" + (b"190\r\n" if b"chunked" in framing else b"") + b'{"secret_id":')
        await writer.drain()
        writer.close()
        assert (await two.sign_in(two.hosts[1])).status == 200


async def test_without_the_first_process_the_others_serve_messages_and_refuse_the_console(two: Two) -> None:
    assert two.first_server is not None
    await two.server.put("orders", b"one")
    received = await two.call("ReceiveMessage", queueName="orders")
    await two.first_server.close()

    assert (await two.sign_in(two.hosts[1])).status == 503
    assert (await two.call("SendMessage", queueName="orders", msgBody="two"))["code"] == 0
    assert received["code"] == 0
