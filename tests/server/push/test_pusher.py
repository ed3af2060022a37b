"""Pushes to a real receiver on loopback."""

import asyncio
import gc
import json
import socket
import ssl
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from cmqd.core.outcome import Push, PushResult
from cmqd.server.push import poster
from cmqd.server.push.pusher import Pusher
from cmqd.server.push.webhooks import signature
from cmqd_segment.records import StoredMessage
from support.eventually import eventually
from support.server.webhook_receiver import (
    Behaviour,
    WebhookReceiver,
    answer,
    answer_when,
    big_body,
    disconnect,
    endless_body,
    hang,
    redirect,
    say,
    silent_body,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLDER = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
TLS = Path(__file__).parents[2] / "support" / "tls"
NOW_MS = 1_700_000_000_500

ADDRESSES = {
    "here.test": ["127.0.0.1"],
    "inside.test": ["10.0.0.1"],
    "both.test": ["10.0.0.1", "127.0.0.1"],
    "metadata.test": ["169.254.169.254"],
    "0x7f.1": ["127.0.0.1"],
}


def lookup(name: str) -> list[str]:
    if name not in ADDRESSES:
        raise OSError("no such name")
    return ADDRESSES[name]


class Rig:
    """A pusher, its results, and pushes that are numbered."""

    def __init__(self, receiver: WebhookReceiver) -> None:
        self.receiver = receiver
        self.results: list[PushResult] = []
        self.batches: list[int] = []
        self.secrets: dict[int, list[str]] = {1: [SECRET]}
        self.now_ms = NOW_MS
        self.wall_ms = NOW_MS
        self.position = 0
        self.pushers: list[Pusher] = []
        self.pusher = self.make()

    def make(
        self,
        *,
        timeout_ms: int = 10_000,
        allow_loopback: bool = True,
        tls: ssl.SSLContext | None = None,
        user_agent: str = "",
    ) -> Pusher:
        self.pusher = Pusher(
            loop=asyncio.get_running_loop(),
            timeout_ms=timeout_ms,
            allow_private=False,
            allow_loopback=allow_loopback,
            secrets_of=self.secrets.__getitem__,
            on_results=self._collect,
            now_ms=lambda: self.now_ms,
            wall_ms=lambda: self.wall_ms,
            lookup=lookup,
            tls=tls,
            user_agent=user_agent,
        )
        self.pushers.append(self.pusher)
        return self.pusher

    def _collect(self, results: list[PushResult]) -> None:
        self.batches.append(len(results))
        self.results += results

    def push(
        self, url: str | None = None, body: bytes = b"apples", *, content_format: str = "json", subscription: int = 1
    ) -> int:
        self.position += 1
        message = StoredMessage(self.position, self.position, NOW_MS, body, labels=["apple"])
        url = self.receiver.url("/hook") if url is None else url
        self.pusher.push(Push("shop", "orders", "north", subscription, url, content_format, message, 1))
        return self.position

    async def results_of(self, count: int) -> list[PushResult]:
        await eventually(lambda: len(self.results) >= count)
        return self.results

    async def error_of(self, url: str | None = None) -> str | None:
        """The result of a push."""
        before = len(self.results)
        position = self.push(url)
        (result,) = (await self.results_of(before + 1))[before:]
        assert (result.subscription_id, result.position, result.started_ms) == (1, position, self.now_ms)
        return result.error


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with WebhookReceiver() as receiver:
        made = Rig(receiver)
        yield made
        for pusher in made.pushers:
            await pusher.close(0)
            assert pusher.under_way == 0


# ------------------------------------------------------------------ received requests


async def test_json_arrives_byte_for_byte(rig: Rig) -> None:
    assert await rig.error_of(rig.receiver.url("/a%2Fb/../c?x=%41&y=a+b")) is None

    (request,) = rig.receiver.received
    assert request.method == "POST"
    assert request.target == "/a%2Fb/../c?x=%41&y=a+b"
    assert request.body == (
        b'{"TopicOwner":"shop","topicName":"orders","subscriptionName":"north","msgId":"Msg-0000000000000001",'
        b'"msgBody":"apples","publishTime":1700000000}'
    )
    headers = dict(request.headers)
    assert headers.pop("x-cmq-request-id")
    assert headers.pop("User-Agent").startswith("cmqd/")
    assert headers == {
        "Host": f"127.0.0.1:{rig.receiver.port}",
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": str(len(request.body)),
        "x-cmq-message-id": "Msg-0000000000000001",
        "x-cmq-message-tag": "apple",
        "webhook-id": "Msg-0000000000000001",
        "webhook-timestamp": "1700000000",
        "webhook-signature": signature(SECRET, b"Msg-0000000000000001.1700000000." + request.body),
    }


async def test_the_user_agent_is_a_setting(rig: Rig) -> None:
    rig.make(user_agent="shop-events/2")
    assert await rig.error_of() is None

    (request,) = rig.receiver.received
    assert request.headers["User-Agent"] == "shop-events/2"


async def test_simplified_arrives_byte_for_byte(rig: Rig) -> None:
    body = bytes(range(256)) * 4096
    rig.push(body=body, content_format="simplified")

    assert (await rig.results_of(1))[0].error is None
    assert rig.receiver.received[0].body == body


async def test_a_body_that_is_not_utf_8_is_marked(rig: Rig) -> None:
    rig.push(body=b"\xff\xfe")

    assert (await rig.results_of(1))[0].error is None
    (request,) = rig.receiver.received
    assert json.loads(request.body)["msgBody"] == "//4="
    assert request.headers["x-cmq-body-encoding"] == "base64"


async def test_while_a_rotation_overlaps_both_secrets_sign(rig: Rig) -> None:
    rig.secrets[1] = [SECRET, OLDER]
    rig.push()

    (request,) = await rig.receiver.wait_for(1)
    signed = b"Msg-0000000000000001.1700000000." + request.body
    assert request.headers["webhook-signature"] == f"{signature(SECRET, signed)} {signature(OLDER, signed)}"


async def test_each_attempt_has_its_own_request_id_and_time(rig: Rig) -> None:
    assert await rig.error_of() is None
    rig.now_ms += 2_000
    rig.wall_ms += 2_000
    rig.position -= 1
    assert await rig.error_of() is None

    first, second = rig.receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["x-cmq-request-id"] != second.headers["x-cmq-request-id"]
    assert second.headers["webhook-timestamp"] == "1700000002"


@pytest.mark.parametrize("offset_ms", [3_600_000, -3_600_000, 365 * 86_400_000])
async def test_times_that_a_receiver_sees_are_by_the_wall_clock(rig: Rig, offset_ms: int) -> None:
    rig.now_ms += 5_000
    rig.wall_ms = rig.now_ms + offset_ms
    assert await rig.error_of() is None, "and the core is told broker time"

    (request,) = await rig.receiver.wait_for(1)
    timestamp = (NOW_MS + 5_000 + offset_ms) // 1000
    assert request.headers["webhook-timestamp"] == str(timestamp)
    signed = f"Msg-0000000000000001.{timestamp}.".encode() + request.body
    assert request.headers["webhook-signature"] == signature(SECRET, signed)
    assert json.loads(request.body)["publishTime"] == timestamp - 5


# ------------------------------------------------------------------ success and failure


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
async def test_any_2xx_is_success(rig: Rig, status: int) -> None:
    rig.receiver.next("/hook", answer(status))

    assert await rig.error_of() is None


@pytest.mark.parametrize("status", [300, 304, 400, 401, 404, 410, 418, 429, 500, 503, 599])
async def test_any_other_status_is_a_failure(rig: Rig, status: int) -> None:
    rig.receiver.next("/hook", answer(status))

    assert await rig.error_of() == f"status {status}"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(rig: Rig, status: int) -> None:
    rig.receiver.next("/hook", redirect(rig.receiver.url("/elsewhere"), status))

    assert await rig.error_of() == f"status {status} (redirects are not followed)"
    assert len(rig.receiver.received) == 1


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (disconnect(), "connection reset by peer"),
        (say(b""), "the connection was closed before an answer"),
        (say(b"HTTP/1.1 200 O"), "the connection was closed before an answer"),
        (say(b"SSH-2.0-OpenSSH_9.2\r\n"), "the answer is not valid HTTP, or its head is too large"),
        (say(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000), "the answer is not valid HTTP, or its head is too large"),
        (say(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 9_999), "the answer is not valid HTTP, or its head is too large"),
        (say(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), "status 101"),
    ],
    ids=["reset", "closed", "half a head", "another protocol", "a long line", "many lines", "an upgrade"],
)
async def test_an_answer_that_is_none_is_a_failure_of_one_request(rig: Rig, behaviour: Behaviour, error: str) -> None:
    rig.receiver.next("/hook", behaviour)

    assert await rig.error_of() == error
    assert len(rig.receiver.received) == 1
    assert await rig.error_of() is None


