"""Refusals of wrong keys: they wait, one connection gets few of them, and other requests are served meanwhile."""

import pytest

from cmqd_gateway.process.gateway_settings import Settings
from support.eventually import eventually
from support.gateway.cmq_requests import PATH, encoded
from support.gateway.gateway_rig import GatewayRig


def wrong_requests(rig: GatewayRig) -> dict[str, bytes]:
    """Return requests with wrong keys, one for each way of proving a key."""
    form = encoded({**rig.sign({"Action": "ListQueue", "padding": "x" * 1_000}), "Signature": b"wrong"})
    unknown = encoded({**rig.sign({"Action": "ListQueue"}), "SecretId": b"other"})

    def post(body: bytes) -> bytes:
        return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (PATH.encode(), len(body), body)

    def get(path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rig.own_key.secret_id}:wrong\r\n\r\n".encode()

    return {
        "a signature": post(form),
        "an unknown id": post(unknown),
        "the JSON API": get("/api/v1/queues"),
        "metrics": get("/metrics"),
    }


@pytest.mark.parametrize("which", ["a signature", "an unknown id", "the JSON API", "metrics"])
async def test_the_refusal_of_a_wrong_key_waits_and_holds_nothing(which: str):
    async with GatewayRig(wrong_key_pause_seconds=60) as rig:
        _, writer = await rig.open_raw()
        # Twice: the second refusal waits behind the first.
        writer.write(wrong_requests(rig)[which] * 2)

        await eventually(lambda: rig.gateway.paused_refusals == 1)

        assert rig.gateway.bodies.bytes_in_use == 0
        assert (await rig.call("ListQueue"))["code"] == 0
        assert rig.gateway.paused_refusals == 1
        # A client that leaves does not wait.
        writer.transport.abort()
        await eventually(lambda: rig.gateway.paused_refusals == 0)


@pytest.mark.parametrize("which", ["a signature", "an unknown id", "the JSON API", "metrics"])
async def test_after_the_pause_the_refusal_comes(which: str):
    async with GatewayRig(wrong_key_pause_seconds=0.001) as rig:
        reader, writer = await rig.open_raw()
        writer.write(wrong_requests(rig)[which])

        head = await reader.readuntil(b"\r\n\r\n")

        # Over API 2.0 every answer has status 200.
        assert head.split(b" ")[1] == (b"200" if which in ("a signature", "an unknown id") else b"401")
        writer.close()


async def test_other_refusals_do_not_wait():
    async with GatewayRig(wrong_key_pause_seconds=60) as rig:
        assert (await rig.call("DeleteQueue", queueName="missing"))["code"] == 4440


def test_a_gateway_pauses_unless_it_is_told_otherwise():
    assert Settings().wrong_key_pause_seconds == 0.5
