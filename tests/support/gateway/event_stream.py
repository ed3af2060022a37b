"""The event stream of the console, read as a browser reads it.

async with EventStream(rig, key) as events:
    figures = await events.next("figures")         waits; events of other names in between are passed over
"""

import json
from types import TracebackType
from typing import Any, Self

import aiohttp

from cmqd_gateway.callers.key_secrets import KeySecret
from support.gateway.gateway_rig import GatewayRig


class EventStream:
    """See the module."""

    def __init__(self, rig: GatewayRig, key: KeySecret | None = None, cookie: str = "") -> None:
        """Make a stream of a key, by default of ``admin``, or of the session of a cookie."""
        self._rig = rig
        used = rig.own_key if key is None else key
        authorization = {"Authorization": f"Bearer {used.secret_id}:{used.secret_key}"}
        self._headers = {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"} if cookie else authorization
        self._response: aiohttp.ClientResponse
        self.seen: list[str] = []
        """The names of the events so far; a comment counts as ``comment``."""

    async def __aenter__(self) -> Self:
        url = f"http://{self._rig.host}/console/events"
        self._response = await self._rig.session.get(url, headers=self._headers)
        assert self._response.status == 200, await self._response.text()
        assert self._response.content_type == "text/event-stream"
        assert self._response.headers["Cache-Control"] == "no-store"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._response.close()

    async def next(self, name: str) -> Any:
        """Return the data of the next event of a name.

        Raises:
            EOFError: the stream ended without such an event.
        """
        while True:
            event, data = await self._event()
            self.seen.append(event)
            if event == name:
                return data

    async def ended(self) -> bool:
        """Return True if the stream has ended behind the last event."""
        return await self._response.content.read() == b""

    async def _event(self) -> tuple[str, Any]:
        name, data = "", None
        while line := (await self._response.content.readline()).decode():
            if line.startswith(":"):
                name = "comment"
            elif line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
            elif line == "\n" and name:
                return name, data
        raise EOFError(f"the stream ended after {self.seen}")
