"""The faults of a round. A function makes a fault under load, and returns with all servers and links whole.

The times are those of real faults, drawn from a seeded generator; no result depends on them.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from cmqd.server.redundancy.leader_gate import PROOF_S
from support.eventually import eventually
from support.mixed_faults.brokers import Pair
from support.mixed_faults.roles import Roles
from support.postgresql.servers import PostgresCluster

_off_loop = asyncio.to_thread


@dataclass(frozen=True)
class Scene:
    """The parts that faults need."""

    cluster: PostgresCluster
    roles: Roles
    pair: Pair
    chance: random.Random


Fault = Callable[[Scene], Awaitable[None]]


async def leader_killed(scene: Scene) -> None:
    """SIGKILL to the leader; its machine may be lost with the folder."""
    leader = await scene.pair.wait_for_leader()
    await leader.kill(with_folder=scene.chance.random() < 0.5)
    await scene.pair.wait_for_leader(other_than=leader)
    leader.may_run.set()


async def leader_stopped(scene: Scene) -> None:
    """SIGSTOP to the leader; the servers end its sessions, the other broker leads, and the old leader goes on."""
    leader = await scene.pair.wait_for_leader()
    life = leader.lives
    leader.freeze()
    stopped = asyncio.get_running_loop().time()
    await _off_loop(scene.roles.end_sessions, leader.name)
    await scene.pair.wait_for_leader(other_than=leader)
    await asyncio.sleep(scene.chance.uniform(0.0, 1.0))
    # Answers by a younger proof of the lead may still leave.
    await asyncio.sleep(stopped + PROOF_S - asyncio.get_running_loop().time())
    leader.thaw()
    await eventually(lambda: leader.lives > life)


async def standby_lost(scene: Scene) -> None:
    """SIGKILL to the standby, whose folder is lost; it begins with an empty folder."""
    standby = scene.pair.standby_of(await scene.pair.wait_for_leader())
    await standby.kill(with_folder=True)
    await asyncio.sleep(scene.chance.uniform(0.0, 1.0))
    standby.may_run.set()


async def primary_killed(scene: Scene) -> None:
    """SIGKILL to the primary; its standby is promoted."""
    roles = scene.roles
    await _off_loop(roles.primary.kill)
    await asyncio.sleep(scene.chance.uniform(0.0, 1.0))
    await _off_loop(roles.fail_over)
    await asyncio.sleep(scene.chance.uniform(0.0, 1.0))
    await _off_loop(roles.restore)


async def primary_stopped(scene: Scene) -> None:
    """SIGSTOP to the primary; its standby is promoted, and the old primary goes on beside the new one."""
    roles = scene.roles
    await _off_loop(roles.primary.freeze)
    await asyncio.sleep(scene.chance.uniform(0.0, 1.0))
    await _off_loop(roles.fail_over)
    await _off_loop(roles.wait_for_new_row)
    await _off_loop(roles.spare.thaw)
    await _lose_spare(scene)


async def machine_killed(scene: Scene) -> None:
    """SIGKILL to the leader and to the primary at once; the standbys of both take over."""
    roles, pair = scene.roles, scene.pair
    leader = await pair.wait_for_leader()
    killing = leader.kill(with_folder=scene.chance.random() < 0.5)
    await asyncio.gather(killing, _off_loop(roles.primary.kill))
    await _off_loop(roles.fail_over)
    await pair.wait_for_leader(other_than=leader)
    leader.may_run.set()
    await _off_loop(roles.restore)


async def machine_stopped(scene: Scene) -> None:
    """SIGSTOP to the leader and to the primary; the standbys of both take over, and both go on, with their session."""
    roles, pair = scene.roles, scene.pair
    leader = await pair.wait_for_leader()
    life = leader.lives
    leader.freeze()
    await _off_loop(roles.primary.freeze)
    await _off_loop(roles.fail_over)
    await pair.wait_for_leader(other_than=leader)
    await asyncio.sleep(scene.chance.uniform(PROOF_S, 2 * PROOF_S))
    await _off_loop(roles.spare.thaw)
    leader.thaw()
    await eventually(lambda: leader.lives > life)
    await _lose_spare(scene)


async def primary_restarted_alone(scene: Scene) -> None:
    """The primary is cut off while a commit waits, crashes, and is started again: the commit is visible on it alone.

    Then the cut ends, or the standby is promoted first.
    """
    roles = scene.roles
    await _wait_for_lonely_commit(scene)
    # The first commit has few requests. The second one has all that came in the meantime.
    for _ in range(2):
        await _off_loop(roles.primary.kill)
        await _off_loop(roles.primary.start)
        await asyncio.sleep(scene.chance.uniform(0.2, 1.0))
    await _mend_or_promote(scene)


async def commits_cancelled(scene: Scene) -> None:
    """An operator cancels statements; some of them wait for the standby, which is cut off, and are answered then."""
    await _cancel(scene)
    await _wait_for_lonely_commit(scene)
    await _cancel(scene)
    await _mend_or_promote(scene)


async def leader_cut_off(scene: Scene) -> None:
    """The link between the leader and the primary is cut; the server may end the leader's sessions meanwhile."""
    leader = await scene.pair.wait_for_leader()
    scene.cluster.cut(leader.name, scene.roles.primary.name)
    await asyncio.sleep(scene.chance.uniform(0.2, 1.5))
    if scene.chance.random() < 0.6:
        await _off_loop(scene.roles.end_sessions, leader.name)
        await scene.pair.wait_for_leader(other_than=leader)
        await asyncio.sleep(scene.chance.uniform(0.0, 0.5))
    scene.cluster.mend()


