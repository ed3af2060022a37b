"""``/metrics``, ``/healthz`` and ``/readyz``: permissions to read, listeners, and the form of the answers."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cmqd_client import Client, connect
from cmqd_client.errors import ConnectionLost
from cmqd_gateway import server
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.monitoring import readiness
from cmqd_gateway.monitoring.collector import exposition
from cmqd_gateway.monitoring.metrics_readings import FigureCache, read_figures
from cmqd_gateway.monitoring.readiness import KEPT_SECONDS, SILENT_SECONDS, Readiness
from cmqd_gateway.process.gateway_settings import Settings
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig, RigClock

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples_of(text: str) -> Samples:
    """The values of an answer by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**named: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(named.items()))


async def get(rig: GatewayRig, path: str, key: KeySecret | None = None, at: str = "") -> tuple[int, str]:
    headers = {} if key is None else {"Authorization": f"Bearer {key.secret_id}:{key.secret_key}"}
    async with rig.session.get(f"http://{at or rig.host}{path}", headers=headers) as response:
        return response.status, await response.text()


async def metrics(rig: GatewayRig, key: KeySecret) -> Samples:
    status, text = await get(rig, "/metrics", key)
    assert status == 200, text
    return samples_of(text)


async def native(rig: GatewayRig) -> Client:
    client = connect(rig.server.url, tracing=False)
    await client.open()
    return client


async def role_key(rig: GatewayRig, client: Client, *roles: Any, account: str | None = None) -> KeySecret:
    made = await client.accounts.create_key(account=account, roles=roles or None)
    assert made.secret_key is not None
    return rig.add_key(made.secret_id, made.secret_key)


async def test_admin_reads_queues_topics_totals_and_the_broker() -> None:
    async with GatewayRig() as rig:
        client = await native(rig)
        await client.create_queue("parcels")
        topic = await client.create_topic("news")
        await topic.subscribe("to-orders", queue="orders")
        await topic.publish(b"12")
        await client.queue("orders").send(b"345")
        for message in await client.queue("orders").receive(10):
            await message.delete()

        found = await metrics(rig, rig.own_key)

        orders = labels(account="admin", queue="orders")
        assert found["cmqd_queue_messages_sent_total", orders] == 1
        assert found["cmqd_queue_messages_sent_bytes_total", orders] == 3
        assert found["cmqd_queue_messages_copied_total", orders] == 1
        assert found["cmqd_queue_messages_deleted_total", orders] == 2
        assert found["cmqd_queue_messages_received_bytes_total", orders] == 5
        assert found["cmqd_queue_messages", labels(account="admin", queue="parcels", state="active")] == 0
        assert found["cmqd_messages_sent_total", ()] == 1
        assert found["cmqd_queues", ()] == 2
        assert found["cmqd_topic_messages_published_total", labels(account="admin", topic="news")] == 1
        by = labels(account="admin", topic="news", subscription="to-orders")
        assert found["cmqd_subscription_deliveries_total", by] == 1
        assert found["cmqd_commit_duration_seconds_count", ()] == found["cmqd_commit_records_count", ()] > 0
        assert found["cmqd_commit_duration_seconds_bucket", labels(le="+Inf")] > 0
        assert found["cmqd_process_resident_memory_bytes", labels(process="loop")] > 1_000_000
        assert found["cmqd_gateway_keys", ()] == 1
        assert found["cmqd_gateway_keys_ignored_total", labels(door="api2")] == 0
        assert found["cmqd_gateway_broker_connections", labels(use="requests")] == 1
        assert found["cmqd_gateway_broker_connections", labels(use="polls")] == 0
        assert found["cmqd_gateway_broker_connections", labels(use="checks")] == 0
        await client.close()


async def test_the_age_of_the_oldest_message_is_in_seconds_and_0_without_a_message() -> None:
    async with GatewayRig(metrics_cache_seconds=0) as rig:
        client = await native(rig)
        queue = client.queue("orders")
        assert (await metrics(rig, rig.own_key))["cmqd_oldest_message_age_seconds", ()] == 0
        await queue.send(b"1")
        rig.server.advance(90)

        found = await metrics(rig, rig.own_key)

        age = found["cmqd_queue_oldest_message_age_seconds", labels(account="admin", queue="orders")]
        # Seconds, not milliseconds; a busy machine may take its time between the two.
        assert 89 <= age < 3600
        assert found["cmqd_oldest_message_age_seconds", ()] == age
        await client.close()


