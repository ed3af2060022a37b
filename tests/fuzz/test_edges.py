# Invariant: whatever a request or message contains, each face answers with a refusal that names a reason. No answer is
# an internal error, no line of the log is an error or has a traceback, and no request takes more than
# LONGEST_CPU_SECONDS of CPU time of the gateway's loop.
"""Requests with edges in them against every face of the gateway, and messages against the Celery transport.

In ``make test`` a few requests of a fixed seed. ``make test-all PARTS=fuzz`` takes CMQD_FUZZ_SECONDS for each test, and
a seed of its own, which is printed; CMQD_FUZZ_SEED repeats it.
"""

import asyncio
import contextlib
import io
import itertools
import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Any
from urllib.parse import quote

import pytest
import structlog
import yarl

from cmqd_client.errors import CmqError
from cmqd_gateway.cmq.api2.actions import ACTIONS
from cmqd_gateway.cmq.reasons import Reason
from cmqd_gateway.console.signed_texts import Purpose, sign
from cmqd_gateway.rest import openapi
from cmqd_gateway.rest.table import BASE
from cmqd_kombu import envelope
from cmqd_kombu.channel import Channel
from cmqd_kombu.consuming import Delivery
from support.gateway.cmq_requests import PATH, encoded
from support.gateway.edge_values import Schemas, json_of, json_value, text
from support.gateway.gateway_rig import GatewayRig

SECONDS = float(os.environ.get("CMQD_FUZZ_SECONDS", "0"))
SEED = int(os.environ.get("CMQD_FUZZ_SEED", "0")) or (random.SystemRandom().getrandbits(32) if SECONDS else 36)
NAMES = {"queueName": "orders", "topicName": "news", "subscriptionName": "sub", "endpoint": "orders"}
FEW = 60
"""Requests of a test without a time."""
LONGEST_CPU_SECONDS = 1.0
"""For a request of 4 MiB and its client on a slow machine. CPU time does not depend on other work of the machine."""
ANSWER_SECONDS = 300.0
"""A request without an answer by then waits without end."""

DOCUMENT: dict[str, Any] = json.loads(openapi.document())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
EDGES = (0.0, 0.02, 0.1, 0.3)
"""Shares of edges among the values of a request: with many, the first refusal hides all others."""
OPERATIONS = [
    (method.upper(), path, described)
    for path, methods in DOCUMENT["paths"].items()
    for method, described in methods.items()
    if method in ("get", "post", "put", "patch", "delete")
]


def rounds(name: str) -> Iterator[random.Random]:
    """Yield a source of choices for each request, until the time is over."""
    print(f"CMQD_FUZZ_SEED={SEED}")
    end = time.monotonic() + SECONDS
    for number in itertools.count():
        if number >= FEW and time.monotonic() >= end:
            print(f"{name}: {number} requests")
            return
        yield random.Random(f"{SEED} {name} {number}")


