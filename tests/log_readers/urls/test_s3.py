"""A log in S3: scans, statements and commands, over moto's server, a process of its own on the loopback."""

# duckdb, pyarrow and s3fs tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cmqd_log
from cmq_cli.app import run
from cmq_cli.exitcodes import ExitCode
from cmqd_log import sql
from cmqd_log.errors import FolderError
from support.spark.log_folder import queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS, body

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""moto, s3fs, pyarrow and DuckDB are in the Spark set. No session is needed."""

SERVER = """
import os, sys, threading
from moto.server import ThreadedMotoServer

# The server ends with the program that started it, and after ten minutes at the latest.
threading.Timer(600, os._exit, (1,)).start()
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
os._exit(0)
"""
KEY_ID, KEY = "AKIDOFTHETESTS", "the-key-of-the-tests"
SEGMENTS, MESSAGES = 3, 300
BODIES = [body(7, position, 200) for position in range(MESSAGES)]


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """The address of a server of S3."""
    started = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        yield f"http://127.0.0.1:{int(started.stdout.readline())}"
    finally:
        started.kill()
        started.communicate()


@pytest.fixture
def keys(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address and the keys, by the environment alone."""
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def url(keys: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """A log of three sealed segments in a bucket."""
    import s3fs

    folder = tmp_path_factory.mktemp("log") / "data"
    created = ([queue_created(7, "orders")], [], NOW_MS)
    rows = [sends(7, 100 * number, 100, size=200) for number in range(SEGMENTS)]
    write_folder(folder, [[created, rows[0]], [rows[1]], [rows[2]]])
    bucket = f"logs-{abs(hash(request.node.name))}"
    # Without instances that are kept: each has a connection of its own, to the server of its endpoint.
    files: Any = s3fs.S3FileSystem(skip_instance_cache=True)
    files.mkdir(bucket)
    files.put(str(folder), f"{bucket}/data", recursive=True)
    yield f"s3://{bucket}/data"
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_scan_has_the_messages_of_the_log_and_leaves_no_file(url: str, temporary: Path) -> None:
    for mode in ("events", "all"):
        rows = cmqd_log.scan(url, ["position", "body"], queue="orders", mode=mode).read_all()

        assert rows.column("body").to_pylist() == BODIES
        assert rows.column("position").to_pylist() == list(range(MESSAGES))
    assert list(temporary.iterdir()) == []


def test_a_statement_and_the_command_answer_as_from_the_folder(
    url: str, temporary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    statement = "SELECT queue, state, count(*) AS messages FROM messages JOIN log USING (msg_id, queue) GROUP BY ALL"

    with sql.query(url, statement) as answer:
        assert answer.reader.read_all().to_pylist() == [{"queue": "orders", "state": "active", "messages": MESSAGES}]
    assert run(["log", "query", statement, "--path", url, "--output", "json"]) == ExitCode.OK
    out, err = capfd.readouterr()

    assert json.loads(out) == [{"queue": "orders", "state": "active", "messages": MESSAGES}]
    assert err == ""
    assert list(temporary.iterdir()) == []


def test_the_keys_are_in_no_log_line_table_or_error(
    url: str, temporary: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "cmqd_log")
    told = [repr(cmqd_log.plan(url, mode="all"))]
    with sql.query(url, "SELECT * FROM log") as answer:
        told.append(repr(answer.reader.read_all().to_pylist()))
    with sql.query(url, "SELECT * FROM messages") as answer:
        told.append(repr(answer.reader.read_all().to_pylist()))
    for path in (url, url + "-missing", "s3://no-such-bucket/data"):
        run(["log", "query", "FROM queues", "--path", path])
        run(["segment", "list", "--path", path, "--output", "json"])
    with pytest.raises(FolderError) as failed:
        cmqd_log.scan("s3://no-such-bucket/data")
    out, err = capfd.readouterr()

    told += [str(failed.value), out, err, caplog.text]
    assert not [text for text in told if KEY in text or KEY_ID in text]
    assert "orders" in out
    assert err.count("\n") >= 4, "the errors are there, and have no key"


def test_wrong_keys_and_a_missing_bucket_are_sentences(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "query", "FROM log", "--path", "s3://no-such-bucket/data"]) != ExitCode.OK
    (line,) = capfd.readouterr().err.splitlines()
    assert "no-such-bucket" in line

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    assert run(["log", "query", "FROM log", "--path", url]) == ExitCode.FAILED
    (line,) = capfd.readouterr().err.splitlines()
    assert f"{url}" in line
