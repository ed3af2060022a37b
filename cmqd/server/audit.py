"""Log lines of failed log-ins and of administrative requests: account, key, peer, operation, outcome.

Each peer (an address without its port) has a bucket of lines, and all peers share a further bucket, so that failed
log-ins can neither fill the disk of the log nor hide a line among millions. Lines over the limit are counted; the next
line of the peer says how many were left out. Log-ins and administration have buckets of their own: failed log-ins, from
however many addresses, must not leave an administrative request out of the log.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from cmqd.core.errors import DomainError
from cmqd.server.client import Client
from cmqd.server.log_lines import get_logger
from cmqd.server.refusals import error_reply
from cmqd.server.token_bucket import TokenBucket
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.events import ConnectionEnded

_log = get_logger()

LINES_PER_PEER: Final = 20
"""Lines of a peer in a row; then ``LINES_PER_SECOND``."""
LINES_PER_SECOND: Final = 1.0
LINES_OF_ALL: Final = 500
LINES_OF_ALL_PER_SECOND: Final = 50.0
PEERS: Final = 1_000
"""Peers in memory; the peer that was quiet longest is forgotten first."""
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

ADMINISTRATION: Final[frozenset[type[wire.Request]]] = frozenset(
    {
        wire.CreateQueue,
        wire.EnsureQueue,
        wire.SetQueueAttributes,
        wire.DeleteQueue,
        wire.ClearQueue,
        wire.RewindQueue,
        wire.StartRedrive,
        wire.CancelRedrive,
        wire.CreateTopic,
        wire.EnsureTopic,
        wire.SetTopicAttributes,
        wire.DeleteTopic,
        wire.Subscribe,
        wire.EnsureSubscription,
        wire.SetSubscriptionAttributes,
        wire.Unsubscribe,
        wire.RetryDeliveries,
        wire.DropDeliveries,
        wire.RetryDelivery,
        wire.DropDelivery,
        wire.RotateSecret,
        wire.CreateSchedule,
        wire.EnsureSchedule,
        wire.SetSchedule,
        wire.DeleteSchedule,
        wire.CreateAccount,
        wire.CreateKey,
        wire.CreateRoleKey,
        wire.ImportKey,
        wire.SetKeyRoles,
        wire.SetKeyEnabled,
        wire.DeleteKey,
        wire.DeleteAccount,
        wire.SealSegments,
    }
)
"""Requests that change queues, topics, subscriptions, schedules, accounts or keys."""


_NOT_LOGGED: Final = frozenset({"request_id", "secret_key"})
"""Fields that no line shows: a number without a meaning in the log, and a secret."""
WAITING: Final = (wire.RewindQueue, wire.RetryDelivery, wire.DropDelivery)
"""Requests among them that may wait in the core: their lines say that they were asked, not how they ended."""


class LineLimit:
    """Buckets of log lines, for each peer and for all peers together; see the module."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._all = TokenBucket(LINES_OF_ALL, LINES_OF_ALL_PER_SECOND, now_s())
        self._peers: OrderedDict[str, tuple[TokenBucket, int]] = OrderedDict()
        """Bucket of a peer, and the number of its lines that were left out."""

    def take(self, peer: str) -> int | None:
        """Count a line of a peer; return the number of lines left out before the line, None if it is over the limit."""
        now_s = self._now_s()
        new = (TokenBucket(LINES_PER_PEER, LINES_PER_SECOND, now_s), 0)
        bucket, left_out = self._peers.pop(peer, new)
        is_allowed = bucket.has_token(now_s) and self._all.has_token(now_s)
        self._peers[peer] = (bucket, 0 if is_allowed else left_out + 1)
        if len(self._peers) > PEERS:
            self._peers.popitem(last=False)
        if not is_allowed:
            return None
        bucket.tokens -= 1
        self._all.tokens -= 1
        return left_out


class Audit:
    """Writes the lines of log-ins and of administration; see the module."""

    def __init__(self, account_of: Callable[[str], str | None]) -> None:
        """``account_of`` returns the account of a key's id, whether or not the key is enabled."""
        self._account_of = account_of
        self._logins = LineLimit()
        self._administration = LineLimit()

    def login_failed(self, peer: str, secret_id: str, ended: ConnectionEnded) -> None:
        """Log a connection that ended before its proof was accepted."""
        facts: dict[str, Any] = {"code": ended.name, "text": ended.text}
        if secret_id:
            facts |= {"secret_id": secret_id[:SHOWN_CHARACTERS], "account": self._account_of(secret_id)}
        limit_facts = facts_of_limit(self._logins, peer)
        if limit_facts is not None:
            _log.warning("login_failed", peer=peer, **facts, **limit_facts)

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
        if isinstance(request, WAITING):
            # The records may wait for a read of the log, and waiting requests are found by their connection.
            self.administered(client, request, None)
            return client
        return cast("Client", _Watched(self, client, request))

    def administered(self, client: Client, request: wire.Request, reply: object) -> None:
        """Log an administrative request and its reply."""
        limit_facts = facts_of_limit(self._administration, client.peer)
        if limit_facts is None:
            return
        outcome = "asked" if reply is None else reply.name if isinstance(reply, wire.Error) else "done"
        facts = _facts(request) | {"outcome": outcome, "by_key": client.secret_id} | limit_facts
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


def facts_of_limit(limit: LineLimit, peer: str) -> dict[str, Any] | None:
    """Return the facts that the limit adds to a line, or None if the line is left out."""
    left_out = limit.take(peer.rpartition(":")[0])
    if left_out is None:
        return None
    return {"lines_left_out": left_out} if left_out else {}


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
