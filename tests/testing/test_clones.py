"""Brokers of tests that begin with a clone: production's dead letters, their time, and clones that are refused."""

import asyncio
import os
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cmqd.testing import BrokerProcess, Clone, CloneError, CloneTimeoutError, LocalBroker, clones
from cmqd_client import connect
from cmqd_client.sync import connect as connect_sync
from cmqd_segment.folder_lock import LOCK, shared_lock, try_lock
from support.backup.growing_log import command
from support.server.lived_log import HOUR_MS, lived
from support.server.webhook_receiver import WebhookReceiver

pytestmark = pytest.mark.system

DAY_MS = 24 * HOUR_MS


class Production:
    """The data folder of a stopped broker with two dead letters, and queues of two accounts."""

    def __init__(self, folder: Path) -> None:
        with BrokerProcess(folder) as broker, connect_sync(broker.url) as client:
            client.create_queue("orders-dead")
            orders = client.create_queue("orders", dead_letter_queue="orders-dead", dead_letter_max_receives=5)
            orders.send(b'{"order": 4711, "card": "4111-1111"}', headers={"x-customer": "7"})
            orders.send(b'{"order": 4712, "card": "4222-2222"}')
            for message in orders.receive(2):
                message.reject("no such customer")
            self.ids = [message.id for message in client.queue("orders-dead").peek(2)]
            orders.send(b'{"order": 4713, "card": "4333-3333"}')
            key = client.accounts.create("shop")
            shop_url = f"cmq://{key.secret_id}:{key.secret_key}@127.0.0.1:{broker.port}"
            with connect_sync(shop_url) as shop:
                shop.create_queue("parcels").send(b"parcel")
        self.data = folder / "data"


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Production:
    return Production(tmp_path_factory.mktemp("production"))


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_dead_letters_of_production_are_redriven(production: Production) -> None:
    with LocalBroker(clone=production.data) as broker, connect_sync(broker.url) as client:
        dead, orders = client.queue("orders-dead"), client.queue("orders")
        letters = dead.receive(2, wait=0)
        assert [letter.id for letter in letters] == production.ids
        assert [(letter.origin.rejection, letter.origin.receive_count) for letter in letters if letter.origin] == [
            ("no such customer", 1),
            ("no such customer", 1),
        ]
        assert letters[0].headers == {"x-customer": "7"}
        for letter in letters:
            letter.release()
        dead.redrive()
        broker.clock.advance(seconds=1)
        bodies = {message.body for message in orders.receive(10, wait=0)}

    assert bodies == {b'{"order": %d, "card": "4%d-%d"}' % (4710 + n, n * 111, n * 1111) for n in (1, 2, 3)}


def test_a_clone_selects_and_masks(production: Production) -> None:
    clone = Clone(production.data, queues=["orders-dead"], masks=["$.card", "x-customer"])

    with LocalBroker(clone=clone) as broker, connect_sync(broker.url) as client:
        assert client.queues().names == ["orders-dead"]
        first, second = client.queue("orders-dead").receive(2)

    assert (first.body, first.headers) == (b'{"order":4711,"card":"***"}', {"x-customer": "***"})
    assert (second.body, second.headers) == (b'{"order":4712,"card":"***"}', {})


def test_bodies_and_older_messages_can_be_left_out(production: Production) -> None:
    with LocalBroker(clone=Clone(production.data, no_bodies=True)) as broker, connect_sync(broker.url) as client:
        (order,) = client.queue("orders").receive(10)
        assert order.body == bytes(36)
    for since in (datetime(2999, 1, 1, tzinfo=UTC), datetime(2999, 1, 1)):
        clone = Clone(production.data, since=since)
        with LocalBroker(clone=clone) as broker, connect_sync(broker.url) as client:
            assert client.queue("orders").attributes().active == 0


def test_accounts_are_created_to_reach_their_queues(production: Production) -> None:
    with LocalBroker(clone=production.data) as broker, connect_sync(broker.url) as client:
        key = client.accounts.create("shop")
        with connect_sync(f"cmq://{key.secret_id}:{key.secret_key}@127.0.0.1:{broker.address[1]}") as shop:
            assert shop.queue("parcels").receive()[0].body == b"parcel"


def test_a_clone_of_30_days_ago_keeps_every_message(tmp_path: Path) -> None:
    then_ms = time.time_ns() // 1_000_000 - 30 * DAY_MS
    asyncio.run(lived(tmp_path / "old", then_ms))

    with LocalBroker(clone=tmp_path / "old") as broker, connect_sync(broker.url) as client:
        broker.clock.stop()
        queue = client.queue("jobs")
        assert queue.attributes().retention == 24 * 3600
        assert 0 <= broker.clock.now().timestamp() * 1000 - then_ms < DAY_MS / 2
        assert [message.body for message in queue.peek(10)] == [b"leased", b"active"]
        # The time of the broker is that of its wall clock: it runs neither faster nor slower to reach today.
        assert abs(client.status()["clock_offset_ms"]) < 1000
        broker.clock.advance(hours=23)
        assert queue.attributes().active == 2
        broker.clock.advance(hours=2)
        assert queue.attributes().active == 0


def test_clones_and_backups_are_sources_and_stay_as_they_are(production: Production, tmp_path: Path) -> None:
    assert command("clone", production.data, tmp_path / "incident").code == 0
    assert command("backup", production.data, "--to", tmp_path / "backup").code == 0
    # As version control keeps the folder: without the lock, and without empty folders.
    (tmp_path / "incident" / LOCK).unlink()
    (tmp_path / "incident" / "checkpoints").rmdir()
    for source in (production.data, tmp_path / "incident", tmp_path / "backup"):
        before = content_of(source)
        with LocalBroker(clone=str(source)) as broker, connect_sync(broker.url) as client:
            assert [message.id for message in client.queue("orders-dead").receive(2)] == production.ids
        assert content_of(source) == before


