"""The columns that show clients: who sent, received and took messages out of the queue, at every row of a log."""

# pyarrow tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cmqd.core.outcome import WAITING, PublishRequest
from cmqd_log.options import parse_options
from cmqd_log.reading.arrow_batches import arrow_type
from cmqd_log.reading.planning import plan_batch
from cmqd_log.reading.tasks import read_task
from cmqd_segment.records import ActorSeen, MessagesReceived, MessagesSent
from cmqd_types.actors import Actor
from support.core.alone import Receive, Send
from support.core.builders import ACCOUNT, Rig
from support.spark.log_folder import drop_segment, queue_created, rows_of, sends, write_folder
from support.storage.log_rig import NOW_MS, ForkedPlace, LogRig

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""Segments are written by a storage process. No session is needed."""

ANN = Actor(ACCOUNT, "AKIDann", "ann", "10.0.0.1")
BEN = Actor(ACCOUNT, "AKIDben", "ben", "10.0.0.2", "10.0.0.1")
NAMELESS = Actor(ACCOUNT, "AKIDann", "", "10.0.0.1")

ANN_SHOWN, BEN_SHOWN, NAMELESS_SHOWN = "ann (AKIDann)", "ben (AKIDben)", "AKIDann"
COLUMNS = ("body", "event", "sent_by", "received_by", "left_by")

Shown = tuple[bytes, str, str | None, str | None, str | None]


def read(folder: Path, columns: Sequence[str] = COLUMNS, **options: str) -> list[Any]:
    schema = pa.schema([pa.field(name, arrow_type(name)) for name in columns])
    tasks = plan_batch(parse_options({"path": str(folder / "data"), **options}), columns)
    rows = [row for task in tasks for batch in read_task(task, schema) for row in batch.to_pylist()]
    return [tuple(row[name] for name in columns) for row in rows]


def send(rig: Rig, *bodies: bytes, actors: Sequence[Actor]) -> None:
    requests = [Send([body]) for body in bodies]
    rig.done(rig.broker.send_all(ACCOUNT, "q", requests, rig.now_ms, actors))


def receive(rig: Rig, most: int, actor: Actor) -> list[int]:
    waiter = 100 + rig.log.last_lsn
    outcome = rig.broker.receive_all(ACCOUNT, "q", [Receive(most)], [waiter], rig.now_ms, actors=[actor])
    (reply,) = rig.done(outcome)
    if reply is WAITING:
        rig.answer_reads()
        (reply,) = rig.replies(waiter)
    return [message.receipt_handle for message in reply]  # pyright: ignore


def busy() -> Rig:
    rig = Rig()
    rig.create("dead")
    rig.create("q", dead_letter_queue="dead", dead_letter_max_receives=9)
    send(rig, b"1", b"2", b"3", b"4", b"5", actors=[ANN, BEN, ANN, NAMELESS, ANN])
    first, second, third = receive(rig, 3, BEN)
    rig.done(rig.broker.delete_all(ACCOUNT, "q", [[first]], rig.now_ms, [ANN]))
    rig.done(rig.broker.dead_letter(ACCOUNT, "q", 7, [second], ["no"], rig.now_ms, actor=BEN))
    rig.answer_reads()
    rig.done(rig.broker.release(ACCOUNT, "q", [third], True, rig.now_ms, actor=BEN))
    receive(rig, 1, ANN)
    # A receive that is taken back counts for nothing.
    rig.done(rig.broker.release(ACCOUNT, "q", receive(rig, 1, BEN), False, rig.now_ms))
    return rig


EXPECTED: list[Shown] = [
    (b"1", "deleted", ANN_SHOWN, BEN_SHOWN, ANN_SHOWN),
    (b"2", "dead_lettered", BEN_SHOWN, BEN_SHOWN, BEN_SHOWN),
    (b"3", "in_flight", ANN_SHOWN, ANN_SHOWN, None),
    (b"4", "active", NAMELESS_SHOWN, None, None),
    (b"5", "active", ANN_SHOWN, None, None),
    # The broker itself stored the dead letter.
    (b"2", "active", None, None, None),
]


def test_states_show_the_clients(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [rows_of(busy())])

    assert read(tmp_path, mode="all", clients="true") == EXPECTED
    assert read(tmp_path, mode="consumed", clients="true") == EXPECTED[:1]
    assert read(tmp_path, mode="backlog", clients="true") == EXPECTED[2:]


def test_a_segment_for_each_row_shows_the_same(tmp_path: Path) -> None:
    """Every number is in the table of each later segment."""
    rows = rows_of(busy())
    write_folder(tmp_path / "data", [[row] for row in rows])

    assert read(tmp_path, mode="all", clients="true") == EXPECTED


async def test_unsealed_rows_show_the_same(tmp_path: Path) -> None:
    rows = rows_of(busy())
    rig = LogRig(ForkedPlace(tmp_path / "data").log())
    await rig.open()
    for place, (records, bodies, time_ms) in enumerate(rows):
        rig.log.append(records, bodies, time_ms)
        await rig.commit()
        if place == 2:
            await rig.log.seal_now()

    assert await asyncio.to_thread(read, tmp_path, mode="all", clients="true", includeActive="true") == EXPECTED
    await rig.log.close()


def test_without_the_option_states_show_senders_alone(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [rows_of(busy())])

    assert [row[2:] for row in read(tmp_path, mode="all")] == [(by, None, None) for _, _, by, _, _ in EXPECTED]


def test_events_show_senders_alone(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [rows_of(busy())])

    senders = [(body, "moved" if by is None else "sent", by, None, None) for body, _, by, _, _ in EXPECTED]
    assert read(tmp_path) == senders
    assert read(tmp_path, ("sent_by",)) == [(by,) for _, _, by, _, _ in senders]


def test_copies_show_the_publisher_of_their_message(tmp_path: Path) -> None:
    rig = Rig()
    rig.create_topic()
    rig.subscribe("all")
    rig.subscribe("some", filter_tags=["a"])
    requests = [PublishRequest([body], None, [[tag]]) for body, tag in ((b"1", "a"), (b"2", "b"), (b"3", "a"))]
    rig.done(rig.broker.publish(ACCOUNT, "news", requests, rig.now_ms, [ANN, BEN, NAMELESS]))
    write_folder(tmp_path / "data", [rows_of(rig)])

    by = {b"1": ANN_SHOWN, b"2": BEN_SHOWN, b"3": NAMELESS_SHOWN}
    found = read(tmp_path, ("queue", "body", "sent_by"))
    assert {(queue, body, by[body]) for queue, body, _ in found} == set(found)
    assert sorted((queue or "news", body) for queue, body, _ in found) == [
        *[("all", b"1"), ("all", b"2"), ("all", b"3")],
        *[("news", b"1"), ("news", b"2"), ("news", b"3")],
        *[("some", b"1"), ("some", b"3")],
    ]


def test_rows_without_clients_show_none(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [[queue_row("q"), sends(1, 0, 2)]])

    assert read(tmp_path, COLUMNS[2:], mode="all", clients="true") == [(None, None, None)] * 2


def queue_row(name: str) -> Any:
    return [queue_created(1, name)], [], NOW_MS


def test_clients_of_reclaimed_rows_are_not_known(tmp_path: Path) -> None:
    """The table of the segment still names the senders of its own rows."""
    body = [bytes(1)]
    rows: list[Any] = [
        ([queue_created(1, "q"), ActorSeen(1, ANN)], [], NOW_MS),
        ([MessagesSent(1, 0, 1, NOW_MS, [1], actors=[1])], body, NOW_MS),
        ([MessagesReceived(1, [0, 1], 1, NOW_MS, NOW_MS + 9, [1])], [], NOW_MS),
        ([MessagesSent(1, 1, 2, NOW_MS, [1], actors=[1])], body, NOW_MS),
    ]
    write_folder(tmp_path / "data", [[row] for row in rows])
    drop_segment(tmp_path / "data", 1)

    assert read(tmp_path, ("sent_by",)) == [(ANN_SHOWN,)] * 2
