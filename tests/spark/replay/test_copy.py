"""The copy core: requests of a run, its slices, and stops. No Spark session."""

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from pyroaring import BitMap64

from cmqd_log.copy import replay as module
from cmqd_log.copy.counting import count, plan_count
from cmqd_log.copy.journal import Journal, JournalError, Slice, read_journal, states_file, write_journal
from cmqd_log.copy.replay import send_part, target_of
from cmqd_log.copy.requests import MARK, MAX_REQUEST_BYTES, requests_of
from cmqd_log.copy.slices import SliceReader
from cmqd_log.options import Mode, parse_options
from cmqd_log.reading.arrow_batches import Facts
from cmqd_log.reading.tasks import Stretch
from cmqd_protocol import messages as wire
from cmqd_segment.rows import Run
from support.client.local_server import LocalServer
from support.spark.log_folder import queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS, body

pytestmark = pytest.mark.spark


def quiet(*_: object) -> None:
    """Tell no progress."""


def journal(**changed: Any) -> Journal:
    given: dict[str, Any] = {
        "run": "r-0123456789ab",
        "source": {"path": "/data", "queue": "orders"},
        "position": 40,
        "events": ["sent"],
        "queue": "orders",
        "target_id": 7,
        "server": "cmq://id:***@host:5680",
        "slices": [],
    }
    return Journal(**{**given, **changed})


def stretch(*bodies: bytes, first_id: int = 0, event: str = "sent", start: int = 0, **of_run: Any) -> Stretch:
    run = Run(0, first_id, 1_764_370_000_007, list(map(len, bodies)), of_run.pop("headers", None), None, 0, **of_run)
    return Stretch(Facts(1, "00000001", event, "source", None), run, start, len(bodies), b"".join(bodies))


