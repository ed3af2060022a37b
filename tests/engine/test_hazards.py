"""Each way in which a replicated database tells less than the truth, as a scene; decision 0194 lists them.

A scene passes with the real engine, and fails with each engine that lacks its guard (``support.engine.mutants``). The
scenes are what hypothesis finds in ``test_interleavings``, shrunk and put into words.
"""

from collections.abc import Callable

import pytest

from cmqd.engine.fencing import FencedEngine
from cmqd.engine.interface import EngineRow
from support.engine import mutants as without
from support.engine.engine_rig import Cluster, cluster_of
from support.engine.memory_engine import Fault, MemorySession

Scene = Callable[[Cluster], None]


def a_waiting_commit_is_visible_after_a_restart(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    leader.begin_append()
    leader.rows.run_to("append")
    leader.rows.step(Fault.LOSE_ANSWER)
    cluster.database.restart("a")

    leader.rows.run()

    cluster.judge()


def a_row_becomes_visible_between_a_barrier_and_a_look(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.begin_append()
    leader.rows.run_to("append")
    leader.rows.step(Fault.LATE_REQUEST)
    leader.rows.run_to("epochs")
    cluster.database.link("b", is_cut=True)
    cluster.database.deliver_late()
    cluster.database.cancel("a")

    leader.rows.run()

    cluster.judge()


def a_cancelled_commit_is_answered_with_a_notice(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    leader.begin_append()
    leader.rows.run_to("pause")
    cluster.database.cancel("a")

    leader.rows.run()

    cluster.judge()


def a_cancelled_change_is_answered_with_a_notice(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    leader.begin_store()
    leader.changes.run_to("pause")
    cluster.database.cancel("a")

    leader.changes.run()

    cluster.judge()


def a_base_backup_counts_as_standby(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    cluster.database.base_backup_of = "a"
    cluster.database.name_standby("a", "*")
    leader.begin_append()

    leader.rows.run()

    cluster.judge()


def no_standby_is_named(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    cluster.database.name_standby("a", "")
    leader.begin_append()

    leader.rows.run()

    cluster.judge()


def no_standby_is_named_at_a_change(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    cluster.database.name_standby("a", "")
    leader.begin_store()

    leader.changes.run()

    cluster.judge()


def an_old_primary_goes_on_with_the_other_standby_of_a_list(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.name_standby("a", "ANY 1 (b, c)")
    cluster.promote()
    leader.begin_append()

    leader.rows.run()

    cluster.judge()


def a_zombie_appends(cluster: Cluster) -> None:
    zombie = cluster.leader()
    zombie.append()
    cluster.leader()

    zombie.append()

    assert zombie.is_fenced
    cluster.judge()


def a_zombie_repeats_an_append(cluster: Cluster) -> None:
    zombie = cluster.leader()
    zombie.begin_append(2)
    zombie.rows.run_to("append")
    zombie.rows.step(Fault.LOSE_REQUEST)
    cluster.leader().append(3)

    zombie.rows.run()

    assert zombie.is_fenced
    cluster.judge()


def a_zombie_waits_on_a_silent_connection(cluster: Cluster) -> None:
    zombie = cluster.leader()
    zombie.begin_append()
    zombie.rows.run_to("append")
    zombie.rows.step(Fault.SILENCE)
    cluster.leader()

    zombie.rows.run()

    assert zombie.is_fenced
    cluster.judge()


def an_old_primary_shows_a_later_leader(cluster: Cluster) -> None:
    """The fence was never on the standby that was promoted: the log has no such leader."""
    leader = cluster.leader()
    successor = cluster.broker()
    successor.begin_take()
    successor.rows.run_to("commit")
    cluster.database.link("b", is_cut=True)
    successor.rows.step(Fault.LOSE_ANSWER)
    cluster.database.cancel("a")
    successor.kill()
    cluster.brokers.remove(successor)
    cluster.promote()
    cluster.database.follow("c", "b")
    cluster.name_standby("c")
    leader.append()
    assert cluster.database.servers["a"].tables.rows[2].is_fence
    leader.begin_append()
    leader.rows.run_to("append")
    leader.rows.step(Fault.SILENCE)

    assert not leader.rows.run(30)

    assert not leader.is_fenced
    cluster.judge()


def an_old_primary_shows_an_earlier_leader(cluster: Cluster) -> None:
    cluster.leader().append()
    cluster.promote()
    cluster.database.follow("c", "b")
    cluster.name_standby("c")
    leader = cluster.leader()
    leader.begin_append()
    leader.rows.run_to("append")
    leader.rows.step(Fault.SILENCE)

    assert not leader.rows.run(30)

    assert not leader.is_fenced
    cluster.judge()


def a_zombie_appends_where_its_successor_has_trimmed(cluster: Cluster) -> None:
    zombie = cluster.leader()
    zombie.append()
    leader = cluster.leader()
    leader.append(2)
    leader.change(leader.begin_checkpoint)
    leader.change(leader.begin_trim)

    zombie.append()

    assert zombie.is_fenced
    cluster.judge()


def a_zombie_checkpoints(cluster: Cluster) -> None:
    zombie = cluster.leader()
    zombie.append()
    cluster.leader()

    zombie.change(zombie.begin_checkpoint)

    assert zombie.is_fenced
    cluster.judge()


def a_zombie_trims(cluster: Cluster) -> None:
    zombie = cluster.leader()
    zombie.append(2)
    zombie.change(zombie.begin_checkpoint)
    cluster.leader()

    zombie.change(zombie.begin_trim)

    assert zombie.is_fenced
    cluster.judge()


def a_zombie_stores_accounts(cluster: Cluster) -> None:
    zombie = cluster.leader()
    cluster.leader()

    zombie.change(zombie.begin_store)

    assert zombie.is_fenced
    cluster.judge()


def a_leader_is_followed_while_it_stores_accounts(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.begin_store()
    leader.changes.run_to("commit")
    successor = cluster.broker()
    successor.begin_take()
    successor.rows.run()

    leader.changes.run()

    assert successor.rows.run()
    assert successor.version == 1
    cluster.judge()


def stored_accounts_are_visible_after_a_restart(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    leader.begin_store()
    leader.changes.run_to("commit")
    leader.changes.step(Fault.LOSE_ANSWER)
    cluster.database.restart("a")

    leader.changes.run()

    cluster.judge()


def a_leader_is_followed_while_it_proves_its_lead(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.begin_prove()
    leader.rows.run_to("barrier")
    cluster.leader()

    leader.rows.run()

    cluster.judge()


def a_leader_is_followed_while_its_append_is_repeated(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.begin_append()
    leader.rows.run_to("append")
    leader.rows.step(Fault.LOSE_ANSWER)
    cluster.leader()

    leader.rows.run()

    assert leader.last_lsn == 2
    cluster.judge()


def the_old_primary_lives_on(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.append()
    cluster.promote()
    cluster.database.follow("c", "b")
    cluster.name_standby("c")

    leader.append()
    cluster.leader().append()

    assert len(cluster.database.servers["b"].tables.rows) == 5
    cluster.judge()


def a_checkpoint_is_followed_by_a_lower_checkpoint(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.append(3)
    leader.change(leader.begin_checkpoint, 4)

    leader.change(leader.begin_checkpoint, 2)

    cluster.judge()


def a_trim_goes_above_the_checkpoint(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.append(4)
    leader.change(leader.begin_checkpoint, 2)

    leader.change(leader.begin_trim, 1, 4)

    assert sorted(cluster.database.servers["b"].tables.rows) == [1, 3, 4, 5]
    cluster.judge()


def all_rows_are_trimmed(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.append(4)
    leader.change(leader.begin_checkpoint)

    leader.change(leader.begin_trim)

    assert sorted(cluster.database.servers["b"].tables.rows) == [1, 5]
    cluster.judge()


def a_new_leader_reads_on_an_old_primary(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.append()
    standby = cluster.broker()
    copied: list[EngineRow] = []
    standby.begin(standby.changes, lambda: copied.extend(standby.engine.rows(0)))
    assert standby.changes.run()
    cluster.promote()
    cluster.database.follow("c", "b")
    cluster.name_standby("c")
    leader.append()
    standby.begin(standby.rows, standby.engine.take)
    assert standby.rows.run()

    standby.begin(standby.changes, lambda: copied.extend(standby.engine.rows(2)))
    # The new primary is out of reach for a moment.
    standby.changes.run_to("primaries")
    standby.changes.step(Fault.HIDE_NEWEST)
    assert standby.changes.run()

    assert [row.lsn for row in copied] == [1, 2, 3, 4]
    cluster.judge()


def a_take_finds_no_standby(cluster: Cluster) -> None:
    cluster.leader().append()
    cluster.database.link("b", is_cut=True)
    successor = cluster.broker()
    successor.begin_take()

    successor.rows.run()
    cluster.database.restart("a")

    assert sorted(cluster.database.servers["a"].tables.rows) == [1, 2]
    cluster.judge()


def an_operator_loses_rows(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("c", is_cut=True)
    leader.append(2)
    cluster.database.crash("a")
    cluster.database.promote("c")
    cluster.database.follow("b", "c")
    cluster.database.name_standby("c", "b")

    leader.append()

    assert leader.is_fenced
    assert sorted(cluster.database.servers["c"].tables.rows) == [1]
    cluster.kill()


def the_names_are_emptied_while_an_append_waits(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    leader.begin_append()
    leader.rows.run_to("pause")
    cluster.database.name_standby("a", "")

    leader.rows.run()

    cluster.judge()


def the_names_are_emptied_and_set_again_while_an_append_waits(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    leader.begin_append()
    leader.rows.run_to("pause")
    cluster.database.name_standby("a", "")
    cluster.database.name_standby("a", "b")

    leader.rows.run()

    cluster.judge()


def the_barrier_of_a_look_is_cancelled(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    leader.begin_append()
    leader.rows.run_to("append")
    leader.rows.step(Fault.LOSE_ANSWER)
    cluster.database.restart("a")
    leader.rows.run_to("pause")
    cluster.database.cancel("a")

    leader.rows.run()

    cluster.judge()


def the_names_are_emptied_while_the_barrier_of_a_look_waits(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.link("b", is_cut=True)
    leader.begin_append()
    leader.rows.run_to("append")
    leader.rows.step(Fault.LOSE_ANSWER)
    cluster.database.restart("a")
    leader.rows.run_to("pause")
    cluster.database.name_standby("a", "")

    leader.rows.run()

    cluster.judge()


def the_standby_is_renamed_before_a_commit(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.begin_store()
    leader.changes.run_to("commit")
    cluster.database.name_standby("a", "ANY 1 (b, c)")
    cluster.promote()

    leader.changes.run()

    cluster.judge()


def the_old_primary_lives_on_without_a_named_standby(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.database.name_standby("a", "")
    cluster.promote()
    cluster.database.follow("c", "b")
    cluster.name_standby("c")

    leader.append()

    cluster.judge()


def cases() -> list[object]:
    guards: dict[Scene, list[type[FencedEngine] | type[MemorySession]]] = {
        a_waiting_commit_is_visible_after_a_restart: [without.BelievesWhatIsVisible],
        a_row_becomes_visible_between_a_barrier_and_a_look: [without.BelievesWhatIsVisible, without.BarrierBeforeLook],
        a_cancelled_commit_is_answered_with_a_notice: [],
        the_barrier_of_a_look_is_cancelled: [without.BelievesNotices],
        a_cancelled_change_is_answered_with_a_notice: [],
        a_base_backup_counts_as_standby: [without.AcceptsAnyNames, without.AcceptsAllButNone],
        no_standby_is_named: [without.AcceptsAnyNames],
        no_standby_is_named_at_a_change: [without.CommitsWithoutStandbyName],
        the_names_are_emptied_while_an_append_waits: [without.LooksAheadAlone],
        the_names_are_emptied_and_set_again_while_an_append_waits: [without.BelievesSlowAppends],
        the_names_are_emptied_while_the_barrier_of_a_look_waits: [without.LooksNotBehind],
        the_standby_is_renamed_before_a_commit: [without.CommitsWithoutBarrier],
        the_old_primary_lives_on_without_a_named_standby: [without.TakesTheOldestPrimary],
        an_old_primary_goes_on_with_the_other_standby_of_a_list: [without.AcceptsLists],
        a_zombie_appends: [without.ViolationIsSuccess, without.HasNoKey],
        a_zombie_repeats_an_append: [without.ViolationIsSuccess],
        a_zombie_appends_where_its_successor_has_trimmed: [without.RemovesFences],
        a_zombie_waits_on_a_silent_connection: [without.LooksForNoNewerPrimary, without.LooksForNoLaterLeader],
        an_old_primary_shows_a_later_leader: [without.BelievesOldPrimaries],
        an_old_primary_shows_an_earlier_leader: [without.EndsByAnyOtherEpoch],
        a_zombie_checkpoints: [without.ChangesWithoutEpoch],
        a_zombie_trims: [without.ChangesWithoutEpoch],
        a_zombie_stores_accounts: [without.ChangesWithoutEpoch],
        a_leader_is_followed_while_it_stores_accounts: [without.LocksNoLine, without.FencesWithoutTheLine],
        stored_accounts_are_visible_after_a_restart: [],
        a_leader_is_followed_while_it_proves_its_lead: [without.ProvedAtTheEnd],
        a_leader_is_followed_while_its_append_is_repeated: [without.ProvedAtTheEnd],
        the_old_primary_lives_on: [without.TakesTheOldestPrimary, without.LooksForNoNewerPrimary],
        a_checkpoint_is_followed_by_a_lower_checkpoint: [without.LowersTheCheckpoint],
        a_trim_goes_above_the_checkpoint: [without.TrimsAboveTheCheckpoint],
        all_rows_are_trimmed: [without.TrimsTheNewestRow, without.RemovesFences],
        a_new_leader_reads_on_an_old_primary: [without.BelievesAnEmptyPage],
        a_take_finds_no_standby: [without.FencesWithoutBarrier],
        an_operator_loses_rows: [without.AppendsBehindOthers, without.AppendsUnseen],
    }
    return [
        pytest.param(scene, mutant, id=f"{scene.__name__}-{mutant.__name__}")
        for scene, mutants in guards.items()
        for mutant in (FencedEngine, *mutants)
    ]


@pytest.mark.parametrize(("scene", "engine"), cases())
def test_hazard(scene: Scene, engine: type[FencedEngine] | type[MemorySession]):
    cluster = cluster_of(engine)
    try:
        if engine is FencedEngine:
            scene(cluster)
        else:
            with pytest.raises(AssertionError):
                scene(cluster)
    finally:
        cluster.kill()


def test_every_mutant_has_a_scene():
    tried = {case.values[1] for case in cases()}  # type: ignore[attr-defined]

    assert tried == {FencedEngine, *without.ENGINES, *without.SESSIONS}
