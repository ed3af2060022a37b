"""The state of a log in an engine, as told by its newest primary: for ``cmqd ha``.

Read without a barrier: the state is told while the second copy is missing too. A state is no proof.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from cmqd.engine.database import ConnectionLost, Database, Newest, Session, no_primary
from cmqd.engine.fencing import RETIRED
from cmqd.log.values import BrokerSeen, EngineView
from cmqd.server.redundancy.engine_accounts import addresses_in

LOOK_SECONDS: Final = 5.0
"""Longest time that a look takes."""


class NoState(Exception):
    """There is no state to tell; the text says why."""


class LogState(msgspec.Struct, frozen=True):
    """A log at a moment."""

    server: str
    """The primary that was asked."""
    log_id: str | None
    """None before the first leader."""
    is_retired: bool
    """The log was exported to a data folder: no broker leads the log here."""
    checkpoint_lsn: int
    """0 = there is no checkpoint."""
    addresses: list[str]
    """Addresses of the leader, as standbys tell clients; of the last leader while no broker leads."""
    waiting_for: str
    """The reason why commits wait; empty if commits do not wait."""
    view: EngineView

    @property
    def leader(self) -> BrokerSeen | None:
        """See ``EngineView``."""
        return self.view.leader

    def as_table(self) -> dict[str, Any]:
        """Return the state as a table by names."""
        leader = self.leader
        return {
            "server": self.server,
            "log_id": self.log_id,
            "is_retired": self.is_retired,
            "leader": None
            if leader is None
            else {
                "address": leader.address,
                "process": leader.process,
                "clock_offset_ms": leader.clock_offset_ms,
            },
            "leader_addresses": self.addresses,
            "epoch": self.view.epoch,
            "newest_lsn": self.view.newest_lsn,
            "checkpoint_lsn": self.checkpoint_lsn,
            "waiting_for": self.waiting_for,
        } | self.view.as_table()


def read_state(database: Database, monotonic: Callable[[], float] = time.monotonic) -> LogState:
    """Ask the newest primary. Raises NoState."""
    with newest_primary(database, monotonic) as session:
        newest = session.newest() or Newest(0, 0)
        checkpoint = session.checkpoint(with_data=False)
        log_id = session.log_id()
        view = EngineView(newest.lsn, newest.epoch, session.brokers(), session.copies())
        return LogState(
            session.server,
            None if log_id is None else log_id.removeprefix(RETIRED),
            log_id is not None and log_id.startswith(RETIRED),
            0 if checkpoint is None else checkpoint.lsn,
            addresses_in(session.accounts()),
            waiting_for(session, view),
            view,
        )


def waiting_for(session: Session, view: EngineView) -> str:
    """Return the reason why the commits of a primary wait; empty if they do not."""
    if not session.standby_is_named():
        return "a named standby: synchronous_standby_names does not name exactly one"
    if view.second_copy is None:
        return "the named standby, which does not follow the primary"
    return ""


@contextmanager
def newest_primary(database: Database, monotonic: Callable[[], float] = time.monotonic) -> Generator[Session]:
    """Yield a session with the newest primary. Raises NoState, also if the session breaks."""
    deadline = monotonic() + LOOK_SECONDS
    sessions: Sequence[Session] = sorted(
        database.primaries(lambda _timeline: monotonic() < deadline), key=lambda session: session.timeline
    )
    if not sessions:
        raise NoState(no_primary(database))
    try:
        yield sessions[-1]
    except ConnectionLost as error:
        raise NoState(f"{sessions[-1].server} did not answer: {error}") from error
    finally:
        for session in sessions:
            session.close()
