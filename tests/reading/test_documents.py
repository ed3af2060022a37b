"""The programs of docs/log.md, run as printed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cmqd_client import connect
from support.documents.pages import ROOT, blocks_to_run
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
    with RunningBroker(tmp_path, "--durability", "os") as broker:
        asyncio.run(orders(broker.url))

        for text in blocks_to_run(ROOT / "docs/log.md", "python"):
            exec(compile(text, "log.md", "exec"), names)

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