async def test_another_account_reads_its_own_names_and_nothing_of_the_broker() -> None:
    async with GatewayRig() as rig:
        client = await native(rig)
        made = await client.accounts.create("other")
        assert made.secret_key is not None
        key = rig.add_key(made.secret_id, made.secret_key)

        found = await metrics(rig, key)

        assert found["cmqd_queues", ()] == 0
        assert not [name for name, _ in found if name.startswith(("cmqd_queue_", "cmqd_commit", "cmqd_process"))]
        await client.close()


async def test_a_request_without_a_key_or_with_a_wrong_one_or_without_the_role_is_refused() -> None:
    async with GatewayRig() as rig:
        client = await native(rig)
        sender = await role_key(rig, client, "send")

        assert (await get(rig, "/metrics"))[0] == 401
        assert (await get(rig, "/metrics", KeySecret(rig.own_key.secret_id, "wrong")))[0] == 401
        status, text = await get(rig, "/metrics", sender)
        assert status == 403
        assert "role read" in text
        reader = await role_key(rig, client, "read")
        assert (await get(rig, "/metrics", reader))[0] == 200
        await client.close()


async def test_with_a_key_of_its_own_the_gateway_shows_metrics_to_all_who_reach_the_listener() -> None:
    async with GatewayRig(metrics_listen="127.0.0.1:0", metrics_key_file=Path("metrics.key")) as rig:
        rig.gateway.metrics_key = rig.own_key
        assert rig.http_server.metrics_address is not None
        host, port = rig.http_server.metrics_address

        status, text = await get(rig, "/metrics", at=f"{host}:{port}")

        assert status == 200
        assert (await get(rig, "/metrics"))[0] == 404
        assert samples_of(text)["cmqd_queues", ()] == 1


async def test_a_listener_for_metrics_alone_has_them_alone_and_both_have_the_health() -> None:
    async with GatewayRig(metrics_listen="127.0.0.1:0") as rig:
        assert rig.http_server.metrics_address is not None
        host, port = rig.http_server.metrics_address
        own = f"{host}:{port}"

        assert (await get(rig, "/metrics", rig.own_key))[0] == 404
        assert (await get(rig, "/metrics", rig.own_key, own))[0] == 200
        assert (await get(rig, "/v2/index.php", at=own))[0] == 404
        assert (await get(rig, "/api/v1/queues", rig.own_key, own))[0] == 404
        for at in ("", own):
            assert await get(rig, "/healthz", at=at) == (200, "ok\n")
            assert await get(rig, "/readyz", at=at) == (200, READY)


async def test_only_the_busiest_queues_have_metrics_of_their_own_and_totals_count_all() -> None:
    async with GatewayRig(metrics_top=2) as rig:
        client = await native(rig)
        for number in range(5):
            queue = await client.create_queue(f"queue-{number}")
            for _ in range(number):
                await queue.send(b"x")

        found = await metrics(rig, rig.own_key)

        shown = {dict(its)["queue"] for name, its in found if name == "cmqd_queue_messages_sent_total"}
        assert shown == {"queue-3", "queue-4"}
        assert found["cmqd_messages_sent_total", ()] == found["cmqd_messages", labels(state="active")] == 10
        assert found["cmqd_queues", ()] == 6
        await client.close()


async def test_all_pages_are_read() -> None:
    async with GatewayRig(metrics_top=1000) as rig:
        client = await native(rig)
        names = {f"queue-{number:03}" for number in range(450)}
        await asyncio.gather(*(client.create_queue(name) for name in names))

        figures = await read_figures(client, 1000)

        assert {queue.queue for queue in figures.top.queues} == names | {"orders"}
        assert figures.metrics.queues == 451
        await client.close()


async def test_requests_within_the_time_of_the_cache_share_a_reading_also_while_it_is_under_way() -> None:
    clock = RigClock()
    clock.hold()
    opened = 0
    async with GatewayRig() as rig:
        client = await native(rig)
        cache = FigureCache(10, 1.0, exposition, clock)

        class Opening:
            async def __aenter__(self) -> Client:
                nonlocal opened
                opened += 1
                return client

            async def __aexit__(self, *_: object) -> None:
                pass

        first, second = await asyncio.gather(cache.get("key", Opening), cache.get("key", Opening))
        assert first is second is await cache.get("key", Opening)
        assert opened == 1
        await cache.get("another key", Opening)
        assert opened == 2
        clock.advance(1.0)
        assert await cache.get("key", Opening) is not first
        assert opened == 3
        await client.close()


