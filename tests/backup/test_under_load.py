"""Copies of the log of a broker under load, with kills of broker and copy: nothing acknowledged is missing.

CMQD_BACKUP_COPIES sets the number of copies; a measurement takes 50.
"""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cmqd.testing.broker_process import BrokerProcess
from cmqd_client import connect
from support.backup.load import Answered, Load, numbers_in
from support.processes.environment import plain_environment
from support.processes.running_server import RunningServer

pytestmark = pytest.mark.system

COPIES = int(os.environ.get("CMQD_BACKUP_COPIES", "4"))
SEED = 20


def launch(*arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "cmqd", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=plain_environment(),
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    text, _ = process.communicate()
    return process.returncode, text


def test_a_copy_under_load_has_every_acknowledged_message(tmp_path: Path) -> None:
    backup, chance = tmp_path / "backup", random.Random(SEED)
    faults: list[str] = []
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker", "--segment-bytes", str(1 << 20)) as broker, Load(broker.url, SEED) as load:
        data = broker.folder / "data"
        while len(load.deleted) < 20:
            time.sleep(0.01)
        for copy in range(COPIES):
            kills_copy, kills_broker = bool(copy & 1), bool(copy & 2)
            if kills_copy:
                process = launch("backup", data, "--to", backup)
                time.sleep(chance.uniform(0.1, 0.8))
                process.send_signal(signal.SIGKILL)
                ended(process)
            if kills_broker:
                process = launch("backup", data, "--to", backup)
                time.sleep(chance.uniform(0.1, 0.8))
                broker.kill()
                ended(process)
                broker.start()
            answered = Answered(load)
            code, text = ended(launch("backup", data, "--to", backup))
            assert code == 0, text
            target = tmp_path / f"restored-{copy}" / "data"
            code, text = ended(launch("restore", backup, target))
            assert code == 0, text
            with RunningServer(target.parent) as server:
                assert "recovery_finding" not in server.log
                faults += [
                    f"copy {copy}: {fault}" for fault in answered.faults(asyncio.run(numbers_in(server.url)), load)
                ]
            shutil.rmtree(target.parent)

    assert faults == []


def test_runs_at_an_interval_can_be_restored_to_any_time_between(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    states: list[tuple[Answered, float, set[int]]] = []
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker", "--segment-bytes", str(1 << 20)) as broker:
        copying = launch("backup", broker.folder / "data", "--to", backup, "--every", "1s", "--keep", "1h")
        try:
            with Load(broker.url, SEED) as load:
                while len(list(backup.glob("runs/*.json"))) < 2:
                    time.sleep(0.01)
                for round_number in range(3):
                    # The time stands between the answers before it and the calls before it.
                    states.append((Answered(load), time.time(), set(load.tried)))
                    if round_number == 1:
                        broker.kill()
                        broker.start()
                    known = len(list(backup.glob("runs/*.json")))
                    while len(list(backup.glob("runs/*.json"))) < known + 2:
                        time.sleep(0.01)
        finally:
            copying.terminate()
            _, text = ended(copying)
        code, listed = ended(launch("backup", "list", backup))
        assert (code, "gaps" in listed) == (0, False), f"{listed}\n{text}"

        for number, (answered, moment, tried) in enumerate(states):
            target = tmp_path / f"restored-{number}" / "data"
            at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1e6):06d}+00:00"
            code, text = ended(launch("restore", backup, target, "--to-time", at))
            assert code == 0, text
            with RunningServer(target.parent) as server:
                found = asyncio.run(numbers_in(server.url))
            assert answered.faults(found, load) == []
            assert set(found) - tried == set(), "messages were sent later"
        code, text = ended(launch("backup", broker.folder / "data", "--to", backup, "--end"))
        assert code == 0, text


def test_a_live_folder_is_copied_by_a_pin_of_its_own_broker_alone(tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    with BrokerProcess(tmp_path / "own") as own, BrokerProcess(tmp_path / "other") as other:
        data, backup = own.folder / "data", tmp_path / "backup"

        def run(**environment: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                [sys.executable, "-m", "cmqd", "backup", str(data), "--to", str(backup)],
                capture_output=True,
                text=True,
                check=False,
                env=plain_environment() | environment,
            )

        asyncio.run(send_one(own.url))
        foreign = run(CMQ_URL=other.url)
        limited = run(CMQ_URL=asyncio.run(limited_url(own.url)))
        taken = run()
        (data / "admin.context.toml").rename(tmp_path / "context")
        lost = run()

    assert (foreign.returncode, "the broker that was asked has log" in foreign.stderr) == (4, True)
    assert (limited.returncode, f"the broker of {data} refused" in limited.stderr) == (4, True)
    assert (taken.returncode, "run 1 is complete" in taken.stdout) == (0, True), taken.stderr
    assert (lost.returncode, "its address is not known" in lost.stderr) == (4, True)


async def send_one(url: str) -> None:
    async with connect(url) as client:
        await (await client.ensure_queue("orders")).send(b"order 1")


async def limited_url(url: str) -> str:
    """Make a key that may read alone; return its URL."""
    async with connect(url) as client:
        key = await client.accounts.create_key(roles=["read"])
    return f"cmq://{key.secret_id}:{key.secret_key}@{url.rpartition('@')[2]}"
