"""The fencing protocol over a database in memory: waits, repeats, ends."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from cmqd.engine.database import Newest, Session
from cmqd.engine.engine_errors import EngineUnavailable, LogIdMismatch
from support.engine.engine_rig import Broker, Cluster, Worker
from support.engine.memory_engine import Fault


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.kill()


def lock(broker: Broker) -> bool:
    answers: list[bool] = []
    broker.begin(broker.rows, lambda: answers.append(broker.engine.try_lead()))
    assert broker.rows.run()
    return answers[0]


def steps_of(worker: Worker) -> list[str]:
    """Run to the end, and return the steps."""
    steps: list[str] = []
    while worker.point is not None:
        steps.append(worker.point[1])
        worker.step()
    return steps


@pytest.mark.parametrize(("lead", "is_end"), [(-1, False), (0, False), (1, True)])
def test_only_a_higher_epoch_beside_a_silent_connection_ends_a_lead(cluster: Cluster, lead: int, *, is_end: bool):
    """A row of an earlier leader says nothing, on a server of the highest timeline too: rows may be missing there."""
    epoch = 7
    engine = cluster.leader().engine
    engine._epoch = epoch  # pyright: ignore[reportPrivateUsage]
    session = cast("Session", SimpleNamespace(timeline=9, newest=lambda: Newest(20, epoch + lead)))

    assert (engine._later_leader(session) is not None) is is_end  # pyright: ignore[reportPrivateUsage]


def test_an_append_is_one_round_trip(cluster: Cluster):
    leader = cluster.leader()
    lock(leader)

    leader.begin_append(3)

    # The second step travels with the first.
    assert steps_of(leader.rows) == ["append", "look_behind"]


@pytest.mark.parametrize("may_read_lags", [True, False])
def test_behind_a_slow_append_comes_one_barrier_and_never_a_second(cluster: Cluster, *, may_read_lags: bool):
    """Also where every commit is slow: three round trips at most, and the appends go on."""
    database = cluster.database
    leader = cluster.leader()
    lock(leader)
    database.may_read_lags = may_read_lags

    def wait_for_the_standby() -> None:
        database.link("b")
        database.link("b", is_mute=True)

    database.link("b", is_mute=True)
    database.pause = wait_for_the_standby

    for _ in range(2):
        leader.begin_append()
        barrier = [] if may_read_lags else ["barrier", "look_behind"]
        # Without the look for a newer primary, in the pause.
        steps = [step for step in steps_of(leader.rows) if step not in {"primaries", "newest"}]
        assert steps == ["append", "look_behind", "standby_has_all", *barrier]

    assert leader.last_lsn == 3


def test_a_first_append_on_a_new_session_looks(cluster: Cluster):
    leader = cluster.leader()
    lock(leader)
    cluster.database.restart("a")

    leader.begin_append()

    look = ["epochs", "barrier", "look_behind"]
    assert steps_of(leader.rows) == ["sleep", "primaries", "log_id", "try_lock", *look, "append", "look_behind"]


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.LATE_REQUEST])
def test_an_append_is_stored_once_whatever_is_lost(cluster: Cluster, fault: Fault):
    leader = cluster.leader()
    leader.begin_append(2)
    leader.rows.run_to("append")
    leader.rows.step(fault)

    assert leader.rows.run()
    cluster.database.deliver_late()
    leader.append()

    assert leader.last_lsn == 4
    cluster.judge()


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER])
def test_a_change_is_made_once_whatever_is_lost(cluster: Cluster, fault: Fault):
    leader = cluster.leader()
    leader.begin_store()
    leader.changes.run_to("commit")
    leader.changes.step(fault)

    assert leader.changes.run()
    leader.change(leader.begin_store)

    assert leader.version == 2
    cluster.judge()


def test_a_late_commit_holds_the_line_until_it_is_made(cluster: Cluster):
    leader = cluster.leader()
    leader.begin_store()
    leader.changes.run_to("commit")
    leader.changes.step(Fault.LATE_REQUEST)

    assert not leader.changes.run()
    cluster.database.deliver_late()
    assert leader.changes.run()

    assert leader.version == 1
    cluster.judge()


def test_a_fence_that_was_not_answered_is_followed_by_another(cluster: Cluster):
    broker = cluster.broker()
    broker.begin_take()
    broker.rows.run_to("commit")
    broker.rows.step(Fault.LOSE_ANSWER)

    assert broker.rows.run()

    assert broker.epoch == 2
    cluster.judge()


def test_two_brokers_that_take_at_once_have_two_epochs(cluster: Cluster):
    first, second = cluster.broker(), cluster.broker()
    first.begin_take()
    second.begin_take()
    first.rows.run_to("insert_fence")
    second.rows.run_to("pause")

    assert first.rows.run()
    assert second.rows.run()

    assert (first.epoch, second.epoch) == (1, 2)
    cluster.judge()


def test_a_fence_behind_a_row_that_came_meanwhile(cluster: Cluster):
    leader = cluster.leader()
    successor = cluster.broker()
    successor.begin_take()
    successor.rows.run_to("insert_fence")
    leader.append()

    assert successor.rows.run()

    assert successor.epoch == 3
    cluster.judge()


def test_a_silent_primary_is_waited_for_on_one_connection(cluster: Cluster):
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    leader.begin_append()
    leader.rows.run_to("pause")
    sessions = len(cluster.database.sessions)

    assert not leader.rows.run(100)
    assert leader.engine.waiting_for.startswith("an answer of the primary")
    assert len(cluster.database.sessions) <= sessions + 1

    cluster.database.link("b")
    assert leader.rows.run()
    assert leader.engine.waiting_for == ""
    cluster.judge()


def test_both_sessions_leave_an_old_primary_once_one_of_them_has(cluster: Cluster):
    """The old primary may hang, and each session would find that out by its own silence."""
    leader = cluster.leader()
    leader.change(leader.begin_store)
    cluster.promote()
    cluster.database.follow("c", "b")
    cluster.name_standby("c")
    leader.append()

    leader.begin_store()
    steps = steps_of(leader.changes)
    leader.begin_store()

    assert steps[:2] == ["primaries", "log_id"]
    assert steps_of(leader.changes)[0] == "begin"
    cluster.judge()


def test_a_wait_names_the_missing_standby(cluster: Cluster):
    leader = cluster.leader()
    cluster.database.name_standby("a", "*")
    leader.begin_append()
    leader.rows.run_to("sleep")

    assert leader.engine.waiting_for.startswith("a named standby")


def test_a_stop_ends_the_wait_and_the_engine(cluster: Cluster):
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    leader.begin_append()
    leader.rows.run_to("pause")

    leader.is_stopping = True
    with pytest.raises(EngineUnavailable):
        leader.rows.run()

    leader.is_stopping = False
    with pytest.raises(EngineUnavailable):
        leader.begin_append()


def test_a_group_without_a_primary_is_waited_for(cluster: Cluster):
    leader = cluster.leader()
    cluster.database.crash("a")
    leader.begin_append()

    assert not leader.rows.run()
    assert leader.engine.waiting_for.startswith("a primary")
    assert not lock(cluster.broker())

    cluster.database.restart("a")
    assert leader.rows.run()
    cluster.judge()


def test_another_log_is_refused(cluster: Cluster):
    leader = cluster.leader()
    for server in cluster.database.servers.values():
        cluster.database.restart(server.name)
        server.tables.log_id = "log-other"

    leader.begin_append()
    with pytest.raises(LogIdMismatch, match="a has log log-other, expected log log-"):
        leader.rows.run()


def test_a_lost_lock_is_taken_again(cluster: Cluster):
    leader, standby = cluster.leader(), cluster.broker()
    assert lock(leader)
    cluster.database.restart("a")

    leader.append()

    assert not lock(standby)


def test_a_standby_gets_the_lock_of_a_killed_leader(cluster: Cluster):
    leader, standby = cluster.leader(), cluster.broker()
    assert lock(leader)
    assert not lock(standby)
    leader.kill()

    assert lock(standby)


def test_a_leader_that_stops_inside_a_change_delays_its_successor_only(cluster: Cluster):
    leader = cluster.leader()
    leader.begin_store()
    leader.changes.run_to("put_accounts")
    successor = cluster.broker()
    successor.begin_take()
    assert not successor.rows.run()

    cluster.database.end_idle()

    assert successor.rows.run()
    assert leader.changes.run()
    assert leader.is_fenced
    cluster.judge()


def test_the_polls_of_a_standby_write_only_when_there_are_new_rows(cluster: Cluster):
    leader, standby = cluster.leader(), cluster.broker()
    lsns: list[int] = []

    def poll() -> list[str]:
        standby.begin(standby.changes, lambda: lsns.extend(row.lsn for row in standby.engine.rows(0)))
        return steps_of(standby.changes)

    assert poll() == ["primaries", "rows", "barrier", "look_behind", "rows"]
    assert poll() == ["rows", "rows"]
    leader.append()
    assert poll() == ["rows", "barrier", "look_behind", "rows"]
    cluster.database.restart("a")
    assert poll() == ["sleep", "primaries", "rows", "barrier", "look_behind", "rows"]
    assert lsns == [1, 1, 1, 2, 1, 2]
