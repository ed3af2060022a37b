"""The commands and programs of docs/log.md, run as printed."""

# pyarrow tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cmqd_client import connect
from support.documents.pages import ROOT, blocks_to_run
from support.processes.environment import plain_environment
from support.processes.running_broker import RunningBroker

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""pyarrow, DuckDB and Polars are in the Spark set. No session is needed."""


async def orders(url: str) -> None:
    """Three orders and an audit: an order is deleted, an order is in flight."""
    async with connect(url) as client:
        queue = await client.create_queue("orders", visibility_timeout=3600, rewind=3600)
        audit = await client.create_queue("audit")
        await queue.send_batch([b"one", b"two", b"three"])
        await audit.send(b"all")
        deleted, _ = await queue.receive(2)
        await queue.delete(deleted)
        await client.seal_segments()


def test_the_programs_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = plain_environment() | {"PATH": path}
    with RunningBroker(tmp_path, "--durability", "os") as broker:
        asyncio.run(orders(broker.url))

        (commands,) = blocks_to_run(ROOT / "docs/log.md", "sh")
        told = [
            subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=True).stdout
            for line in commands.splitlines()
        ]
        for text in blocks_to_run(ROOT / "docs/log.md", "python"):
            exec(compile(text, "log.md", "exec"), names)

    table, document, sent, lost, _ = told
    assert ["orders", "deleted", "1"] in [line.split() for line in table.splitlines()]
    assert [row["state"] for row in json.loads(document)] == ["in_flight"]
    assert sent.splitlines()[0] == "hour,sent"
    assert lost.split() == ["received_by", "lost"]
    assert pq.read_table("log.parquet").num_rows == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 messages"
    groups = [line.replace("│", " ").replace("┆", " ").split() for line in lines]
    assert [row for row in groups if row[:1] in (["orders"], ["audit"])] == [
        ["audit", "active", "1"],
        ["orders", "active", "1"],
        ["orders", "deleted", "1"],
        ["orders", "in_flight", "1"],
        ["audit", "1"],
        ["orders", "3"],
    ]
    assert ["1"] in groups
    assert lines[-1] == "4"
