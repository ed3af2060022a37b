"""``cmqd ha handover``: the leader of this machine ends in order, and its standby leads.

A stop of a leader is a handover already: the broker drains, writes a checkpoint, and releases the lead last. The
command adds the checks and the wait of a careful operator: a refusal unless the broker of the folder leads and a
standby has the rows, and a wait until the other broker leads.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cmqd.engine.database import Database
from cmqd.exit_codes import ExitCode
from cmqd.ha.log_state import LogState, NoState, read_state
from cmqd.ha.output import Output
from cmqd.log.values import BrokerSeen
from cmqd.storage.folder.data_folder import boot_id, process_name
from cmqd_segment.folder_lock import holder_of

POLL_SECONDS: Final = 0.1
WARM_SECONDS: Final = 5.0
"""Time in which a standby must report the rows that the log had at the begin of the command. Standbys report
every second."""


class Refused(Exception):
    """No broker was stopped; the text says why."""


class Handover:
    """Hands the lead over; tests replace clock, pause and signal."""

    def __init__(
        self,
        database: Database,
        folder: Path,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        stop: Callable[[int], None] = lambda pid: os.kill(pid, signal.SIGTERM),
    ) -> None:
        self._database = database
        self._folder = folder
        self._monotonic = monotonic
        self._sleep = sleep
        self._stop = stop

    def run(self, within_s: float, output: Output) -> ExitCode:
        """Hand over, and print the new leader; NOT_SAFE if refused, or if no other broker leads in time."""
        try:
            pid, state = self._ready()
        except (Refused, NoState, OSError) as reason:
            output.refuse(f"no handover: {reason}")
            return ExitCode.NOT_SAFE
        epoch = state.view.epoch
        begun_s = self._monotonic()
        self._stop(pid)
        leader = self._next_leader(epoch, begun_s + within_s)
        seconds = self._monotonic() - begun_s
        if leader is None:
            output.refuse(f"the broker was stopped, and no other broker leads after {seconds:.1f} s: cmqd ha status")
            return ExitCode.NOT_SAFE
        output.document({"ok": True, "leader": leader.address, "seconds": round(seconds, 3), "problems": []})
        output.line(f"{leader.address} leads after {seconds:.1f} s")
        return ExitCode.OK

    def _ready(self) -> tuple[int, LogState]:
        """Return the process of the leader, and the state once a standby had its rows. Raises Refused, NoState."""
        try:
            holder = holder_of(self._folder)
        except FileNotFoundError:
            raise Refused(f"{self._folder} is not a data folder") from None
        if holder is None:
            raise Refused(f"no broker works on {self._folder}")
        state = read_state(self._database)
        leader = state.leader
        if leader is None:
            raise Refused("no broker leads")
        if leader.process != process_name(holder.broker_pid, boot_id()):
            raise Refused(
                f"the leader is {leader.address}, and not the broker of {self._folder}: run the command there"
            )
        newest_lsn, deadline = state.view.newest_lsn, self._monotonic() + WARM_SECONDS
        while not (standbys := state.view.standbys) or standbys[0].lsn < newest_lsn:
            if self._monotonic() >= deadline:
                behind = (
                    f"{standbys[0].address} is {newest_lsn - standbys[0].lsn} rows behind"
                    if standbys
                    else "no broker follows"
                )
                raise Refused(f"no standby has the rows ({behind}): cmqd ha status")
            self._sleep(POLL_SECONDS)
            state = read_state(self._database)
        if state.waiting_for:
            raise Refused(f"commits wait for {state.waiting_for}")
        return holder.broker_pid, state

    def _next_leader(self, epoch: int, deadline: float) -> BrokerSeen | None:
        """Wait for a leader of a later epoch."""
        while self._monotonic() < deadline:
            try:
                state = read_state(self._database)
            except NoState:
                pass
            else:
                if state.view.epoch > epoch and state.leader is not None:
                    return state.leader
            self._sleep(POLL_SECONDS)
        return None
