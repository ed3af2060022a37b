"""Memory and hashes of requests of API 3.0 that are refused: bodies of strangers are dropped at once."""

import asyncio
import gc
import tracemalloc
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.api3.tc3_signature import payload_hash
from support.cases import each_case
from support.eventually import eventually
from support.gateway.api3_requests import Api3Calls, Prepared, fault_of, old_form
from support.gateway.gateway_rig import GatewayRig

LARGE = 100_000
READERS = ["*/http/request_bodies.py", "*/cmq/api2/form.py", "*/cmq/api3/*.py"]
STRANGER = KeySecret("unknown", "secret")


@contextmanager
def without_collector() -> Generator[None]:
    """Switch the garbage collector off, and record allocations."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def held() -> int:
    """Return the bytes that the readers of requests have allocated, and that are still in use."""
    snapshot = tracemalloc.take_snapshot()
    traces = snapshot.filter_traces([tracemalloc.Filter(True, reader) for reader in READERS]).traces
    return sum(trace.size for trace in traces)


def large_requests(calls: Api3Calls) -> dict[str, Prepared]:
    """Return requests with large bodies by the codes of their refusals."""
    send = calls.prepare("SendCmqMsg", {"QueueName": "orders", "MsgContent": "x" * LARGE})
    form = old_form("SendCmqMsg", {"QueueName": "orders", "MsgContent": "x" * LARGE}, calls.key, calls.rig.host)
    return {
        "InvalidParameter": calls.prepare("SendCmqMsg", {"QueueName": "orders", "Deep": [[[[[["x" * LARGE]]]]]]}),
        "InvalidParameterValue": send._replace(headers=send.headers | {"X-TC-Timestamp": "today"}),
        "MissingParameter": form._replace(body=form.body.replace(b"SecretId=", b"SecretId=&was=")),
        "ResourceNotFound": calls.prepare("SendCmqMsg", {"QueueName": "missing", "MsgContent": "x" * LARGE}),
    }


@each_case("code", ["InvalidParameter", "InvalidParameterValue", "MissingParameter", "ResourceNotFound"])
async def test_refused_requests_wait_for_no_garbage_collector(rig: GatewayRig, code: str):
    calls = Api3Calls(rig)
    request = large_requests(calls)[code]
    assert fault_of(await calls.send(request)).code == code

    with without_collector():
        for _ in range(5):
            await calls.send(request)
        await rig.handlers_ended()
        kept = held()

    assert kept < 2 * LARGE


async def test_a_form_is_dropped_before_the_pause_of_a_wrong_signature():
    async with GatewayRig(wrong_key_pause_seconds=3_600) as rig:
        wrong = KeySecret(rig.own_key.secret_id, "wrong")
        request = old_form("SendCmqMsg", {"QueueName": "orders", "MsgContent": "x" * LARGE}, wrong, rig.host)
        head = f"POST / HTTP/1.1\r\nHost: {rig.host}\r\nContent-Length: {len(request.body)}\r\n\r\n".encode()
        with without_collector():
            writers = [(await rig.open_raw())[1] for _ in range(5)]
            for writer in writers:
                writer.write(head + request.body)
            await eventually(lambda: rig.gateway.paused_refusals == len(writers))
            kept = held()
        for writer in writers:
            writer.transport.abort()
        await eventually(lambda: rig.gateway.paused_refusals == 0)

    assert kept < 2 * LARGE


async def test_the_body_of_an_unknown_key_is_not_hashed(rig: GatewayRig, monkeypatch: pytest.MonkeyPatch):
    hashed = list[int]()

    def recorded(payload: bytes) -> str:
        hashed.append(len(payload))
        return payload_hash(payload)

    monkeypatch.setattr("cmqd_gateway.cmq.api3.requests.payload_hash", recorded)
    calls, stranger = Api3Calls(rig), Api3Calls(rig, key=STRANGER)

    fault = await stranger.fault("SendCmqMsg", QueueName="orders", MsgContent="x" * LARGE)
    assert (fault.code, hashed) == ("AuthFailure.SecretIdNotFound", [])
    await calls.ok("SendCmqMsg", QueueName="orders", MsgContent="x")
    assert len(hashed) == 1


async def test_refused_requests_release_their_bodies(rig: GatewayRig):
    calls = Api3Calls(rig)

    await asyncio.gather(*(calls.send(request) for request in large_requests(calls).values()))

    await eventually(lambda: rig.gateway.bodies.bytes_in_use == 0)
