"""Signed requests of API 3.0, made as its documents describe them and without a line of the gateway's code.

    calls = Api3Calls(rig)
    await calls.ok("CreateCmqQueue", QueueName="jobs")          the fields of the answer; an error fails the test
    await calls.fault("CreateCmqQueue", QueueName="jobs")       code and message of the error

A request that a test wants to change is made with :func:`tc3` or :func:`old_form` and sent with :meth:`Api3Calls.send`.
"""

import hashlib
import hmac
import io
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

import yarl

from cmqd_gateway.callers.key_secrets import KeySecret
from support.gateway.cmq_requests import encoded, signed
from support.gateway.gateway_rig import GatewayRig

VERSION = "2020-02-17"


class Prepared(NamedTuple):
    """A request that is ready to be sent."""

    method: str
    query: str
    headers: dict[str, str]
    body: bytes


class Fault(NamedTuple):
    """The error of an answer."""

    code: str
    message: str


def flat(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return parameters as a form: ``Name.0``, ``Name.0.Key``."""
    form: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, list):
            value = {str(index): entry for index, entry in enumerate(cast("list[Any]", value))}
        if isinstance(value, dict):
            form |= flat(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            form[f"{prefix}{name}"] = value
    return form


def tc3(
    action: str,
    parameters: Mapping[str, Any],
    key: KeySecret,
    host: str,
    *,
    method: str = "POST",
    version: str = VERSION,
    timestamp: int | None = None,
    date: str | None = None,
    service: str = "tdmq",
    signed_headers: Sequence[str] = ("content-type", "host"),
    payload: bytes | None = None,
    **headers: str,
) -> Prepared:
    """Return a request that is signed with TC3-HMAC-SHA256.

    Args:
        action: name of the action.
        parameters: its parameters.
        key: the key pair.
        host: host and port of the endpoint.
        method: ``POST`` with JSON, or ``GET`` with a query.
        version: of the header.
        timestamp: seconds since 1970; None = now.
        date: date of the scope; None = the day of the time stamp.
        service: service of the scope.
        signed_headers: names in lower case.
        payload: the signed payload; None = the body.
        headers: further headers and changes, with ``_`` for ``-``.
    """
    stamp = int(time.time()) if timestamp is None else timestamp
    date = datetime.fromtimestamp(stamp, UTC).strftime("%Y-%m-%d") if date is None else date
    body = json.dumps(parameters).encode() if method == "POST" else b""
    query = urlencode(flat(parameters)) if method == "GET" else ""
    sent = {
        "Host": host,
        "Content-Type": "application/json" if method == "POST" else "application/x-www-form-urlencoded",
        "X-TC-Action": action,
        "X-TC-Version": version,
        "X-TC-Timestamp": str(stamp),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    values = {name.lower(): value for name, value in sent.items()}
    names = ";".join(signed_headers)
    canonical = "\n".join(
        [
            *(method, "/", query),
            *(f"{name}:{values[name]}" for name in signed_headers),
            *("", names, hashlib.sha256(body if payload is None else payload).hexdigest()),
        ]
    )
    scope = f"{date}/{service}/tc3_request"
    text = f"TC3-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    secret = f"TC3{key.secret_key}".encode()
    for part in (date, service, "tc3_request"):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
    sent["Authorization"] = (
        f"TC3-HMAC-SHA256 Credential={key.secret_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return Prepared(method, query, sent, body)


def old_form(
    action: str,
    parameters: Mapping[str, Any],
    key: KeySecret,
    host: str,
    *,
    method: str = "POST",
    algorithm: str = "HmacSHA256",
    **changes: Any,
) -> Prepared:
    """Return a request of the older form; ``changes`` are further common parameters."""
    form = {"Action": action, "Version": VERSION, "SignatureMethod": algorithm, "Language": "en-US", **changes}
    form |= flat(parameters)
    text = encoded(signed(form, key.secret_id, key.secret_key, host=host, method=method, path="/"))
    if method == "GET":
        return Prepared(method, text.decode(), {"Host": host}, b"")
    return Prepared(method, "", {"Host": host, "Content-Type": "application/x-www-form-urlencoded"}, text)


class Api3Calls:
    """Calls with a key; by default the admin's."""

    def __init__(self, rig: GatewayRig, *, key: KeySecret | None = None) -> None:
        self.rig = rig
        self.key = key or rig.own_key

    async def send(self, request: Prepared) -> dict[str, Any]:
        """Send a request and return the content of its envelope, without the number of the request."""
        url = yarl.URL(f"http://{self.rig.host}/{'?' if request.query else ''}{request.query}", encoded=True)
        body = io.BytesIO(request.body) if request.method == "POST" else None
        async with self.rig.session.request(request.method, url, data=body, headers=request.headers) as response:
            text = await response.read()
            assert response.status == 200, text
            # Another media type hides errors from the SDK.
            assert response.headers["Content-Type"] == "application/json"
        answer = json.loads(text)
        assert answer.keys() == {"Response"}
        assert len(answer["Response"].pop("RequestId")) == 24
        return answer["Response"]

    def prepare(self, action: str, parameters: Mapping[str, Any], **options: Any) -> Prepared:
        """Return a request that is signed with TC3."""
        return tc3(action, parameters, options.pop("key", self.key), options.pop("host", self.rig.host), **options)

    async def ok(self, action: str, /, **parameters: Any) -> dict[str, Any]:
        """Return the fields of an answer without an error."""
        answer = await self.send(self.prepare(action, parameters))
        assert "Error" not in answer, answer
        return answer

    async def fault(self, action: str, /, **parameters: Any) -> Fault:
        """Return the error of an action."""
        return fault_of(await self.send(self.prepare(action, parameters)))


def fault_of(answer: dict[str, Any]) -> Fault:
    """Return the error of an answer that has nothing else."""
    assert answer.keys() == {"Error"}, answer
    assert answer["Error"].keys() == {"Code", "Message"}
    return Fault(answer["Error"]["Code"], answer["Error"]["Message"])
