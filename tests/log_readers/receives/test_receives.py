"""Table ``receives`` by scan and by SQL, against a model that looks at the memory of the broker."""

# duckdb and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import cmqd_log
from cmqd_client import connect
from cmqd_log import sql
from cmqd_log.errors import DataLossError, FolderError, OptionError, UnknownNameError
from cmqd_log.reading import receives, stores
from cmqd_log.schema import RECEIVES
from cmqd_segment.manifest import LossEntry, read_manifest, write_manifest
from support.cases import each_case
from support.processes.running_server import RunningServer
from support.spark.log_folder import drop_segment
from support.spark.received_folder import ReceivedFolder, time

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""pyarrow and DuckDB are in the Spark set. No session is needed."""


def scanned(folder: Path, **options: Any) -> list[dict[str, Any]]:
    return cmqd_log.scan(folder, table="receives", **options).read_all().to_pylist()


def answer(folder: Path, statement: str, **options: Any) -> list[dict[str, Any]]:
    with sql.query(folder, statement, **options) as answered:
        return answered.reader.read_all().to_pylist()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ReceivedFolder:
    """All rows are there."""
    return ReceivedFolder(tmp_path_factory.mktemp("whole") / "data", 3)


@pytest.fixture(scope="module")
def holed(tmp_path_factory: pytest.TempPathFactory) -> ReceivedFolder:
    """Segments are gone."""
    return ReceivedFolder(tmp_path_factory.mktemp("holed") / "data", 5, gone=5)


def test_scan_and_sql_have_the_receives_of_the_broker(whole: ReceivedFolder) -> None:
    rows = scanned(whole.folder)

    assert list(rows[0]) == list(RECEIVES)
    whole.assert_equal(rows)
    assert len(rows) == len(whole.seen) > 100
    assert {row["how"] for row in rows} >= {None, "deleted", "dead_lettered", "released", "lease_ended"}
    assert answer(whole.folder, "FROM receives") == rows
    ends = [row["ended_lsn"] for row in rows]
    assert ends == sorted(ends, key=lambda lsn: (lsn is None, lsn))


@pytest.mark.parametrize("seed", [1, 2, 4, 6])
def test_with_segments_gone_nothing_is_wrong_missing_or_twice(seed: int, tmp_path: Path) -> None:
    made = ReceivedFolder(tmp_path / "data", seed, gone=6)

    rows = scanned(made.folder)

    made.assert_equal(rows)
    assert any(row["from_ts"] is None for row in rows)
    assert answer(made.folder, "FROM receives") == rows


def test_an_earlier_row_shows_the_receives_as_they_were(whole: ReceivedFolder) -> None:
    lsn = whole.log.last_lsn // 2

    rows = scanned(whole.folder, endingLsn=lsn)

    expected = {
        each.lease: (each.ended_lsn if 0 < each.ended_lsn <= lsn else None)
        for each in whole.seen.values()
        if each.from_lsn <= lsn
    }
    assert {row["lease"]: row["ended_lsn"] for row in rows} == expected
    assert len(rows) == len(expected)
    assert None in expected.values()
    assert {row["as_of_lsn"] for row in rows} == {lsn}
    assert answer(whole.folder, "FROM receives", as_of_lsn=lsn) == rows


def test_options_select_receives_by_their_messages(whole: ReceivedFolder) -> None:
    rows = scanned(whole.folder)
    a_queue = next(each.queue_id for each in whole.seen.values() if (each.account, each.queue) == ("second", "q"))
    times = sorted(row["enqueue_ts"] for row in rows)
    middle = times[len(times) // 2]

    assert scanned(whole.folder, queue="q", account="second") == [row for row in rows if row["queue_id"] == a_queue]
    assert scanned(whole.folder, queueId=a_queue) == [row for row in rows if row["queue_id"] == a_queue]
    assert scanned(whole.folder, queuePattern="pl.*") == [row for row in rows if row["queue"] == "plain"]
    assert scanned(whole.folder, startingTimestamp=middle) == [row for row in rows if row["enqueue_ts"] >= middle]
    assert scanned(whole.folder, endingTimestamp=middle) == [row for row in rows if row["enqueue_ts"] < middle]
    assert scanned(whole.folder, startingLsn=200) == [row for row in rows if row["lsn"] >= 200]
    columns = ["how", "msg_id"]
    assert cmqd_log.scan(whole.folder, columns, table="receives", batchRows=7).read_all().to_pylist() == [
        {name: row[name] for name in columns} for row in rows
    ]


def test_a_plan_is_a_task_that_another_process_reads(whole: ReceivedFolder) -> None:
    (task,) = cmqd_log.plan(whole.folder, table="receives", minPartitions=4)

    assert cmqd_log.read(pickle.loads(pickle.dumps(task))).read_all().to_pylist() == scanned(whole.folder)


def test_stores_that_are_not_kept_are_read_again(whole: ReceivedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = scanned(whole.folder)
    init = stores.Stores.__init__

    def with_few(self: Any, folder: Any, view: Any) -> None:
        init(self, folder, view, kept=3)

    monkeypatch.setattr(stores.Stores, "__init__", with_few)

    assert scanned(whole.folder) == rows


def test_receives_are_joined_with_themselves_and_with_messages(holed: ReceivedFolder) -> None:
    rows = scanned(holed.folder)
    known = [row for row in rows if row["lsn"] is not None]

    joined = answer(holed.folder, "SELECT count(*) AS n FROM receives a JOIN receives b USING (lease)")
    twice = answer(holed.folder, "WITH t AS (FROM receives) SELECT count(*) AS n FROM (FROM t UNION ALL FROM t)")
    states = answer(
        holed.folder, "SELECT r.lease, m.msg_id, m.state FROM receives r JOIN messages m USING (lsn, row_index)"
    )

    assert joined == [{"n": len(rows)}]
    assert twice == [{"n": 2 * len(rows)}]
    assert {row["lease"]: row["msg_id"] for row in states} == {row["lease"]: row["msg_id"] for row in known}
    under_way = {row["lease"] for row in known if row["how"] is None}
    assert {row["lease"] for row in states if row["state"] == "in_flight"} >= under_way


@pytest.mark.parametrize("gone", [0, 6])
def test_messages_have_the_time_at_which_they_left(gone: int, tmp_path: Path) -> None:
    made = ReceivedFolder(tmp_path / "data", 9, gone=gone)

    rows = cmqd_log.scan(made.folder, mode="all").read_all().to_pylist()

    for row in rows:
        left_ms, left_lsn = made.log.left.get((row["queue_id"], row["position"]), (0, 0))
        if row["event"] == "gone" or (left_lsn in made.missing and row["ended_ts"] is None):
            assert row["ended_ts"] is None
        else:
            assert row["ended_ts"] == (time(left_ms) if left_lsn else None)
        assert row["deleted_ts"] == (row["ended_ts"] if row["event"] == "deleted" else None)
    ended = {row["event"] for row in rows if row["ended_ts"] is not None}
    assert ended >= {"dead_lettered", "expired", "cleared", "queue_deleted"}
    assert gone or "deleted" in ended
    sqls = answer(made.folder, "SELECT queue_id, position, ended_ts FROM messages")
    assert sqls == [{name: row[name] for name in ("queue_id", "position", "ended_ts")} for row in rows]


@each_case(
    ("options", "text"),
    [
        ({"table": "receive"}, "option 'table' cannot be 'receive': give one of log, receives"),
        ({"table": ""}, "give one of log, receives"),
        ({"table": "receives", "mode": "all"}, "option 'mode' cannot be 'all': table receives does not have this"),
        ({"table": "receives", "tags": "a"}, "table receives does not have this option"),
        ({"table": "receives", "topic": "news"}, "table receives does not have this option"),
        ({"table": "receives", "columns": ["body"]}, "columns are account, queue, queue_id"),
        ({"columns": ["lease"]}, "columns are lsn, row_index"),
        ({"table": "receives", "startingLsn": 1_000_000}, "give at most"),
    ],
)
def test_options_that_do_not_fit_are_refused(whole: ReceivedFolder, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as refused:
        cmqd_log.scan(whole.folder, **options)

    assert text in str(refused.value)


def test_an_unknown_queue_is_an_error(whole: ReceivedFolder) -> None:
    with pytest.raises(UnknownNameError, match="has no queue of this name"):
        scanned(whole.folder, queue="orders")
    assert len(scanned(whole.folder, TABLE="Receives", queue="q")) > 10


def test_rows_that_are_gone_without_a_checkpoint_above_them_are_an_error(tmp_path: Path) -> None:
    made = ReceivedFolder(tmp_path / "data", 7)
    for file in (made.folder / "checkpoints").iterdir():
        file.unlink()
    drop_segment(made.folder, 21)

    with pytest.raises(FolderError, match=r"no longer has rows 21 to \d+, and no checkpoint of row \d+ or before is"):
        scanned(made.folder)
    with pytest.raises(DataLossError, match="no longer has rows 21 to"):
        scanned(made.folder, startingLsn=1)


def test_a_gap_of_reclaimed_and_lost_rows_is_missed_up_to_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ReceivedFolder(tmp_path / "data", 7)
    manifest = read_manifest(made.folder)
    covered = manifest.checkpoints[-1].lsn
    reclaimed = max(entry.last_lsn for entry in manifest.segments if entry.last_lsn <= covered)
    first = max(entry.first_lsn for entry in manifest.segments if entry.last_lsn <= covered)
    drop_segment(made.folder, first)
    last = next(entry.last_lsn for entry in manifest.segments if entry.last_lsn > covered)
    drop_segment(made.folder, reclaimed + 1)
    manifest = read_manifest(made.folder)
    lost = LossEntry(reclaimed + 1, last, "damaged")
    write_manifest(made.folder, structs.replace(manifest, dropped=[(first, reclaimed)], losses=[lost]))
    missed: list[tuple[int, int]] = []
    miss = receives.ReceiveFold.miss

    def noted(fold: receives.ReceiveFold, first_lsn: int, last_lsn: int) -> Any:
        missed.append((first_lsn, last_lsn))
        return miss(fold, first_lsn, last_lsn)

    monkeypatch.setattr(receives.ReceiveFold, "miss", noted)

    assert scanned(made.folder)
    assert missed == [(first, covered)]


class Consumer:
    """A client that notes each receive with its end. Calls are answered before the broker is killed."""

    def __init__(self) -> None:
        self.choose = random.Random(11)
        self.receives: dict[str, list[str | None]] = {}
        """By message id, oldest first: how the receive ended; None = under way."""
        self.held: dict[str, Any] = {}

    async def work(self, url: str, steps: int) -> None:
        async with connect(url, name="worker") as client:
            queue = await client.ensure_queue("orders", visibility_timeout=3600)
            for _ in range(steps):
                await self._step(queue)

    async def _step(self, queue: Any) -> None:
        some = self.choose.sample(sorted(self.held), min(len(self.held), 3))
        match self.choose.randrange(5):
            case 0:
                await queue.send_batch([b"x"] * self.choose.randrange(1, 9))
            case 1 | 2:
                for message in await queue.receive(self.choose.randrange(1, 9), wait=0):
                    self.held[message.id] = message
                    self.receives.setdefault(message.id, []).append(None)
            case 3 if some:
                await queue.delete_batch([self.held[each] for each in some])
                self._end(some, "deleted")
            case 4 if some:
                await queue.release_batch([self.held[each] for each in some])
                self._end(some, "released")
            case _:
                pass

    def _end(self, ids: list[str], how: str) -> None:
        for each in ids:
            self.receives[each][-1] = how
            del self.held[each]


def test_the_receives_of_a_broker_that_is_killed_are_those_of_its_consumer(tmp_path: Path) -> None:
    consumer = Consumer()
    with RunningServer(tmp_path, "--keep-history-ms", "86400000") as server:
        for _ in range(5):
            asyncio.run(consumer.work(server.url, 60))
            server.kill()
            server.start()
        asyncio.run(consumer.work(server.url, 60))
        live = cmqd_log.scan(server.data, table="receives", includeActive=True).read_all().to_pylist()
    rows = scanned(server.data)

    assert rows == [{**row, "as_of_lsn": rows[0]["as_of_lsn"]} for row in live]
    told: dict[str, list[str | None]] = {}
    for row in sorted(rows, key=lambda row: row["lease"]):
        told.setdefault(row["msg_id"], []).append(row["how"])
        assert (row["received_by"] or "").startswith("worker ("), row
        assert row["ended_by"] == (row["received_by"] if row["how"] else None)
        assert (row["until_ts"] - row["from_ts"]).total_seconds() == 3600
    assert told == consumer.receives
    assert sum(map(len, told.values())) > 200
