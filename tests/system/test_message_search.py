"""Searches by dedup id and header on a real broker that is killed in the middle of sends, against its files."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from cmqd_client import Client, connect
from cmqd_client.errors import CmqError
from cmqd_log.data_folder.histories import HistoryReader
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

ROUNDS = 3
SENDS = 40
LIMIT = 100_000
CUSTOMER = ("customer", "7")


async def send_until_it_ends(client: Client, round_: int, acknowledged: dict[str, str], enough: asyncio.Event) -> None:
    """Note id and dedup id of the messages that the broker acknowledged, until the broker is gone."""
    queue = await client.ensure_queue("orders")
    with contextlib.suppress(CmqError):
        for number in range(1 << 20):
            dedup_id = f"{round_}-{number}"
            sent = await queue.send(b"x", headers={"number": str(number), "customer": "7"}, dedup_id=dedup_id)
            acknowledged[sent.id] = dedup_id
            if number == SENDS // 2:
                await client.seal_segments()
            if number == SENDS:
                enough.set()


async def test_acknowledged_messages_are_found_after_kills(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path, "--keep-history", "7d")
    acknowledged: dict[str, str] = {}
    with broker:
        for round_ in range(ROUNDS):
            async with connect(broker.url, patience=10, retries=0) as client:
                enough = asyncio.Event()
                sending = asyncio.ensure_future(send_until_it_ends(client, round_, acknowledged, enough))
                await enough.wait()
                await asyncio.to_thread(broker.kill)
                await sending
            await asyncio.to_thread(broker.start)
        async with connect(broker.url) as client:
            found = await client.find_messages("orders", header=CUSTOMER, limit=LIMIT)
            ids = [message.id for message in found]
            by_dedup_id = {
                message_id: [each.id for each in await client.find_messages(dedup_id=dedup_id)]
                for message_id, dedup_id in list(acknowledged.items())[::7]
            }
            (message,) = await client.find_messages(header=("number", str(SENDS)), limit=1)
            history = await client.message_history(message.id)
        files = HistoryReader(str(tmp_path / "data")).search(header=CUSTOMER, queue="orders", limit=LIMIT)

    assert len(acknowledged) > ROUNDS * SENDS
    assert set(ids) >= acknowledged.keys()
    assert ids == [f"Msg-{number:016x}" for number in files]
    assert not found.missing
    assert by_dedup_id == {message_id: [message_id] for message_id in by_dedup_id}
    assert history.events[0].kind == "sent"