def test_neighbours_share_a_request_up_to_its_limits() -> None:
    large = b"x" * (MAX_REQUEST_BYTES // 2)
    stretches = [
        stretch(b"skipped", b"a", b"bb", first_id=0xFFD, start=1),
        stretch(b"not sent", event="half"),
        stretch(b"c", b"d", first_id=0xFFF),
        stretch(large, large, b"e", b"x" * (MAX_REQUEST_BYTES + 1), b"f", first_id=0x2000),
    ]

    found = list(requests_of(stretches, journal(), 3))

    assert [[len(one) for one in request.bodies] for request in found] == [
        [1, 2, 1],
        [1, len(large)],
        [len(large), 1],
        [MAX_REQUEST_BYTES + 1],
        [1],
    ]
    assert [request.size for request in found] == [sum(map(len, request.bodies)) for request in found]
    ids = [name for request in found for name in request.dedup_ids]
    numbers = [0xFFE, 0xFFF, 0xFFF, 0x1000, *range(0x2000, 0x2005)]
    assert ids == [f"r-0123456789ab:Msg-{number:016x}" for number in numbers]


def test_columns_begin_with_their_first_value_and_the_mark_replaces_an_older_one() -> None:
    headed = stretch(b"b", first_id=1, headers=[{MARK: "older", "n": "1"}], labels=["eu.paid"])
    stretches = [stretch(b"a"), headed, stretch(b"c", first_id=2)]

    (plain,) = requests_of(stretches, journal(), 10)
    (marked,) = requests_of(stretches, journal(mark=True), 10)
    (routed,) = requests_of(stretches, journal(queue="", topic="news", routing=True), 10)
    (tagged,) = requests_of([stretch(b"a"), stretch(b"b", labels=[["x"]])], journal(queue="", topic="news"), 10)

    assert plain.headers == [None, {MARK: "older", "n": "1"}, None]
    assert (plain.tags, plain.routing_keys) == (None, None)
    assert marked.headers is not None
    assert marked.headers[1] == {"n": "1", MARK: "source/Msg-0000000000000001/2025-11-28T22:46:40.007Z"}
    assert (routed.tags, routed.routing_keys) == (None, ["", "eu.paid", ""])
    assert (tagged.tags, tagged.routing_keys) == ([[], ["x"]], None)


def test_a_run_in_order_names_the_message_before_and_a_parallel_run_does_not() -> None:
    url = "cmq://id:key@127.0.0.1:5680"

    assert target_of(journal(), url).ordered
    assert target_of(journal(), url).in_flight == 16
    parallel = target_of(journal(parallel=3, rate=900), url)
    assert (parallel.ordered, parallel.in_flight, parallel.max_rate) == (False, 48, 900.0)
    assert target_of(journal(parallel=64), url).in_flight == 64


# ---------------------------------------------------------------------- with a folder, and a server that obeys the test


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write_folder(
        folder, [[([queue_created(7, "orders")], [], NOW_MS), *(sends(7, first, 10) for first in range(0, 40, 10))]]
    )
    return folder


def run_of(folder: Path, **changed: Any) -> Journal:
    counted = count(plan_count(parse_options({"path": str(folder)})), lambda _: True, 10)
    given: dict[str, Any] = {"source": {"path": str(folder)}, "position": counted.position, "slices": counted.slices}
    return journal(**{**given, **changed})


@pytest.fixture
async def server() -> AsyncIterator[LocalServer]:
    async with LocalServer() as server:
        yield server


@pytest.mark.system
async def test_a_slice_that_was_sent_is_on_record_before_the_next_and_is_not_sent_again(
    server: LocalServer, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    run = run_of(folder)
    write_journal(run, file)
    told: list[Any] = []

    def tell(one: Any, _: Any) -> None:
        if one is not None:
            told.append((one.first_lsn, read_journal(file).done))

    await module._watched(run, file, server.url, lambda: len(told) == 2, tell)  # pyright: ignore[reportPrivateUsage]

    assert [done for _, done in told] == [1, 2]
    stopped = read_journal(file)
    assert (stopped.done, stopped.sent, stopped.attempts) == (2, 20, 0)
    await module._watched(stopped, file, server.url, lambda: False, tell)  # pyright: ignore[reportPrivateUsage]
    assert read_journal(file).is_done
    assert await server.bodies("orders") == [body(7, position) for position in range(40)]
    sent = [len(request.bodies) for request in server.link.of(wire.SendMessages)]
    assert sent == [10] * 4


@pytest.mark.system
@pytest.mark.parametrize("count", [1, 2, 3, 64])
async def test_a_slice_is_divided_into_ranges_of_rows_that_are_sent_one_by_one(
    server: LocalServer, folder: Path, tmp_path: Path, count: int
) -> None:
    run = run_of(folder)
    reader = SliceReader(run, tmp_path / "run.json")
    whole = Slice(run.slices[0].first_lsn, run.slices[-1].last_lsn, 40)

    parts = reader.parts(whole, count)

    assert len(parts) == min(count, 4), "a row is not divided"
    target = target_of(run, server.url)
    small = structs.replace(run, slices=[], doubts=[])
    sent = [await asyncio.to_thread(send_part, part, journal=small, target=target) for part in parts]
    assert sum(sent) == 40
    assert all(sent)
    assert await server.bodies("orders") == [body(7, position) for position in range(40)]


@pytest.mark.system
def test_a_part_can_be_pickled(folder: Path, tmp_path: Path) -> None:
    run = run_of(folder)
    (part,) = SliceReader(run, tmp_path / "run.json").parts(run.slices[0], 1)

    assert pickle.loads(pickle.dumps(part)) == part


@pytest.mark.system
async def test_a_run_goes_on_with_the_states_of_version_0_2_0(
    server: LocalServer, folder: Path, tmp_path: Path
) -> None:
    """The file has the fields of that version, and the log would give other states by now."""
    run = run_of(folder, master="local[2]", done=1, sent=10)
    run.source["mode"] = Mode.CONSUMED
    run.events = ["deleted"]
    run.log_id = run.start = ""
    file = tmp_path / "run.json"
    deleted = BitMap64(range(5, 33))
    fields = {"sets": {"deleted": deleted.serialize()}, "deleted": [(5, 33, NOW_MS)], "counts": {7: 3}}
    states_file(file).write_bytes(msgspec.msgpack.encode({1: {7: fields}}))
    write_journal(run, file)

    await module._watched(run, file, server.url, lambda: False, quiet)  # pyright: ignore[reportPrivateUsage]

    assert read_journal(file).is_done
    assert await server.bodies("orders") == [body(7, position) for position in range(10, 33)]


@pytest.mark.system
def test_a_run_whose_states_cannot_be_read_names_the_rows_that_were_sent(folder: Path, tmp_path: Path) -> None:
    run = run_of(folder)
    run.source["mode"] = Mode.ALL
    run.done, run.sent = 2, 20
    file = tmp_path / "run.json"
    states_file(file).write_bytes(b"\x91states of an earlier version")

    with pytest.raises(JournalError, match=r"cannot be read.*; of this run rows 2 to 3 were sent \(20 messages\)"):
        SliceReader(run, file)