async def test_a_url_without_a_server_is_a_failure(rig: Rig) -> None:
    url = rig.receiver.url("/hook")
    await rig.receiver.stop()

    assert await rig.error_of(url) == "connection refused"


async def test_a_timeout_counts_from_the_push_and_spares_those_that_were_answered(rig: Rig) -> None:
    rig.make(timeout_ms=3_000)  # far more than the pushes to the other endpoint take
    rig.receiver.always("/hang", hang())

    for _ in range(3):
        rig.push(rig.receiver.url("/hang"))
        rig.push()

    results = await rig.results_of(6)
    assert rig.receiver.most_at_once >= 3, "their time passes side by side"
    assert sorted((result.position % 2, result.error or "") for result in results) == (
        [(0, "")] * 3 + [(1, "timed out after 3 s")] * 3
    )


async def test_each_has_its_own_time(rig: Rig) -> None:
    rig.make(timeout_ms=200)
    rig.receiver.always("/hook", hang())
    rig.push()
    await asyncio.sleep(0.1)
    pushed_at = asyncio.get_running_loop().time()
    rig.push()

    assert [result.error for result in await rig.results_of(2)] == ["timed out after 0.2 s"] * 2
    assert asyncio.get_running_loop().time() - pushed_at > 0.19


async def test_the_status_decides_whatever_the_body_does(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poster, "DRAIN_S", 0.05)
    for behaviour in (silent_body(), endless_body(), big_body(1 << 20), say(b"HTTP/1.1 200 OK\r\n\r\nno length")):
        rig.receiver.next("/hook", behaviour)
        assert await rig.error_of() is None
    rig.receiver.next("/hook", silent_body(503))
    assert await rig.error_of() == "status 503"

    assert len(rig.receiver.received) == 5
    assert rig.receiver.connections == 5  # no connection could be used again


