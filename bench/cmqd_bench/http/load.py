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
from time import monotonic_ns, time
from typing import Any, Protocol

import uvloop

from cmqd_bench.figures.histogram import Histogram
from cmqd_bench.http.caller import HttpConnection, HttpFailed
from cmqd_bench.http.servers import HttpServer

PATH = "/v2/index.php"
SQS_AUTHORIZATION = (
    "AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0"
)
"""moto reads the region from this header and checks no signature."""
FLOOD_SECRET_ID_VARIABLE = "CMQD_BENCH_SECRET_ID"
END_SECONDS = 60.0

_nonces = itertools.count(1 << 40)


class Requests(Protocol):
    """The requests of an API."""

    def send(self) -> bytes:
        """Return a send."""
        ...

    def receive(self) -> bytes:
        """Return a receive that waits."""
        ...

    def delete(self, received: bytes) -> bytes | None:
        """Return the delete of the message in an answer; None if the answer has no message."""
        ...

    def check(self, answer: bytes) -> None:
        """Check that an answer to a send or delete is no refusal.

        Raises:
            HttpFailed: it is one.
        """
        ...


def text_after(answer: bytes, field: bytes) -> str | None:
    """Return the text of a field of a JSON answer, None without the field. The text has no escapes."""
    start = answer.find(field)
    if start < 0:
        return None
    start = answer.index(b'"', start + len(field)) + 1
    return answer[start : answer.index(b'"', start)].decode()


class CmqRequests:
    """Signed requests of API 2.0."""

    def __init__(self, server: HttpServer, queue: str, secret_id: str, secret_key: str, body: int) -> None:
        self._signed_head = f"POST{server.host}:{server.port}{PATH}?".encode()
        self._head = f"POST {PATH} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nContent-Length: "
        self._queue = queue
        self._secret_id = secret_id
        self._key = secret_key.encode()
        self._body = "x" * body

    def send(self) -> bytes:
        """Return a send."""
        return self._post("SendMessage", f"msgBody={self._body}&queueName={self._queue}")

    def receive(self) -> bytes:
        """Return a receive that waits."""
        return self._post("ReceiveMessage", f"pollingWaitSeconds=10&queueName={self._queue}")

    def delete(self, received: bytes) -> bytes | None:
        """Return the delete of the message in an answer."""
        handle = text_after(received, b'"receiptHandle":')
        if handle is None:
            # 7000: the wait is over; anything else is a refusal.
            if not received.startswith(b'{"code":7000,'):
                self.check(received)
            return None
        return self._post("DeleteMessage", f"queueName={self._queue}&receiptHandle={handle}")

    def check(self, answer: bytes) -> None:
        """Check that an answer is no refusal."""
        if not answer.startswith(b'{"code":0,'):
            raise HttpFailed(answer[:2_000].decode(errors="replace"))

    def _post(self, action: str, rest: str) -> bytes:
        # The parameters are in the order in which they are signed, and no value has a character to escape.
        form = (
            f"Action={action}&Nonce={next(_nonces)}&SecretId={self._secret_id}&Timestamp={int(time())}&{rest}"
        ).encode()
        digest = hmac.digest(self._key, self._signed_head + form, "sha1")
        signature = base64.b64encode(digest).replace(b"+", b"%2B").replace(b"/", b"%2F").replace(b"=", b"%3D")
        body = form + b"&Signature=" + signature
        return f"{self._head}{len(body)}\r\n\r\n".encode() + body