async def test_a_failed_reading_is_used_as_long_as_a_text_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with GatewayRig() as rig:
        cache = FigureCache(10, 1.0, exposition, rig.clock)
        rig.clock.hold()
        opened = 0

        @contextlib.asynccontextmanager
        async def gone() -> AsyncGenerator[Client]:
            nonlocal opened
            opened += 1
            raise ConnectionLost("the broker is away")
            yield

        for _ in range(5):
            with pytest.raises(ConnectionLost):
                await cache.get("key", gone)
        assert opened == 1
        assert len([record for record in caplog.records if "metrics_not_read" in record.getMessage()]) == 1

        rig.clock.advance(1.0)
        with pytest.raises(ConnectionLost):
            await cache.get("key", gone)
        assert opened == 2


async def test_strangers_write_no_line_to_the_log_while_the_broker_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async with GatewayRig() as rig:
        rig.table.failure = ConnectionLost("the broker is away")

        for number in range(5):
            assert (await get(rig, "/metrics", KeySecret(f"AKIDstranger{number}", "x")))[0] == 503

        assert caplog.records == []


async def test_texts_that_may_no_longer_be_used_leave_memory() -> None:
    async with GatewayRig() as rig:
        rig.clock.hold()
        cache = FigureCache(10, 1.0, exposition, rig.clock)

        @contextlib.asynccontextmanager
        async def gone() -> AsyncGenerator[Client]:
            raise ConnectionLost("the broker is away")
            yield

        for key in ("early", "late"):
            with pytest.raises(ConnectionLost):
                await cache.get(key, gone)
            rig.clock.advance(0.75)

        cache.drop_old()
        assert len(cache) == 1
        rig.clock.advance(0.5)
        cache.drop_old()
        assert len(cache) == 0


async def test_the_gateway_drops_old_texts_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.001)
    async with GatewayRig() as rig:
        assert (await get(rig, "/metrics", rig.own_key))[0] == 200
        rig.clock.advance(rig.settings.metrics_cache_seconds)

        await eventually(lambda: len(rig.gateway.figures) == 0)


async def test_the_answer_before_an_older_broker_says_so() -> None:
    async with GatewayRig() as rig:
        rig.server.link.refuse(wire.GetTopMetrics, ErrorCode.UNKNOWN_OPERATION, "operation 181 is unknown")

        status, text = await get(rig, "/metrics", rig.own_key)

        assert (status, text) == (503, "the broker is older than this gateway and has no metrics\n")


