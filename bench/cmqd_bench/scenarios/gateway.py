"""gateway: send, receive and delete over HTTP, with a gateway process, with two, and with moto's SQS server.

C kept-alive connections do the three requests in turn, with a single outstanding request per connection. A message is
completed when its delete was answered. The plain figures of the report are for a single gateway, the figures
``..._two`` for two processes that share the connections equally, and the figures ``moto_...`` for moto's server under
the same load (``--moto PYTHON``, an interpreter that has moto with its server). The CPU per request is given separately
for gateway and broker.

``--idle N`` connections are opened to a fresh gateway and stay idle after an answer; the report has the gateway's
memory per connection.

Three further phases measure the native cycle (batch 1): alone, beside an idle gateway, and beside a gateway that is
flooded with requests with wrong signatures. The broker must do no work for these requests, so compare its CPU per
message.
"""

import asyncio
import base64
import hmac
import itertools
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import cmqd_client
from cmqd_bench.broker import Broker
from cmqd_bench.http_caller import HttpCaller
from cmqd_bench.http_servers import HttpServer, gateways, moto
from cmqd_bench.machine import ConditionsError, raise_file_limit
from cmqd_bench.measure import Round
from cmqd_bench.options import Options
from cmqd_bench.processes import cpu_seconds, rss_kib
from cmqd_bench.scenarios import cycle
from cmqd_bench.session import CONNECTS_AT_ONCE, Session, running
from cmqd_client.address import parse_address

QUEUE = "gateway"
PATH = "/v2/index.php"
SPARE_FILES = 200
"""Descriptors beside the connections: log files, pipes, libraries."""
AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0"
"""moto reads the region from this header and checks no signature."""

_nonces = itertools.count(1 << 40)