class JsonRequests:
    """Requests of a gateway's JSON API."""

    def __init__(self, server: HttpServer, queue: str, secret_id: str, secret_key: str, body: int) -> None:
        self._start = f"POST /api/v1/queues/{queue}"
        self._head = (
            f" HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nAuthorization: Bearer {secret_id}:{secret_key}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        )
        self._send = self._post("/messages", {"body": "x" * body})
        self._receive = self._post("/receive", {"wait": 10})

    def send(self) -> bytes:
        """Return a send."""
        return self._send

    def receive(self) -> bytes:
        """Return a receive that waits."""
        return self._receive

    def delete(self, received: bytes) -> bytes | None:
        """Return the delete of the message in an answer."""
        handle = text_after(received, b'"receipt_handle":')
        return None if handle is None else self._post("/delete", {"receipt_handle": handle})

    def check(self, answer: bytes) -> None:
        """Accept any answer: a refusal has another status than 2xx."""

    def _post(self, path: str, parameters: dict[str, Any]) -> bytes:
        body = json.dumps(parameters)
        return f"{self._start}{path}{self._head}{len(body)}\r\n\r\n{body}".encode()


class SqsRequests:
    """Requests to moto's SQS server, in its JSON protocol."""

    def __init__(self, server: HttpServer, queue: str, body: int) -> None:
        host = f"{server.host}:{server.port}"
        self._head = (
            f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-amz-json-1.0\r\n"
            f"Authorization: {SQS_AUTHORIZATION}\r\nX-Amz-Target: AmazonSQS."
        )
        url = f"http://{host}/123456789012/{queue}"
        self._url = {"QueueUrl": url}
        self.create = self._post("CreateQueue", {"QueueName": queue})
        """The creation of the queue."""
        self._send = self._post("SendMessage", self._url | {"MessageBody": "x" * body})
        self._receive = self._post("ReceiveMessage", self._url | {"WaitTimeSeconds": 10})

    def send(self) -> bytes:
        """Return a send."""
        return self._send

    def receive(self) -> bytes:
        """Return a receive that waits."""
        return self._receive

    def delete(self, received: bytes) -> bytes | None:
        """Return the delete of the message in an answer."""
        handle = text_after(received, b'"ReceiptHandle":')
        return None if handle is None else self._post("DeleteMessage", self._url | {"ReceiptHandle": handle})

    def check(self, answer: bytes) -> None:
        """Accept any answer: an error has another status than 200."""

    def _post(self, action: str, parameters: dict[str, Any]) -> bytes:
        body = json.dumps(parameters)
        return f"{self._head}{action}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


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


class HttpFlood:
    """A connection that sends requests with wrong signatures."""

    def __init__(self, requests: CmqRequests, counts: Counts, on_failed: Callable[[Exception], None]) -> None:
        self._requests = requests
        self._counts = counts
        self._connection = HttpConnection(self._answered, on_failed)

    async def start(self, server: HttpServer) -> None:
        """Connect and begin."""
        await asyncio.get_running_loop().create_connection(lambda: self._connection, server.host, server.port)
        self._connection.write(self._requests.send())

    def _answered(self, answer: bytes) -> None:
        self._counts.requests += 1
        self._connection.write(self._requests.send())


@asynccontextmanager
async def cycling(
    servers: Sequence[HttpServer],
    connections: int,
    make: Callable[[HttpServer], Requests],
    counts: Counts,
    on_failed: Callable[[Exception], None],
) -> AsyncGenerator[None]:
    """Run cycles over ``connections`` connections, spread over the servers."""
    cycles: list[HttpCycle] = []
    try:
        for server in servers:
            requests = make(server)
            for _ in range(connections // len(servers)):
                cycles.append(HttpCycle(requests, counts, on_failed))
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
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cmqd_bench.http.load", server.host, str(server.port), str(connections)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {FLOOD_SECRET_ID_VARIABLE: secret_id},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if await asyncio.wait_for(process.stdout.readline(), END_SECONDS) != b"flooding\n":
            raise RuntimeError("the flooding process has ended")
        yield
        if process.returncode is not None:
            raise RuntimeError("the flooding process has ended")
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _flood(host: str, port: str, connections: str) -> None:
    server = HttpServer(host, int(port), [])
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    failed: asyncio.Future[None] = loop.create_future()

    def fail(error: Exception) -> None:
        if not failed.done():
            failed.set_exception(error)

    counts = Counts()
    requests = CmqRequests(server, "flood", os.environ[FLOOD_SECRET_ID_VARIABLE], "wrong", 100)
    for _ in range(int(connections)):
        await HttpFlood(requests, counts, fail).start(server)
    print("flooding", flush=True)
    end = asyncio.ensure_future(reader.read())
    await asyncio.wait([end, failed], return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        failed.result()


def main() -> None:
    """Run as a separate process."""
    uvloop.run(_flood(*sys.argv[1:]))


if __name__ == "__main__":
    main()
