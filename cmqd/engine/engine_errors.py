"""The errors of an engine.

EngineError
├── Fenced              another broker leads, or has led since: the caller must answer no further request
├── EngineUnavailable   the caller is being stopped while the engine does not answer
├── PoolerBetween       a connection pooler is between the caller and the database
├── AccountsConflict    the stored accounts have another version than expected
├── LogIdMismatch       the database has another log
├── NotEmpty            the database has a log, and none can be imported
├── NoPinsColumn        the tables have no column for the standing pins of a log that is imported
├── RowsBehind          the log has other rows at its end than the caller knows
└── LogRetired          the log has left the database: no broker leads it there again
"""

from cmqd.log.log_errors import LogError


class EngineError(LogError):
    """Root of the errors of an engine."""


class Fenced(EngineError):
    """Another broker has fenced the caller. From that fence on, no call of the caller changes the log.

    A refused ``append`` has stored no row, unless its answer was waited for: its rows may be stored below the fence. A
    refused checkpoint, trim or change of accounts that was repeated after a lost connection may have been made by its
    first attempt, while the caller led. The broker must end without another answer. Requests with rows that were not
    durable have an unknown outcome. The text names a row of the other broker: "fenced: row 1715 has epoch 1715, mine is
    1423".
    """


class EngineUnavailable(EngineError):
    """The wait for the engine ended because the broker is being stopped. The outcome of the call is unknown.

    The engine accepts no further ``append``: a row with the same LSN may already be stored.
    """


class PoolerBetween(EngineError):
    """A connection pooler is between the caller and the database, so that no session can be relied on. The database is
    unchanged.
    """


class AccountsConflict(EngineError):
    """The stored accounts have another version than the caller expected. The accounts are unchanged."""

    def __init__(self, expected_version: int, version: int) -> None:
        """Take both versions; 0 = no accounts are stored."""
        super().__init__(f"accounts have version {version}, not {expected_version}")
        self.expected_version = expected_version
        self.version = version


class LogIdMismatch(EngineError):
    """The database has another log than the caller's, or none. The database is unchanged."""

    def __init__(self, expected: str, found: str | None, server: str) -> None:
        """Take the id of the caller's log, the id in the database (None: the database has no log), and the server."""
        has = "has no log" if found is None else f"has log {found}"
        super().__init__(f"{server} {has}, expected log {expected}")
        self.expected = expected
        self.found = found


class NotEmpty(EngineError):
    """The database has a log, so that no log can be imported. The database is unchanged."""

    def __init__(self, log_id: str | None, last_lsn: int) -> None:
        """Take the id of the log in the database (None: rows without a log), and the LSN of its newest row."""
        super().__init__(
            f"the engine is not empty: it has log {log_id or 'unknown'}, with rows up to {last_lsn}. Use another"
            " database or shard, or delete the lines of a log that is not needed: docs/operations.md, Redundancy"
        )
        self.log_id = log_id
        self.last_lsn = last_lsn


class NoPinsColumn(EngineError):
    """The tables are of an older version, without a column for the standing pins of the log. Nothing was imported."""

    def __init__(self) -> None:
        """Name the cure."""
        super().__init__(
            "the tables of the engine have no column for standing pins; 'cmqd ha check' prints the statement that adds"
            " the column"
        )


class RowsBehind(EngineError):
    """The newest row of the log is not the fence that the caller knows: a broker has led since. Nothing was changed."""

    def __init__(self, known_lsn: int, last_lsn: int) -> None:
        """Take the LSN of the fence that the caller knows, and the LSN of the newest row."""
        super().__init__(
            f"the log in the engine ends with row {last_lsn}, not with {known_lsn}: a broker has led since"
        )


class LogRetired(EngineError):
    """The log was exported to a folder and lives there: no broker leads it in the database again."""

    def __init__(self, log_id: str) -> None:
        """Take the id of the log."""
        super().__init__(f"log {log_id} in the engine is retired: it was exported to a data folder and lives there")
        self.log_id = log_id
