"""Memory and time of requests: the budget of bodies up to a request's end, and hashes in few threads."""

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from cmqd_gateway.cmq.api2.signature import unsigned_names
from cmqd_gateway.http.turns import HASHED_AT_ONCE, THREAD_BYTES, HashThreads, in_turns
from support.eventually import eventually
from support.gateway.cmq_requests import encoded
from support.gateway.gateway_rig import GatewayRig
from support.gateway.rest_calls import RestCalls

LARGE = 2_500_000


async def test_bodies_count_while_the_broker_does_not_answer_for_their_key():
    async with GatewayRig(body_memory_bytes=8 << 20) as rig:
        rig.table.answers.clear()
        # A stranger: any id, and a wrong signature.
        form = rig.sign({"Action": "SendMessage", "queueName": "orders", "filler": b"x" * LARGE}) | {"SecretId": b"any"}
        waiting = [asyncio.create_task(rig.post(form)) for _ in range(2)]
        await eventually(lambda: rig.gateway.bodies.bytes_in_use > 2 * LARGE)
        assert rig.gateway.guards.connections_in_request == 2

        refused = [await rig.post(form) for _ in range(3)]
        held = rig.gateway.bodies.bytes_in_use
        rig.table.answers.set()
        answered = await asyncio.gather(*waiting)

        assert [answer["code"] for answer in refused] == [4420] * 3
        assert all("too many large requests" in answer["message"] for answer in refused)
        assert held < 3 * LARGE
        assert [answer["code"] for answer in answered] == [4100] * 2
        assert rig.gateway.bodies.bytes_in_use == 0
        assert (await rig.post(form))["code"] == 4100


async def test_small_requests_find_memory_beside_large_bodies():
    async with GatewayRig(body_memory_bytes=8 << 20) as rig:
        rig.clock.hold()  # the secret of the key stays confirmed
        assert (await rig.call("ListQueue"))["code"] == 0
        rig.table.answers.clear()
        form = rig.sign({"Action": "ListQueue", "filler": b"x" * LARGE}) | {"SecretId": b"any"}
        waiting = [asyncio.create_task(rig.post(form)) for _ in range(2)]
        await eventually(lambda: rig.gateway.bodies.bytes_in_use > 2 * LARGE)

        # The rest of the three quarters is too small for a body of 2 MB, and the fourth quarter is for small bodies.
        assert (await rig.call("SendMessage", queueName="orders", msgBody="small"))["code"] == 0
        rig.table.answers.set()
        await asyncio.gather(*waiting)


async def test_tiny_requests_pass_while_slow_bodies_fill_the_budget():
    async with GatewayRig(body_memory_bytes=8 << 20) as rig:
        connections = [await rig.open_raw() for _ in range(160)]
        for _, writer in connections:
            writer.write(b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + b"a" * 59_000)
        await eventually(lambda: rig.gateway.bodies.bytes_in_use > (8 << 20) - 60_000)

        small = await rig.call("SendMessage", queueName="orders", msgBody="x" * 60_000)
        tiny = await rig.call("SendMessage", queueName="orders", msgBody="tiny")

        assert (small["code"], tiny["code"]) == (4420, 0)
        assert rig.gateway.bodies.bytes_in_use <= 8 << 20
        for _, writer in connections:
            writer.transport.abort()
        await eventually(lambda: rig.gateway.bodies.bytes_in_use == 0)


async def test_the_body_of_a_client_that_left_counts_no_more(rig: GatewayRig):
    rig.table.answers.clear()
    form = encoded(rig.sign({"Action": "ListQueue", "filler": b"x" * LARGE}) | {"SecretId": b"any"})
    _, writer = await rig.open_raw()
    writer.write(b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(form) + form)
    await eventually(lambda: rig.gateway.bodies.bytes_in_use == len(form))

    writer.transport.abort()

    await eventually(lambda: rig.gateway.bodies.bytes_in_use == 0)
    rig.table.answers.set()


async def test_bodies_of_the_json_api_count_while_the_broker_works():
    async with GatewayRig(body_memory_bytes=8 << 20) as rig:
        rest = RestCalls(rig)
        await rest.ok("list_queues")
        rig.server.link.hold()
        raw = b'{"body": "x"%s}' % (b" " * LARGE)
        headers = rest.bearer() | {"Content-Type": "application/json"}
        path = "/queues/orders/messages"
        sends = [asyncio.create_task(rest.send("POST", path, raw, headers)) for _ in range(2)]
        await eventually(lambda: rig.gateway.bodies.bytes_in_use == 2 * len(raw))

        refused = await rest.send("POST", path, raw, headers)
        rig.server.link.let_go()
        answers = await asyncio.gather(*sends)

        assert (refused.status, refused.problem().name) == (429, "too_many_requests")
        assert [answer.status for answer in answers] == [201, 201]
        await eventually(lambda: rig.gateway.bodies.bytes_in_use == 0)