class Watch:
    """Watches the log and the CPU time of the gateway's loop during a request."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.outcomes: Counter[object] = Counter()
        self.longest_seconds = 0.0

    @contextlib.contextmanager
    def over(self, request: object) -> Generator[None]:
        """Check a request: no error in the log, and no more than its share of CPU time."""
        shown = repr(request)[:2_000]
        self._caplog.clear()
        began = time.thread_time()
        try:
            yield
        except AssertionError as failure:
            failure.add_note(f"request: {shown}")
            raise
        took = time.thread_time() - began
        self.longest_seconds = max(self.longest_seconds, took)
        # Not in ``make test``, which has no limits of time.
        assert not SECONDS or took < LONGEST_CPU_SECONDS, (took, shown)
        lines = [record.getMessage() for record in self._caplog.records if record.levelno >= logging.ERROR]
        assert not lines, (shown, lines)


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture) -> Generator[Watch]:
    structlog.reset_defaults()
    caplog.set_level(logging.WARNING)
    watch = Watch(caplog)
    yield watch
    print(f"longest: {watch.longest_seconds:.2f} s of CPU; outcomes: {dict(watch.outcomes.most_common(12))}")


@pytest.fixture
async def rig() -> AsyncGenerator[GatewayRig]:
    async with GatewayRig() as rig:
        yield rig


async def set_the_stage(rig: GatewayRig) -> None:
    """Make what the requests name, as far as earlier requests have deleted or changed it."""
    admin = rig.server.admin
    with contextlib.suppress(CmqError):
        await admin.delete_queue("orders")
    with contextlib.suppress(CmqError):
        await admin.create_queue("orders", rewind=3600)
        queue = admin.queue("orders")
        await queue.send_batch([b"a", b"b", b"\xff"])
        for message in await queue.receive(1, wait=0):
            await message.delete()
    with contextlib.suppress(CmqError):
        await admin.create_topic("news")
    with contextlib.suppress(CmqError):
        await admin.topic("news").subscribe("sub", queue="orders")


async def send(rig: GatewayRig, method: str, path: str, **given: Any) -> tuple[int, str, bytes]:
    """Make a request, and return status, media type and body of the answer."""
    url = yarl.URL(f"http://{rig.host}{path}", encoded=True)
    async with asyncio.timeout(ANSWER_SECONDS), rig.session.request(method, url, **given) as response:
        is_stream = response.content_type == "text/event-stream"
        return response.status, response.content_type, b"" if is_stream else await response.read()


def path_of(chance: random.Random, path: str, edges: float) -> str:
    """Return a path of the document with names in the place of its parameters."""
    names = {"queue": "orders", "topic": "news", "subscription": "sub"}
    filled: list[str] = []
    for part in path.split("/"):
        if part.startswith("{"):
            name = names.get(part.strip("{}"), "none") if chance.random() >= edges else text(chance)[:2_000]
            filled.append(quote(name, safe="", errors="surrogatepass"))
        else:
            filled.append(part)
    return "/".join(filled)


def query_of(chance: random.Random, described: dict[str, Any], schemas: Schemas) -> str:
    """Return a query string of an operation."""
    pairs: list[str] = []
    for parameter in described.get("parameters", ()):
        if parameter["in"] == "query" and chance.random() < 0.3:
            value = json_of(chance, parameter["schema"], schemas, parameter["name"]).strip('"')
            if chance.random() < schemas.edges:
                value = text(chance)
            pairs.append(f"{parameter['name']}={quote(value[:2_000], safe='', errors='surrogatepass')}")
    return "?" + "&".join(pairs) if pairs else ""


async def test_the_json_api_answers_every_request(rig: GatewayRig, watch: Watch) -> None:
    headers = {"Authorization": f"Bearer {rig.own_key.secret_id}:{rig.own_key.secret_key}"}
    for number, chance in enumerate(rounds("rest")):
        if number % 25 == 0:
            await set_the_stage(rig)
        method, path, described = chance.choice(OPERATIONS)
        schemas = Schemas(SCHEMAS, chance.choice(EDGES))
        target = path_of(chance, path, schemas.edges) + query_of(chance, described, schemas)
        body = b""
        if "requestBody" in described:
            schema = described["requestBody"]["content"]["application/json"]["schema"]
            body = json_of(chance, schema, schemas).encode(errors="surrogatepass")
        own = headers | ({"Content-Type": "application/json"} if body else {})
        if chance.random() < 0.1:
            own["Idempotency-Key"] = quote(text(chance)[:200])
        if rig.own_key.secret_id in target:
            continue  # the key of the test must stay
        with watch.over((method, target, body)):
            status, kind, answer = await send(rig, method, target, data=io.BytesIO(body), headers=own)
            watch.outcomes[status] += 1
            assert status != 500, (status, answer)
            if status >= 400 and target.startswith(BASE):
                assert kind == "application/problem+json", (status, kind, answer)
                problem = json.loads(answer)
                assert problem["detail"].strip(), problem
                assert len(answer) < 20_000, len(answer)
                assert "Traceback" not in problem["detail"]


async def test_api_2_answers_every_form(rig: GatewayRig, watch: Watch) -> None:
    for number, chance in enumerate(rounds("cmq")):
        if number % 25 == 0:
            await set_the_stage(rig)
        action = chance.choice(ACTIONS)
        form: dict[str, Any] = {"Action": action.name}
        edges = chance.choice(EDGES)
        for parameter in action.reader.fields:
            if not parameter.field.is_required and chance.random() < 0.7:
                continue
            spelling = chance.choice([parameter.name, *parameter.twins])
            value: Any = NAMES.get(spelling, chance.choice(["1", "60", "text", "queue", "http", "[]"]))
            if chance.random() < edges:
                # Some parameters have a value in JSON.
                values = (text(chance), json_value(chance), chance.randbytes(chance.choice([1, 20, 300])))
                (value,) = chance.choices(values, (6, 2, 2))
            if "olling" in spelling:
                value = chance.choice(["0", "-1", "31", "1e999", ""])
            is_list = spelling not in NAMES and parameter.field.items is not None
            name = spelling + (".1" if is_list else "")
            if chance.random() < edges:
                name += chance.choice([".1", ".0", ".99999999999", "."])
            form[name] = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        if chance.random() < edges / 2:
            form[text(chance)[:100]] = text(chance).encode()
        method = chance.choice(["POST", "POST", "GET"]) if sum(map(len, form.values())) < 3_000 else "POST"
        signed = rig.sign(form, method=method)
        if chance.random() < edges / 2:
            signed |= {chance.choice(["Timestamp", "Nonce", "SecretId", "Signature"]): text(chance)[:5_000].encode()}
        data = encoded(signed)
        with watch.over((method, form)):
            if method == "GET":
                status, _, answer = await send(rig, "GET", f"{PATH}?{data.decode()}")
            else:
                status, _, answer = await send(rig, "POST", PATH, data=io.BytesIO(data))
            assert status in (200, 400), (status, answer)
            if status == 200:
                reply = json.loads(answer)
                watch.outcomes[reply["code"]] += 1
                assert reply["code"] != Reason.INTERNAL_ERROR.value[0], reply
                assert reply["code"] == 0 or reply["message"].strip(), reply
                assert len(reply["message"]) < 20_000


async def test_the_console_answers_every_request(rig: GatewayRig, watch: Watch) -> None:
    paths = (
        "/console/session",
        "/console/events",
        "/console/history",
        "/console/static/x",
        "/console/",
        "/console",
        "/",
    )
    for chance in rounds("console"):
        method = chance.choice(["GET", "GET", "POST", "POST", "POST", "DELETE", "PUT"])
        path = chance.choice(paths) if method == "GET" else paths[0]
        if chance.random() < 0.3:
            path += "?range=" + quote(text(chance)[:500], safe="")
        if chance.random() < 0.1:
            path = "/console/" + quote(text(chance)[:500], safe="")
        now = int(time.time())
        times = [0, now, now - 60, now + 30, 1_000_000_000_000 - 1, 253_402_300_800]
        token = str(
            sign(
                chance.choice(list(Purpose)),
                chance.choice([rig.own_key.secret_id, "x", "a" * 300]),
                chance.choice([rig.own_key.secret_key, "wrong"]),
                chance.choice(times),
                chance.choice(times) + chance.choice([0, 60, 1_800]),
            )
        )
        if chance.random() < 0.2:
            token = text(chance)[:300].replace("\n", "").replace("\0", "")
        cookie = quote(token, safe=".-_=") if not token.isascii() else token
        headers = {"Cookie": f"cmqd_session_{rig.host.rpartition(':')[2]}={cookie}"} if chance.random() < 0.6 else {}
        if chance.random() < 0.3:
            headers |= {"X-CSRF-Token": quote(text(chance)[:200]), "Sec-Fetch-Site": "same-origin"}
        body = b""
        if method in ("POST", "PUT"):
            own = {"secret_id": rig.own_key.secret_id, "secret_key": rig.own_key.secret_key}
            fields = {name: json.dumps(own[name]) if chance.random() < 0.5 else json_value(chance) for name in own}
            fields |= {"token": json.dumps(token)} if chance.random() < 0.4 else {}
            body = ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}").encode(
                errors="surrogatepass"
            )
            headers["Content-Type"] = "application/json"
        with watch.over((method, path, headers, body)):
            status, _, answer = await send(
                rig, method, path, data=io.BytesIO(body), headers=headers, allow_redirects=False
            )
            watch.outcomes[status] += 1
            assert status != 500, (status, answer)


def damaged(chance: random.Random) -> bytes:
    """Return the body of a message of kombu, with values of any kind or cut and flipped bytes."""
    edges = chance.choice(EDGES)
    typed = [f'{{"__type__":{json.dumps(kind)},"__value__":{json_value(chance)}}}' for kind in ("bytes", "base64")]
    typed += [f'{{"__type__":"{kind}","__value__":{json_value(chance)}}}' for kind in ("datetime", "uuid", "decimal")]

    def value(usual: str) -> str:
        return chance.choice([json_value(chance), *typed]) if chance.random() < edges else usual

    kind, utf_8 = '"application/json"', '"utf-8"'
    headers = f'{{"task":{value(kind)},"id":{value(kind)}}}'
    properties = f'{{"delivery_info":{value("{}")},"priority":{value("3")}}}'
    head = f"[{value(kind)},{value(utf_8)},{value(headers)},{value(properties)}]"
    content = bytearray(head.encode(errors="surrogatepass") + b"\nbody")
    if chance.random() < edges:
        content[chance.randrange(len(content))] = chance.randrange(256)
    if chance.random() < edges / 2:
        del content[chance.randrange(len(content)) :]
    return bytes(content)


def test_the_celery_transport_delivers_every_message(watch: Watch) -> None:
    message_of = Channel._message  # pyright: ignore[reportPrivateUsage]
    channel = object.__new__(Channel)
    channel.no_ack_consumers = set()
    for chance in rounds("celery"):
        content = damaged(chance)
        headers = {"kombu": "1"} | chance.choice([{}, {"due_ms": text(chance)}, {"expiration_ms": text(chance)}])
        with watch.over((headers, content)):
            unpacked = envelope.unpack(content, headers)
            watch.outcomes["raw" if unpacked.body == content else "whole"] += 1
            assert unpacked.body in (content, content.partition(b"\n")[2])
            assert envelope.remaining_ms(headers, 0) >= 0
            envelope.expired(headers, 0, 1)
            message: Any = message_of(channel, Delivery("1.1", None, unpacked, 1))
            assert message.delivery_info["redelivered"] is False
