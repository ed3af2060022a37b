"""Options and scenarios of ``cmq bench`` that are refused, and what a scenario gives."""

from pathlib import Path

import pytest

from cmq_cli.bench.plans import CyclePlan, FanoutPlan, PollPlan, RatePlan, SendPlan
from cmq_cli.commands.bench import read_scenario
from cmq_cli.exitcodes import CommandFailed, ExitCode
from support.client.cmq_runs import Cmq


def scenario(folder: Path, text: str) -> Path:
    file = folder / "load.toml"
    file.write_text(text)
    return file


def test_a_scenario_is_the_options_of_its_commands(tmp_path: Path) -> None:
    plans = read_scenario(
        scenario(
            tmp_path,
            """
            [defaults]
            duration = "1m"
            warm_up = 0.5
            [[run]]
            load = "send"
            size = "4KiB"
            reconnect = false
            [[run]]
            name = "slow"
            load = "rate"
            rate = 12.5
            queue = "orders"
            use-existing = true
            [[run]]
            load = "poll"
            duration = 3
            """,
        )
    )

    assert plans == {
        "send": SendPlan(duration=60.0, warm_up=0.5, size=4096, reconnect=False),
        "slow": RatePlan(duration=60.0, warm_up=0.5, rate=12.5, queue="orders", use_existing=True),
        "poll": PollPlan(duration=3.0, warm_up=0.5),
    }


def test_a_run_without_options_has_the_defaults(tmp_path: Path) -> None:
    assert read_scenario(scenario(tmp_path, '[[run]]\nload = "cycle"')) == {"cycle": CyclePlan()}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("load = ", "Invalid value"),
        ("", "at least one table [[run]]"),
        ("[[runs]]\nload = 'send'", "'runs' is unknown; a scenario has [defaults] and [[run]]"),
        ("run = [3]", "run 1 is no table"),
        ("[[run]]\nload = 'sned'", "run 1: load is 'sned'; it must be one of send, cycle, rate, fanout, poll"),
        ("[[run]]\nload = ['send']", "run 1: load is ['send']; it must be one of send, cycle, rate, fanout, poll"),
        ("[[run]]\nload = 'send'\nhelp = true", "run 'send': 'help' is no option of a load"),
        ("[[run]]\nload = 'send'\nversion = true", "run 'send': 'version' is no option of a load"),
        ("[[run]]\nload = 'rate'\nrate = 1e-300", "run 'rate': Invalid value \"1e-300\" for --rate"),
        ("[[run]]\nload = 'send'\n[[run]]\nload = 'send'", "run 2: the name 'send' is taken"),
        ("[[run]]\nload = 'send'\nconsumers = 3", "run 'send': Unknown option: --consumers"),
        ("[[run]]\nload = 'send'\nduration = 'soon'", "run 'send': Invalid value for --duration: 'soon' is not"),
        ("[[run]]\nload = 'send'\nbatch = 257", "run 'send': Invalid value \"257\" for --batch"),
    ],
)
def test_an_unusable_scenario_names_the_run_and_the_key(tmp_path: Path, text: str, reason: str) -> None:
    file = scenario(tmp_path, text)

    with pytest.raises(CommandFailed) as failed:
        read_scenario(file)

    assert str(failed.value).startswith(f"{file}: ")
    assert reason in str(failed.value)
    assert failed.value.code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (SendPlan(size=15), "--size is 15; it must be 16 to 1048576 bytes"),
        (SendPlan(size=8192, batch=129), "--batch 129 of --size 8192 is over 1048576 bytes"),
        (SendPlan(size=1024 * 1024, queues=513), "for 513 queues takes more than 512 MiB of memory"),
        (SendPlan(duration=0.05), "--duration is 0.05 s; it must be 0.1 s to 1d"),
        (SendPlan(warm_up=90_000), "--warm-up is 90000 s; it must be at most 1d"),
        (SendPlan(rate=5, outstanding=2), "--outstanding belongs to a closed loop"),
        (CyclePlan(consumers=0), "--consumers is 0; it must be at least 1"),
        (RatePlan(consumers=2, queues=3), "--consumers is 2; it must be at least the number of queues, 3"),
        (FanoutPlan(consumers=2), "--consumers is 2; it must be at least the number of queues, 10"),
        (SendPlan(use_existing=True), "--use-existing needs the name of the queue: --queue"),
    ],
)
def test_options_that_contradict_each_other_are_refused(plan: SendPlan, reason: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        plan.check()

    assert reason in str(failed.value)
    assert failed.value.code is ExitCode.USAGE


def test_consumers_are_as_many_as_producers_and_one_for_each_queue_at_least() -> None:
    assert CyclePlan(connections=4).check().consumers == 4
    assert CyclePlan(connections=4, queues=6).check().consumers == 6
    assert FanoutPlan(consumers=0).check().latency == "request to reply"
    assert PollPlan(connections=55).check().queues == 5


def test_a_report_into_a_missing_folder_is_refused_before_the_run(cmq: Cmq, tmp_path: Path) -> None:
    ran = cmq("bench", "send", "--html", str(tmp_path / "missing" / "page.html"))

    assert (ran.code, ran.err) == (ExitCode.USAGE, f"cmq: {tmp_path}/missing/page.html: there is no such folder\n")


def test_a_report_in_place_of_a_folder_is_refused_before_the_run(cmq: Cmq, tmp_path: Path) -> None:
    ran = cmq("bench", "send", "--hgrm", str(tmp_path))

    assert (ran.code, ran.err) == (ExitCode.USAGE, f"cmq: {tmp_path}: this is a folder\n")


@pytest.mark.parametrize("load", ["send", "cycle", "rate", "fanout", "poll", "run"])
def test_help_fits_a_terminal(cmq: Cmq, load: str) -> None:
    ran = cmq("bench", load, "--help")

    assert ran.code == ExitCode.OK
    assert max(map(len, ran.out.splitlines())) <= 80
