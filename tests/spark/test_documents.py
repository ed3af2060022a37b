"""The programs of docs/spark.md and the commands of docs/replay.md, run as printed."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false

import asyncio
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cmq_cli.exitcodes import ExitCode
from cmqd_client import connect
from support.documents.pages import ROOT, blocks_to_run
from support.processes.environment import plain_environment
from support.processes.running_broker import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.system]

KEYS = ("issues.opened.someone", "push.none.someone", "issue_comment.created.someone")


async def webhooks(url: str) -> None:
    """A topic with two subscriptions, of which one has consumed a part, and a dead letter."""
    async with connect(url) as client:
        topic = await client.create_topic("hooks", filter_type="routing")
        for name in ("failed", "again"):
            await client.create_queue(name)
        everything = await client.create_queue("all", visibility_timeout=3600)
        issues = await client.create_queue("issues", dead_letter_queue="failed", dead_letter_max_receives=1)
        await topic.subscribe("all", queue=everything, binding_keys=["#"])
        await topic.subscribe("issues", queue=issues, binding_keys=["issues.#", "issue_comment.#"])
        body = json.dumps({"issue": {"title": "A title"}}).encode()
        await topic.publish_batch([body] * 30, routing_keys=list(KEYS) * 10)
        await issues.delete_batch(await issues.receive(5))
        await issues.release_batch(await issues.receive(1))
        while not (await client.queue("failed").attributes()).active:  # noqa: ASYNC110 - no push tells this
            await asyncio.sleep(0.05)
        await client.seal_segments()


async def taken(url: str, name: str) -> list[Any]:
    async with connect(url) as client:
        return await client.queue(name).receive(16, wait=0)


def test_the_programs_of_the_spark_page_run(spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    blocks = blocks_to_run(ROOT / "docs/spark.md", "python")
    with RunningBroker(tmp_path, "--durability", "os", "--keep-history-ms", "3600000") as broker:
        asyncio.run(webhooks(broker.url))
        names: dict[str, Any] = {}

        for block in blocks:
            # Relative paths belong to the process that started Spark.
            placed = block.replace('"data"', f'"{tmp_path / "data"}"').replace('"out/', f'"{tmp_path}/out/')
            # The same holds for the environment with the server's URL.
            placed = placed.replace('option("queue", "again")', f'options(queue="again", url="{broker.url}")')
            exec(compile(placed, "spark.md", "exec"), names)

        again = asyncio.run(taken(broker.url, "again"))

    assert len(blocks) == 6
    out = capsys.readouterr().out
    assert "|published|hooks|  NULL|   30|" in out
    assert "|issues|dead_lettered|    1|" in out
    assert "|issues|released|    1|" in out
    assert "|A title|" in out
    assert "[30]" in out
    assert [message.headers for message in again] == [{}]


def test_the_commands_of_the_replay_page_run(tmp_path: Path):
    text, export = blocks_to_run(ROOT / "docs/replay.md", "sh")
    environment = plain_environment() | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with RunningBroker(tmp_path, "--durability", "os", "--keep-history-ms", "3600000") as broker:
        asyncio.run(webhooks(broker.url))

        told, written, exported = (
            subprocess.run(
                shlex.split(line, comments=True), cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            for line in [*text.splitlines(), export]
        )

    codes = (told.returncode, written.returncode, exported.returncode)
    assert codes == (ExitCode.OK,) * 3, f"{told.stderr}\n{written.stderr}\n{exported.stderr}"
    assert [line.partition(" ")[0] for line in told.stderr.splitlines()] == ["balanced"]
    # A line of names, a line for each of three queues, and the sums; more only if the hour is over meanwhile.
    assert 5 <= len(told.stdout.splitlines()) <= 8
    assert json.loads(written.stdout)["balanced"] is True
    assert (tmp_path / "counts.parquet").exists()
    assert list((tmp_path / "parquet").glob("*.parquet"))
