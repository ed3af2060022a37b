"""Frequent requests of the JSON API, answered without aiohttp: from bytes of a plain request to bytes of an answer.

A request is handled here if nothing is to be waited for, or explained, before the call of the broker: the broker has
confirmed the key within a second, and the JSON is right. aiohttp and ``routes`` have all other requests, and with them
the answers to everything that is wrong with a request itself. Both ways execute a request by ``execution``.

Clients repeat their heads: all bytes of a head up to the blank line are the same as in an earlier request. The meaning
of such a head is remembered, once its key has been right. Equal bytes need no second parse; the key is checked again.
"""

import hmac
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp.http import SERVER_SOFTWARE

from cmqd_gateway.callers.caller import pair_of_authorization
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.callers.stated_clients import CLIENT_HEADER, stated_client
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.connection_guard import ConnectionGuard, DoorAnswer, Handling
from cmqd_gateway.http.hand_over import TakeBack
from cmqd_gateway.http.plain_requests import HEAD_END, MAX_HEAD_BYTES, PlainRequest, PlainRequestReader
from cmqd_gateway.http.request_bodies import TINY_BODY, BodyRefused
from cmqd_gateway.rest.answers import API_HEADERS, Answer, error_answer
from cmqd_gateway.rest.execution import FREQUENT, Execution
from cmqd_gateway.rest.operation import Operation
from cmqd_gateway.rest.problems import ProblemError, of_code
from cmqd_gateway.rest.reading import (
    READ_ERRORS,
    UNCOUNTED_BYTES,
    json_reader,
    read_body,
    read_idempotency_key,
    read_query,
)
from cmqd_gateway.rest.table import BASE, OPERATIONS
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.actors import StatedClient

