"""``cmqd ha status`` and ``cmqd ha handover`` over servers in memory."""

import asyncio
import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cmqd.engine.fencing import FencedEngine
from cmqd.engine.interface import EngineRow
from cmqd.exit_codes import ExitCode
from cmqd.ha.accounts import write_accounts
from cmqd.ha.handover import Handover
from cmqd.ha.output import Output
from cmqd.ha.status import status
from cmqd.server.access.accounts_file import AccountsFile, Key, new_document
from cmqd.server.redundancy.engine_accounts import encode_accounts
from cmqd.storage.folder.data_folder import DataFolder, boot_id, process_name
from cmqd_segment.folder_lock import LockHolder
from support.engine.memory_engine import MemoryDatabase

LEADER_PROCESS = process_name(os.getpid(), boot_id())
"""Of the test, which has the lock of the leader's folder."""


@contextmanager
def broker_of(path: Path) -> Generator[None]:
    """Hold the lock of a folder as a broker does."""
    folder = DataFolder(path)
    asyncio.run(folder.lock(0, LockHolder(os.getpid(), os.getpid())))
    try:
        yield
    finally:
        folder.unlock()


class Pair:
    """A leader with three rows behind its fence, and a standby whose clock is two hours ahead."""

    def __init__(self) -> None:
        self.database = MemoryDatabase(pause=lambda: None)
        self.database.newest_primary().clock_ms = lambda: 0
        self.leader, self.standby = self.broker(), self.broker(clock_ms=7_200_000)
        assert self.leader.try_lead()
        self.leader.take()
        self.leader.announce(1, LEADER_PROCESS, "first:5680")
        self.leader.append([EngineRow(lsn, 0, 1, 1, b"", b"meta", b"") for lsn in (2, 3, 4)])

    def broker(self, clock_ms: int = 0) -> FencedEngine:
        return FencedEngine(
            self.database,
            monotonic=lambda: 0.0,
            sleep=lambda _seconds: None,
            stopping=lambda: False,
            new_log_id=lambda: "the-log",
            wall_ms=lambda: clock_ms,
        )

    def follow(self, lsn: int) -> None:
        """Let the standby have the rows up to an LSN."""
        self.standby.announce(lsn, "12@other", "second:5680")
        assert not self.standby.try_lead()

    def take_over(self) -> None:
        self.leader.release()
        assert self.standby.try_lead()
        self.standby.take()


@pytest.fixture
def pair() -> Pair:
    return Pair()


def run(command: Callable[[Output], ExitCode], *, as_json: bool = False) -> tuple[ExitCode, str]:
    lines: list[str] = []
    code = command(Output(lines.append, as_json=as_json))
    return code, "\n".join(lines)


def status_of(pair: Pair) -> tuple[ExitCode, dict[str, Any]]:
    code, text = run(lambda output: status(pair.database, 0, output), as_json=True)
    return code, json.loads(text)


# ---------------------------------------------------------------------- accounts


def test_the_accounts_are_written_into_a_private_file(pair: Pair, tmp_path: Path) -> None:
    document = new_document(0)
    gateway_key = Key(secret_id="g", secret_key="k", account="admin", created_ms=0)
    stored = encode_accounts(structs.replace(document, gateway_key=gateway_key))
    pair.leader.store_accounts(stored, expected_version=0)
    (tmp_path / "accounts.json").write_text("old")

    code, text = run(lambda output: write_accounts(pair.database, 0, tmp_path / "accounts.json", output))

    assert (code, "in the clear" in text) == (ExitCode.OK, True)
    assert AccountsFile(tmp_path).read() == document
    assert (tmp_path / "accounts.json").stat().st_mode & 0o777 == 0o600


def test_accounts_that_cannot_be_had_are_refused(pair: Pair, tmp_path: Path) -> None:
    def ended() -> tuple[ExitCode, str]:
        return run(lambda output: write_accounts(pair.database, 0, tmp_path / "accounts.json", output))

    none = ended()
    pair.leader.store_accounts(b"?", expected_version=0)
    damaged = ended()

    assert none == (ExitCode.CANNOT_OPEN, "cmqd: the engine has no accounts of shard 0")
    assert (damaged[0], "the accounts in the engine" in damaged[1]) == (ExitCode.CANNOT_OPEN, True)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- status


def test_the_status_of_a_pair(pair: Pair) -> None:
    pair.follow(3)

    code, document = status_of(pair)

    assert code is ExitCode.OK
    assert document == {
        "ok": True,
        "shard": 0,
        "server": "a",
        "log_id": "the-log",
        "is_retired": False,
        "leader": {"address": "first:5680", "process": LEADER_PROCESS, "clock_offset_ms": 0},
        "leader_addresses": [],
        "epoch": 1,
        "newest_lsn": 4,
        "checkpoint_lsn": 0,
        "waiting_for": "",
        "standbys": [{"address": "second:5680", "last_lsn": 3, "rows_behind": 1, "clock_offset_ms": 7_200_000}],
        "copies": [
            {"name": "b", "is_second": True, "bytes_behind": 0, "ms_behind": 0},
            {"name": "c", "is_second": False, "bytes_behind": 0, "ms_behind": 0},
        ],
        "problems": [],
    }


