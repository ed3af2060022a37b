"""The command line of the harness, as scripts call the command."""

import shlex

import pytest

from cmqd_bench.commands.command_line import build_parser, options_from
from cmqd_bench.commands.options import SCENARIOS, Options, defaults
from support.cases import each_case


def parse(command: str) -> Options:
    return options_from(build_parser().parse_args(shlex.split(command)))


@each_case(
    "command",
    [
        "cycle --batch 16 --body 256 --connections 8 --seconds 10 --json",
        "send --batch 1 --body 256 --connections 64 --seconds 10 --saturate --json --rounds 1",
        "latency --rate 2000 --seconds 10 --json",
        "idle --connections 10000 --json",
        "delayed --messages 1000000 --json",
        "backlog --messages 10000000 --json",
        "fanout --subscribers 10 --body 256 --seconds 10 --json",
        "fanout --batch 1 --connections 64 --subscribers 0 --unmatched --json",
        "push --endpoints 20 --json",
        "gateway --connections 64 --json",
    ],
)
def test_the_commands_that_others_rely_on_are_understood(command: str):
    options = parse(command)

    assert options.json
    assert options.scenario == command.split()[0]


@each_case("scenario", SCENARIOS)
def test_every_scenario_runs_without_flags(scenario: str):
    assert parse(scenario) == defaults(scenario)


def test_defaults_are_those_of_the_purpose():
    assert parse("idle").connections == 10_000
    assert parse("idle").rate == 500
    assert parse("delayed").messages == 1_000_000
    assert parse("delayed").spread == 60
    assert parse("backlog").messages == 10_000_000
    assert parse("latency").rate == 2_000
    assert parse("cycle").durability == "fsync"
    assert (parse("fanout").batch, parse("fanout").connections, parse("fanout").subscribers) == (1, 64, 10)
    assert parse("push").endpoints == 20


@pytest.mark.parametrize(
    ("command", "rounds"),
    [
        ("cycle --seconds 10", 3),
        ("cycle --seconds 14", 1),
        ("cycle --seconds 60", 1),
        ("cycle --seconds 60 --rounds 2", 2),
        ("idle", 1),
        ("delayed", 1),
        ("backlog", 1),
    ],
)
def test_short_rounds_are_run_three_times(command: str, rounds: int):
    assert parse(command).effective_rounds() == rounds


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("cycle --batch 0", "--batch: 0 is not within 1 .. 256"),
        ("cycle --batch 257", "--batch: 257 is not within 1 .. 256"),
        ("cycle --batch many", "'many' is not a whole number"),
        ("cycle --body 15", "--body: 15 is not within 16 .. 1048576"),
        ("cycle --seconds 0", "--seconds: 0.0 is not within"),
        ("latency --rate fast", "'fast' is not a number"),
        ("cycle --rate 5", "unrecognized arguments: --rate 5"),
        ("cycle --durability none", "invalid choice: 'none'"),
        ("sleep", "invalid choice: 'sleep'"),
    ],
)
def test_bad_arguments_are_refused_by_name_value_and_limit(command: str, told: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        parse(command)

    assert end.value.code == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert not captured.out


def test_a_batch_over_one_mebibyte_is_refused():
    with pytest.raises(ValueError, match=r"--batch 256 x --body 8192 is over the 1048576 bytes"):
        parse("cycle --batch 256 --body 8192")


def test_a_backlog_leaves_spare_messages_for_the_consumers_of_each_drain():
    with pytest.raises(ValueError, match=r"--messages 3077 are too few .* at least 3078 are needed"):
        parse("backlog --messages 3077")
    assert parse("backlog --messages 3078").messages == 3078
