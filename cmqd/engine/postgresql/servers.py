"""The servers of a group: the attempts to reach each of them, and the settings of every session.

All sessions of a broker have the settings of ``SESSION_SETTINGS``, whatever the role, the database or the URL say: with
``synchronous_commit = local``, for example, a commit would be answered before the standby has it, and with
``client_min_messages = error`` the only sign of a cancelled commit would be missing.
"""

import threading
import time
from collections.abc import Mapping
from typing import Final

from cmqd.engine.database import CONNECT_SECONDS, ConnectionLost, KeepWaiting, Session
from cmqd.engine.postgresql.binary_values import int_of, text_array, value_of
from cmqd.engine.postgresql.connection import Connection
from cmqd.engine.postgresql.engine_url import resolved, servers_of
from cmqd.engine.postgresql.poolers import Pooler, find_pooler, invented_id
from cmqd.engine.postgresql.session import PostgresSession
from cmqd.engine.postgresql.stamps import STAMPS

SESSION_SETTINGS: Final = {
    "synchronous_commit": "on",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    # No timeout of the server may cancel a statement: a cancelled commit is reported as a success.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",  # since PostgreSQL 17
    "idle_session_timeout": "0",
    # A broker that hangs in a transaction holds the line of its shard.
    "idle_in_transaction_session_timeout": "5s",
    # The server ends the session of a broker whose machine is silent, and with it the advisory lock.
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "4000",
    "client_connection_check_interval": "1s",
}

_ADOPT: Final = f"""
SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_walfile_name(pg_current_wal_lsn()) END,
       (SELECT count(set_config(name, value, false))
        FROM unnest($1::text[], $2::text[]) AS wanted (name, value) JOIN pg_settings USING (name)),
       to_regclass('cmqd_rows') IS NOT NULL, {STAMPS.exists}, pg_backend_pid()
""".encode()
"""Settles the settings that this version knows. Answers: the name of the file of the log that is being written, which
begins with the timeline, or NULL of a standby; a count; whether the tables are there; whether rows have stamps;
the id of the backend."""


class PostgresDatabase:
    """A group of PostgreSQL servers with the log of a shard.

    Args:
        url: of libpq, with all servers: ``postgresql://role@first,second,third/database``. A server without a port has
            port 5432.
        shard: number of the shard.

    Raises:
        ValueError: the URL is not one of libpq.
    """

    def __init__(self, url: str, shard: int = 0) -> None:
        self._servers = list(servers_of(url))
        self._shard = shard
        self._unreached: Mapping[str, str] = {}
        self._direct: set[str] = set()
        """Servers that no pooler was found at, by an examination that needs a second session."""
        self._refusal = ""

    @property
    def refusal(self) -> str:
        """See ``Database``."""
        return self._refusal

    @property
    def unreached(self) -> Mapping[str, str]:
        """See ``Database``."""
        return self._unreached

    def primaries(self, keep_waiting: KeepWaiting) -> list[Session]:
        """See ``Database``."""
        return [*self._reached(keep_waiting, with_standbys=False)]

    def servers(self, keep_waiting: KeepWaiting) -> list[PostgresSession]:
        """Return a session with each server that answers within ``CONNECT_SECONDS``, standbys too."""
        return self._reached(keep_waiting, with_standbys=True)

    def _reached(self, keep_waiting: KeepWaiting, *, with_standbys: bool) -> list[PostgresSession]:
        deadline = time.monotonic() + CONNECT_SECONDS
        attempts = [
            _Attempt(parameters, self._shard, keep_waiting, deadline, self._direct, with_standbys=with_standbys)
            for parameters in self._servers
        ]
        # A thread for each server: looking up a name has no limit of time.
        for attempt in attempts:
            attempt.start()
        sessions: list[PostgresSession] = []
        unreached: dict[str, str] = {}
        for attempt in attempts:
            result = attempt.result()
            if isinstance(result, str):
                unreached[attempt.server] = result
                if isinstance(result, Pooler):
                    self._refusal = f"{attempt.server}: {result}"
            else:
                sessions.append(result)
        self._unreached = unreached
        return sessions


class _Attempt:
    """An attempt to reach a server, in a thread of its own."""

    def __init__(
        self,
        parameters: Mapping[str, str],
        shard: int,
        keep_waiting: KeepWaiting,
        deadline: float,
        direct: set[str],
        *,
        with_standbys: bool,
    ) -> None:
        self._with_standbys = with_standbys
        self._parameters = parameters
        self._shard = shard
        self._keep_waiting = keep_waiting
        self._deadline = deadline
        self._direct = direct
        self.server = f"{parameters['host']}:{parameters['port']}"
        self._result: PostgresSession | str = f"no answer within {CONNECT_SECONDS:g} s"
        self._lock = threading.Lock()
        self._is_late = False
        self._thread = threading.Thread(target=self._reach, name="reach a database", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def result(self) -> PostgresSession | str:
        """Return the session, or the reason why there is none."""
        self._thread.join(max(self._deadline - time.monotonic(), 0))
        with self._lock:
            self._is_late = True
            return self._result

    def _reach(self) -> None:
        try:
            result = self._adopt()
        except ConnectionLost as error:
            # libpq's text can have several lines.
            result = " ".join(str(error).split())
        with self._lock:
            if not self._is_late:
                self._result = result
                return
        if isinstance(result, PostgresSession):
            result.close()

    def _adopt(self) -> PostgresSession | str:
        parameters = resolved(self._parameters)

        def connect() -> Connection:
            return Connection(parameters, lambda: time.monotonic() < self._deadline)

        connection = connect()
        names = [text_array(texts) for texts in (SESSION_SETTINGS.keys(), SESSION_SETTINGS.values())]
        answer = connection.ask(_ADOPT, names)
        file_name = answer.get_value(0, 0)
        if file_name is None and not self._with_standbys:
            connection.close()
            return "a standby"
        pooler = invented_id(connection, int_of(answer, 0, 4))
        if pooler is None and self.server not in self._direct:
            pooler = find_pooler(connection, connect, names[0])
        if pooler is not None:
            connection.close()
            return pooler
        self._direct.add(self.server)
        timeline = 0 if file_name is None else int(file_name[:8], 16)
        connection.keep_waiting = lambda: self._keep_waiting(timeline)
        has_tables, has_stamps = (value_of(answer, 0, column) == b"\1" for column in (2, 3))
        return PostgresSession(
            connection, self.server, timeline, self._shard, has_tables=has_tables, has_stamps=has_stamps
        )
