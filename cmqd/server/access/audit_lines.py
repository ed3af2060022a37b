"""Log lines of failed log-ins and of administrative requests: account, key, peer, operation, outcome.

Both kinds of lines have the limit of all lines (``cmqd_logs``): by key for administration, by address for log-ins. The
audit trail of the core has no limit but its size: a line that is left out of the log is in the trail.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from cmqd.core.domain_errors import DomainError
from cmqd.server.broker_logger import get_logger
from cmqd.server.clients.client import Client
from cmqd.server.requests.refusals import error_reply
from cmqd_protocol import messages as wire
from cmqd_protocol.events import ConnectionEnded
from cmqd_protocol.operations import OPERATIONS, Wait
from cmqd_protocol.protocol_errors import ErrorCode

_log = get_logger()

SHOWN_CHARACTERS: Final = 64
"""Length of a text from an unauthenticated client in a line."""

FAILED_LOGINS: Final = frozenset(
    {
        ErrorCode.AUTHENTICATION_FAILED,
        ErrorCode.AUTHENTICATION_TIMEOUT,
        ErrorCode.WRONG_REGION,
        ErrorCode.MALFORMED_FRAME,
        ErrorCode.FRAME_TOO_LARGE,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)

_NOT_LOGGED: Final = frozenset({"request_id", "secret_key"})
"""Fields that no line shows: a number without a meaning in the log, and a secret."""


class Audit:
    """Writes the lines of log-ins and of administration; see the module."""

    def __init__(self, account_of: Callable[[str], str | None]) -> None:
        """``account_of`` returns the account of a key's id, whether or not the key is enabled."""
        self._account_of = account_of

    def login_failed(self, peer: str, secret_id: str, ended: ConnectionEnded) -> None:
        """Log a connection that ended before its proof was accepted."""
        facts: dict[str, Any] = {"code": ended.name, "text": ended.text}
        if secret_id:
            facts |= {"secret_id": secret_id[:SHOWN_CHARACTERS], "account": self._account_of(secret_id)}
        _log.warning("login_failed", peer=peer, **facts)

    def audited(self, handler: Callable[[Client, Any], None]) -> Callable[[Client, Any], None]:
        """Return the handler with a log line for each request and its outcome."""

        def handle(client: Client, request: wire.Request) -> None:
            try:
                handler(self._watched(client, request), request)
            except DomainError as refusal:
                self.administered(client, request, error_reply(request.request_id, refusal))
                raise

        return handle

    def _watched(self, client: Client, request: wire.Request) -> Client:
        """Return the client for the handler to answer; the reply to the request is logged on its way."""
        if OPERATIONS[type(request)].wait is not Wait.NONE:
            # The records may wait for a read of the log, and waiting requests are found by their connection. The line
            # says that the operation was asked, not how it ended.
            self.administered(client, request, None)
            return client
        return cast("Client", _Watched(self, client, request))

    def administered(self, client: Client, request: wire.Request, reply: object) -> None:
        """Log an administrative request and its reply."""
        outcome = "asked" if reply is None else reply.name if isinstance(reply, wire.Error) else "done"
        facts = _facts(request) | {"outcome": outcome, "by_key": client.secret_id}
        if isinstance(reply, wire.KeyList) and isinstance(
            request, wire.CreateAccount | wire.CreateKey | wire.CreateRoleKey
        ):
            facts["made_key"] = reply.keys[0].secret_id
        name = wire.operation_name(type(request))
        _log.info("administration", peer=client.peer, operation=name, by=client.account, **facts)


class _Watched:
    """Stands in for a client, and logs the reply to a request."""

    __slots__ = ("_audit", "_client", "_request")

    def __init__(self, audit: Audit, client: Client, request: wire.Request) -> None:
        self._audit = audit
        self._client = client
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def answer(self, reply: Any, queue: str | None = None) -> None:
        self._audit.administered(self._client, self._request, reply)
        self._client.answer(reply, queue)


def _facts(request: wire.Request) -> dict[str, Any]:
    """Return the fields of a request for the log. Of attributes only the names: values can be URLs with passwords."""
    facts: dict[str, Any] = {}
    for name in request.__struct_fields__:
        value: Any = getattr(request, name)
        if name in _NOT_LOGGED or value is None:
            continue
        if isinstance(value, Mapping):
            facts[name] = sorted(map(str, cast("Mapping[Any, Any]", value)))
        elif isinstance(value, str):
            facts[name] = value[: SHOWN_CHARACTERS * 2]
        elif isinstance(value, bytes):
            # The body of a schedule belongs to its owner, not to the operator's log.
            facts[f"{name}_bytes"] = len(value)
        else:
            facts[name] = value
    return facts
