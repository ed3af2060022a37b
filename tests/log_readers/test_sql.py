"""SQL over the log: equal to scans, exact when a table is read twice, and blind to anything but its tables."""

# duckdb and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

import csv
import io
import json
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import astuple

import cmqd_log
from cmq_cli.app import run
from cmq_cli.exitcodes import ExitCode
from cmqd_log import sql
from cmqd_log.data_folder.folder import open_folder
from cmqd_log.errors import CmqdSourceError, DataLossError, FolderError, OptionError
from cmqd_log.options import parse_options
from cmqd_log.queues import queues_of
from cmqd_log.schema import COLUMNS
from support.core.busy_rig import busy_rig
from support.spark.log_folder import drop_segment, rows_of, write_folder

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""pyarrow and DuckDB are in the Spark set. No session is needed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages in most states, in three sealed segments."""
    place = tmp_path_factory.mktemp("log") / "data"
    rows = rows_of(busy_rig(4, 400)[0])
    third = len(rows) // 3
    write_folder(place, [rows[:third], rows[third : 2 * third], rows[2 * third :]])
    return place


def answer(folder: Path, statement: str, **options: Any) -> list[tuple[Any, ...]]:
    with sql.query(folder, statement, **options) as answered:
        return [tuple(row.values()) for row in answered.reader.read_all().to_pylist()]


def test_the_log_is_the_scan_of_all_columns(folder: Path) -> None:
    scanned = cmqd_log.scan(folder).read_all().to_pylist()

    with sql.query(folder, "SELECT * FROM log") as answered:
        rows = answered.reader.read_all()

    assert rows.schema.names == list(COLUMNS)
    assert rows.to_pylist() == scanned


def test_messages_are_the_messages_of_queues_with_their_states(folder: Path) -> None:
    scanned = cmqd_log.scan(folder, mode="all").read_all().to_pylist()

    told = answer(folder, "SELECT queue, position, msg_id, state, ended_ts, receive_count, as_of_lsn FROM messages")

    names = ("queue", "position", "msg_id", "event", "ended_ts", "receive_count", "as_of_lsn")
    assert told == [tuple(row[name] for name in names) for row in scanned]
    assert len({row[3] for row in told}) > 3


def test_queues_are_those_of_the_list_of_queues(folder: Path) -> None:
    data = open_folder(parse_options({"path": str(folder)}))
    listed = queues_of(data, data.view(include_active=False))

    told = answer(folder, "SELECT account, queue, queue_id, created_ts, deleted_ts, is_deleted, messages FROM queues")

    def us(moment: datetime | None) -> int | None:
        return None if moment is None else round(moment.timestamp() * 1000)

    assert [(row[2], row[0], row[1], us(row[3]), us(row[4]), not row[5], row[6]) for row in told] == [
        astuple(queue) for queue in listed
    ]
    assert {row[5] for row in told} == {False, True}


def test_queues_of_an_earlier_row_are_those_that_were_there(folder: Path) -> None:
    whole = answer(folder, "SELECT queue_id FROM queues")
    (newest,) = answer(folder, "SELECT max(as_of_lsn) FROM messages")[0]
    for lsn in (4, newest // 4, newest // 2):
        stored = cmqd_log.scan(folder, ["queue", "queue_id"], endingLsn=lsn).read_all().to_pylist()

        told = answer(folder, "SELECT queue_id, messages FROM queues", as_of_lsn=lsn)

        counts = Counter(row["queue_id"] for row in stored if row["queue"] is not None)
        assert {number: messages for number, messages in told if messages} == counts
        assert len(told) < len(whole)
    assert answer(folder, "SELECT a.queue_id FROM queues a JOIN queues b USING (queue_id)") == whole


@pytest.mark.parametrize(
    ("statement", "expected"),  # times the number of messages, plus
    [
        ("SELECT count(*) FROM log a JOIN log b USING (lsn, row_index)", (1, 0)),
        ("SELECT count(*) FROM (SELECT lsn FROM log UNION ALL SELECT lsn FROM log)", (2, 0)),
        ("SELECT count(*) FROM log WHERE lsn NOT IN (SELECT lsn FROM log)", (0, 0)),
        ("WITH t AS (SELECT lsn FROM log) SELECT count(*) FROM (FROM t UNION ALL FROM t)", (2, 0)),
        ("SELECT count(*) FROM log a WHERE EXISTS (FROM log b WHERE b.msg_id = a.msg_id)", (1, 0)),
        (
            "WITH RECURSIVE r AS (SELECT 0 AS n, 1 AS lsn UNION ALL SELECT n + 1, 1 FROM r, "
            "(SELECT count(*) AS c FROM log) WHERE c > 0 AND n < 5) SELECT count(*) FROM r",
            (0, 6),
        ),
    ],
    ids=["self-join", "union", "not in", "common table twice", "correlated", "recursive"],
)
def test_a_table_that_is_read_twice_is_whole_each_time(folder: Path, statement: str, expected: tuple[int, int]) -> None:
    count = cmqd_log.scan(folder, ["lsn"]).read_all().num_rows

    assert answer(folder, statement) == [(expected[0] * count + expected[1],)]


def test_only_the_columns_of_the_plan_are_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], str]] = []

    def noted(path: str, columns: list[str], *, mode: str, **options: Any) -> Any:
        asked.append((columns, mode))
        return cmqd_log.scan(path, columns, mode=mode, **options)

    monkeypatch.setattr(sql, "scan", noted)
    answer(folder, "SELECT count(*) FROM log")
    answer(folder, "SELECT a.queue FROM (SELECT * FROM log) a WHERE lsn > 4")
    answer(folder, "SELECT m.state FROM log JOIN messages m USING (msg_id)")
    answer(folder, "SELECT 1")

    assert asked == [
        (["lsn"], "events"),
        (["lsn", "queue"], "events"),
        (["msg_id"], "events"),
        (["msg_id", "event"], "all"),
    ]


@pytest.mark.parametrize("uses", [None, {"log": sql.Use(["lsn"], False)}], ids=["unreadable", "wrong"])
def test_a_plan_that_cannot_be_read_or_lacks_a_column_decodes_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch, uses: Any
) -> None:
    expected = answer(folder, "SELECT lsn, queue FROM log")

    def planned(statement: str) -> Any:
        return uses

    monkeypatch.setattr(sql, "_uses", planned)

    assert answer(folder, "SELECT lsn, queue FROM log") == expected


def test_a_table_beyond_the_limit_is_refused_with_the_ways_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "LEAST_MEMORY_LIMIT", 0)
    twice = "SELECT count(a.lsn) FROM log a JOIN log b USING (lsn, row_index)"

    with pytest.raises(
        sql.QueryError, match=r"reads table log more than once, .* row_index need more than half of .*, 200 bytes"
    ):
        answer(folder, twice, memory_limit=200)
    assert answer(folder, twice) == answer(folder, "SELECT count(*) FROM log")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM (SELECT range, count(*) FROM range(5000000) GROUP BY ALL)",
        "SELECT * FROM range(8000000) ORDER BY hash(range) LIMIT 1 OFFSET 7000000",
        "SELECT length(string_agg(repeat('x', 1000), '')) FROM range(400000)",
        "SELECT len(list(repeat('x', 100) || range)) FROM range(4000000)",
        "SELECT count(*) FROM log, (SELECT lsn, list(range) l FROM log, range(40000) GROUP BY ALL) t WHERE len(l) > 0",
    ],
    ids=["groups", "sort", "text", "list", "lists of a join"],
)
def test_a_statement_beyond_the_memory_limit_ends_without_a_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(sql.QueryError, match=r"more than the memory limit; filter .* raise the limit: ") as refused:
        answer(folder, statement, memory_limit=64 << 20)

    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_that_duckdb_cannot_work_with_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    query = ["log", "query", "FROM log", "--path", str(folder), "--memory-limit", "1MiB"]

    assert run(query) == ExitCode.USAGE
    assert "--memory-limit cannot be 1048576: give at least 33,554,432 bytes" in capfd.readouterr().err


def test_all_tables_are_as_of_the_row_that_is_asked(folder: Path) -> None:
    (newest,) = answer(folder, "SELECT max(as_of_lsn) FROM messages")[0]

    told = answer(folder, "SELECT max(l.lsn), max(m.as_of_lsn) FROM log l, messages m", as_of_lsn=newest - 50)
    scanned = cmqd_log.scan(folder, ["event"], mode="all", endingLsn=newest - 50).read_all()

    assert told[0][0] <= newest - 50 == told[0][1]
    assert answer(folder, "SELECT state FROM messages", as_of_lsn=newest - 50) == [
        (row["event"],) for row in scanned.to_pylist()
    ]
    with pytest.raises(OptionError, match=f"can be read end at row {newest}"):
        answer(folder, "FROM log", as_of_lsn=newest + 1)


def test_a_row_without_a_row_before_it_is_an_error_that_names_the_reclaimed_rows(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "data")
    drop_segment(tmp_path / "data", 1)
    (first,) = answer(tmp_path / "data", "SELECT min(lsn) FROM log")[0]

    with pytest.raises(DataLossError, match=r"rows 1 to 20 were reclaimed or lost, so no row up to 20 can be read"):
        answer(tmp_path / "data", "SELECT count(*) FROM messages", as_of_lsn=20)
    assert answer(tmp_path / "data", "SELECT min(lsn) FROM log", as_of_lsn=first) == [(first,)]
    assert answer(tmp_path / "data", "FROM log", as_of_lsn=0) == []


REFUSED = {
    "SELEC 1": 'syntax error at or near "SELEC"',
    "": "the text has 0 statements; give a single SELECT",
    "SELECT 1; SELECT 2": "the text has 2 statements",
    "COPY log TO 'out.csv'": "the log is read with SELECT alone, and is never changed; COPY is refused",
    "INSERT INTO log VALUES (1)": "INSERT is refused",
    "CREATE TABLE t (n INT)": "CREATE is refused",
    "ATTACH 'other.db'": "ATTACH is refused",
    "INSTALL httpfs": "LOAD is refused",
    "SET threads = 1": "SET is refused",
    "PRAGMA database_list": "PRAGMA is refused",
    "SELECT * FROM '{file}'": "SQL reads the tables log, messages, receives, queues alone, no files and no extensions",
    "SELECT * FROM read_csv('{file}')": "SQL reads the tables log, messages, receives, queues alone",
    "SELECT * FROM read_text('{file}')": "SQL reads the tables log, messages, receives, queues alone",
    "SELECT * FROM glob('/etc/*')": "SQL reads the tables log, messages, receives, queues alone",
    "SELECT * FROM 'http://127.0.0.1:9/x.parquet'": "",
    "SELECT * FROM here": "the tables are log, messages, receives, queues; DESCRIBE log lists columns",
    "SELECT quue FROM log": 'Referenced column "quue" not found',
    "SELECT st_point(1, 2)": "extensions are never loaded",
    "SELECT msg_id::INT FROM log": "Could not convert string",
    "PIVOT messages ON state USING count(*)": "a PIVOT names its values: PIVOT messages ON state IN (",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_bad_sql_writes_and_files_are_refused_in_a_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    here = cmqd_log.scan(folder).read_all()
    (tmp_path / "secret.csv").write_text("a\n1\n")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(sql.QueryError) as refused:
        answer(folder, statement.replace("{file}", str(tmp_path / "secret.csv")))

    assert here.num_rows
    assert REFUSED[statement] in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "read_log" not in str(refused.value)
    assert [file.name for file in tmp_path.iterdir()] == ["secret.csv"]


def test_a_statement_opens_no_connection_and_loads_no_extension(folder: Path, tmp_path: Path) -> None:
    """The library downloads extensions into the home, by sockets of its own: here the home stays empty."""
    text = (
        "import os\nfrom cmqd_log.sql import query, QueryError\n"
        "for text in ('SELECT count(*) FROM log', \"SELECT json_extract('{}', '$.a')\", 'SELECT st_point(1, 2)',\n"
        "             \"FROM 'http://127.0.0.1:PORT/x.parquet'\"):\n"
        "    try:\n        with query(os.environ['DATA'], text) as answered: answered.reader.read_all()\n"
        "    except QueryError as error: print(error)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        ran = subprocess.run(
            [sys.executable, "-c", text.replace("PORT", str(server.getsockname()[1]))],
            env={"HOME": str(tmp_path), "DATA": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        with pytest.raises(BlockingIOError):
            server.accept()

    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_row_is_the_error_of_the_log(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "data")
    file = max((tmp_path / "data/segments").glob("*.db"))
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("UPDATE log SET data = CAST(data || 'x' AS BLOB) WHERE messages > 0")
        raw.commit()

    with pytest.raises(FolderError, match="its bodies do not match their checksum"):
        answer(tmp_path / "data", "SELECT max(body) FROM log")
    with pytest.raises(CmqdSourceError):
        answer(tmp_path / "none", "FROM log")


def test_the_command_prints_the_rows_in_four_forms(
    folder: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    statement = "SELECT queue, queue, lsn, body, tags FROM log WHERE queue IS NOT NULL ORDER BY lsn, row_index LIMIT 3"
    expected = answer(folder, statement.replace("queue, queue, ", "queue, "))

    def printed(form: str) -> bytes:
        assert run(["log", "query", statement, "--path", str(folder), "--output", form]) == ExitCode.OK
        return capfdbinary.readouterr().out

    table = printed("table").decode().splitlines()
    document = json.loads(printed("json"))
    lines = list(csv.reader(io.StringIO(printed("csv").decode())))
    (tmp_path / "rows.parquet").write_bytes(printed("parquet"))
    parquet = pq.read_table(tmp_path / "rows.parquet")

    names = ["queue", "queue_2", "lsn", "body", "tags"]
    statement = "SELECT sum(lsn) AS sum, [1.5] AS list FROM log"
    (sums,) = json.loads(printed("json"))
    assert sums == {"sum": answer(folder, statement)[0][0], "list": [1.5]}
    assert table[0].split() == names
    assert len(table) == 4
    assert [list(row) for row in document] == [names] * 3
    assert [(row["queue"], row["lsn"]) for row in document] == [row[:2] for row in expected]
    assert lines[0] == names
    assert [line[0] for line in lines[1:]] == [row[0] for row in expected]
    assert [tuple(row.values())[1:] for row in parquet.to_pylist()] == expected


def test_the_command_refuses_in_a_sentence(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    query = ["log", "query", "FROM nothing", "--path", str(folder)]

    assert run(query) == ExitCode.USAGE
    assert "the tables are log, messages, receives, queues" in capfd.readouterr().err
    assert run(["log", "query", "FROM log", "--path", str(folder), "--as-of-lsn", "99999"]) == ExitCode.USAGE
    assert "--as-of-lsn cannot be 99999" in capfd.readouterr().err
    assert run(["log", "query", "FROM log", "--path", str(folder / "none")]) == ExitCode.FAILED
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("none is not a data folder: it has no manifest")
    assert run(["queue", "list", "--output", "csv"]) == ExitCode.USAGE
    assert "--output csv is of cmq log query alone; give table or json" in capfd.readouterr().err


def test_the_command_names_its_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "cmqd_log.sql")
    monkeypatch.delattr(cmqd_log, "sql")

    assert run(["log", "query", "FROM log", "--path", str(folder)]) == ExitCode.FAILED
    assert "cmqd[sql]" in capfd.readouterr().err


def test_maps_are_objects_and_intervals_and_times_that_python_lacks_are_text(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    statement = (
        "SELECT MAP{'a': '1'} m, INTERVAL '14 months 2 days 964.5 seconds' a, -INTERVAL 1 DAY b, INTERVAL 0 DAY c, "
        "NULL::INTERVAL d, "
        "TIMESTAMP_NS '2020-01-01 00:00:00.123456789' e, '99999-01-01'::DATE f, ended_ts - enqueue_ts g, "
        "TIMESTAMP_NS '2020-01-01 00:00:00' h "
        "FROM messages WHERE ended_ts IS NULL LIMIT 1"
    )

    def printed(form: str) -> bytes:
        assert run(["log", "query", statement, "--path", str(folder), "--output", form]) == ExitCode.OK
        return capfdbinary.readouterr().out

    (row,) = json.loads(printed("json"))
    lines = list(csv.reader(io.StringIO(printed("csv").decode())))
    (columns,) = pq.read_table(io.BytesIO(printed("parquet"))).select(["a", "b", "c", "d", "g"]).to_pylist()

    texts = {"a": "1 year 2 months 2 days 00:16:04.5", "b": "-1 day", "c": "00:00:00", "d": None, "g": None}
    assert columns == texts
    assert {name: row[name] for name in texts} == texts
    assert row["m"] == {"a": "1"}
    assert (row["e"], row["h"]) == ("2020-01-01 00:00:00.123456789", "2020-01-01 00:00:00.000000000")
    assert lines[1][:5] == ['{"a":"1"}', texts["a"], "-1 day", "00:00:00", ""]
    assert b"-1 day" in printed("table")
    assert run(["log", "query", "SELECT MAP{1: [INTERVAL 1 DAY]} m", "--path", str(folder), "--output", "parquet"]) == 2
    assert b"parquet has no type for a column of the answer" in capfdbinary.readouterr().err


def test_an_endless_statement_ends_at_ctrl_c(folder: Path) -> None:
    """The table's scan sends the signal at its end, and DuckDB then counts on."""
    text = (
        "import os, signal, sys\nimport pyarrow as pa\nfrom cmq_cli.app import run\nfrom cmqd_log import sql\n"
        "scan = sql.scan\n"
        "def batches(reader):\n    yield from reader\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "def noted(*given, **options):\n    reader = scan(*given, **options)\n"
        "    return pa.RecordBatchReader.from_batches(reader.schema, batches(reader))\n"
        "sql.scan = noted\n"
        "sys.exit(run(['log', 'query', sys.argv[1], '--path', sys.argv[2]]))\n"
    )
    statement = "SELECT count(*) FROM log a, range(1000000000000) r WHERE a.lsn <> r.range"

    ran = subprocess.run(
        [sys.executable, "-c", text, statement, str(folder)], capture_output=True, text=True, check=False, timeout=60
    )

    assert ran.returncode == ExitCode.INTERRUPTED, ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_closed_pipe_ends_the_command_without_an_error(folder: Path) -> None:
    arguments = ["log", "query", "FROM range(10000000)", "--path", str(folder), "--output", "csv"]
    with subprocess.Popen(
        [sys.executable, "-m", "cmq_cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline().strip() == b"range"
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == ExitCode.OK


def test_a_close_waits_for_the_batch_that_a_thread_of_duckdb_reads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that fails leaves such threads behind."""
    began, may_end = Event(), Event()
    schema = pa.schema([("lsn", pa.int64())])

    def batches() -> Iterator[pa.RecordBatch]:
        began.set()
        may_end.wait(30)
        yield pa.record_batch([[1]], schema=schema)
        raise AssertionError("the scan is closed")

    def scan(**_: object) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(schema, batches())

    monkeypatch.setattr(sql, "scan", scan)
    options = parse_options({"path": str(folder)})
    with open_folder(options) as opened:
        tables = sql.Tables(options, {}, sql.LEAST_MEMORY_LIMIT, opened.view(include_active=False))
    reader = tables.make("log", sql.Use(["lsn"], False))
    with ThreadPoolExecutor(2) as threads:
        read = threads.submit(reader.read_next_batch)
        assert began.wait(30)
        closed = threads.submit(tables.close)
        wait([closed], 0.1)
        may_end.set()
        assert read.result().num_rows == 1
        closed.result()
    assert list(reader) == []