class CmqRequests:
    """Signed requests of API 2.0."""

    def __init__(self, server: HttpServer, secret_id: str, secret_key: str, body: int) -> None:
        self._host = f"{server.host}:{server.port}"
        self._secret_id = secret_id
        self._key = secret_key.encode()
        self._body = "x" * body

    def send(self) -> bytes:
        """Return a send."""
        return self._post("SendMessage", f"msgBody={self._body}&queueName={QUEUE}")

    def receive(self) -> bytes:
        """Return a receive that waits."""
        return self._post("ReceiveMessage", f"pollingWaitSeconds=10&queueName={QUEUE}")

    def delete(self, answer: dict[str, Any]) -> bytes:
        """Return the delete of a received message."""
        return self._post("DeleteMessage", f"queueName={QUEUE}&receiptHandle={answer['receiptHandle']}")

    @staticmethod
    def check(answer: dict[str, Any]) -> None:
        """Check that an answer is no refusal."""
        if answer["code"]:
            raise RuntimeError(answer["message"])

    def _post(self, action: str, rest: str) -> bytes:
        # The parameters are in the order in which they are signed, and no value has a character to escape.
        form = f"Action={action}&Nonce={next(_nonces)}&SecretId={self._secret_id}&Timestamp={int(time.time())}&{rest}"
        digest = hmac.digest(self._key, f"POST{self._host}{PATH}?{form}".encode(), "sha1")
        signature = base64.b64encode(digest).replace(b"+", b"%2B").replace(b"/", b"%2F").replace(b"=", b"%3D")
        body = form.encode() + b"&Signature=" + signature
        return f"POST {PATH} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class SqsRequests:
    """Requests to moto's SQS server, in its JSON protocol."""

    def __init__(self, server: HttpServer, body: int) -> None:
        self._host = f"{server.host}:{server.port}"
        self._url = f"http://{self._host}/123456789012/{QUEUE}"
        self._body = "x" * body

    def create(self) -> bytes:
        """Return the creation of the queue."""
        return self._post("CreateQueue", {"QueueName": QUEUE})

    def send(self) -> bytes:
        """Return a send."""
        return self._post("SendMessage", {"QueueUrl": self._url, "MessageBody": self._body})

    def receive(self) -> bytes:
        """Return a receive that waits."""
        return self._post("ReceiveMessage", {"QueueUrl": self._url, "WaitTimeSeconds": 10})

    def delete(self, answer: dict[str, Any]) -> bytes:
        """Return the delete of a received message."""
        handle = answer["Messages"][0]["ReceiptHandle"]
        return self._post("DeleteMessage", {"QueueUrl": self._url, "ReceiptHandle": handle})

    @staticmethod
    def check(answer: dict[str, Any]) -> None:
        """Accept any answer: an error has another status than 200."""

    def _post(self, action: str, parameters: dict[str, Any]) -> bytes:
        body = json.dumps(parameters).encode()
        head = (
            f"POST / HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/x-amz-json-1.0\r\n"
            f"X-Amz-Target: AmazonSQS.{action}\r\nAuthorization: {AUTHORIZATION}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class Counts:
    """Requests answered and messages deleted."""

    def __init__(self) -> None:
        self.requests = 0
        self.messages = 0


async def _cycle(caller: HttpCaller, requests: CmqRequests | SqsRequests, counts: Counts) -> None:
    while True:
        for make in (requests.send, requests.receive):
            answer = json.loads(await caller.exchange(make()))
            requests.check(answer)
            counts.requests += 1
        deleted = await caller.exchange(requests.delete(answer))
        if deleted:
            requests.check(json.loads(deleted))
        counts.requests += 1
        counts.messages += 1


@asynccontextmanager
async def _loaded(
    session: Session,
    servers: Sequence[HttpServer],
    count: int,
    work: Callable[[HttpServer, HttpCaller], Coroutine[Any, Any, None]],
) -> AsyncGenerator[None]:
    """Run ``count`` workers with a connection per worker, spread over the servers."""
    callers = [HttpCaller(server.host, server.port) for server in servers for _ in range(count // len(servers))]
    homes = [server for server in servers for _ in range(count // len(servers))]
    tasks = [asyncio.create_task(work(server, caller)) for server, caller in zip(homes, callers, strict=True)]
    for task in tasks:
        task.add_done_callback(lambda done: _report(session, done))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for caller in callers:
            caller.close()


def _report(session: Session, task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        session.guard.fail(error)


async def _phase(
    session: Session,
    options: Options,
    servers: Sequence[HttpServer],
    make: Callable[[HttpServer], CmqRequests | SqsRequests],
) -> tuple[Round, dict[str, Any]]:
    """Measure a load; return the round, and the figures per request."""
    counts = Counts()
    pids = [pid for server in servers for pid in server.pids]

    def work(server: HttpServer, caller: HttpCaller) -> Coroutine[Any, Any, None]:
        return _cycle(caller, make(server), counts)

    async with _loaded(session, servers, options.connections, work):
        await session.guard.sleep(options.warm_up)
        meter = session.meter()
        meter.start()
        counts.requests = counts.messages = 0
        http_before = cpu_seconds(pids)
        await session.guard.sleep(options.seconds)
        requests, messages = counts.requests, counts.messages
        http_seconds = cpu_seconds(pids) - http_before
        result = meter.finish(lambda _tally: messages)
    per_request = 1e6 / max(requests, 1)
    # The HTTP servers are no foreign programs.
    result = replace(result, other_cores=max(0.0, result.other_cores - http_seconds / result.seconds))
    return result, {
        "requests_per_second": round(requests / result.seconds, 1),
        "http_cpu_us_per_request": round(http_seconds * per_request, 1),
        "broker_cpu_us_per_request": round(result.server_cpu_seconds * per_request, 1),
        "http_rss_mib": round(rss_kib(pids) / 1024, 1),
    }


async def _flood(server: HttpServer, caller: HttpCaller, secret_id: str) -> None:
    """Send requests with wrong signatures until cancelled."""
    requests = CmqRequests(server, secret_id, "wrong", 100)
    while True:
        await caller.exchange(requests.send())


async def _native(session: Session, options: Options, queue: str) -> float:
    """Return the broker's CPU in microseconds per message of the native cycle at batch 1."""
    load = replace(options, batch=1, connections=16)
    name = await session.create_queue(queue)
    await cycle.load(session, load, name)
    await session.guard.sleep(options.warm_up)
    meter = session.meter()
    meter.start()
    await session.guard.sleep(options.seconds)
    result = meter.finish(lambda tally: tally.deleted)
    return round(result.server_cpu_seconds / max(result.messages, 1) * 1e6, 1)


async def _idle(options: Options, server: HttpServer) -> dict[str, Any]:
    """Open connections that stay idle behind their first answer; return the gateway's memory for each."""
    limit = raise_file_limit(options.idle + SPARE_FILES)
    if limit < options.idle + SPARE_FILES:
        raise ConditionsError(f"--idle {options.idle} needs more open files; this user may have {limit} (ulimit -Hn)")
    request = f"GET {PATH} HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode()
    callers = [HttpCaller(server.host, server.port) for _ in range(options.idle)]
    before = rss_kib(server.pids)
    for start in range(0, options.idle, CONNECTS_AT_ONCE):
        await asyncio.gather(*(caller.exchange(request) for caller in callers[start : start + CONNECTS_AT_ONCE]))
    growth = rss_kib(server.pids) - before
    # A further request over every connection shows that all are still open.
    for start in range(0, options.idle, CONNECTS_AT_ONCE):
        await asyncio.gather(*(caller.exchange(request) for caller in callers[start : start + CONNECTS_AT_ONCE]))
    again = rss_kib(server.pids) - before
    reopened = sum(caller.opened - 1 for caller in callers)
    for caller in callers:
        caller.close()
    return {
        "idle_connections": options.idle,
        "idle_connections_lost": reopened,
        "http_rss_kib_per_idle_connection": round(growth / max(options.idle, 1), 1),
        "http_rss_growth_of_more_requests_kib": again - growth,
    }


async def run(options: Options, broker: Broker) -> Round:
    """Run a round: the phases of the module, one after the other, on one broker."""
    extra: dict[str, Any] = {}
    async with running(broker) as session:
        await session.create_queue(QUEUE)
        address = parse_address(broker.ready.url)
        async with cmqd_client.connect(broker.ready.url) as client:
            own = await client.accounts.create_key(roles=["gateway"])
        own_key = f"{own.secret_id}:{own.secret_key}"

        def cmq(server: HttpServer) -> CmqRequests:
            return CmqRequests(server, address.secret_id, address.secret_key, options.body)

        async with gateways(broker, 1, own_key) as servers:
            result, figures = await _phase(session, options, servers, cmq)
            extra |= figures
        async with gateways(broker, 1, own_key) as servers:
            extra |= await _idle(options, servers[0])
        async with gateways(broker, 2, own_key) as servers:
            _, figures = await _phase(session, options, servers, cmq)
            extra |= {f"{name}_two": value for name, value in figures.items()}
        if options.moto is not None:
            async with moto(options.moto, broker.folder) as server:
                requests = SqsRequests(server, options.body)
                creator = HttpCaller(server.host, server.port)
                await creator.exchange(requests.create())
                creator.close()
                _, figures = await _phase(session, options, [server], lambda _: requests)
                extra |= {
                    "moto_requests_per_second": figures["requests_per_second"],
                    "moto_cpu_us_per_request": figures["http_cpu_us_per_request"],
                    "times_moto": round(extra["requests_per_second"] / max(figures["requests_per_second"], 0.1), 1),
                }
    for phase in ("alone", "idle_gateway", "flooded_gateway"):
        async with running(broker) as session:
            if phase == "alone":
                extra["native_us_alone"] = await _native(session, options, phase)
                continue
            async with gateways(broker, 1, own_key) as servers:
                if phase == "idle_gateway":
                    extra["native_us_idle_gateway"] = await _native(session, options, phase)
                    continue

                def work(server: HttpServer, caller: HttpCaller) -> Coroutine[Any, Any, None]:
                    return _flood(server, caller, address.secret_id)

                async with _loaded(session, servers, options.connections, work):
                    extra["native_us_flooded_gateway"] = await _native(session, options, phase)
    return replace(result, extra=extra)
