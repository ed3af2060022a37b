"""The bench of the Spark connector: its parts in small, and its conclusions from figures."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cmqd_bench.commands.command_line import build_parser
from cmqd_bench.commands.plans import SPARK_PARTS
from cmqd_bench.figures.report import outline
from cmqd_bench.spark.log import SEGMENTS, sealed, write_log
from cmqd_bench.spark.reading import ratios
from support.bench.long_benches import long_bench


def test_parts_are_chosen_by_name():
    parser = build_parser()

    assert parser.parse_args(["spark"]).parts == SPARK_PARTS
    assert parser.parse_args(["spark", "--parts", "stream, sink"]).parts == ("stream", "sink")
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
