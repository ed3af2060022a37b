"""The life of the HTTP gateway as a child process: its key, its end, its restarts; the child is a small program."""

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cmqd import __main__ as command
from cmqd.child_python import child_python
from cmqd.exit_codes import ExitCode
from cmqd.server.access.accounts_file import Key, new_key
from cmqd.server.process import http_gateway
from cmqd.server.process.http_gateway import (
    HttpGateway,
    broker_url,
    checked_flags,
    command_of,
    http_url,
    needs_private_listener,
)
from cmqd.server.process.readiness import BrokerRole, Readiness
from cmqd.settings import SettingError, Settings, load
from cmqd_logs.levels import LogLevel
from support.eventually import eventually
from support.processes.stopped_process import stop

READS_KEY = (
    "import os,sys; sys.stdin = None; line = os.read(int(sys.argv[1]), 1000); open(sys.argv[2], 'wb').write(line)"
)
"""A child that writes the line of its pipe into a file, and ends."""
READS_TWO_LINES = (
    READS_KEY + "; line = os.read(int(sys.argv[1]), 1000); open(sys.argv[2] + '.second', 'wb').write(line)"
)
"""A child that writes the second line into a file too, and ends."""
READS_FIVE_LINES = (
    "import sys; file = open(int(sys.argv[1]), 'rb', buffering=0); lines = [file.readline() for _ in range(5)];"
    "open(sys.argv[2], 'wb').writelines(lines)"
)
"""A child that writes the key and four more lines into a file, and ends."""
WAITS_FOR_THE_PIPE = READS_KEY + "; os.read(int(sys.argv[1]), 1)"
"""A child that ends with the other end of its pipe."""
IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS_FOR_THE_PIPE


class Rig:
    """A gateway with keys that are noted, and with pauses that pass at once."""

    def __init__(self, tmp_path: Path, program: str, runs: int) -> None:
        self.file = tmp_path / "line"
        self.lent: list[Key] = []
        self.taken_back: list[str] = []
        self.pauses: list[float] = []
        self.now_s = 0.0
        self.over = asyncio.Event()
        self._runs = runs
        self._program = program
        self.gateway = HttpGateway(
            command=self._command,
            lend=self._lend,
            take_back=self.taken_back.append,
            sleep=self._sleep,
            now_s=lambda: self.now_s,
        )

    def _command(self, descriptor: int) -> Sequence[str]:
        return [sys.executable, "-S", "-c", self._program, str(descriptor), str(self.file)]

    def _lend(self) -> Key:
        self.lent.append(new_key("admin", 1))
        return self.lent[-1]

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) >= self._runs:
            self.over.set()
            await asyncio.Event().wait()


async def wait_for_line(rig: Rig) -> None:
    await eventually(lambda: rig.file.exists() and rig.file.read_bytes().endswith(b"\n"))


async def test_a_child_gets_its_key_through_the_pipe_and_each_child_another_key(tmp_path: Path) -> None:
    rig = Rig(tmp_path, READS_KEY, 2)
    rig.gateway.start()
    await rig.over.wait()
    await rig.gateway.stop(10)

    first, second = rig.lent
    assert rig.file.read_bytes() == f"{second.secret_id}:{second.secret_key}\n".encode()
    assert first.secret_id != second.secret_id
    assert rig.taken_back == [first.secret_id, second.secret_id]


async def test_a_child_gets_the_addresses_of_the_brokers_behind_its_key_and_each_change(tmp_path: Path) -> None:
    rig = Rig(tmp_path, READS_TWO_LINES, 1)
    rig.gateway.use_addresses(["127.0.0.1:1"], tls=False)
    rig.gateway.start()
    await wait_for_line(rig)
    rig.gateway.use_addresses(["127.0.0.1:1"], tls=False)
    rig.gateway.use_addresses(["127.0.0.1:1", "127.0.0.1:2"], tls=True)
    await rig.over.wait()
    await rig.gateway.stop(10)

    _, *lines = (rig.file.read_bytes() + rig.file.with_name("line.second").read_bytes()).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"addresses": ["127.0.0.1:1"], "addresses_tls": False},
        {"addresses": ["127.0.0.1:1", "127.0.0.1:2"], "addresses_tls": True},
    ], "the same addresses are told once"


async def test_a_child_that_ends_is_started_again_after_growing_pauses(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "raise SystemExit(3)", 9)
    rig.gateway.start()
    await rig.over.wait()
    await rig.gateway.stop(10)

    assert rig.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert len(rig.taken_back) == len(rig.lent) == 9


async def test_after_a_steady_life_the_pauses_begin_anew(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "raise SystemExit(3)", 3)
    lend = rig.gateway.lend

    def lend_and_live_long() -> Key:
        key = lend()
        if len(rig.lent) == 3:
            rig.now_s += http_gateway.STEADY_S
        return key

    rig.gateway.lend = lend_and_live_long
    rig.gateway.start()
    await rig.over.wait()
    await rig.gateway.stop(10)

    assert rig.pauses == [0.5, 1.0, 0.5]


