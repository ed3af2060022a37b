"""``cmqd ha init``: the settings that it writes are the safe ones, and nothing is overwritten."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from cmqd.__main__ import main
from cmqd.engine.database import ONE_NAMED_STANDBY
from cmqd.exit_codes import ExitCode
from cmqd.ha.init import find_programs
from cmqd.settings import load


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder


SCRIPTS = ("run", "kill-leader", "kill-primary", "create-role")


def written(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_laptop(tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ha"

    assert main(["ha", "init", "--nodes", "3", "--programs", str(programs), str(folder)]) == ExitCode.OK

    files = written(folder)
    assert sorted(files) == [
        *("README.md", "brokers/a.toml", "brokers/b.toml", "create-role", "kill-leader", "kill-primary"),
        *("patroni/n1.yml", "patroni/n2.yml", "patroni/n3.yml", "run"),
    ]
    assert str(folder / "run") in capsys.readouterr().out
    for name, text in files.items():
        assert "$" not in text or name in SCRIPTS, name
        assert "0.0.0.0" not in text, name
    for script in ("run", "kill-leader", "kill-primary"):
        assert subprocess.run(["bash", "-n", folder / script], check=False).returncode == 0
    assert subprocess.run(["sh", "-n", folder / "create-role"], check=False).returncode == 0


@pytest.mark.parametrize(
    "line",
    [
        "synchronous_mode: true",
        "synchronous_mode_strict: true",
        "synchronous_node_count: 1",
        'fsync: "on"',
        'full_page_writes: "on"',
        'synchronous_commit: "on"',
        "max_slot_wal_keep_size: 4GB",
        "wal_receiver_timeout: 5s",
        "tcp_user_timeout: 4000",
        "primary_start_timeout: 0",
        "ttl: 20",
        "- data-checksums",
    ],
)
def test_each_promise_has_its_setting(tmp_path: Path, programs: Path, line: str) -> None:
    main(["ha", "init", "--programs", str(programs), str(tmp_path / "ha")])

    for name in ("n1", "n2", "n3"):
        text = (tmp_path / "ha" / "patroni" / f"{name}.yml").read_text()
        assert f" {line}\n" in text
        assert "synchronous_standby_names" not in text, "Patroni alone sets it"
        # Patroni's time limits must agree with each other.
        ttl, loop_wait, retry = (
            int(re.findall(rf"{key}: (\d+)", text)[0]) for key in ("ttl", "loop_wait", "retry_timeout")
        )
        assert loop_wait + 2 * retry <= ttl


@pytest.mark.parametrize("names", ['"n2"', "n2", "FIRST 1 (n2)"])
def test_the_names_that_patroni_sets_count(names: str) -> None:
    assert re.match(ONE_NAMED_STANDBY, names, re.IGNORECASE)


def test_brokers_get_settings_that_load(tmp_path: Path, programs: Path) -> None:
    main(["ha", "init", "--programs", str(programs), "--first-port", "20000", str(tmp_path / "ha")])

    a, b = (load(file=tmp_path / "ha" / "brokers" / f"{name}.toml", environment={}) for name in "ab")

    assert a.engine_url == b.engine_url
    assert a.engine_url.endswith("@127.0.0.1:20000,127.0.0.1:20001,127.0.0.1:20002/cmqd")
    assert a.is_replicated
    assert (a.listen, b.listen) == ("127.0.0.1:5680", "127.0.0.1:5681")
    assert a.data != b.data
    assert a.context_file == b.context_file == tmp_path / "ha" / "admin.context.toml"


def test_brokers_get_the_ports_of_the_flag(tmp_path: Path, programs: Path) -> None:
    main(["ha", "init", "--programs", str(programs), "--broker-ports", "6001,7002", str(tmp_path / "ha")])
    hosts = ("--hosts", "10.0.0.1,10.0.0.2,10.0.0.3")
    main(["ha", "init", "--programs", str(programs), *hosts, "--broker-ports", "6001", str(tmp_path / "machines")])

    on_laptop, on_machines = (
        [load(file=tmp_path / folder / "brokers" / f"{name}.toml", environment={}) for name in "ab"]
        for folder in ("ha", "machines")
    )

    assert [broker.listen for broker in on_laptop] == ["127.0.0.1:6001", "127.0.0.1:7002"]
    assert [broker.advertise for broker in on_machines] == ["10.0.0.1:6001", "10.0.0.2:6001"]
    assert [broker.context_file for broker in on_machines] == [None, None], "each in its own data folder"
    assert "cmq://ID:KEY@127.0.0.1:6001,127.0.0.1:7002" in (tmp_path / "ha" / "README.md").read_text()


def test_files_with_passwords_are_private(tmp_path: Path, programs: Path) -> None:
    folder = tmp_path / "ha"
    main(["ha", "init", "--programs", str(programs), str(folder)])
    secret = load(file=folder / "brokers" / "a.toml", environment={}).engine_url.split(":")[2].split("@")[0]
    assert len(secret) >= 32

    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}

    public = {name: mode for name, mode in modes.items() if mode & 0o077}
    assert public == {"run": 0o755, "kill-leader": 0o755, "kill-primary": 0o755, "README.md": 0o644}
    assert not [path for path in folder.rglob("*") if path.name in public and secret in path.read_text()]


def test_nothing_is_overwritten(tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ha"
    folder.mkdir()

    assert main(["ha", "init", "--programs", str(programs), str(folder)]) == ExitCode.USAGE

    assert list(folder.iterdir()) == []
    assert "exists already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--nodes", "2"], "3 or 5 servers"),
        (["--nodes", "4"], "3 or 5 servers"),
        (["--hosts", "10.0.0.1,10.0.0.2"], "3 different machines"),
        (["--hosts", "10.0.0.1,10.0.0.2,10.0.0.2"], "3 different machines"),
        (["--broker-ports", "5680"], "2 ports from 1 to 65535"),
        (["--broker-ports", "5680,70000"], "2 ports from 1 to 65535"),
        (["--broker-ports", "5680,5680"], "cannot share port 5680"),
    ],
)
def test_clusters_that_cannot_outlive_a_machine_are_refused(
    tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str], flags: list[str], reason: str
) -> None:
    assert main(["ha", "init", "--programs", str(programs), *flags, str(tmp_path / "ha")]) == ExitCode.USAGE
    assert reason in capsys.readouterr().out
    assert not (tmp_path / "ha").exists()


def test_machines_get_units_and_addresses(tmp_path: Path, programs: Path) -> None:
    folder = tmp_path / "ha"
    hosts = "10.0.0.1,10.0.0.2,10.0.0.3"
    etcd = "10.0.1.1:2379,10.0.1.2:2379"

    assert (
        main(["ha", "init", "--hosts", hosts, "--etcd", etcd, "--programs", str(programs), str(folder)]) == ExitCode.OK
    )

    files = written(folder)
    assert "run" not in files
    assert "\nType=notify\n" in files["systemd/cmqd.service"]
    assert "\nWatchdogSec=20\n" in files["systemd/cmqd.service"]
    assert 'listen: "10.0.0.2:5432"' in files["patroni/n2.yml"]
    assert 'etcd3:\n  hosts: ["10.0.1.1:2379", "10.0.1.2:2379"]' in files["patroni/n2.yml"]
    assert "raft:" not in files["patroni/n2.yml"]
    for host in hosts.split(","):
        assert f"host replication replicator {host}/32 scram-sha-256" in files["patroni/n1.yml"]
    broker = load(file=folder / "brokers" / "b.toml", environment={})
    assert (broker.advertise, broker.data) == ("10.0.0.2:5680", Path("/var/lib/cmqd"))
    for unit in ("systemd/cmqd.service", "systemd/cmqd-postgresql.service"):
        assert "\nRestart=always\n" in files[unit], "a handover ends with exit code 0"
    assert "| 10.0.0.3 | `patroni/n3.yml` | (none) |" in files["README.md"]


def test_programs_are_found_where_they_can_be_used() -> None:
    found = find_programs()
    if found is None:
        pytest.skip("this machine has no PostgreSQL")
    assert os.access(found / "postgres", os.X_OK)


def test_the_document_of_an_engine_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ha", "status", "--json", "--engine-url", "postgresql://cmqd@127.0.0.1:1/cmqd"]) == ExitCode.NOT_SAFE
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem.startswith("no server takes writes (127.0.0.1:1: connection to server")
    assert "Connection refused" in problem
