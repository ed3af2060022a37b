"""The polls of a standby: what they ask of the engine, and how a copy goes on behind a trimmed row."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from cmqd.engine.interface import EngineRow, StoredAccounts, checksum_of
from cmqd.storage.redundancy.following import UPKEEP_POLLS, Following, Tail, rows_behind
from cmqd.storage.segments.row_inserts import LogRow
from support.engine.memory_engine import Fault
from support.engine.replicas import Replicas


class Standby:
    """Follows a log into a list of rows, for a number of polls."""

    def __init__(self, replicas: Replicas, tail: Tail | None = None) -> None:
        self.rows: list[int] = []
        self.copied_s: list[float] = []
        self.now_s = 0.0
        self.accounts: list[int] = []
        self.polls_left = 0
        self.engine = replicas.engine()
        self._following = Following(
            self.engine, tail, self, self._keep, self._pause, checkpoint_lsn=0, clock_s=lambda: self.now_s
        )

    def poll(self, times: int) -> None:
        self.polls_left = times
        assert not self._following.run()

    def _keep(self, rows: Sequence[LogRow]) -> bool:
        self.rows += [row.lsn for row in rows]
        # A copy takes its time.
        self.now_s += 5
        return True

    def _pause(self, _seconds: float) -> bool:
        self.polls_left -= 1
        return self.polls_left > 0

    def copied_all(self, begun_s: float) -> None:
        self.copied_s.append(begun_s)

    def accounts_stored(self, accounts: StoredAccounts) -> None:
        self.accounts.append(accounts.version)

    def epoch_begins(self, epoch: int) -> None: ...

    def gap_found(self, first_lsn: int, last_lsn: int) -> None: ...

    def copied(self, rows: Sequence[LogRow]) -> None: ...

    def reclaim(self, below: int) -> None: ...

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
    standby.poll(UPKEEP_POLLS)

    # The accounts are read at the begin, and once behind a barrier although there is no news of them.
    assert steps == {"news": UPKEEP_POLLS, "try_lock": UPKEEP_POLLS, "accounts": 2, "barrier": 2, "look_behind": 2}

    leader.append([row(3)])
    leader.store_accounts(b"more", expected_version=1)
    standby.poll(1)
    assert (standby.rows, standby.accounts[-1]) == ([1, 2, 3], 2)


def test_a_look_counts_from_its_begin_once_its_rows_are_copied(replicas: Replicas) -> None:
    """While a leader writes, each look finds rows: a standby that has copied them is up to date as of the look."""
    leader = replicas.engine()
    leader.take()
    standby = Standby(replicas)
    for lsn in (2, 3):
        leader.append([row(lsn)])
        standby.poll(1)

    assert standby.copied_s == [0.0, 5.0], "and not 10.0, when the second copy ended"
    standby.poll(1)
    assert standby.copied_s[-1] == 10.0


def tail_of(replicas: Replicas, lsn: int) -> Tail:
    """The last row of a folder that ends with this row of the engine."""
    stored = next(stored for stored in replicas.rows if stored.lsn == lsn)
    return Tail(lsn, stored.epoch, checksum_of(stored), stored.time_ms)


def test_a_standby_goes_on_behind_a_row_that_was_trimmed_between_two_polls(replicas: Replicas) -> None:
    leader = replicas.engine()
    leader.take()
    leader.append([row(2), row(3), row(4)])
    standby = Standby(replicas)
    standby.poll(1)
    leader.append([row(5)])
    leader.put_checkpoint(5, b"checkpoint")
    leader.trim([(3, 4)])

    standby.poll(1)

    assert standby.rows == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_a_last_row_of_another_leader_is_no_row_of_the_log(replicas: Replicas, *, is_trimmed: bool) -> None:
    """A fail-over of the engine without its guards has lost rows, and another leader has used their numbers."""
    first, second = replicas.engine(), replicas.engine()
    first.take()
    first.append([row(2)])
    second.take()
    second.append([row(4), row(5)])
    second.put_checkpoint(5, b"checkpoint")
    tail = tail_of(replicas, 4)
    if is_trimmed:
        second.trim([(4, 4)])
    assert rows_behind(replicas.engine(), tail) is not None

    assert rows_behind(replicas.engine(), tail._replace(epoch=1)) is None
    assert rows_behind(replicas.engine(), tail_of(replicas, 5)._replace(lsn=7)) is None


@pytest.mark.parametrize("has_log", [True, False])
def test_an_old_primary_that_lacks_rows_or_the_log_is_not_believed(replicas: Replicas, *, has_log: bool) -> None:
    """A standby that loses its connection may reach only the old primary for a moment."""
    database = replicas.database
    leader = replicas.engine()
    if has_log:
        leader.take()
    database.promote("b", "c")
    database.follow("c", "b")
    if not has_log:
        leader.take()
    leader.append([row(2)])
    standby = Standby(replicas)
    assert standby.engine.log_id() is not None
    standby.poll(1)
    assert standby.rows == [1, 2]
    faults = [("rows", Fault.LOSE_REQUEST), ("primaries", Fault.HIDE_NEWEST)]

    def hide(_server: str, step: str) -> Fault:
        return faults.pop(0)[1] if faults and faults[0][0] == step else Fault.NONE

    leader.append([row(3)])
    database.on_step = hide
    standby.poll(1)

    assert (faults, standby.rows) == ([], [1, 2, 3])