async def test_a_child_that_cannot_be_started_is_tried_again_and_its_key_is_taken_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "", 2)
    rig.gateway.command = lambda descriptor: [str(tmp_path / "absent")]
    open_before = len(os.listdir("/proc/self/fd"))
    rig.gateway.start()
    await rig.over.wait()
    await rig.gateway.stop(10)

    assert rig.pauses == [0.5, 1.0]
    assert rig.taken_back == [key.secret_id for key in rig.lent]
    # Fewer, if a collection closes a descriptor of another test meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= open_before


async def test_stop_ends_the_child_and_its_key_and_starts_no_other(tmp_path: Path) -> None:
    rig = Rig(tmp_path, WAITS_FOR_THE_PIPE, 1)
    rig.gateway.start()
    await wait_for_line(rig)
    process_id = rig.gateway.process_id
    assert process_id is not None

    await rig.gateway.stop(60)

    assert rig.gateway.process_id is None
    assert not Path(f"/proc/{process_id}").exists()
    assert rig.taken_back == [rig.lent[0].secret_id]
    assert rig.pauses == []


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, IGNORES_SIGTERM, 1)
    rig.gateway.start()
    await wait_for_line(rig)
    process_id = rig.gateway.process_id

    await rig.gateway.stop(0.1)

    assert not Path(f"/proc/{process_id}").exists()
    assert len(rig.taken_back) == 1


async def test_stop_during_a_pause_and_without_a_start(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "raise SystemExit(3)", 1)
    await rig.gateway.stop(1)
    rig = Rig(tmp_path, "raise SystemExit(3)", 1)
    rig.gateway.start()
    await rig.over.wait()
    await rig.gateway.stop(10)

    assert len(rig.lent) == 1


@pytest.mark.parametrize(
    ("host", "tls", "needs"),
    [
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("192.0.2.7", False, True),
        ("127.0.0.1", True, True),
    ],
)
def test_a_private_listener_is_needed_where_the_broker_would_not_give_secrets(
    host: str, tls: bool, needs: bool
) -> None:
    assert needs_private_listener(host, tls=tls) is needs


def test_the_url_of_the_broker_is_an_address_of_this_machine() -> None:
    assert broker_url("0.0.0.0", 5, "local") == "cmq://127.0.0.1:5?region=local"
    assert broker_url("::1", 5, "north") == "cmq://[::1]:5?region=north"


def test_the_command_line_has_no_key(tmp_path: Path) -> None:
    settings = Settings(http="127.0.0.1:5681", ready_file=tmp_path / "ready.json")

    arguments = command_of(settings, ["--metrics-top=5"], "cmq://127.0.0.1:5680", 7)

    assert arguments == [
        *child_python(),
        *("-m", "cmqd_gateway", "--broker", "cmq://127.0.0.1:5680", "--listen", "127.0.0.1:5681"),
        *(
            "--http-processes",
            "1",
            "--key-fd",
            "7",
            "--parent-fd",
            "7",
            "--log-format",
            "console",
            "--log-level",
            "info",
        ),
        *("--ready-file", str(tmp_path / "ready.json.http"), "--metrics-top=5"),
    ]


