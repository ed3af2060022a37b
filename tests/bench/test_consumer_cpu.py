"""The benchmark of the consumer's CPU: every way handles all messages, and the ratios are of rounds."""

import json

import pytest

from cmqd_bench.commands.arguments import plan_from
from cmqd_bench.commands.command_line import build_parser
from cmqd_bench.commands.plans import Consumer
from cmqd_bench.compare.consumer_cpu import Row, print_consumer


def test_the_command_is_understood() -> None:
    plan = plan_from(Consumer, build_parser().parse_args(["consumer", "--messages", "1000", "--json"]))

    assert (plan.messages, plan.json) == (1000, True)


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    assert Row(16, [1.0, 10.0, 2.0], [2.0, 10.0, 6.0], [1.0, 1.0, 1.0]).ratio("consumer") == 2.0


@pytest.mark.system
def test_every_way_handles_all_messages(capsys: pytest.CaptureFixture[str]) -> None:
    print_consumer(Consumer(messages=80, rounds=2, scratch=None, json=True))

    rows = json.loads(capsys.readouterr().out)
    assert [row["batch"] for row in rows] == [16, 1]
    assert all(len(row[kind]) == 2 for row in rows for kind in ("bare", "consumer", "default"))
