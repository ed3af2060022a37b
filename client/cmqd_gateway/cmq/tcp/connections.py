"""The listener of CMQ's TCP protocol, and all its connections: their number, checks, keys, and end.

One regular check looks at all connections, because ten thousand idle connections must have no timers of their own. A
key that changes is asked for once, and its connections end unless the key still has the secret of their log-in.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import count
from typing import Final

from cmqd_client.errors import CmqError
from cmqd_gateway.callers.key_secrets import KeySecret, TooManyUnknownIds
from cmqd_gateway.cmq.known_keys import WRONG_KEY, check_enabled, known_key
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_gateway.cmq.tcp.checker_registrations import CheckerRegistrations
from cmqd_gateway.cmq.tcp.commands import LOG_IN_REQUEST, Envelope
from cmqd_gateway.cmq.tcp.connection import LOG_IN_SECONDS, Answerer, Connection
from cmqd_gateway.cmq.tcp.dispatch import Dispatch
from cmqd_gateway.cmq.tcp.login import check_client_id, check_signature
from cmqd_gateway.cmq.tcp.proto2 import Malformed
from cmqd_gateway.cmq.tcp.repeats import SendRepeats
from cmqd_gateway.cmq.tcp.transaction_checks import TransactionChecks
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.hand_over import HandOver
from cmqd_gateway.process.gateway_logger import SparseWarning, get_logger

BACKLOG: Final = 1_024
DRAIN_STEP_SECONDS: Final = 0.02
CANCELLED_AT_ONCE: Final = 32
"""Requests of ended connections that are cancelled before others have a turn: two milliseconds of work."""
ENDS: Final = (
    "no frame",
    "no envelope",
    "bytes before the log-in",
    "no memory",
    "no log-in",
    "slow frame",
    "slow reader",
    "silent",
    "second log-in",
    "key changed",
)
"""The reasons for which the gateway ends connections."""

_log = get_logger()


class Connections:
    """See the module."""

    def __init__(self, gateway: Gateway, answer: Answerer | None = None) -> None:
        """Make the listener, which does not listen yet; ``answer`` performs the requests in place of the commands."""
        self.gateway: Gateway = gateway
        self.settings = gateway.settings
        self.now = gateway.now
        self.bodies = gateway.bodies
        self.is_draining = False
        self.address: tuple[str, int] = "", 0
        """Host and port on which the gateway listens."""
        self.ended: Counter[str] = Counter(dict.fromkeys(ENDS, 0))
        """Connections that the gateway ended, by reason."""
        self.results: Counter[tuple[int, int]] = Counter()
        """Answers by command and result; the command 0 stands for unknown commands."""
        self.bytes_in: int = 0
        self.bytes_out: int = 0
        self.repeats = SendRepeats(gateway.now)
        """The answers of sends, for their repeats."""
        self.checkers = CheckerRegistrations(gateway.connections, gateway.now)
        self.checks = TransactionChecks(self.checkers.register, gateway.now)
        """The connections that answer for half messages."""
        self.answer: Answerer = Dispatch(gateway, self.checks, self.pause).answer if answer is None else answer
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        """The pause of batch receives; a test replaces it."""
        self._pushes = count(1)
        self.receives: int = 0
        """Receives in progress."""
        self._open: dict[Connection, None] = {}
        """In the order of their connects."""
        self._cancelling: deque[asyncio.Task[None]] = deque()
        """Requests of ended connections that are not cancelled so far."""
        self._by_key: dict[str, set[Connection]] = {}
        """The connections that have logged in."""
        self._changed: set[str] = set()
        """Keys that changed, and are to be asked for."""
        self._key_changes = 0
        self._ends = SparseWarning("cmq_tcp_connection_ended", gateway.now)
        self._confirming: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over the open connections, the oldest first."""
        return iter(self._open)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address.

        Raises:
            OSError: the address cannot be used.
        """
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self),
            host,
            port,
            backlog=BACKLOG,
            reuse_port=self.gateway.shares_ports or None,
        )
        bound = self._server.sockets[0].getsockname()
        self.address = str(bound[0]), int(bound[1])
        return self.address

    def check(self) -> None:
        """End the late connections; to be called about once a second."""
        now = self.now()
        log_in = now - LOG_IN_SECONDS
        slow = now - self.settings.slow_client_seconds
        silent = now - self.settings.cmq_tcp_silence_seconds
        for connection in list(self._open):
            if connection.log_in_since is not None and connection.log_in_since <= log_in:
                connection.end("no log-in")
            elif connection.stuck_since is not None:
                if connection.stuck_since <= slow:
                    connection.end("slow reader")
            elif connection.frame_since is not None and connection.frame_since <= slow:
                connection.end("slow frame")
            elif connection.read_at <= silent:
                connection.end("silent")
        self.repeats.forget_expired()
        self._confirm_keys()

    def key_changed(self, secret_id: str | None) -> None:
        """Ask for a key again, and end its connections if they logged in with another secret; None = all keys."""
        self._key_changes += 1
        self._changed |= self._by_key.keys() if secret_id is None else {secret_id} & self._by_key.keys()
        self._confirm_keys()

    def stop_listening(self) -> None:
        """Accept no more connections, and take no more requests."""
        self.is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in self._open:
            connection.check_reading()

    async def close(self, seconds: float) -> None:
        """Let the requests in progress end for so long, and close the connections."""
        self.stop_listening()
        self._ends.flush()
        if self._confirming is not None:
            self._confirming.cancel()
        deadline = asyncio.get_running_loop().time() + seconds
        while any(connection.is_answering for connection in self._open):
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(DRAIN_STEP_SECONDS)
        requests = [*self._cancelling, *(request for connection in self._open for request in connection.requests)]
        for connection in list(self._open):
            connection.close()
        for request in requests:
            request.cancel()
        if requests:
            await asyncio.wait(requests)
        for connection in list(self._open):
            if connection.transport is not None and connection.is_answering:
                connection.transport.abort()
        await self.checkers.close()

    # ------------------------------------------------------------------ for connections

    def add(self, connection: Connection) -> bool:
        """Register a connection; False if there are too many."""
        if self.is_draining or not self.gateway.guards.add_other():
            return False
        self._open[connection] = None
        return True

    def logged_in(self, connection: Connection) -> None:
        """Note the key of a connection."""
        assert connection.key is not None
        self.checks.logged_in(connection, connection.key, connection.client_id)
        self._by_key.setdefault(connection.key.secret_id, set()).add(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._open.pop(connection, None)
        self.gateway.guards.remove_other()
        self.checks.ended(connection)
        if connection.key is not None:
            of_key = self._by_key[connection.key.secret_id]
            of_key.discard(connection)
            if not of_key:
                del self._by_key[connection.key.secret_id]

    def cancel_soon(self, requests: Iterable[asyncio.Task[None]]) -> None:
        """Cancel the requests of an ended connection, some in each turn of the event loop.

        A receive that gets messages before its turn finds no connection, and gives them back too.
        """
        is_scheduled = bool(self._cancelling)
        self._cancelling.extend(requests)
        if not is_scheduled:
            self._cancel_some()

    def _cancel_some(self) -> None:
        for _ in range(min(CANCELLED_AT_ONCE, len(self._cancelling))):
            self._cancelling.popleft().cancel()
        if self._cancelling:
            asyncio.get_running_loop().call_soon(self._cancel_some)

    async def pause(self, seconds: float) -> None:
        """Wait for so many seconds."""
        await self.sleep(seconds)

    def next_push(self) -> int:
        """Return the number of a question to a program."""
        return next(self._pushes)

    def note_end(self, connection: Connection, reason: str) -> None:
        """Count the end of a connection by the gateway, and warn about ends in a few lines."""
        self.ended[reason] += 1
        self._ends.note(reason=reason, remote=connection.remote)

    def hand_over(self) -> HandOver:
        """Return the context of a request that may receive messages."""
        return self.gateway.hand_over()

    async def authenticate(self, envelope: Envelope, remote: str | None) -> tuple[KeySecret, str]:
        """Return key and client id of a log-in, after a pause if the key or the signature is wrong.

        Raises:
            Refusal: the log-in is refused.
        """
        try:
            return await self._authenticated(envelope, remote)
        except Refusal as refusal:
            if refusal.reason in WRONG_KEY:
                await self.gateway.pause_wrong_key()
            raise
        except Exception as bug:
            raise self.failed(None, envelope, bug) from None

    def failed(self, connection: Connection | None, envelope: Envelope, bug: Exception) -> Refusal:
        """Return the refusal of a request at which the gateway failed, and write the reason into the log."""
        remote = None if connection is None else connection.remote
        _log.error("request_failed", remote=remote, cmd=envelope.cmd, error=type(bug).__name__, exc_info=bug)
        return Refusal(Reason.INTERNAL_ERROR, "the gateway failed at this request; its log has the reason")

    # ------------------------------------------------------------------ inside

    async def _authenticated(self, envelope: Envelope, remote: str | None) -> tuple[KeySecret, str]:
        try:
            request = LOG_IN_REQUEST.decode(envelope.take_body())
        except Malformed as error:
            raise Refusal(Reason.UNREADABLE_REQUEST, str(error)) from None
        check_client_id(request["clientId"])
        while True:
            changes = self._key_changes
            key = await known_key(self.gateway, request["secretId"], remote)
            if changes == self._key_changes:
                break
            # The answer may be of before the change, and no later change would end the connection.
        check_signature(request, key)
        check_enabled(key)
        return key, request["clientId"]

    def _confirm_keys(self) -> None:
        if self._changed and (self._confirming is None or self._confirming.done()):
            self._confirming = asyncio.get_running_loop().create_task(self._confirm())

    async def _confirm(self) -> None:
        """Ask for each changed key. A key that the broker does not tell stays in the set: the next check asks again."""
        for secret_id in list(self._changed):
            self._changed.discard(secret_id)
            try:
                key = await self.gateway.secrets.find(secret_id, None)
            except (CmqError, TooManyUnknownIds):
                self._changed.add(secret_id)
                continue
            for connection in list(self._by_key.get(secret_id, ())):
                assert connection.key is not None
                if key is None or not key.enabled or key.secret_key != connection.key.secret_key:
                    connection.end("key changed")
                else:
                    connection.key = key
