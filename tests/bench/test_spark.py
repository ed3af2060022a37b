"""The bench of the Spark connector: its parts in small, and its conclusions from figures."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cmqd_bench.commands.command_line import build_parser
from cmqd_bench.commands.plans import SPARK_PARTS
from cmqd_bench.figures.report import outline
from cmqd_bench.load.clients import Tally
from cmqd_bench.load.wire import SENT, LoadConnection, SendTemplate
from cmqd_bench.spark.log import SEGMENTS, sealed, write_log
from cmqd_bench.spark.reading import ratios
from cmqd_bench.spark.tail import VARIANTS, PacedSender, pin
from support.bench.long_benches import long_bench


def test_parts_are_chosen_by_name():
    parser = build_parser()

    assert parser.parse_args(["spark"]).parts == SPARK_PARTS
    assert parser.parse_args(["spark", "--parts", "tail, sink"]).parts == ("tail", "sink")
    with pytest.raises(SystemExit):
        parser.parse_args(["spark", "--parts", "batches"])


def test_ratios_are_of_the_best_and_of_the_median_rounds():
    assert ratios([9.0, 2.0, 3.0], [1.0, 1.0, 8.0]) == {"best": 2.0, "median": 3.0}


@pytest.mark.system
def test_the_log_has_the_segments_that_it_should(tmp_path: Path):
    asyncio.run(write_log(tmp_path, 30_000, 64))

    segments = sealed(tmp_path)

    assert 20 <= len(segments) <= SEGMENTS
    assert sum(entry.messages for entry in segments) == 30_000


class Wire:
    """A connection that answers on demand."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.on_reply: Any = None

    def write(self, frame: bytes) -> None:
        self.frames.append(frame)

    def answer(self) -> None:
        self.on_reply(b"", SENT)


async def test_a_request_that_has_to_wait_counts_from_its_intended_time():
    wire: Any = Wire()
    tally = Tally()
    connections: list[LoadConnection] = [wire]
    sender = PacedSender(connections, SendTemplate("orders", batch=3, size=32), tally)

    sender.send(1)
    sender.send(2)
    assert len(wire.frames) == 1
    wire.answer()
    assert len(wire.frames) == 2
    assert not sender.is_idle
    wire.answer()

    assert sender.is_idle
    assert (sender.messages, tally.sent, tally.latency.count) == (6, 6, 2)


@long_bench
@pytest.mark.spark
@pytest.mark.system
def test_a_broker_under_load_with_a_following_reader_loses_nothing(tmp_path: Path):
    command = [sys.executable, "-m", "cmqd_bench", "spark", "--parts", "tail", "--json", "--share-cores"]
    command += ["--tail-rounds", "1", "--tail-rate", "3200", "--tail-seconds", "3", "--scratch", str(tmp_path)]

    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    # The bench checks that the reader had each message once: by number, and by a sum over all messages.
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    for variant in VARIANTS:
        (run,) = figures["tail"]["rounds"][variant]
        assert (run["messages"] > 0, run["refused"]) == (True, 0)
    reader = figures["tail"]["rounds"]["tail"][0]["reader"]
    assert reader["messages_at_the_end"] == reader["messages_sent"] >= 3 * 3200, "each send was answered"
    assert "tail times none" in "\n".join(outline(figures))


def test_threads_of_a_process_are_pinned():
    cores = os.sched_getaffinity(0)
    try:
        pin([os.getpid()], {min(cores)})
        assert os.sched_getaffinity(0) == {min(cores)}
    finally:
        pin([os.getpid()], cores)
    pin([1 << 22], cores)


@long_bench
@pytest.mark.spark
@pytest.mark.system
def test_the_parts_in_small(tmp_path: Path):
    command = [sys.executable, "-m", "cmqd_bench", "spark", "--parts", "batch,prune,stream,sink", "--json"]
    command += ["--messages", "25600", "--rounds", "1", "--scratch", str(tmp_path)]

    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert figures["segments"] >= 20
    once = figures["stream"]["exactly_once"]
    assert (once["rows"], once["different_rows"]) == (25_600, 25_600)
    assert once["batches"] >= 10
    assert figures["prune"]["one_queue"]["messages"] == 512
    assert figures["prune"]["one_hour"]["segments"] < figures["segments"] / 4
    assert figures["sink"]["messages"] == 25_600
    assert any("of parquet" in line for line in outline(figures))
    assert list(tmp_path.iterdir()) == []