def test_a_child_imports_no_module_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "re.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)

    ended = subprocess.run([*child_python(), "-m", "cmqd_gateway", "--help"], capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr


def test_the_child_gets_the_address_of_cmq_tcp_and_the_default_port() -> None:
    for text, printed in {"127.0.0.1": "127.0.0.1:5682", "[::1]:0": "[::1]:0"}.items():
        command = command_of(Settings(http="127.0.0.1:5681", cmq_tcp=text), (), "cmq://127.0.0.1:5680", 7)
        assert command[command.index("--listen-cmq-tcp") + 1] == printed


def test_the_child_gets_the_number_of_its_processes_which_need_the_gateway() -> None:
    command = command_of(Settings(http="127.0.0.1:5681", http_processes=3), (), "cmq://127.0.0.1:5680", 7)
    assert command[command.index("--http-processes") + 1] == "3"
    with pytest.raises(SettingError, match="http_processes = 2 is not allowed: only together with http"):
        load(environment={}, flags={"http_processes": 2})


def test_cmq_tcp_needs_the_gateway_and_an_address() -> None:
    with pytest.raises(SettingError, match=r"cmq_tcp = '127\.0\.0\.1' is not allowed: only together with http"):
        load(environment={}, flags={"cmq_tcp": "127.0.0.1"})
    with pytest.raises(SettingError, match="cmq_tcp"):
        load(environment={}, flags={"cmq_tcp": ":1", "http": "127.0.0.1"})


def test_with_tls_the_child_listens_with_https_alone() -> None:
    settings = Settings(http="127.0.0.1:5681", tls_certificate=Path("chain.pem"), tls_key=Path("key.pem"))

    arguments = command_of(settings, [], "cmq://127.0.0.1:5680", 7)

    assert arguments[arguments.index("--listen=") :][:6] == [
        *("--listen=", "--listen-https", "127.0.0.1:5681"),
        *("--tls-certificate", "chain.pem", "--tls-key"),
    ]
    assert http_url(settings) == "https://127.0.0.1:5681"
    assert http_url(Settings(http="127.0.0.1")) == "http://127.0.0.1:5681"
    assert http_url(Settings()) == ""


async def test_a_reload_reaches_the_running_child_as_a_line(tmp_path: Path) -> None:
    rig = Rig(tmp_path, READS_TWO_LINES, 1)
    rig.gateway.reload(Settings())
    rig.gateway.start()
    await wait_for_line(rig)

    rig.gateway.reload(Settings(log_level=LogLevel.DEBUG, tls_certificate=Path("a.pem"), tls_key=Path("b.pem")))
    await rig.over.wait()
    await rig.gateway.stop(10)

    line = json.loads(rig.file.with_suffix(".second").read_bytes())
    assert line == {"log_level": "debug", "tls_certificate": "a.pem", "tls_key": "b.pem"}


async def test_the_readiness_of_the_broker_reaches_the_child_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_gateway, "TELL_EVERY_S", 0.01)
    rig = Rig(tmp_path, READS_FIVE_LINES, 1)
    answers = iter([Readiness(BrokerRole.LEADER, ""), Readiness(BrokerRole.LEADER, "the log has not answered")])
    rig.gateway.readiness = lambda: next(answers, Readiness(BrokerRole.LEADER, ""))
    rig.gateway.start()
    await rig.over.wait()
    await rig.gateway.stop(10)

    lines = [json.loads(line)["readiness"] for line in rig.file.read_bytes().splitlines()[1:]]
    assert lines[:3] == [
        {"role": "leader", "reason": ""},
        {"role": "leader", "reason": "the log has not answered"},
        {"role": "leader", "reason": ""},
    ]


async def test_a_child_that_reads_no_reload_does_not_hold_up_the_broker(tmp_path: Path) -> None:
    rig = Rig(tmp_path, IGNORES_SIGTERM, 1)
    rig.gateway.start()
    await wait_for_line(rig)
    process_id = rig.gateway.process_id
    assert process_id is not None
    stop(process_id)

    # A pipe holds 64 KiB.
    for _ in range(100):
        rig.gateway.reload(Settings(tls_certificate=Path("a" * 1_000), tls_key=Path("b.pem")))
    os.kill(process_id, signal.SIGCONT)
    await rig.over.wait()
    await rig.gateway.stop(10)


def test_a_file_of_settings_needs_a_gateway(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"http_config = 'g\.toml' is not allowed: only together with http"):
        load(environment={}, flags={"http_config": "g.toml"})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("x =", "the file is not TOML"),
        ("[limits]\nmax_connections = 5", "limits is neither a text, a number"),
        ("public_names = [[1]]", "public_names is neither a text, a number"),
        ('listen = "127.0.0.1:1"', "the broker itself gives the setting listen to its gateway"),
        ('log_level = "debug"', "the broker itself gives the setting log-level to its gateway"),
        ("key_fd = 3", "the broker itself gives the setting key-fd to its gateway"),
        (None, "the file cannot be read"),
    ],
)
def test_a_file_of_settings_that_cannot_go_to_the_child_is_refused(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    path = tmp_path / "gateway.toml"
    if content is not None:
        path.write_text(content)

    with pytest.raises(SettingError, match=f"gateway.toml' is not allowed: {reason}"):
        checked_flags(Settings(http="127.0.0.1:0", http_config=path))


def test_a_check_that_does_not_end_refuses_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text("log-level = 'debug'")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # A child that waits for a writer of the pipe; there is none.
    child = [sys.executable, "-c", f"open({str(pipe)!r})"]

    def command_of(*given: object) -> list[str]:
        return child

    monkeypatch.setattr(http_gateway, "command_of", command_of)
    monkeypatch.setattr(http_gateway, "CHECK_WITHIN_S", 0.1)

    with pytest.raises(SettingError, match="did not finish the check of its settings within"):
        checked_flags(Settings(http="127.0.0.1:0", http_config=path))


def test_an_address_without_a_port_gets_the_usual_port() -> None:
    assert Settings(http="127.0.0.1").http_address == "127.0.0.1:5681"
    assert Settings(http="[::1]:0").http_address == "[::1]:0"
    assert Settings().http_address == ""


def test_without_the_extra_the_refusal_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec

    def without_aiohttp(name: str) -> object:
        return None if name == "aiohttp" else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_aiohttp)

    code = command.main(["serve", "--data", str(tmp_path / "data"), "--http", "127.0.0.1:0"])

    assert code == ExitCode.USAGE
    assert "aiohttp is not installed; --http needs: pip install 'cmqd[gateway]'" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
