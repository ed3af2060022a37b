"""A connection to a single PostgreSQL server: the wait of a query can be given up without a cancel.

psycopg's own connections wait for an answer without a limit, and turn an interrupt into a cancel. A cancel of a commit
that waits for the standby is reported as a success. Therefore this module waits itself, on the interface of libpq that
psycopg publishes (``psycopg.pq``). A wait ends with the answer, or with the socket.
"""

import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from psycopg import OperationalError, pq
from psycopg.conninfo import make_conninfo

from cmqd.engine.database import SILENCE_SECONDS, ConnectionLost, UniqueViolation

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

_UNIQUE_VIOLATION: Final = b"23505"
_SQLSTATE: Final = pq.DiagnosticField.SQLSTATE
_MESSAGE: Final = pq.DiagnosticField.MESSAGE_PRIMARY

_READS = select.POLLIN
_WRITES = select.POLLOUT

_AS_TEXT: Final = 0
_AS_BYTES: Final = 1


class Connection:
    """A connection for a single thread.

    Args:
        parameters: of libpq, with a single host.
        keep_waiting: asked each ``SILENCE_SECONDS`` of a wait; False closes the socket.

    Raises:
        ConnectionLost: the server refuses, cannot be reached, or is silent for too long.
    """

    def __init__(self, parameters: Mapping[str, str], keep_waiting: Callable[[], bool]) -> None:
        self.keep_waiting = keep_waiting
        self._notices: list[str] = []
        self._prepared: dict[bytes, bytes] = {}
        try:
            self._libpq: PGconn = pq.PGconn.connect_start(make_conninfo(**parameters).encode())
        except OperationalError as error:
            raise ConnectionLost(str(error)) from error
        self._libpq.notice_handler = self._take_notice
        self._connect()
        self._libpq.nonblocking = 1
        self._poll = select.poll()
        self._poll.register(self._libpq.socket, _READS)

    @property
    def server_version(self) -> int:
        """The version of the server, 160004 for 16.4."""
        return self._libpq.server_version

    @property
    def backend_pid(self) -> int:
        """The id of the backend, as the connection was told at its begin."""
        return self._libpq.backend_pid

    def take_notices(self) -> tuple[str, ...]:
        """Return the notices and warnings since the last call."""
        notices = tuple(self._notices)
        self._notices.clear()
        return notices

    # ------------------------------------------------------------------ queries

    def ask(self, query: bytes, values: Sequence[bytes | None] = (), *, binary_values: bool = False) -> "PGresult":
        """Run a statement and return its result, with values in binary.

        Args:
            query: a single statement.
            values: of ``$1``, ``$2`` ...
            binary_values: the values are in the binary format of PostgreSQL, not text.

        Raises:
            UniqueViolation: the server reports one.
            ConnectionLost: any other end but success. The connection is closed.
        """
        formats = [_AS_BYTES if binary_values else _AS_TEXT] * len(values)
        return self._run(lambda: self._libpq.send_query_params(query, list(values), None, formats, _AS_BYTES))

    def ask_prepared(self, query: bytes, values: Sequence[bytes]) -> "PGresult":
        """Run a statement that the server parses once for this connection; values in binary. Raises as ``ask``."""
        name = self._prepare(query)
        return self._run(lambda: self._send_prepared(name, values))

    def ask_prepared_twice(self, query: bytes, values: Sequence[bytes], second: bytes) -> "tuple[PGresult, PGresult]":
        """Run a statement, and a second one without values behind its commit, in one round trip. Raises as ``ask``.

        A Sync stands between the two: without it, both would be one transaction, and the second would come before the
        commit.
        """
        name, name_behind = self._prepare(query), self._prepare(second)
        try:
            self._libpq.enter_pipeline_mode()
            self._send_prepared(name, values)
            self._libpq.pipeline_sync()
            self._send_prepared(name_behind, ())
            self._libpq.pipeline_sync()
            self._flush()
            result, behind = self._next_of_pipeline(), self._next_of_pipeline()
            self._libpq.exit_pipeline_mode()
        except OperationalError as error:
            self.kill()
            raise ConnectionLost(str(error)) from error
        return self._checked(result), self._checked(behind)

    def _next_of_pipeline(self) -> "PGresult":
        """Return the result of the next statement, and read up to its Sync."""
        result = self._next_result()
        ends = self._next_result_or_none(), self._next_result_or_none()
        if ends[0] is not None or ends[1] is None or ends[1].status != pq.ExecStatus.PIPELINE_SYNC:
            # The connection has ended; the result has its last words.
            raise OperationalError(result.error_message.decode(errors="replace") or "the server sent no result")
        return result

    def _prepare(self, query: bytes) -> bytes:
        name = self._prepared.get(query)
        if name is None:
            name = b"statement %d" % len(self._prepared)
            self._run(lambda: self._libpq.send_prepare(name, query))
            self._prepared[query] = name
        return name

    def _send_prepared(self, name: bytes, values: Sequence[bytes]) -> None:
        self._libpq.send_query_prepared(name, list(values), [_AS_BYTES] * len(values), _AS_BYTES)

    def run_script(self, script: bytes) -> None:
        """Run several statements without values. Raises as ``ask``."""
        self._run(lambda: self._libpq.send_query(script))

    def _run(self, send: Callable[[], None]) -> "PGresult":
        try:
            send()
            self._flush()
            result = self._next_result()
            while (following := self._next_result_or_none()) is not None:
                # An error ends a script, so it is the last result.
                result = following
        except OperationalError as error:
            self.kill()
            raise ConnectionLost(str(error)) from error
        return self._checked(result)

    def _checked(self, result: "PGresult") -> "PGresult":
        if result.status in _SUCCESS:
            return result
        message = (result.error_field(_MESSAGE) or result.error_message).decode(errors="replace").strip()
        if result.error_field(_SQLSTATE) == _UNIQUE_VIOLATION:
            raise UniqueViolation(message)
        self.kill()
        raise ConnectionLost(message)

    def _flush(self) -> None:
        while self._libpq.flush():
            # The server may be unable to read on before its own output was read.
            if self._wait(_READS | _WRITES) & _READS:
                self._libpq.consume_input()

    def _next_result(self) -> "PGresult":
        result = self._next_result_or_none()
        if result is None:
            raise OperationalError("the server sent no result")
        return result

    def _next_result_or_none(self) -> "PGresult | None":
        while self._libpq.is_busy():
            self._wait(_READS)
            self._libpq.consume_input()
        return self._libpq.get_result()

    def _wait(self, events: int) -> int:
        """Wait for the socket and return its events. Raises ConnectionLost if the wait is given up."""
        self._poll.modify(self._libpq.socket, events)
        while not (ready := self._poll.poll(SILENCE_SECONDS * 1000)):
            if not self.keep_waiting():
                self.kill()
                raise ConnectionLost("the wait for the server was given up")
        return ready[0][1]

    def _take_notice(self, notice: "PGresult") -> None:
        self._notices.append(notice.error_message.decode(errors="replace").strip())

    # ------------------------------------------------------------------ begin and end

    def _connect(self) -> None:
        while (status := self._libpq.connect_poll()) != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED:
                message = self._libpq.error_message.decode(errors="replace").strip()
                self._libpq.finish()
                raise ConnectionLost(message)
            events = _READS if status == pq.PollingStatus.READING else _WRITES
            # libpq may go on to the next address of the host with a new socket.
            waiting = select.poll()
            waiting.register(self._libpq.socket, events)
            while not waiting.poll(SILENCE_SECONDS * 1000):
                if not self.keep_waiting():
                    self._libpq.finish()
                    raise ConnectionLost("the wait for the server was given up")

    def kill(self) -> None:
        """Close the socket without a word to the server."""
        with suppress(OSError, OperationalError), socket.socket(fileno=os.dup(self._libpq.socket)) as same:
            # ``finish`` alone would write the rest of libpq's buffer.
            same.shutdown(socket.SHUT_RDWR)
        self._libpq.finish()

    def close(self) -> None:
        """End the session in order, without waiting for the server."""
        self._libpq.finish()


_SUCCESS: Final = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
