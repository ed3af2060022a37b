"""The benchmarks of redundancy: figures out of calls, and all kinds of brokers over real servers."""

import json

import pytest

from cmqd_bench.commands.arguments import plan_from
from cmqd_bench.commands.command_line import build_parser
from cmqd_bench.commands.plans import Redundancy, Takeover
from cmqd_bench.redundancy import costs
from cmqd_bench.redundancy.callers import Call, Callers
from support.bench.long_benches import long_bench


def test_the_commands_are_understood() -> None:
    parser = build_parser()
    assert plan_from(Takeover, parser.parse_args(["takeover", "--rounds", "3"])).rounds == 3
    assert plan_from(Redundancy, parser.parse_args(["redundancy", "--turns", "2", "--json"])).json


def test_figures_count_from_the_fault() -> None:
    callers = Callers("cmq://id:key@127.0.0.1")
    callers.calls = [Call(0.0, 5.0, ""), Call(5.5, 8.5, ""), Call(6.5, 7.0, "ConnectionFailed"), Call(8.0, 9.0, "")]

    assert callers.longest_since(6.0) == 3.0
    assert callers.first_answer_since(6.0) == 2.5
    assert (callers.errors_since(6.0), callers.errors_since(7.5)) == (1, 0)


@long_bench
@pytest.mark.system
@pytest.mark.postgresql
def test_every_kind_of_broker_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    costs.print_redundancy(Redundancy(messages=512, turns=1, scratch=None, json=True))

    rows = json.loads(capsys.readouterr().out)["costs"]
    assert [row["kind"] for row in rows] == ["none", "no standby broker", "pair"]
    assert [len(row["standby_broker"]) for row in rows] == [0, 0, 1]
    assert all(row["batch_p50_ms"] for row in rows)
