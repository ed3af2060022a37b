"""Another endpoint of CMQ's API 2.0: signed requests over HTTP.

    async with CmqEndpoint("https://cmq-queue-gz.api.qcloud.com", secret_id, secret_key, connections=8) as endpoint:
        answer = await endpoint.call("ListQueue", {"limit": 50})

The HTTP client of the standard library blocks, so requests run in threads, a connection for each.
"""

import asyncio
import http.client
import json
import random
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit

from cmqd_gateway.cmq.api2.signature import SHA256, SIGNATURE, sign

PATH: Final = "/v2/index.php"
TIMEOUT: Final = 10.0
"""Seconds for an answer, beyond the wait of a receive; as in CMQ's own SDKs."""
_LARGEST_NONCE: Final = 2**31 - 1
NO_PARAMETERS: Final[Mapping[str, str | int]] = MappingProxyType({})


class EndpointError(Exception):
    """An answer with a code other than 0, or no answer.

    Attributes:
        code: the code of the answer; 0 = there was no answer that could be read.
        answer: the answer.
    """

    def __init__(self, action: str, text: str, code: int = 0, answer: dict[str, Any] | None = None) -> None:
        shown = f"code {code}: {text}" if code else text
        super().__init__(f"{action}: {shown}")
        self.code = code
        self.answer = answer or {}


class CmqEndpoint:
    """See the module."""

    def __init__(
        self,
        url: str,
        secret_id: str,
        secret_key: str,
        *,
        connections: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Keep the address.

        Args:
            url: ``http://host[:port]`` or ``https://host[:port]``.
            secret_id: id of the key.
            secret_key: secret part of the key.
            connections: most requests at once.
            now: the clock, in seconds since 1970; the endpoint refuses requests with an old time.

        Raises:
            ValueError: the URL is malformed.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/", PATH):
            raise ValueError(f"{url!r} is not an endpoint; write http://host[:port] or https://host[:port]")
        if parts.username is not None or parts.password is not None:
            raise ValueError("the URL of an endpoint has no key; give the key by --key-file")
        self.url: str = f"{parts.scheme}://{parts.netloc}"
        # The host is signed exactly as it is written, with the port.
        self._host = parts.netloc
        self._is_https = parts.scheme == "https"
        self._secret_id = secret_id
        self._secret_key = secret_key
        self._now = now
        self._threads = ThreadPoolExecutor(connections, "cmq-import")
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a request under way ends with an error."""
        for connection in list(self._busy):
            if connection.sock is not None:  # pyright: ignore[reportUnnecessaryComparison]
                # A thread waits for its answer; a mere close would not wake it up.
                try:
                    connection.sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # the answer, or the end of the connection, came first
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def call(
        self, action: str, parameters: Mapping[str, str | int] = NO_PARAMETERS, *, wait: float = 0
    ) -> dict[str, Any]:
        """Call an action; a connection that was lost while it was idle is replaced once.

        A cancelled call goes on in its thread until its answer comes, and the answer is dropped.

        Args:
            action: name of the action.
            parameters: parameters under their names in requests.
            wait: seconds that the endpoint may take beyond its time limit: the wait of a receive.

        Raises:
            EndpointError: the answer has a code other than 0, or there is no answer.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._call, action, parameters, wait)

    def _call(self, action: str, parameters: Mapping[str, str | int], wait: float) -> dict[str, Any]:
        form = {
            "Action": action,
            "SecretId": self._secret_id,
            "Timestamp": int(self._now()),
            "Nonce": random.randint(1, _LARGEST_NONCE),
            "SignatureMethod": SHA256,
            "RequestClient": "cmqd",
            **parameters,
        }
        encoded = {name: str(value).encode() for name, value in form.items()}
        encoded[SIGNATURE] = sign(encoded, self._secret_key, method="POST", host=self._host, path=PATH).encode()
        try:
            status, body = self._exchange(urlencode(encoded), TIMEOUT + wait)
        except (OSError, http.client.HTTPException) as error:
            raise EndpointError(action, f"{self.url} did not answer: {error or type(error).__name__}") from error
        if status != 200:
            raise EndpointError(action, f"{self.url} answered with HTTP status {status}")
        try:
            answer = json.loads(body)
            code, message = int(answer["code"]), str(answer["message"])
        except (ValueError, KeyError, TypeError) as error:
            raise EndpointError(action, f"{self.url} did not answer with JSON of API 2.0") from error
        if code:
            raise EndpointError(action, message, code, answer)
        return answer

    def _exchange(self, body: str, timeout: float) -> tuple[int, bytes]:
        """Make a request and return status and body of the answer."""
        while True:
            connection, is_reused = self._take()
            connection.timeout = timeout
            if connection.sock is not None:  # pyright: ignore[reportUnnecessaryComparison]
                connection.sock.settimeout(timeout)
            is_kept = False
            self._busy.add(connection)
            try:
                headers = {"Content-Type": "application/x-www-form-urlencoded"}
                connection.request("POST", PATH, body, headers)
                response = connection.getresponse()
                content = response.read()
                is_kept = not response.will_close
                return response.status, content
            except (ConnectionError, http.client.BadStatusLine):
                # The server closes a connection that was idle for long; that shows at its next use.
                if not is_reused:
                    raise
            finally:
                self._busy.discard(connection)
                if is_kept:
                    self._idle.append(connection)
                else:
                    connection.close()

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and whether it was used before."""
        try:
            return self._idle.pop(), True
        except IndexError:
            kind = http.client.HTTPSConnection if self._is_https else http.client.HTTPConnection
            return kind(self._host), False