async def test_the_time_is_over_while_a_body_is_awaited(rig: Rig) -> None:
    # Long enough for the status to come also on a busy machine.
    rig.make(timeout_ms=3_000)
    rig.receiver.next("/hook", silent_body(), silent_body(500))

    assert await rig.error_of() is None
    assert await rig.error_of() == "status 500"


async def test_an_untrusted_certificate_is_a_failure(rig: Rig) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    async with WebhookReceiver(tls=context) as receiver:
        refused = await rig.error_of(receiver.url())
        rig.make(tls=ssl.create_default_context(cafile=str(TLS / "certificate.pem")))
        assert await rig.error_of(receiver.url()) is None
        mismatched = await rig.error_of(receiver.url().replace("127.0.0.1", "here.test"))
        plain = await rig.error_of(receiver.url().replace("https", "http"))

    assert refused is not None
    assert refused.startswith("TLS: certificate refused: self")
    assert mismatched is not None
    assert mismatched.startswith("TLS: certificate refused: Hostname mismatch")
    assert plain == "the connection was closed before an answer"
    assert (await rig.error_of(rig.receiver.url().replace("http", "https")) or "").startswith("TLS: ")


async def test_a_mistake_of_ours_is_a_failure_too(rig: Rig) -> None:
    rig.push(subscription=99)

    assert (await rig.results_of(1))[0].error == "failed: KeyError"


