"""The polls of a standby: what they ask of the engine, and how a copy goes on behind a trimmed row."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from cmqd.engine.interface import EngineRow, StoredAccounts
from cmqd.engine.memory import Fault
from cmqd.storage.following import BARRIER_POLLS, Following, Tail
from cmqd.storage.segment import LogRow
from support.replicas import Replicas


class Standby:
    """Follows a log into a list of rows, for a number of polls."""

    def __init__(self, replicas: Replicas, tail: Tail | None = None) -> None:
        self.rows: list[int] = []
        self.accounts: list[int] = []
        self.polls_left = 0
        self._following = Following(replicas.engine(), tail, self, self._keep, self._pause, checkpoint_lsn=0)

    def poll(self, times: int) -> None:
        self.polls_left = times
        assert not self._following.run()

    def _keep(self, rows: Sequence[LogRow]) -> bool:
        self.rows += [row.lsn for row in rows]
        return True

    def _pause(self, _seconds: float) -> bool:
        self.polls_left -= 1
        return self.polls_left > 0

    def accounts_stored(self, accounts: StoredAccounts) -> None:
        self.accounts.append(accounts.version)

    def epoch_begins(self, epoch: int) -> None: ...

    def gap_found(self, first_lsn: int, last_lsn: int) -> None: ...

    def copied(self, rows: Sequence[LogRow]) -> None: ...

    def follows(self, last_lsn: int) -> None: ...


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path)


def row(lsn: int) -> EngineRow:
    return EngineRow(lsn, 0, 1000, 1, b"queues", b"meta %d" % lsn, b"data")


def test_a_poll_without_news_asks_for_news_and_for_the_lock_alone(replicas: Replicas) -> None:
    leader = replicas.engine()
    leader.try_lead()
    leader.take()
    leader.append([row(2)])
    leader.store_accounts(b"accounts", expected_version=0)
    standby = Standby(replicas)
    standby.poll(1)
    assert (standby.rows, standby.accounts) == ([1, 2], [1])
    steps: Counter[str] = Counter()

    def note(_server: str, step: str) -> Fault:
        steps[step] += 1
        return Fault.NONE

    replicas.database.on_step = note
    standby.poll(BARRIER_POLLS)

    # The accounts are read at the begin, and once behind a barrier although there is no news of them.
    assert steps == {"news": BARRIER_POLLS, "try_lock": BARRIER_POLLS, "accounts": 2, "barrier": 2}

    leader.append([row(3)])
    leader.store_accounts(b"more", expected_version=1)
    standby.poll(1)
    assert (standby.rows, standby.accounts[-1]) == ([1, 2, 3], 2)
