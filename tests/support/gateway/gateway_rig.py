"""A gateway before a broker of ``support.client.local_server``, and requests to it.

    async with GatewayRig() as rig:
        answer = await rig.call("SendMessage", queueName="orders", msgBody="x")
        rig.add_key("another", "secret")

The gateway's origin of secrets is a table of the test, which counts the questions.

With ``CMQD_GATEWAY_PROCESSES=2`` the gateway is a further process of two, with a first one beside it: a gateway of the
same event loop, with the shared memory and the channel that two processes have.
"""

import asyncio
import contextlib
import dataclasses
import io
import json
import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import aiohttp
import yarl

from cmqd_client import Client, connect
from cmqd_client.address import parse_address
from cmqd_client.errors import CmqError
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.process.gateway_settings import Settings
from cmqd_gateway.processes.share import Shares
from cmqd_gateway.server import GatewayServer
from support.client.local_server import LocalServer
from support.gateway.cmq_requests import PATH, encoded, signed
from support.gateway.processes import IS_FURTHER


class KeyTable:
    """An origin of secrets that a test fills."""

    def __init__(self) -> None:
        self.keys: dict[str, KeySecret] = {}
        self.questions: list[str] = []
        self.failure: CmqError | None = None
        self.answers = asyncio.Event()
        """A test clears it to hold the answers back, as a broker does that is away."""
        self.answers.set()

    async def fetch(self, secret_id: str) -> KeySecret | None:
        self.questions.append(secret_id)
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        return self.keys.get(secret_id)


