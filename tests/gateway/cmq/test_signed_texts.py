"""The texts that are signed with the secret of a key: no MAC of one text is a signature at the door of another."""

import base64
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.console.signed_texts import Purpose, SignedText, sign
from cmqd_protocol.handshake import client_proof
from support.gateway.api3_requests import Api3Calls, old_form
from support.gateway.cmq_requests import PATH, encoded
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_program import TcpProgram, signature_of

ROOT = Path(__file__).parents[3]
SIGNERS = {
    "client/cmqd_gateway/cmq/api2/signature.py": {"API 2.0", "API 2.0 at /", "API 3.0, form"},
    "client/cmqd_gateway/cmq/api3/tc3_signature.py": {"API 3.0, TC3"},
    "client/cmqd_gateway/cmq/tcp/login.py": {"TCP"},
    "client/cmqd_gateway/console/signed_texts.py": set(Purpose),
    "protocol/cmqd_protocol/handshake.py": {"native"},
    # With the secret of a subscription, not of a key.
    "cmqd/server/push/webhooks.py": set[str](),
}
"""The modules that make MACs, with the doors whose texts they sign."""
Accepts = Callable[[bytes], Awaitable[bool]]


def form_door(rig: GatewayRig, path: str) -> tuple[bytes, Accepts]:
    """Return the MAC of a request of API 2.0, and a function that sends the request with a MAC."""
    form = rig.sign({"Action": "ListQueue", "SignatureMethod": "HmacSHA256"}, path=path)

    async def accepts(mac: bytes) -> bool:
        body = encoded(form | {"Signature": base64.b64encode(mac)})
        return (await rig.post_raw(body, path=path))["code"] == 0

    return base64.b64decode(form["Signature"]), accepts


def api3_form_door(rig: GatewayRig) -> tuple[bytes, Accepts]:
    """Return the same for the older form of API 3.0."""
    calls = Api3Calls(rig)
    request = old_form("DescribeCmqQueues", {}, calls.key, rig.host)
    start, own = request.body.split(b"&Signature=")

    async def accepts(mac: bytes) -> bool:
        body = start + b"&Signature=" + quote(base64.b64encode(mac), safe="").encode()
        return "Error" not in await calls.send(request._replace(body=body))

    return base64.b64decode(unquote_to_bytes(own)), accepts


def tc3_door(rig: GatewayRig) -> tuple[bytes, Accepts]:
    """Return the same for TC3-HMAC-SHA256."""
    calls = Api3Calls(rig)
    request = calls.prepare("DescribeCmqQueues", {})
    start, own = request.headers["Authorization"].split("Signature=")

    async def accepts(mac: bytes) -> bool:
        headers = request.headers | {"Authorization": f"{start}Signature={mac.hex()}"}
        return "Error" not in await calls.send(request._replace(headers=headers))

    return bytes.fromhex(own), accepts


def tcp_door(rig: GatewayRig) -> tuple[bytes, Accepts]:
    """Return the same for a log-in over CMQ's TCP protocol."""

    async def accepts(mac: bytes) -> bool:
        signature = base64.b64encode(mac).decode()
        async with TcpProgram(rig) as program:
            return (await program.log_in(client_id="c", method="HmacSHA256", signature=signature)).result == 0

    return base64.b64decode(signature_of("c", rig.own_key, "sha256")), accepts


def token_door(key: KeySecret, purpose: Purpose) -> tuple[bytes, Accepts]:
    """Return the same for a cookie or a sign-in link of the console."""

    async def accepts(mac: bytes) -> bool:
        return SignedText(key.secret_id, 1, 2, "n", mac.hex()).is_signed(purpose, key.secret_key)

    return bytes.fromhex(sign(purpose, key.secret_id, key.secret_key, 1, 2, "n").mac), accepts


def native_door(key: KeySecret) -> tuple[bytes, Accepts]:
    """Return the same for the log-in of the native protocol, which compares with its proof."""
    proof = client_proof(key.secret_key, b"transcript")

    async def accepts(mac: bytes) -> bool:
        return mac == proof

    return proof, accepts


async def test_a_mac_is_a_signature_at_its_own_door_alone() -> None:
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0") as rig:
        doors = {
            "API 2.0": form_door(rig, PATH),
            "API 2.0 at /": form_door(rig, "/"),
            "API 3.0, form": api3_form_door(rig),
            "API 3.0, TC3": tc3_door(rig),
            "TCP": tcp_door(rig),
            "native": native_door(rig.own_key),
            **{purpose: token_door(rig.own_key, purpose) for purpose in Purpose},
        }
        accepted = [(text, door) for text, (mac, _) in doors.items() for door in doors if await doors[door][1](mac)]

    assert accepted == [(door, door) for door in doors]
    assert doors.keys() == set().union(*SIGNERS.values())


def test_each_module_that_makes_macs_is_known() -> None:
    makes_macs = re.compile(r"hmac\.(digest|new)\(")
    modules = (path for folder in ("client", "cmqd", "protocol") for path in (ROOT / folder).rglob("*.py"))

    assert {str(path.relative_to(ROOT)) for path in modules if makes_macs.search(path.read_text())} == SIGNERS.keys()