async def test_no_error_tells_a_secret(rig: Rig) -> None:
    rig.secrets[1] = ["whsec_broken!"]

    assert await rig.error_of() == "failed: ValueError"


# ------------------------------------------------------------------ where to


@pytest.mark.parametrize("kind", ["no listener", "no name", "reset"])
async def test_failed_pushes_leave_no_body_without_a_garbage_collection(rig: Rig, kind: str) -> None:
    # Bound and not listening: no other process can take the port meanwhile.
    unused = socket.socket()
    unused.bind(("127.0.0.1", 0))
    port = unused.getsockname()[1]
    urls = {
        "no listener": f"http://127.0.0.1:{port}/",
        "no name": "http://missing.test/",
        "reset": rig.receiver.url("/"),
    }
    rig.receiver.always("/", disconnect())

    async def fail() -> None:
        before = len(rig.results)
        rig.push(urls[kind], bytes(500_000), content_format="simplified")
        assert (await rig.results_of(before + 1))[before:][0].error is not None

    await fail()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(4):
            await fail()
        rig.receiver.received.clear()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
        unused.close()

    assert kept < 1_000_000


@pytest.mark.parametrize(
    ("host", "error"),
    [
        ("127.0.0.1", "address 127.0.0.1 is loopback (the server's setting push_allow_loopback is off)"),
        ("[::1]", "address ::1 is loopback (the server's setting push_allow_loopback is off)"),
        (
            "[::ffff:127.0.0.1]",
            "address ::ffff:127.0.0.1 is loopback (the server's setting push_allow_loopback is off)",
        ),
        ("here.test", "address 127.0.0.1 is loopback (the server's setting push_allow_loopback is off)"),
        ("inside.test", "address 10.0.0.1 is private (the server's setting push_allow_private is off)"),
        ("both.test", "address 10.0.0.1 is private (the server's setting push_allow_private is off)"),
        ("metadata.test", "address 169.254.169.254 is link-local"),
        ("169.254.169.254", "address 169.254.169.254 is link-local"),
        ("0.0.0.0", "address 0.0.0.0 is unspecified"),
        ("2130706433", "address 2130706433 is not written in the usual form"),
        ("127.1", "address 127.1 is not written in the usual form"),
        ("0x7f.1", "address 127.0.0.1 is loopback (the server's setting push_allow_loopback is off)"),
        ("gone.test", "name gone.test does not resolve"),
    ],
)
async def test_addresses_that_are_refused_get_nothing(rig: Rig, host: str, error: str) -> None:
    rig.make(allow_loopback=False)

    assert await rig.error_of(f"http://{host}:{rig.receiver.port}/hook") == error
    assert rig.receiver.received == []


@pytest.mark.parametrize("host", ["here.test", "both.test", "[::ffff:127.0.0.1]"])
async def test_what_is_allowed_is_connected_to_as_it_was_judged(rig: Rig, host: str) -> None:
    """Names exist only in the table, so a second look-up would fail."""
    assert await rig.error_of(f"http://{host}:{rig.receiver.port}/hook") is None

    assert rig.receiver.received[0].headers["Host"] == f"{host}:{rig.receiver.port}"


@pytest.mark.parametrize("url", ["http://[::1", "", "ftp://here.test/", "http:///x"])
async def test_a_url_that_cannot_be_used_is_a_failure(rig: Rig, url: str) -> None:
    assert await rig.error_of(url) is not None