def test_the_status_of_a_log_that_was_exported(pair: Pair) -> None:
    pair.database.newest_primary().tables.log_id = "retired:the-log"

    code, document = status_of(pair)

    assert code is ExitCode.NOT_SAFE
    assert (document["log_id"], document["is_retired"]) == ("the-log", True)
    assert document["problems"] == ["the log is retired: it was exported to a data folder, and no broker leads it here"]


def test_the_status_for_people(pair: Pair) -> None:
    pair.follow(3)

    _, text = run(lambda output: status(pair.database, 0, output))

    assert "leader      first:5680" in text
    assert "standby     second:5680 (process 12@other, clock +7200.0 s from the primary's), 1 rows behind" in text
    assert "second copy b, 0 bytes behind" in text


def test_problems_are_named(pair: Pair) -> None:
    code, document = status_of(pair)
    assert (code, document["problems"]) == (ExitCode.NOT_SAFE, ["no broker follows as standby"])

    pair.leader.release()
    pair.database.name_standby("a", "ANY 1 (b, c)")
    _, document = status_of(pair)
    assert [problem.split(":")[0] for problem in document["problems"]] == [
        "commits wait for a named standby",
        "no broker leads",
        "no broker follows as standby",
    ]

    pair.database.crash("a")
    assert status_of(pair) == (
        ExitCode.NOT_SAFE,
        {"ok": False, "shard": 0, "problems": ["no server takes writes"]},
    )


# ---------------------------------------------------------------------- handover


class Run:
    """A handover with a clock that each pause turns."""

    def __init__(self, pair: Pair, folder: Path, on_stop: Callable[[], None] = lambda: None) -> None:
        self.now_s = 0.0
        self.stopped: list[int] = []
        self.pauses: list[Callable[[], None]] = []
        """Steps of others, one in each pause."""
        self._on_stop = on_stop
        self.handover = Handover(
            pair.database, folder, monotonic=lambda: self.now_s, sleep=self._sleep, stop=self._stop
        )

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.pauses:
            self.pauses.pop(0)()

    def _stop(self, pid: int) -> None:
        self.stopped.append(pid)
        self._on_stop()

    def __call__(self) -> tuple[ExitCode, str]:
        return run(lambda output: self.handover.run(10.0, output))


def test_the_standby_leads_after_a_handover(pair: Pair, tmp_path: Path) -> None:
    pair.follow(4)
    handover = Run(pair, tmp_path)
    handover.pauses = [lambda: None, pair.take_over]

    with broker_of(tmp_path):
        code, text = handover()

    assert (code, text) == (ExitCode.OK, "second:5680 leads after 0.2 s")
    assert handover.stopped == [os.getpid()]


def test_a_standby_gets_time_to_report_its_rows(pair: Pair, tmp_path: Path) -> None:
    pair.follow(3)
    handover = Run(pair, tmp_path, on_stop=pair.take_over)
    handover.pauses = [lambda: pair.follow(4)]

    with broker_of(tmp_path):
        code, _ = handover()

    assert code is ExitCode.OK


def test_no_leader_is_stopped_without_a_warm_standby(pair: Pair, tmp_path: Path) -> None:
    handover = Run(pair, tmp_path)
    with broker_of(tmp_path):
        alone = handover()
        pair.follow(2)
        behind = handover()

    assert alone == (
        ExitCode.NOT_SAFE,
        "cmqd: no handover: no standby has the rows (no broker follows): cmqd ha status",
    )
    assert behind == (
        ExitCode.NOT_SAFE,
        "cmqd: no handover: no standby has the rows (second:5680 is 2 rows behind): cmqd ha status",
    )
    assert handover.stopped == []


def test_no_leader_is_stopped_while_commits_wait(pair: Pair, tmp_path: Path) -> None:
    pair.follow(4)
    pair.database.name_standby("a", "")
    handover = Run(pair, tmp_path)

    with broker_of(tmp_path):
        code, text = handover()

    assert code is ExitCode.NOT_SAFE
    assert "commits wait for a named standby" in text
    assert handover.stopped == []


def test_the_broker_of_the_folder_must_lead(pair: Pair, tmp_path: Path) -> None:
    pair.follow(4)
    handover = Run(pair, tmp_path)
    assert handover() == (ExitCode.NOT_SAFE, f"cmqd: no handover: {tmp_path} is not a data folder")
    with broker_of(tmp_path):
        pass
    assert handover() == (ExitCode.NOT_SAFE, f"cmqd: no handover: no broker works on {tmp_path}")
    pair.take_over()

    with broker_of(tmp_path):
        code, text = handover()

    assert code is ExitCode.NOT_SAFE
    assert "the leader is second:5680, and not the broker of" in text
    assert handover.stopped == []


def test_a_standby_that_does_not_take_over_is_told(pair: Pair, tmp_path: Path) -> None:
    pair.follow(4)
    handover = Run(pair, tmp_path, on_stop=pair.leader.release)

    with broker_of(tmp_path):
        code, text = handover()

    assert code is ExitCode.NOT_SAFE
    assert "no other broker leads after 10." in text
