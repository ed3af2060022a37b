"""The errors of an engine.

EngineError
├── Fenced              another broker leads, or has led since: the caller must not answer any more
├── EngineUnavailable   the caller is being stopped while the engine does not answer
├── AccountsConflict    the stored accounts have another version than expected
└── LogIdMismatch       the database has another log
"""

from cmqd.log.errors import LogError


class EngineError(LogError):
    """Root of the errors of an engine."""


class Fenced(EngineError):
    """Another broker has fenced this one. Nothing was changed, and no later call will change anything.

    The broker must end without another answer. Requests with rows that were not durable have an unknown outcome.
    """

    def __init__(self, lsn: int, epoch: int | None, own_epoch: int | None) -> None:
        """Take the LSN of the row that proves it, the epoch of that row (None: there is no such row), and the epoch of
        the caller (None: the caller has not led, or has released the lead).
        """
        found = "is missing" if epoch is None else f"has epoch {epoch}"
        own = "there is none of mine" if own_epoch is None else f"mine is {own_epoch}"
        super().__init__(f"fenced: row {lsn} {found}, {own}")
        self.lsn = lsn
        self.epoch = epoch
        self.own_epoch = own_epoch


class EngineUnavailable(EngineError):
    """The wait for the engine ended because the broker is being stopped. The outcome of the call is unknown.

    The engine accepts no further ``append``: a row with the same LSN may already be stored.
    """


class AccountsConflict(EngineError):
    """The stored accounts have another version than the caller expected. Nothing was changed."""

    def __init__(self, expected_version: int, version: int) -> None:
        """Take both versions; 0 = no accounts are stored."""
        super().__init__(f"accounts have version {version}, not {expected_version}")
        self.expected_version = expected_version
        self.version = version


class LogIdMismatch(EngineError):
    """The database has another log than the caller's, or none. Nothing was changed."""

    def __init__(self, expected: str, found: str | None, server: str) -> None:
        """Take the id of the caller's log, the id in the database (None: the database has no log), and the server."""
        has = "has no log" if found is None else f"has log {found}"
        super().__init__(f"{server} {has}, expected log {expected}")
        self.expected = expected
        self.found = found
