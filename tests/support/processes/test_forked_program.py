"""Forked programs behave as ``python -m`` does."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.eventually import eventually_elsewhere
from support.processes.environment import plain_environment
from support.processes.forked_program import ForkedProgram, write_command
from support.processes.running_server import NEW_INTERPRETER, RunningServer


@pytest.mark.parametrize("arguments", [["config"], ["serve", "--heartbeat-ms", "5"], ["no-command"], ["--version"]])
def test_output_and_exit_code_are_those_of_a_new_interpreter(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {**plain_environment(), "CMQD_REGION": "north"}
    with (tmp_path / "output").open("wb") as output:
        code = ForkedProgram("cmqd", arguments, output=output, environment=environment).wait()
    command = [*NEW_INTERPRETER, *arguments]
    ran = subprocess.run(command, env=environment, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    # argparse names the program by the path of its main module, as run by -m.
    assert (code, (tmp_path / "output").read_bytes()) == (ran.returncode, ran.stdout)


def test_a_relative_folder_is_that_of_the_test_and_the_descriptors_are_those_of_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    numbers: list[int] = []
    for program in ((), NEW_INTERPRETER):
        with RunningServer(tmp_path, "--data", "relative", program=program) as server:
            pids = (server.process.pid, server.ready["storage_pid"])
            numbers.append(sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids))
            assert Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[1] == str(pids[0])

    assert (tmp_path / "relative" / "accounts.json").exists()
    assert numbers[0] == numbers[1]


def test_the_storage_process_of_a_killed_broker_ends(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        storage = server.ready["storage_pid"]
        server.kill()

        assert server.wait() == -signal.SIGKILL
        eventually_elsewhere(lambda: not Path(f"/proc/{storage}").exists())


def test_a_signal_to_a_program_that_has_ended_without_news_of_it_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "output").open("wb") as output:
        program = ForkedProgram("cmqd", ["--version"], output=output, environment=plain_environment())
    program.wait()
    monkeypatch.setattr(program, "poll", lambda: None)

    program.kill()


def test_a_command_has_the_streams_of_the_shell_and_its_exit_code(tmp_path: Path) -> None:
    number = write_command("cmq", "cmq_cli", tmp_path)
    environment = {**plain_environment(), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    script = "cmq --version | tr . -; cmq no-command 2>&1 >/dev/null | wc -l; cmq no-command 2>/dev/null"

    ran = subprocess.run(
        ["bash", "-c", script], env=environment, pass_fds=(number,), check=False, stdout=subprocess.PIPE, text=True
    )

    version, lines = ran.stdout.split()
    assert (version.count("-"), int(lines) > 0, ran.returncode) == (2, True, 2)
