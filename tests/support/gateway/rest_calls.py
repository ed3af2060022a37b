"""Requests to the JSON API of a gateway, by the names of the operations.

    sent = await rest.ok("send_message", queue="orders", body={"body": "x"})       a reply of the operation's type
    problem = await rest.refused("get_queue", queue="nope")                        the problem of a refused request

``ok`` checks status, media type and type of a reply; ``refused`` checks the same of a problem.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec
import yarl

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.rest.operation import Operation
from cmqd_gateway.rest.problems import Problem
from cmqd_gateway.rest.table import BASE, OPERATIONS
from support.gateway.gateway_rig import GatewayRig

BY_NAME: Final[Mapping[str, Operation[Any, Any, Any]]] = {operation.name: operation for operation in OPERATIONS}


class Answer(NamedTuple):
    """An answer as it came."""

    status: int
    content_type: str
    headers: Mapping[str, str]
    body: bytes

    def problem(self) -> Problem:
        """Return the problem; the answer must be one."""
        assert self.content_type == "application/problem+json", (self.status, self.body)
        problem = msgspec.json.decode(self.body, type=Problem)
        assert problem.status == self.status
        assert problem.type == f"urn:cmqd:error:{problem.name}"
        return problem


class RestCalls:
    """See the module."""

    def __init__(self, rig: GatewayRig, key: KeySecret | None = None) -> None:
        self.rig = rig
        self.key = rig.own_key if key is None else key
        """The key of the calls, by default that of ``admin``."""
        self.succeeded: set[str] = set()
        """Names of the operations that ``ok`` has called."""

    async def in_account(self, account: str) -> "RestCalls":
        """Return calls with the key of a new account, which has the queue ``orders``."""
        made = await self.ok("create_account", account=account)
        key = self.rig.table.keys[made.key.secret_id] = KeySecret(made.key.secret_id, made.secret_key)
        calls = RestCalls(self.rig, key)
        await calls.ok("create_queue", queue="orders")
        return calls

    def bearer(self, key: KeySecret | None = None) -> dict[str, str]:
        """Return the header with a key, by default the key of the calls."""
        used = self.key if key is None else key
        return {"Authorization": f"Bearer {used.secret_id}:{used.secret_key}"}

    async def send(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        query: Sequence[tuple[str, str]] = (),
    ) -> Answer:
        """Make a request to a path below ``/api/v1`` with these headers alone."""
        url = yarl.URL(f"http://{self.rig.host}{BASE}{path}", encoded=True).with_query(list(query))
        async with self.rig.session.request(
            method,
            url,
            data=None if data is None else io.BytesIO(data),
            headers=headers,
            skip_auto_headers=("Content-Type",),
            allow_redirects=False,
        ) as response:
            return Answer(response.status, response.content_type, response.headers, await response.read())

    async def answer(
        self,
        name: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        key: KeySecret | None = None,
        **names: str,
    ) -> Answer:
        """Call an operation; a list in the query stands there once per element."""
        operation = BY_NAME[name]
        pairs: list[tuple[str, str]] = []
        for field, value in (query or {}).items():
            entries = cast("list[Any]", value) if isinstance(value, list) else [value]
            pairs += [(field, str(entry)) for entry in entries]
        data = None if body is None else msgspec.json.encode(body)
        sent = self.bearer(key) | ({} if data is None else {"Content-Type": "application/json"}) | dict(headers or {})
        return await self.send(operation.method, operation.path.format(**names), data, sent, pairs)

    async def ok(self, name: str, *, status: int | None = None, **request: Any) -> Any:
        """Call an operation that succeeds, and return its reply in the operation's type."""
        operation = BY_NAME[name]
        answer = await self.answer(name, **request)
        assert answer.status in operation.statuses, (name, answer.status, answer.body)
        assert status in (None, answer.status)
        assert answer.headers["Cache-Control"] == "no-store"
        self.succeeded.add(name)
        if operation.reply is None:
            assert answer.body == b""
            return None
        assert answer.content_type == "application/json"
        reply = msgspec.json.decode(answer.body, type=operation.reply)
        # The reply has no field that its type, and so the OpenAPI document, lacks.
        assert msgspec.json.decode(msgspec.json.encode(reply)) == msgspec.json.decode(answer.body)
        return reply

    async def refused(self, name: str, *, status: int | None = None, **request: Any) -> Problem:
        """Call an operation that fails, and return the problem."""
        problem = (await self.answer(name, **request)).problem()
        assert status in (None, problem.status), problem
        return problem

    async def received(self, queue: str, **body: Any) -> list[Any]:
        """Receive without waiting, and return the messages."""
        reply = await self.ok("receive_messages", queue=queue, body={"wait": 0, "max_messages": 16} | body)
        return reply.messages
