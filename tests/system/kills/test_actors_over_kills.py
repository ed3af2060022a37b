"""The log of a real broker names its clients, over a crash and in every sealed segment."""

from contextlib import closing
from pathlib import Path

import pytest

from cmqd_client import connect
from cmqd_segment.actor_runs import actor_numbers
from cmqd_segment.checkpoint import LeasesSlice
from cmqd_segment.checkpoint_file import decode_part, read_payloads
from cmqd_segment.manifest import SegmentState, read_manifest
from cmqd_segment.records import ActorSeen, MessagesDeleted, MessagesReceived, MessagesSent, unpack_runs
from cmqd_segment.rows import decode_records
from cmqd_segment.schema import open_read_only, read_actors
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system


def changes(folder: Path) -> list[tuple[str, list[str]]]:
    """(kind of a record, names of its clients) in the order of the log, by the table of each segment alone."""
    found: list[tuple[str, list[str]]] = []
    numbers: list[int] = []
    for entry in read_manifest(folder).segments:
        if not entry.rows:
            continue
        assert entry.state is SegmentState.SEALED
        with closing(open_read_only(folder / entry.file, sealed=True)) as raw:
            actors = read_actors(raw)
            for (meta,) in raw.execute("SELECT meta FROM log ORDER BY lsn"):
                for record in decode_records(meta):
                    if isinstance(record, ActorSeen):
                        numbers.append(record.number)
                        assert actors[record.number] == record.actor
                    elif isinstance(record, MessagesSent | MessagesReceived | MessagesDeleted):
                        is_sent = isinstance(record, MessagesSent)
                        count = len(record.sizes) if is_sent else len(unpack_runs(record.positions))
                        names = [actors[number].name for number in actor_numbers(record.actors, count)]
                        found.append((type(record).__name__, names))
    assert numbers == sorted(set(numbers)), "a number was given twice"
    return found


async def test_clients_are_named_over_a_crash(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path, "--keep-history-ms", "86400000")
    with broker:
        async with connect(broker.url, name="ann") as ann, connect(broker.url, name="ben") as ben:
            await (await ann.ensure_queue("jobs")).send_batch([b"1", b"2"])
            (message,) = await (await ben.ensure_queue("jobs")).receive()
        # The rows are in an unsealed segment, and no checkpoint covers them.
        broker.kill()
        broker.start()
        async with connect(broker.url, name="ben") as ben, connect(broker.url, name="clio") as clio:
            queue = await ben.ensure_queue("jobs")
            await queue.delete(message.receipt_handle)
            for other in await queue.receive():
                await other.delete()
            await (await clio.ensure_queue("jobs")).send(b"3")
        broker.stop()
        broker.start()
        async with connect(broker.url, name="ann") as ann:
            await (await ann.ensure_queue("jobs")).send(b"4")

    assert changes(tmp_path / "data") == [
        ("MessagesSent", ["ann", "ann"]),
        ("MessagesReceived", ["ben"]),
        ("MessagesDeleted", ["ben"]),
        ("MessagesReceived", ["ben"]),
        ("MessagesDeleted", ["ben"]),
        ("MessagesSent", ["clio"]),
        ("MessagesSent", ["ann"]),
    ]


async def test_consumers_of_messages_in_flight_are_known_over_a_checkpoint_and_a_crash(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path)

    async def in_flight() -> dict[str, int | None]:
        async with connect(broker.url, name="operator") as operator:
            return {one.name: one.in_flight for one in (await operator.consumers()).consumers}

    with broker:
        async with connect(broker.url, name="ann") as ann, connect(broker.url, name="ben") as ben:
            queue = await ann.ensure_queue("jobs", visibility_timeout=43_200)
            await queue.send_batch([b"%d" % number for number in range(8)])
            await queue.receive(5)
            await ben.queue("jobs").receive(2)
        # The stop writes a checkpoint, and the kill leaves it as the last.
        broker.stop()
        (checkpoint, *_) = sorted((tmp_path / "data" / "checkpoints").iterdir(), reverse=True)
        slices = [part for part in map(decode_part, read_payloads(checkpoint)) if isinstance(part, LeasesSlice)]
        assert sum(len(part.leases) for part in slices) == 7
        broker.start()
        broker.kill()
        broker.start()

        assert await in_flight() == {"ann": 5, "ben": 2}
