"""The HTTP load: connections that send, receive and delete in turn, and floods; callbacks, without tasks and futures.

The requests are those of three APIs: CMQ's API 2.0 and the JSON API of a gateway, and SQS' JSON protocol. Heads are
made once, and answers are searched for the receipt handle alone: on a small machine, the load takes its CPU from the
servers.

As a program, this module floods a gateway with requests with wrong signatures until the end of its standard input.
"""

import asyncio
import base64
import hmac
import itertools
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import monotonic_ns, time
from typing import Any, Protocol

import uvloop

from cmqd_bench.http.caller import HttpConnection, HttpFailed
from cmqd_bench.http.servers import HttpServer
from cmqd_bench.machine.children import child, standard_input
from cmqd_load.histogram import Histogram

PATH = "/v2/index.php"
FLOOD_SECRET_ID_VARIABLE = "CMQD_BENCH_SECRET_ID"

_nonces = itertools.count(1 << 40)


def text_after(answer: bytes, field: bytes) -> str | None:
    """Return the text of a field of a JSON answer, None without the field. The text has no escapes."""
    start = answer.find(field)
    if start < 0:
        return None
    start = answer.index(b'"', start + len(field)) + 1
    return answer[start : answer.index(b'"', start)].decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The requests of an API."""

    send: Callable[[], bytes]
    receive: Callable[[], bytes]
    """Makes a receive that waits."""
    delete_handle: Callable[[str], bytes]
    """Makes a delete."""
    handle_field: bytes
    """The field of an answer with the receipt handle."""
    success: bytes = b""
    """The begin of answers that are no refusals; empty if refusals have another status than 2xx."""
    silence: bytes = b""
    """The begin of the answer to a receive without a message."""

    def cycle(self, counts: "Counts", on_failed: Callable[[Exception], None]) -> "HttpCycle":
        """Return a connection of the load."""
        return HttpCycle(self, counts, on_failed)

    def delete(self, received: bytes) -> bytes | None:
        """Return the delete of the message in an answer; None if the answer has no message.

        Raises:
            HttpFailed: the answer is a refusal.
        """
        handle = text_after(received, self.handle_field)
        if handle is not None:
            return self.delete_handle(handle)
        if not received.startswith(self.silence):
            self.check(received)
        return None

    def check(self, answer: bytes) -> None:
        """Check that an answer to a send or delete is no refusal.

        Raises:
            HttpFailed: the answer is a refusal.
        """
        if not answer.startswith(self.success):
            raise HttpFailed(answer[:2_000].decode(errors="replace"))


def cmq_requests(server: HttpServer, queue: str, secret_id: str, secret_key: str, body: int) -> Requests:
    """Return the signed requests of API 2.0."""
    signed_head = f"POST{server.host}:{server.port}{PATH}?".encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nContent-Length: "
    key, text = secret_key.encode(), "x" * body

    def post(action: str, rest: str) -> bytes:
        # The parameters are in the order in which they are signed, and no value has a character to escape.
        form = f"Action={action}&Nonce={next(_nonces)}&SecretId={secret_id}&Timestamp={int(time())}&{rest}".encode()
        digest = hmac.digest(key, signed_head + form, "sha1")
        signature = base64.b64encode(digest).replace(b"+", b"%2B").replace(b"/", b"%2F").replace(b"=", b"%3D")
        content = form + b"&Signature=" + signature
        return f"{head}{len(content)}\r\n\r\n".encode() + content

    return Requests(
        send=lambda: post("SendMessage", f"msgBody={text}&queueName={queue}"),
        receive=lambda: post("ReceiveMessage", f"pollingWaitSeconds=10&queueName={queue}"),
        delete_handle=lambda handle: post("DeleteMessage", f"queueName={queue}&receiptHandle={handle}"),
        handle_field=b'"receiptHandle":',
        success=b'{"code":0,',
        silence=b'{"code":7000,',
    )


def json_requests(server: HttpServer, queue: str, secret_id: str, secret_key: str, body: int) -> Requests:
    """Return the requests of a gateway's JSON API."""
    head = (
        f" HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nAuthorization: Bearer {secret_id}:{secret_key}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    )

    def post(path: str, parameters: dict[str, Any]) -> bytes:
        content = json.dumps(parameters)
        return f"POST /api/v1/queues/{queue}{path}{head}{len(content)}\r\n\r\n{content}".encode()

    send, receive = post("/messages", {"body": "x" * body}), post("/receive", {"wait": 10})
    return Requests(
        send=lambda: send,
        receive=lambda: receive,
        delete_handle=lambda handle: post("/delete", {"receipt_handle": handle}),
        handle_field=b'"receipt_handle":',
    )


class Counts:
    """Answers of a load since the last ``clear``."""

    def __init__(self) -> None:
        self.latency = Histogram()
        """From a request to its answer, receives that wait included, in microseconds."""
        self.clear()

    def clear(self) -> None:
        """Reset all counts."""
        self.requests = 0
        self.deleted = 0
        self.latency.clear()


class Cycle(Protocol):
    """A connection of a load."""

    async def start(self, server: HttpServer) -> None:
        """Connect and begin."""

    def close(self) -> None:
        """Close the connection."""


class CycleMaker(Protocol):
    """The requests of a load at a server."""

    def cycle(self, counts: Counts, on_failed: Callable[[Exception], None]) -> Cycle:
        """Return a connection of the load."""
        ...


class HttpCycle:
    """A connection that sends, receives and deletes in turn."""

    def __init__(self, requests: Requests, counts: Counts, on_failed: Callable[[Exception], None]) -> None:
        self._requests = requests
        self._counts = counts
        self._on_failed = on_failed
        self._server: HttpServer | None = None
        self._started = 0
        self._connection = HttpConnection(self._sent, on_failed)

    async def start(self, server: HttpServer) -> None:
        """Connect and begin."""
        self._server = server
        await asyncio.get_running_loop().create_connection(lambda: self._connection, server.host, server.port)
        self._write(self._requests.send(), self._sent)

    def close(self) -> None:
        """Close the connection."""
        self._server = None
        self._connection.close()

    def _sent(self, answer: bytes) -> None:
        self._requests.check(answer)
        self._answered()
        self._write(self._requests.receive(), self._received)

    def _received(self, answer: bytes) -> None:
        delete = self._requests.delete(answer)
        self._answered()
        if delete is None:
            self._write(self._requests.receive(), self._received)
        else:
            self._write(delete, self._deleted)

    def _deleted(self, answer: bytes) -> None:
        self._requests.check(answer)
        self._answered()
        self._counts.deleted += 1
        self._write(self._requests.send(), self._sent)

    def _answered(self) -> None:
        counts = self._counts
        counts.requests += 1
        counts.latency.record((monotonic_ns() - self._started) // 1000)

    def _write(self, request: bytes, on_answer: Callable[[bytes], None]) -> None:
        connection = self._connection
        self._started = monotonic_ns()
        if connection.is_over:
            # The server closes its connections after each answer.
            self._reopen(request, on_answer)
            return
        connection.on_answer = on_answer
        connection.write(request)

    def _reopen(self, request: bytes, on_answer: Callable[[bytes], None]) -> None:
        server = self._server
        if server is None:
            return
        self._connection = connection = HttpConnection(on_answer, self._on_failed)

        def opened(task: "asyncio.Task[Any]") -> None:
            if task.cancelled() or connection is not self._connection:
                return
            if (failure := task.exception()) is not None:
                self._on_failed(HttpFailed(str(failure)))
            elif not connection.is_over:
                connection.write(request)

        loop = asyncio.get_running_loop()
        opening = loop.create_task(loop.create_connection(lambda: connection, server.host, server.port))
        opening.add_done_callback(opened)


@asynccontextmanager
async def cycling(
    servers: Sequence[HttpServer],
    connections: int,
    make: Callable[[HttpServer], "CycleMaker"],
    counts: Counts,
    on_failed: Callable[[Exception], None],
) -> AsyncGenerator[None]:
    """Run cycles over ``connections`` connections, spread over the servers."""
    cycles: list[Cycle] = []
    try:
        for server in servers:
            requests = make(server)
            for _ in range(connections // len(servers)):
                cycles.append(requests.cycle(counts, on_failed))
                await cycles[-1].start(server)
        yield
    finally:
        for each in cycles:
            each.close()


@asynccontextmanager
async def flooding(server: HttpServer, connections: int, secret_id: str) -> AsyncGenerator[None]:
    """Run the flood in a process of its own, so that its work does not slow down the measured load.

    Raises:
        RuntimeError: the flood has ended by itself.
    """
    variables = {FLOOD_SECRET_ID_VARIABLE: secret_id}
    async with child(__name__, server.host, str(server.port), str(connections), variables=variables) as program:
        await program.read()
        yield
        await program.ask()


async def _flood(host: str, port: str, connections: str) -> None:
    server = HttpServer(host, int(port), [])
    questions = await standard_input()
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(error: Exception) -> None:
        if not failed.done():
            failed.set_exception(error)

    signed = cmq_requests(server, "flood", os.environ[FLOOD_SECRET_ID_VARIABLE], "wrong", 100)
    # Every answer is a refusal, and the next send follows.
    requests = replace(signed, receive=signed.send, success=b"")
    async with cycling([server], int(connections), lambda _: requests, Counts(), fail):
        while not failed.done():
            print("flooding", flush=True)
            question = asyncio.ensure_future(questions.readline())
            await asyncio.wait([question, failed], return_when=asyncio.FIRST_COMPLETED)
            if question.done() and not question.result():
                return
        failed.result()


if __name__ == "__main__":
    uvloop.run(_flood(*sys.argv[1:]))