@pytest.mark.parametrize(
    ("path", "decoder"), [("cmq", "*/cmq/parameters.py"), ("rest", "*/rest/reading.py")], ids=["cmq", "rest"]
)
async def test_requests_that_the_broker_refuses_wait_for_no_garbage_collector(
    rig: GatewayRig, rest: RestCalls, path: str, decoder: str
):
    form = rig.sign({"Action": "SendMessage", "queueName": "missing", "msgBody": "x" * 300_000})

    async def refused() -> None:
        if path == "cmq":
            assert (await rig.post(form))["code"] == 4440
        else:
            await rest.refused("send_message", status=404, queue="missing", body={"body": "x" * 300_000})

    await refused()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(5):
            await refused()
        await rig.handlers_ended()
        kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, decoder)])
    finally:
        tracemalloc.stop()
        gc.enable()

    # A thread may hold the form of the last hash for a moment longer than the request lasts.
    assert sum(trace.size for trace in kept.traces) < 2 * 300_000


@contextmanager
def released(hold: threading.Event) -> Generator[threading.Event]:
    """Set the event at the end, also of a failed test: the end of its loop waits for the threads that wait here."""
    try:
        yield hold
    finally:
        hold.set()


async def test_signatures_of_large_forms_wait_for_a_thread_and_leave_small_requests_alone(rig: GatewayRig):
    with released(threading.Event()) as hold:
        blocked = [asyncio.create_task(rig.gateway.hashes.run(hold.wait)) for _ in range(2)]
        await eventually(lambda: rig.gateway.hashes.at_work == 2)
        large = asyncio.create_task(rig.call("ListQueue", filler="x" * 700_000))
        await eventually(lambda: rig.gateway.bodies.bytes_in_use > 700_000)

        small = await rig.call("SendMessage", queueName="orders", msgBody="small")
        assert not large.done()

    assert small["code"] == 0
    assert (await large)["code"] == 0
    await asyncio.gather(*blocked)


@pytest.mark.parametrize("names", [(), ("a.example", "b.example", "c.example", "d.example")])
@pytest.mark.parametrize("size", [1_000, 60_000, 120_000, 200_000])
async def test_the_loop_hashes_few_bytes_for_a_wrong_signature(
    monkeypatch: pytest.MonkeyPatch, size: int, names: tuple[str, ...]
):
    on_loop = list[int]()
    loop_thread = threading.get_ident()

    def recorded(
        form: Mapping[str, bytes], secret_key: str, *, hosts: Iterable[str], **others: Any
    ) -> Sequence[str] | None:
        hosts = list(hosts)
        if threading.get_ident() == loop_thread:
            on_loop.append(2 * len(form["filler"]) * len(hosts))
        return unsigned_names(form, secret_key, hosts=hosts, **others)

    monkeypatch.setattr("cmqd_gateway.cmq.api2.signed_forms.unsigned_names", recorded)
    async with GatewayRig(public_names=names, wrong_key_pause_seconds=0) as rig:
        request = {"Action": "ListQueue", "filler": "@" * size}

        assert (await rig.post(rig.sign(request)))["code"] == 0
        assert (await rig.post(rig.sign_for("d.example", request)))["code"] == (0 if names else 4100)
        assert (await rig.post(rig.sign(request) | {"Signature": b"wrong"}))["code"] == 4100

    assert bool(on_loop) == (size < THREAD_BYTES)
    assert max(on_loop, default=0) <= HASHED_AT_ONCE


async def test_hashes_wait_for_a_free_thread_also_behind_a_cancelled_caller():
    threads = HashThreads(2)
    begun = list[int]()
    with released(threading.Event()) as hold:

        def hash_(number: int) -> int:
            begun.append(number)
            hold.wait()
            return number

        tasks = [asyncio.create_task(threads.run(lambda number=number: hash_(number))) for number in range(5)]
        await eventually(lambda: len(begun) == 2)
        # One caller with a thread and one in line leave. The thread is not free before its function ends.
        tasks[0].cancel()
        tasks[3].cancel()
        await asyncio.wait([tasks[0], tasks[3]])
        assert threads.at_work == 2
        assert len(begun) == 2

    assert await asyncio.gather(tasks[1], tasks[2], tasks[4]) == [1, 2, 4]
    await eventually(lambda: threads.at_work == 0)
    assert sorted(begun) == [0, 1, 2, 4]


async def test_an_error_of_a_hash_reaches_its_caller_and_frees_the_thread():
    threads = HashThreads(1)

    def fail() -> None:
        raise LookupError("no key")

    for _ in range(3):
        with pytest.raises(LookupError, match="no key"):
            await threads.run(fail)
    await eventually(lambda: threads.at_work == 0)


async def test_work_in_turns_gives_other_tasks_a_turn_at_each_step():
    turns: list[str] = []

    def steps(name: str) -> Generator[None, None, str]:
        for _ in range(3):
            turns.append(name)
            yield
        return name

    assert await asyncio.gather(in_turns(steps("a")), in_turns(steps("b"))) == ["a", "b"]
    assert turns == ["a", "b"] * 3