def test_the_folder_of_a_live_broker_is_a_source(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as live, connect_sync(live.url) as client:
        client.create_queue("orders").send(b"one espresso")
        with LocalBroker(clone=tmp_path / "data") as broker, connect_sync(broker.url) as other:
            assert other.queue("orders").receive()[0].body == b"one espresso"
        assert client.queue("orders").receive()[0].receive_count == 1


async def test_a_clone_posts_nothing_until_a_test_says_so(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--push-allow-loopback", "--push-allow-private") as source:
        async with WebhookReceiver() as receiver, connect(source.url) as client:
            topic = await client.create_topic("shop")
            hook = f"http://127.0.0.1:{receiver.port}/hook"
            await topic.subscribe("hook", url=hook)
            await client.create_queue("jobs")
            await client.schedules.create("nightly", "jobs", "0 * * * *", b"job")
            async with LocalBroker(clone=tmp_path / "data") as broker, connect(broker.url) as tested:
                await tested.topic("shop").publish(b"new")
                before = (await tested.queue("jobs").attributes()).active
                await broker.clock.advance_async(hours=3)
                assert receiver.received == []
                assert (await tested.queue("jobs").attributes()).active == before
                await tested.topic("shop").subscribe("tested", url=hook)
                await tested.topic("shop").publish(b"newer")
                await broker.clock.advance_async(seconds=1)
                assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"source": "none"}, "none is neither a data folder nor a backup"),
        ({"masks": ["$card"]}, "--mask '$card' is not a JSON path"),
        ({"queues": ["ordres"]}, "has no queue ordres"),
        ({"masks": ["$.card"], "no_bodies": True}, "not allowed with argument"),
        ({"source": "file:///nowhere/backup"}, "has no backup"),
        ({"source": "--queue"}, "--queue is neither a data folder nor a backup"),
    ],
)
def test_a_clone_that_is_refused_is_an_error_with_its_sentence(
    production: Production, options: dict[str, Any], text: str
) -> None:
    source: Any = production.data
    broker = LocalBroker(clone=Clone(**({"source": source} | options)))
    with pytest.raises(CloneError) as refused:
        broker.start()

    assert text in str(refused.value)
    assert not str(refused.value).startswith("cmqd:")
    assert repr(broker) == "<LocalBroker, ended>"


@pytest.fixture
def without_end(tmp_path: Path) -> Path:
    """A folder whose manifest cannot be read to its end."""
    folder = tmp_path / "data"
    folder.mkdir()
    os.mkfifo(folder / "manifest")
    return folder


def test_a_clone_that_takes_too_long_is_ended_with_its_limit(
    without_end: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[subprocess.Popen[str]] = []

    class Noted(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            programs.append(self)

    monkeypatch.setattr(clones.subprocess, "Popen", Noted)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    broker = LocalBroker(clone=Clone(without_end, timeout=0.5))

    with pytest.raises(CloneTimeoutError, match=f"the clone of {without_end} was not made within 0.5 s"):
        broker.start()

    assert [program.returncode is not None for program in programs] == [True]
    assert list((tmp_path / "temporary").iterdir()) == []
    assert repr(broker) == "<LocalBroker, ended>"


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="must be above 0 and at most 86,400 seconds"):
        Clone("incident", timeout=timeout)


async def test_a_refused_clone_is_an_error_of_an_async_broker(tmp_path: Path) -> None:
    with pytest.raises(CloneError, match="neither a data folder nor a backup"):
        async with LocalBroker(clone=tmp_path):
            pass


async def test_a_start_that_is_cancelled_ends_the_broker(production: Production) -> None:
    broker = LocalBroker(clone=production.data)
    starting = asyncio.ensure_future(broker.__aenter__())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert repr(broker) == "<LocalBroker, ended>"


def test_a_damaged_source_is_refused(production: Production, tmp_path: Path) -> None:
    assert command("clone", production.data, tmp_path / "incident").code == 0
    (segment,) = (tmp_path / "incident" / "segments").iterdir()
    content = segment.read_bytes()
    segment.chmod(0o600)
    segment.write_bytes(content.replace(b"4713", b"4714"))

    with pytest.raises(CloneError, match="does not match its checksum: it is damaged"):
        LocalBroker(clone=tmp_path / "incident").start()


@pytest.mark.parametrize("name", ["queues", "masks"])
def test_a_name_in_the_place_of_a_list_is_refused(name: str) -> None:
    options: dict[str, Any] = {name: "orders"}
    with pytest.raises(TypeError, match=rf"{name} is a list of names, such as \['orders'\]"):
        Clone("incident", **options)


def test_readers_share_a_folder_and_keep_brokers_off(tmp_path: Path) -> None:
    with shared_lock(tmp_path) as is_free:
        # A folder without the file, as version control keeps it.
        assert is_free
    assert not (tmp_path / LOCK).exists()
    with try_lock(tmp_path) as is_free, shared_lock(tmp_path) as is_shared:
        assert (is_free, is_shared) == (True, False)
    with shared_lock(tmp_path) as first, shared_lock(tmp_path) as second, try_lock(tmp_path) as third:
        assert (first, second, third) == (True, True, False)