_JSON: Final = (b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8")
_CLIENT_HEADER: Final = CLIENT_HEADER.lower().encode()
_PREFIX: Final = "/queues/{queue}"
_TARGET: Final = re.compile(rf"{BASE}/queues/([A-Za-z0-9_-]+)(/[a-z/]+)".encode())
_MAX_HEADS: Final = 1_000
"""Heads that are remembered: 4 MB at most. The oldest is forgotten first."""


class _Head(msgspec.Struct):
    """The meaning of the head of a frequent request."""

    frequent: "_Frequent"
    names: Mapping[str, str]
    secret_id: str
    secret_key: bytes
    idempotency_key: str | None
    length: int
    """Bytes of the body."""
    stated: StatedClient
    """The client of the last request with this head."""
    key: KeySecret | None = None
    """The key whose secret was equal to that of the head. A later reading of the key is another object."""


class DirectRequests:
    """Handles frequent requests; see the module."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._reader = PlainRequestReader()
        self._heads: dict[bytes, _Head] = {}
        self._frequent = {
            operation.path.removeprefix(_PREFIX).encode(): _Frequent(gateway, operation)
            for operation in OPERATIONS
            if operation.name in FREQUENT
        }

    def begin(self, connection: ConnectionGuard, data: bytes, *, may_wait: bool) -> Handling | int:
        """Return the coroutine that handles the request in these bytes; see ``DirectDoor``."""
        end = data.find(HEAD_END, 0, MAX_HEAD_BYTES) + 4
        text = data[:end]
        head = self._heads.get(text)
        if head is None:
            request = self._reader.read(data)
            if request is None:
                return DoorAnswer.NOT_PLAIN
            head = self._understood(request)
            if head is None:
                return request.missing
        missing = end + head.length - len(data)
        if missing < 0:
            return DoorAnswer.NOT_PLAIN
        gateway = self._gateway
        key = gateway.secrets.confirmed(head.secret_id)
        if key is None or gateway.is_draining or (key is not head.key and not self._is_right(head, key, text)):
            return missing
        if missing:
            return DoorAnswer.WHOLE_BODY if may_wait else missing
        frequent = head.frequent
        try:
            body = frequent.read(data[end:]) if head.length else frequent.empty_body
        except READ_ERRORS:
            return 0
        # Last: a request that aiohttp handles is counted there.
        if body is None or not gateway.rates.take(key.secret_id):
            return 0
        return frequent.handle(connection, key, head, body)

    def drop_unconfirmed(self) -> None:
        """Forget the heads with a secret that the gateway has forgotten; see ``DirectDoor``."""
        secrets = self._gateway.secrets
        for text in [text for text, head in self._heads.items() if not (head.key and secrets.has_secret(head.key))]:
            del self._heads[text]

    def _is_right(self, head: _Head, key: KeySecret, text: bytes) -> bool:
        """Return True if a head has the secret of the key, and remember the head."""
        if not key.enabled or not hmac.compare_digest(key.secret_key.encode(), head.secret_key):
            return False
        head.key = key
        if head.idempotency_key is None and text not in self._heads:
            if len(self._heads) >= _MAX_HEADS:
                del self._heads[next(iter(self._heads))]
            self._heads[text] = head
        return True

    def _understood(self, request: PlainRequest) -> _Head | None:
        """Return the meaning of a head, None if this is not the head of a frequent request."""
        target = _TARGET.fullmatch(request.target)
        frequent = None if target is None else self._frequent.get(target[2])
        if target is None or frequent is None or request.method != b"POST":
            return None
        headers = request.headers
        length = len(request.body) + request.missing
        authorization = headers.get(b"authorization")
        # A body without a type is refused, unless it is empty.
        is_json = headers.get(b"content-type", b"" if length else _JSON[0]) in _JSON
        if not is_json or length > UNCOUNTED_BYTES or authorization is None or b"sec-fetch-site" in headers:
            return None
        pair = pair_of_authorization(authorization.decode())
        if pair is None:
            return None
        try:
            idempotency_key = frequent.idempotency_key(headers)
        except ProblemError:
            return None
        names = {"queue": target[1].decode()}
        stated = stated_client(headers.get(_CLIENT_HEADER, b"").decode(), None)
        return _Head(frequent, names, pair[0], pair[1].encode(), idempotency_key, length, stated)


class _Frequent:
    """A frequent operation."""

    def __init__(self, gateway: Gateway, operation: Operation[Any, Any, Any]) -> None:
        self.operation = operation
        self._gateway = gateway
        self._execution = Execution(gateway, operation)
        self._query = read_query([], operation.query)
        self.read: Callable[[bytes], Any] = json_reader(operation.body)
        """Reads a body."""
        self.empty_body: Any = None
        """The request of an empty body; None = the operation needs fields."""
        with suppress(ProblemError):
            self.empty_body = read_body(None, None, b"", operation.body)

    def idempotency_key(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return the idempotency key of a request.

        Raises:
            ProblemError: the header is malformed.
        """
        value = headers.get(b"idempotency-key")
        return None if value is None or not self.operation.idempotency else read_idempotency_key([value.decode()])

    async def handle(self, connection: ConnectionGuard, key: KeySecret, head: _Head, body: Any) -> None:
        """Execute a request and write its answer."""
        gateway = self._gateway
        is_open = False
        held = 0
        stated = head.stated
        if stated.host != connection.remote:
            # Clients repeat their heads, mostly over few connections.
            head.stated = stated = stated_client(stated.name, connection.remote)
        try:
            try:
                if head.length > TINY_BODY:
                    held = _hold(gateway, head.length)
                if self.operation.waits is not None:
                    await self._receive(connection, key, head, body, stated)
                    answer = None
                else:
                    answer = await self._execution.run(
                        key, head.names, self._query, body, head.idempotency_key, _no_messages, stated
                    )
            except ConnectionError:
                raise
            except Exception as error:
                answer = error_answer(connection.remote, self.operation.name, error)
            if answer is not None:
                connection.write(_answers.bytes_of(answer, closes=gateway.is_draining))
            if connection.stuck_since is not None:
                await connection.drain()
            is_open = not gateway.is_draining
        except ConnectionError:
            # The client has gone.
            pass
        finally:
            if held:
                gateway.bodies.hold(held, 0)
            connection.end_direct(is_open=is_open)

    async def _receive(
        self, connection: ConnectionGuard, key: KeySecret, head: _Head, body: Any, stated: StatedClient
    ) -> None:
        """Execute a receive and write its answer; an error before the write takes the messages back."""
        gateway = self._gateway
        with gateway.hand_over() as hand_over:
            answer = await self._execution.run(key, head.names, self._query, body, None, hand_over.received, stated)
            written = _answers.bytes_of(answer, closes=gateway.is_draining)

            async def write() -> None:
                connection.write(written)
                await connection.drain()

            if hand_over.has_messages:
                await hand_over.write_over(connection.transport, write)
            else:
                await write()


def _no_messages(key: KeySecret, take_back: TakeBack) -> None:
    raise AssertionError("only a receive has messages")


def _hold(gateway: Gateway, size: int) -> int:
    """Count the bytes of a body; see :class:`cmqd_gateway.http.request_bodies.RequestBodies`."""
    try:
        return gateway.bodies.hold(0, size)
    except BodyRefused as refusal:
        raise of_code(ErrorCode.TOO_MANY_REQUESTS, str(refusal)) from None


# ---------------------------------------------------------------- bytes of an answer


class _AnswerBytes:
    """Makes bytes of answers. All but the length and the body is the same for a second."""

    def __init__(self) -> None:
        self._second = 0
        self._heads: dict[tuple[int, str, bool], bytes] = {}

    def bytes_of(self, answer: Answer, *, closes: bool) -> bytes:
        """Return the bytes of an answer, with the headers that aiohttp writes."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._heads.clear()
        body = answer.body
        kind = answer.status, answer.content_type if body is not None else "", closes
        head = self._heads.get(kind)
        if head is None:
            head = self._heads[kind] = self._head(*kind)
        if body is None:
            return head + b"\r\n"
        if answer.headers:
            head += _lines(answer.headers)
        return b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)

    def _head(self, status: int, content_type: str, closes: bool) -> bytes:
        headers = {**API_HEADERS, "Date": formatdate(self._second, usegmt=True), "Server": SERVER_SOFTWARE}
        if content_type:
            headers["Content-Type"] = content_type
        if closes:
            headers["Connection"] = "close"
        return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + _lines(headers)


def _lines(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()


_answers: Final = _AnswerBytes()
