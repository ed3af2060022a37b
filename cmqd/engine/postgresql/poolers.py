"""Find a connection pooler between the broker and PostgreSQL: a pooler must be refused (decision 0208).

Behind a pooler in transaction mode every transaction may have a new backend, with its own settings. The lock of the
shard stays behind at a backend, commits lose the settings that make them safe, and prepared statements are missing: the
start of a broker hung. Behind any pooler keepalives and closed sockets end at the pooler. The server then keeps the
session of a broker on a silent machine, and with the session the lock.

Two signs: while a second session holds a transaction open, backend or settings of the first session change; and the
backend's id, as the connection was told at its begin, is not the backend's own.
"""

from collections.abc import Callable, Sequence
from typing import Final

from cmqd.engine.postgresql.connection import Connection


class Pooler(str):
    """The sign of a pooler, in words."""

    __slots__ = ()


_STATE: Final = b"""
SELECT pg_backend_pid(), array_agg(current_setting(name, true) ORDER BY name)::text
FROM unnest($1::text[]) AS kept (name)
"""
_CURE: Final = "engine_url must name the servers themselves"


def find_pooler(connection: Connection, connect: Callable[[], Connection], settings: bytes) -> Pooler | None:
    """Return the sign of a pooler; None if there is none.

    Args:
        connection: a session with its settings.
        connect: opens a second session with the same server.
        settings: array of the names of the settings.

    Raises:
        ConnectionLost: the server does not answer.
    """
    before = _state(connection, settings)
    second = connect()
    try:
        second.run_script(b"BEGIN")
        other = _state(second, settings)
        again = _state(connection, settings)
        second.run_script(b"ROLLBACK")
    finally:
        second.close()
    if again != before or again[0] == other[0]:
        return Pooler(
            f"a connection pooler in transaction mode is between: the backend of a session was {before[0]} and is"
            f" {again[0]} while another session is in a transaction; {_CURE}"
        )
    return None


def invented_id(connection: Connection, backend: int) -> Pooler | None:
    """Return the sign of a pooler that tells its clients ids of its own."""
    if connection.backend_pid == backend:
        return None
    return Pooler(
        f"a connection pooler is between: the session was told backend {connection.backend_pid} and has {backend};"
        f" {_CURE}"
    )


def _state(connection: Connection, settings: bytes) -> tuple[int, Sequence[bytes | None]]:
    result = connection.ask(_STATE, (settings,))
    pid, values = result.get_value(0, 0), result.get_value(0, 1)
    assert pid is not None
    return int.from_bytes(pid, "big"), (values,)