async def test_the_environment_names_no_proxy_and_no_password(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hush\n")
    rig.make()

    assert await rig.error_of() is None
    assert "Authorization" not in rig.receiver.received[0].headers


async def test_cookies_are_not_kept(rig: Rig) -> None:
    rig.receiver.next("/hook", answer(headers={"Set-Cookie": "a=b"}))

    assert [await rig.error_of(), await rig.error_of()] == [None, None]
    assert "Cookie" not in rig.receiver.received[1].headers


# ------------------------------------------------------------------ connections


@pytest.mark.parametrize("behaviour", [answer(), answer(200, b"ok"), answer(503, b"later"), big_body(60_000)])
async def test_a_connection_is_used_again(rig: Rig, behaviour: Behaviour) -> None:
    rig.receiver.always("/hook", behaviour)

    for _ in range(5):
        await rig.error_of()

    assert rig.receiver.connections == 1


async def test_sixteen_at_once_and_their_results_together(rig: Rig) -> None:
    event = asyncio.Event()
    rig.receiver.always("/hook", answer_when(event))
    positions = [rig.push() for _ in range(16)]
    await rig.receiver.wait_for(16)
    assert rig.pusher.under_way == 16
    assert rig.receiver.most_at_once == 16

    event.set()

    results = await rig.results_of(16)
    assert sorted(result.position for result in results) == positions
    assert {result.error for result in results} == {None}
    assert rig.pusher.under_way == 0
    assert len(rig.batches) < 16
    assert "under_way=0" in repr(rig.pusher)


async def test_hanging_endpoints_do_not_slow_another(rig: Rig) -> None:
    rig.receiver.always("/hang", hang())
    for _ in range(100):
        rig.push(rig.receiver.url("/hang"))
    await rig.receiver.wait_for(100)

    assert [await rig.error_of() for _ in range(20)] == [None] * 20
    assert rig.pusher.under_way == 100


async def test_a_kept_connection_that_was_closed_is_replaced_within_the_attempt(rig: Rig) -> None:
    assert await rig.error_of() is None
    rig.receiver.next("/hook", say(b""))

    assert await rig.error_of() is None

    assert [one.connection for one in rig.receiver.received] == [1, 1, 2]
    assert rig.receiver.received[1].headers["x-cmq-request-id"] == rig.receiver.received[2].headers["x-cmq-request-id"]


async def test_the_replaced_one_may_fail_too(rig: Rig) -> None:
    assert await rig.error_of() is None
    rig.receiver.next("/hook", say(b""), say(b""))

    assert await rig.error_of() == "the connection was closed before an answer"

    assert len(rig.receiver.received) == 3


# ------------------------------------------------------------------ the end


async def test_close_waits_for_the_work_under_way(rig: Rig) -> None:
    event = asyncio.Event()
    rig.receiver.always("/hook", answer_when(event))
    rig.push()
    await rig.receiver.wait_for(1)
    asyncio.get_running_loop().call_later(0.05, event.set)

    await rig.pusher.close(3600)

    assert [result.error for result in rig.results] == [None]
    rig.push()
    assert rig.pusher.under_way == 0
    assert "closed" in repr(rig.pusher)


async def test_close_cuts_short_what_takes_longer_and_says_nothing_of_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()
    drain = poster.Poster.drain

    async def drain_noted(self: poster.Poster, response: aiohttp.ClientResponse | None) -> None:
        answered.set()
        await drain(self, response)

    monkeypatch.setattr(poster, "DRAIN_S", 3600)
    monkeypatch.setattr(poster.Poster, "drain", drain_noted)
    rig.receiver.next("/hook", hang(), silent_body())
    rig.push()
    await rig.receiver.wait_for(1)
    rig.push()  # answered, and its body awaited
    await answered.wait()
    rig.push()  # not even begun

    await rig.pusher.close(0)

    assert [(result.position, result.error) for result in rig.results] == [(2, None)]
    assert rig.pusher.under_way == 0


async def test_a_close_that_is_cancelled_closes_all_the_same(rig: Rig) -> None:
    rig.receiver.next("/hook", hang())
    rig.push()
    await rig.receiver.wait_for(1)
    closing = asyncio.create_task(rig.pusher.close(60))
    await asyncio.sleep(0)

    closing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await closing
    assert rig.pusher.under_way == 0
    assert rig.results == []


def test_without_aiohttp_the_module_is_there_and_says_so() -> None:
    program = (
        "import sys; from cmqd.server.push.pusher import Pusher; print('aiohttp' in sys.modules, Pusher.available())"
    )
    hidden = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n: None if n == 'aiohttp' else f(n); "

    def run(text: str) -> str:
        return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.strip()

    assert run(program) == "False True"
    assert run(hidden + program) == "False False"
