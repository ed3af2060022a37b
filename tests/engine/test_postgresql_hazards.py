"""The hazards of PostgreSQL as a log (decision 0195), on real servers: nothing that was called durable is lost.

Each hazard lost rows, or stopped the service, in a prototype without its guard. ``make test-all PARTS=redundancy`` runs
each scene without its guard too, and sees the loss.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from cmqd.engine.database import Commit, ConnectionLost, KeepWaiting, Session
from cmqd.engine.engine_errors import Fenced
from cmqd.engine.fencing import FencedEngine
from cmqd.engine.postgresql import session as session_steps
from cmqd.engine.postgresql import statements
from cmqd.engine.postgresql.servers import PostgresDatabase
from cmqd.engine.postgresql.session import PostgresSession
from support.engine.mutants import BelievesSlowAppends, LooksAheadAlone
from support.eventually import eventually_elsewhere
from support.postgresql.installation import Installation
from support.postgresql.leaders import Leader, row_of, stored_lsns, wait_until_unreplicated
from support.postgresql.servers import PostgresCluster

pytestmark = [pytest.mark.system, pytest.mark.postgresql]
in_test_all = pytest.mark.skipif("CMQD_ALL_HAZARDS" not in os.environ, reason="runs in make test-all PARTS=redundancy")
OWN_SHARD = 1 << 20
"""A shard that no other test of the shared servers has, and the next one."""
CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresCluster]:
    monkeypatch.setattr("cmqd.engine.postgresql.connection.SILENCE_SECONDS", 0.1)
    with PostgresCluster(Installation.of_session()) as cluster:
        # The sessions of a broker are safe whatever an administrator prefers.
        for setting in ("synchronous_commit = local", "client_min_messages = error", "lock_timeout = '10s'"):
            cluster.n1.ask(f"ALTER ROLE cmqd SET {setting}")
        cluster.wait_until_followed(cluster.n1, "n2", "n3")
        yield cluster


@pytest.fixture
def leader(cluster: PostgresCluster) -> Iterator[Leader]:
    with Leader(cluster, "a") as leader:
        leader.take().result()
        leader.append().result()
        yield leader


def lost_rows(cluster: PostgresCluster, leader: Leader) -> set[int]:
    return set(leader.acknowledged) - set(stored_lsns(cluster.n2))


# ---------------------------------------------------------------- H1: visible is not replicated


def lose_the_machine_after_a_restart(cluster: PostgresCluster, leader: Leader) -> set[int]:
    """A commit waits for the standby when its primary crashes; the restarted primary shows the row."""
    cluster.isolate("n1", "a")
    append = leader.append()
    wait_until_unreplicated(cluster.n1, append)
    cluster.n1.kill()
    cluster.n1.start()
    assert stored_lsns(cluster.n1) == [1, 2, 3]
    wait_until_unreplicated(cluster.n1, append)
    cluster.promote(cluster.n2)
    cluster.mend()
    append.result()
    return lost_rows(cluster, leader)


def test_a_visible_row_is_believed_behind_a_barrier(cluster: PostgresCluster, leader: Leader) -> None:
    assert lose_the_machine_after_a_restart(cluster, leader) == set()
    leader.append().result()
    assert stored_lsns(cluster.n2) == [1, 2, 3, 4]


@in_test_all
def test_without_barriers_a_row_is_lost(
    cluster: PostgresCluster, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresSession, "barrier", lambda _self: Commit(1))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert lose_the_machine_after_a_restart(cluster, leader) == {3}


# ---------------------------------------------------------------- H2: a cancelled commit is answered


def cancel_a_commit(cluster: PostgresCluster, leader: Leader) -> set[int]:
    """An administrator cancels a query that hangs: it is a commit that waits for the standby."""
    cluster.isolate("n1", "a")
    append = leader.append()
    wait_until_unreplicated(cluster.n1, append)
    cluster.n1.ask(CANCEL)
    # The row is visible now, and the engine waits for a barrier behind it.
    eventually_elsewhere(lambda: stored_lsns(cluster.n1) == [1, 2, 3])
    wait_until_unreplicated(cluster.n1, append)
    cluster.n1.kill()
    cluster.promote(cluster.n2)
    cluster.mend()
    append.result()
    return lost_rows(cluster, leader)


def test_a_commit_with_a_notice_is_not_durable(cluster: PostgresCluster, leader: Leader) -> None:
    assert cancel_a_commit(cluster, leader) == set()


@in_test_all
def test_without_notices_a_cancelled_commit_is_lost(
    cluster: PostgresCluster, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def require_changes(_: FencedEngine, commit: Commit) -> None:
        assert commit.changes

    monkeypatch.setattr(FencedEngine, "_require_copy", require_changes)
    # Its barrier would find out.
    monkeypatch.setattr(FencedEngine, "_believe_append", BelievesSlowAppends._believe_append)  # pyright: ignore[reportPrivateUsage]
    assert cancel_a_commit(cluster, leader) == {3}


# ---------------------------------------------------------------- H3, H4: standbys that do not count

UNSAFE_NAMES = ("ANY 1 (n2, n3)", "FIRST 1 (n2, n3)", "*", "")


def change_the_names(cluster: PostgresCluster, leader: Leader, names: str) -> set[int]:
    """The standby that will be promoted is cut off, and the names let another server count, or none."""
    cluster.cut("n2", "n1")
    cluster.n1.configure(synchronous_standby_names=names)
    append = leader.append()
    eventually_elsewhere(lambda: append.done() or leader.is_waiting_for("a named standby"))
    cluster.n1.kill()
    cluster.promote(cluster.n2)
    cluster.mend()
    # It has more of the old primary's log than the new primary.
    cluster.n3.kill()
    cluster.rejoin(cluster.n3, cluster.n2)
    append.result()
    return lost_rows(cluster, leader)


@pytest.mark.parametrize(
    "names", [*UNSAFE_NAMES[:1], *(pytest.param(names, marks=in_test_all) for names in UNSAFE_NAMES[1:])]
)
def test_a_standby_counts_by_its_name_alone(cluster: PostgresCluster, leader: Leader, names: str) -> None:
    assert change_the_names(cluster, leader, names) == set()


@in_test_all
@pytest.mark.parametrize("names", UNSAFE_NAMES)
def test_without_the_look_at_the_names_a_row_is_lost(
    cluster: PostgresCluster, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, query in statements.APPENDS.items():
        monkeypatch.setitem(statements.APPENDS, key, query.replace(b"WHERE ", b"WHERE true OR "))
    monkeypatch.setattr(statements, "BARRIER", statements.BARRIER.replace(b"WHERE ", b"WHERE true OR "))
    # Nor behind the commit.
    monkeypatch.setattr(session_steps, "is_safe", lambda _look: True)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    monkeypatch.setattr(FencedEngine, "_believe_append", BelievesSlowAppends._believe_append)  # pyright: ignore[reportPrivateUsage]
    with Leader(cluster, "a") as leader:
        leader.take().result()
        leader.append().result()
        assert change_the_names(cluster, leader, names) == {3}


def empty_the_names(cluster: PostgresCluster, leader: Leader) -> set[int]:
    """The names are emptied while a commit waits: it ends with one copy. Then the machine is lost."""
    cluster.isolate("n1", "a")
    append = leader.append()
    wait_until_unreplicated(cluster.n1, append)
    cluster.n1.configure(synchronous_standby_names="")
    eventually_elsewhere(lambda: append.done() or leader.is_waiting_for("a named standby"))
    cluster.n1.kill()
    cluster.promote(cluster.n2)
    cluster.mend()
    append.result()
    return lost_rows(cluster, leader)


def test_names_that_are_emptied_while_a_commit_waits(cluster: PostgresCluster, leader: Leader) -> None:
    assert empty_the_names(cluster, leader) == set()


def test_the_names_are_looked_at_behind_the_end_of_a_commit(cluster: PostgresCluster) -> None:
    """In one transaction with the commit the look would come first, and find the names as they were."""
    (session,) = PostgresDatabase(cluster.url("a")).primaries(lambda _timeline: True)
    assert session.barrier().is_safe_behind
    cluster.isolate("n1", "a")
    with ThreadPoolExecutor(1) as thread:
        barrier = thread.submit(session.barrier)
        wait_until_unreplicated(cluster.n1, barrier)
        cluster.n1.configure(synchronous_standby_names="")
        commit = barrier.result()
    session.kill()

    assert (commit.changes, commit.is_safe_behind) == (1, False)


@in_test_all
def test_without_the_look_behind_a_commit_a_row_is_lost(
    cluster: PostgresCluster, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FencedEngine, "_believe_append", LooksAheadAlone._believe_append)  # pyright: ignore[reportPrivateUsage]
    assert empty_the_names(cluster, leader) == {3}


# ---------------------------------------------------------------- H5: a leader that wakes up


def wake_up(cluster: PostgresCluster, leader: Leader) -> list[int]:
    """Another broker leads while this one sleeps; the sleeper appends when it wakes up. Returns its rows since then."""
    before = len(leader.acknowledged)
    with Leader(cluster, "b", leader.shard) as successor:
        successor.take().result()
        successor.append().result()
        with suppress(Fenced):
            leader.append().result()
        assert set(successor.acknowledged) <= set(stored_lsns(cluster.n1, leader.shard))
    return leader.acknowledged[before:]


def test_a_leader_that_wakes_up_is_fenced(shared_cluster: PostgresCluster) -> None:
    with Leader(shared_cluster, "a", OWN_SHARD) as leader:
        leader.take().result()
        leader.append().result()
        assert wake_up(shared_cluster, leader) == []
    assert stored_lsns(shared_cluster.n1, OWN_SHARD) == [1, 2, 3, 4]


@in_test_all
def test_without_the_primary_key_two_brokers_answer(cluster: PostgresCluster, leader: Leader) -> None:
    cluster.n1.ask("ALTER TABLE cmqd_rows DROP CONSTRAINT cmqd_rows_pkey")
    assert wake_up(cluster, leader) == [3]


# ---------------------------------------------------------------- H6: an old primary that hangs


@pytest.mark.parametrize("hangs", [True, pytest.param(False, marks=in_test_all)])
def test_the_newest_primary_serves(cluster: PostgresCluster, leader: Leader, hangs: bool) -> None:
    """The old primary shows its rows; it answers nothing, or it takes connections and its commits wait for ever."""
    if hangs:
        cluster.n1.freeze()
    cluster.promote(cluster.n2)
    leader.append().result()
    with Leader(cluster, "b") as successor:
        successor.take().result()
        successor.append().result()
    assert stored_lsns(cluster.n2) == [1, 2, 3, 4, 5]


@in_test_all
def test_without_timelines_nobody_is_served(
    cluster: PostgresCluster, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    primaries = PostgresDatabase.primaries

    def first_primary(database: PostgresDatabase, keep_waiting: KeepWaiting) -> list[Session]:
        first, *others = primaries(database, keep_waiting)
        for session in others:
            session.close()
        looks.append(first.timeline)
        return [first]

    monkeypatch.setattr(PostgresDatabase, "primaries", first_primary)
    cluster.promote(cluster.n2)
    append = leader.append()
    eventually_elsewhere(lambda: len(looks) > 3)
    assert not append.done()
    assert set(looks) == {1}


# ---------------------------------------------------------------- a connection that hangs


def test_a_leader_behind_a_stuck_proxy_ends_once_another_leads(
    shared_cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cmqd.engine.postgresql.connection.SILENCE_SECONDS", 0.1)
    shard = OWN_SHARD + 2
    with Leader(shared_cluster, "a", shard) as leader, Leader(shared_cluster, "b", shard) as successor:
        leader.take().result()
        leader.append().result()
        shared_cluster.stall("a", "n1")
        append = leader.append()
        successor.take().result()

        with pytest.raises(Fenced, match="row 3 has epoch 3, mine is 1"):
            append.result()
        successor.append().result()
    assert stored_lsns(shared_cluster.n1, shard) == [1, 2, 3, 4]


# ---------------------------------------------------------------- giving up


def test_a_wait_that_is_given_up_cancels_nothing(shared_cluster: PostgresCluster) -> None:
    """The commit goes on without its client, and is visible when the standby has it, not before."""
    cluster, shard = shared_cluster, OWN_SHARD + 1
    patience = [True]
    (session,) = PostgresDatabase(cluster.url("a"), shard).primaries(lambda _timeline: patience[0])
    session.begin()
    session.insert_fence(1)
    session.commit()
    cluster.n2.freeze()
    patience[0] = False
    with pytest.raises(ConnectionLost):
        session.append(1, [row_of(2, 1)])
    assert stored_lsns(cluster.n1, shard) == [1]
    cluster.n2.thaw()
    eventually_elsewhere(lambda: stored_lsns(cluster.n1, shard) == [1, 2])