async def standby_server_cut_off(scene: Scene) -> None:
    """The link between the primary and its named standby is cut for a time."""
    scene.cluster.cut(scene.roles.primary.name, scene.roles.standby.name)
    await asyncio.sleep(scene.chance.uniform(0.2, 2.0))
    scene.cluster.mend()


def taken_over_by_a_wrong_clock(skew_ms: int, *, is_warm: bool) -> Fault:
    """Return the fault: a broker whose wall clock is off takes over, and then a broker whose clock is right."""

    async def fault(scene: Scene) -> None:
        pair, roles = scene.pair, scene.roles
        leader = await pair.wait_for_leader()
        standby = pair.standby_of(leader)
        await standby.kill(with_folder=False)
        standby.broker.clock_skew_ms = skew_ms
        if is_warm:
            # Else the session of the killed process passes for the one of its successor, which is then cold.
            await _off_loop(roles.wait_until_gone, standby.name)
            standby.may_run.set()
            await _off_loop(roles.wait_for_follower, standby.name)
            await asyncio.sleep(_ROWS_COME_SECONDS)
        await leader.kill(with_folder=False)
        standby.may_run.set()
        await pair.wait_for_leader(other_than=leader)
        standby.broker.clock_skew_ms = 0
        leader.may_run.set()
        await _off_loop(roles.wait_for_follower, leader.name)
        await asyncio.sleep(_ROWS_COME_SECONDS)
        await standby.kill(with_folder=False)
        await pair.wait_for_leader(other_than=standby)
        standby.may_run.set()

    return fault


_ROWS_COME_SECONDS = 0.5
"""Time in which a standby sees rows of the leader come."""
_HOUR_MS = 3_600_000
CLOCKS: Mapping[str, Fault] = {
    "clock_40_s_ahead_warm": taken_over_by_a_wrong_clock(40_000, is_warm=True),
    "clock_40_s_ahead_cold": taken_over_by_a_wrong_clock(40_000, is_warm=False),
    "clock_2_h_ahead_warm": taken_over_by_a_wrong_clock(2 * _HOUR_MS, is_warm=True),
    "clock_2_h_ahead_cold": taken_over_by_a_wrong_clock(2 * _HOUR_MS, is_warm=False),
    "clock_2_h_behind_warm": taken_over_by_a_wrong_clock(-2 * _HOUR_MS, is_warm=True),
    "clock_2_h_behind_cold": taken_over_by_a_wrong_clock(-2 * _HOUR_MS, is_warm=False),
}
"""At the cold start of a clock that is behind, broker time stands still since the newest row."""

FAULTS: Mapping[str, Fault] = dict(CLOCKS) | {
    fault.__name__: fault
    for fault in (
        leader_killed,
        leader_stopped,
        standby_lost,
        primary_killed,
        primary_stopped,
        machine_killed,
        machine_stopped,
        primary_restarted_alone,
        commits_cancelled,
        leader_cut_off,
        standby_server_cut_off,
    )
}


async def _wait_for_lonely_commit(scene: Scene) -> None:
    """Cut the primary off and wait for a commit that no other server can get."""
    await _off_loop(scene.roles.isolate_primary)
    await _off_loop(scene.roles.wait_for_waiting_commit)


async def _cancel(scene: Scene) -> None:
    """Cancel the statements of the brokers several times, so that several commits end with a notice."""
    for _ in range(10):
        await _off_loop(scene.roles.cancel_statements)
        await asyncio.sleep(0.05)


async def _mend_or_promote(scene: Scene) -> None:
    """End the cut around the primary; or promote the standby first, so that the old primary lives on beside it."""
    if scene.chance.random() < 0.5:
        scene.cluster.mend()
        return
    await _off_loop(scene.roles.fail_over)
    scene.cluster.mend()
    await _lose_spare(scene)


async def _lose_spare(scene: Scene) -> None:
    """Let an old primary live on for a while, then lose it, and make it a fresh standby."""
    await asyncio.sleep(scene.chance.uniform(0.0, 1.0))
    await _off_loop(scene.roles.spare.kill)
    await _off_loop(scene.roles.restore)