class RigClock:
    """The clock of a gateway: the real clock, which a test turns further or holds."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._held: float | None = None

    def __call__(self) -> float:
        return self._offset + (time.monotonic() if self._held is None else self._held)

    def hold(self) -> None:
        """Stop the clock at the next whole 1/1024 s, a number that a float adds to seconds without rounding.

        With all digits of the machine's clock, a sum that crosses a power of two (1,024 s after the machine's start,
        2,048 s and so on) is rounded: a deadline that a test reaches exactly would lie some picoseconds ahead.
        """
        self._held = math.ceil(time.monotonic() * 1024) / 1024

    def advance(self, seconds: float) -> None:
        self._offset += seconds


class GatewayRig:
    """See the module."""

    def __init__(
        self, *, broker: Mapping[str, Any] | None = None, beside: "GatewayRig | None" = None, **settings: Any
    ) -> None:
        """Make a rig with settings of the gateway, and with settings of the broker, or before the broker of a rig."""
        settings.setdefault("listen", "127.0.0.1:0")
        settings.setdefault("wrong_key_pause_seconds", 0.0)
        self.settings = Settings(**settings)
        self._has_server = beside is None
        self.server = LocalServer(**(broker or {})) if beside is None else beside.server
        self.table = KeyTable()
        self.retries: int | None = 1
        """Repeats of a request that the broker refused for now, as an argument of ``connect``."""
        self.patience = 300.0
        self.clients: list[Client] = []
        """The gateway's clients of the broker, closed clients too."""
        self.clock = RigClock()
        """The gateway's clock."""
        self.wall_offset = 0.0
        """Seconds by which the gateway's time of day is ahead of the machine's."""
        self.held_wall: float | None = None
        """The time that stands for the machine's time of day; None = the machine's."""
        self._ended = contextlib.ExitStack()
        self.gateway: Gateway
        self.http_server: GatewayServer
        self.first: Gateway | None = None
        """The gateway of the first process, if this gateway is a further one."""
        self.first_server: GatewayServer | None = None
        self.is_further = IS_FURTHER and not self.settings.listen_cmq_tcp and not self.settings.metrics_listen
        """True for a further process, which has neither CMQ's TCP protocol nor a listener for metrics."""
        self.session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        if self._has_server:
            await self.server.__aenter__()
        address = parse_address(self.server.url)
        self.own_key: KeySecret = KeySecret(address.secret_id, address.secret_key)
        self.table.keys[self.own_key.secret_id] = self.own_key

        def make_client(key: KeySecret) -> Client:
            own = parse_address(self.server.url)
            url = f"cmq://{key.secret_id}:{key.secret_key}@{own.host}:{own.port}"
            client = connect(
                url,
                patience=self.patience,
                retries=self.retries,
                request_timeout=300,
                connect_timeout=300,
                tracing=False,
            )
            self.clients.append(client)
            return client

        shares = self._shares() if self.is_further else None
        if shares is not None:
            first_settings = dataclasses.replace(
                self.settings, listen="127.0.0.1:0", listen_https="", tls_certificate=None, tls_key=None
            )
            self.first = Gateway(
                first_settings, self.table, make_client, self.clock, self._time_of_day, share=shares.of(0)
            )
            self.first_server = GatewayServer(self.first)
            await self.first_server.start()
        share = None if shares is None else shares.of(1)
        self.gateway = Gateway(self.settings, self.table, make_client, self.clock, self._time_of_day, share=share)
        self.http_server = GatewayServer(self.gateway)
        await self.http_server.start()
        # Without a time limit: a machine with much to do is slow, and the suite has a limit of its own.
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.close()
        await self.http_server.close()
        if self.first_server is not None:
            await self.first_server.close()
        self._ended.close()
        if self._has_server:
            await self.server.__aexit__(kind, error, trace)

    def _shares(self) -> Shares:
        folder = self._ended.enter_context(tempfile.TemporaryDirectory())
        shares = Shares(2, self.settings.max_requests_per_second_per_key, Path(folder))
        shares.rates.now = self.clock
        self._ended.callback(shares.close)
        return shares

    def _time_of_day(self) -> float:
        return (time.time() if self.held_wall is None else self.held_wall) + self.wall_offset

    @property
    def console(self) -> Gateway:
        """The gateway that has the console: of two processes the first."""
        return self.first or self.gateway

    @property
    def host(self) -> str:
        """``host:port`` of the HTTP listener."""
        host, port = self.http_server.addresses[0]
        return f"{host}:{port}"

    @property
    def tcp_address(self) -> tuple[str, int]:
        """Host and port of CMQ's TCP protocol."""
        assert self.gateway.cmq_tcp is not None, "the rig needs listen_cmq_tcp"
        return self.gateway.cmq_tcp.address

    def key_changed(self, secret_id: str | None) -> None:
        """Report a change of a key, as the broker reports it to each process."""
        for gateway in filter(None, (self.first, self.gateway)):
            gateway.key_changed(secret_id)

    def add_key(self, secret_id: str, secret_key: str, *, enabled: bool = True) -> KeySecret:
        """Tell the gateway of another key."""
        self.table.keys[secret_id] = key = KeySecret(secret_id, secret_key, enabled)
        return key

    def sign(self, parameters: Mapping[str, Any], *, method: str = "POST", **named: Any) -> dict[str, bytes]:
        """Return signed parameters, by default with the admin's key."""
        key: KeySecret = named.pop("key", self.own_key)
        return signed(parameters, key.secret_id, key.secret_key, host=self.host, method=method, **named)

    def sign_for(self, host: str, parameters: Mapping[str, Any]) -> dict[str, bytes]:
        """Return parameters signed for another host."""
        return signed(parameters, self.own_key.secret_id, self.own_key.secret_key, host=host)

    async def call(self, action: str, *, method: str = "POST", **parameters: Any) -> dict[str, Any]:
        """Call an action; lists become ``name.1``, ``name.2`` ..."""
        flat: dict[str, Any] = {"Action": action}
        for name, value in parameters.items():
            if isinstance(value, list):
                entries = cast("list[Any]", value)
                flat |= {f"{name}.{index}": entry for index, entry in enumerate(entries, 1)}
            else:
                flat[name] = value
        return await self.post(self.sign(flat, method=method), method=method)

    async def post(self, form: Mapping[str, bytes], *, method: str = "POST", path: str = PATH) -> dict[str, Any]:
        """Make a request with a signed form, and return its answer."""
        return await self.post_raw(encoded(form), method=method, path=path)

    async def post_raw(
        self, body: bytes, *, method: str = "POST", path: str = PATH, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Make a request with these bytes as body or query string."""
        url = f"http://{self.host}{path}"
        if method == "GET":
            request = self.session.get(yarl.URL(f"{url}?{body.decode()}", encoded=True), headers=headers)
        else:
            request = self.session.request(method, url, data=io.BytesIO(body), headers=headers)
        async with request as response:
            assert response.status == 200, await response.text()
            return json.loads(await response.read())

    async def open_raw(self) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
        """Open a plain connection, for requests that no HTTP client would make."""
        host, port = self.http_server.addresses[0]
        return await asyncio.open_connection(host, port)

    async def handlers_ended(self) -> None:
        """Wait until no handler is at work."""
        while self.gateway.guards.connections_in_request:
            # The handlers need turns of this loop.
            await self.server.status("waiting_receives")