async def test_a_request_that_is_given_up_leaves_the_reading_to_the_others() -> None:
    async with GatewayRig() as rig:
        client = await native(rig)
        cache = FigureCache(10, 1.0, exposition, rig.clock)
        may_open = asyncio.Event()

        class Opening:
            async def __aenter__(self) -> Client:
                await may_open.wait()
                return client

            async def __aexit__(self, *_: object) -> None:
                pass

        tasks = [asyncio.create_task(cache.get("key", Opening)) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        may_open.set()

        assert b"cmqd_queues 1.0" in await tasks[1]
        await client.close()


def test_a_key_for_all_requests_of_metrics_needs_a_listener_for_metrics_alone() -> None:
    with pytest.raises(ValueError, match="metrics_key_file needs metrics_listen"):
        Settings(metrics_key_file=Path("metrics.key"))


class ProbedBroker:
    """A broker that counts the probes, and answers or fails or hangs."""

    def __init__(self, rig: GatewayRig) -> None:
        self.asked = 0
        self.failure: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.probed = asyncio.Event()
        rig.gateway.readiness.probe = self.probe

    async def probe(self) -> None:
        self.asked += 1
        self.probed.set()
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure


READY = "ready\nrole: leader\n"
NOT_READY = (503, "the broker does not answer\nrole: leader\n")


async def test_the_gateway_is_ready_while_the_broker_answers_and_it_does_not_end() -> None:
    async with GatewayRig() as rig:
        broker = ProbedBroker(rig)
        assert (await get(rig, "/readyz"))[0] == 200
        broker.failure = ConnectionLost("the broker at a secret address is gone")
        rig.clock.advance(KEPT_SECONDS)
        assert await get(rig, "/readyz") == NOT_READY
        assert (await get(rig, "/healthz"))[0] == 200
        assert broker.asked == 2
        rig.gateway.is_draining = True
        assert (await get(rig, "/readyz"))[0] == 503


def told(role: str = "leader", reason: str = "") -> bytes:
    return json.dumps({"readiness": {"role": role, "reason": reason}}).encode()


async def test_a_broker_that_is_cut_off_from_its_log_is_not_ready_although_it_answers() -> None:
    async with GatewayRig() as rig:
        rig.clock.hold()
        ProbedBroker(rig)
        assert rig.gateway.readiness.take(told())
        assert await get(rig, "/readyz") == (200, READY)
        assert (await get(rig, "/readyz?role=leader"))[0] == 200
        assert await get(rig, "/readyz?role=standby") == (503, "the broker is a leader\nrole: leader\n")

        rig.gateway.readiness.take(told(reason="the log has not answered for 3.1 s"))
        assert await get(rig, "/readyz") == (503, "the log has not answered for 3.1 s\nrole: leader\n")
        assert (await get(rig, "/healthz"))[0] == 200
        rig.gateway.readiness.take(told())
        assert await get(rig, "/readyz") == (200, READY)


async def test_a_broker_whose_loop_stands_still_is_neither_healthy_nor_ready() -> None:
    async with GatewayRig() as rig:
        rig.clock.hold()
        ProbedBroker(rig)
        rig.clock.advance(3600)
        assert (await get(rig, "/healthz"))[0] == 200, "a gateway of its own process has no broker that tells"
        rig.gateway.readiness.take(told())
        rig.clock.advance(SILENT_SECONDS - 1)
        assert (await get(rig, "/healthz"))[0] == 200
        rig.clock.advance(1)
        assert await get(rig, "/healthz") == (503, "the broker stands still\n")
        assert (await get(rig, "/readyz"))[0] == 503
        rig.gateway.readiness.take(told())
        assert (await get(rig, "/healthz"))[0] == 200


def test_other_lines_of_the_broker_are_left_to_others() -> None:
    readiness = Readiness(lambda: 0.0)
    assert not readiness.take(b'{"log_level": "debug"}')
    assert not readiness.take(b"no JSON")
    assert not readiness.take(b'{"readiness": 5}')


async def test_strangers_cause_one_probe_a_second_and_a_line_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    async with GatewayRig() as rig:
        rig.clock.hold()
        broker = ProbedBroker(rig)
        broker.answers.clear()
        asking = [asyncio.create_task(get(rig, "/readyz")) for _ in range(20)]
        await broker.probed.wait()
        asking[0].cancel()
        broker.answers.set()
        assert {await each for each in asking[1:]} == {(200, READY)}
        for _ in range(20):
            assert (await get(rig, "/readyz"))[0] == 200
        assert broker.asked == 1

        with caplog.at_level(logging.INFO):
            for failure in (None, ConnectionLost("gone"), ConnectionLost("gone"), None, None):
                broker.failure = failure
                rig.clock.advance(KEPT_SECONDS)
                for _ in range(5):
                    assert (await get(rig, "/readyz"))[0] == (503 if failure else 200)

        assert broker.asked == 6
        lines = [record.getMessage() for record in caplog.records if "ready" in record.getMessage()]
        assert [("not_ready" in line, "ready_again" in line) for line in lines] == [(True, False), (False, True)]


async def test_other_requests_are_authenticated_and_answered_while_a_probe_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readiness, "PROBE_SECONDS", 3600)
    async with GatewayRig() as rig:
        broker = ProbedBroker(rig)
        broker.answers.clear()
        asking = asyncio.create_task(get(rig, "/readyz"))
        await broker.probed.wait()

        assert (await get(rig, "/metrics", rig.own_key))[0] == 200
        assert not asking.done()

        broker.answers.set()
        assert (await asking)[0] == 200


async def test_a_probe_without_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "PROBE_SECONDS", 0.01)
    async with GatewayRig() as rig:
        ProbedBroker(rig).answers.clear()

        assert await get(rig, "/readyz") == NOT_READY


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_other_methods_are_refused(method: str) -> None:
    async with GatewayRig() as rig, rig.session.request(method, f"http://{rig.host}/metrics") as response:
        assert response.status == 405


async def test_the_answer_is_of_the_content_type_of_prometheus_and_is_not_kept() -> None:
    async with GatewayRig() as rig:
        headers = {"Authorization": aiohttp.encode_basic_auth(rig.own_key.secret_id, rig.own_key.secret_key)}
        async with rig.session.get(f"http://{rig.host}/metrics", headers=headers) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert response.headers["Cache-Control"] == "no-store"
