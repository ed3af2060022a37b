"""The secrets of keys, for gateways that check signatures: a single secret per request, never a list.

Rules:

- Only a key with the role ``gateway`` reads secrets (``authorization``), and only over a connection that no other
  machine can read: TLS, loopback or a Unix socket.
- Reads are limited per gateway key. Unknown ids have a separate limit: strangers can send requests with made-up ids to
  a gateway, and these must not use up the reads of the gateway's callers.
- A disabled key has its secret read too: the gateway answers the holder of the key, and no stranger, that the key is
  disabled. The broker refuses the connection of a disabled key in any case.
- With redundancy a secret waits for a proof that this broker leads: another leader may have disabled the key.
- The first read of a secret by a gateway key is a line of the log. A gateway reads the secrets in use again about once
  a second, so later reads of the same secret are counted, and a line every ten minutes has their number.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from cmqd.server.access.accounts import Accounts, KeyNotFound, PermissionDenied, TooManySecretsRead
from cmqd.server.admission.token_bucket import TokenBucket
from cmqd.server.broker_logger import get_logger
from cmqd.server.clients.client import Client
from cmqd.server.clients.key_watchers import KeyWatchers
from cmqd.server.part import part
from cmqd.server.requests.handler import handles
from cmqd_protocol import messages as wire
from cmqd_protocol.limits import MAX_SECRET_ID_BYTES

_log = get_logger()

READS_PER_SECOND: Final = 4_000
"""A gateway confirms every key in use up to twice a second: room for 2,000 keys in use."""
UNKNOWN_PER_SECOND: Final = 200
SAME_READ_S: Final = 600.0
"""Time for which reads of a secret by the same gateway key have no line of their own."""
MAX_REMEMBERED_READS: Final = 20_000
MAX_BUCKETS: Final = 1_000
RETRY_MS: Final = 1_000


class _Reads:
    """Reads of one secret by one gateway key since their last line."""

    __slots__ = ("count", "line_s")

    def __init__(self, line_s: float) -> None:
        self.line_s = line_s
        self.count = 0


class _Buckets:
    """Reads that a gateway key may make."""

    __slots__ = ("known", "unknown")

    def __init__(self, now_s: float) -> None:
        self.known = TokenBucket(READS_PER_SECOND, READS_PER_SECOND, now_s)
        self.unknown = TokenBucket(UNKNOWN_PER_SECOND, UNKNOWN_PER_SECOND, now_s)


@part
class SecretsOfKeys:
    """Operations of gateways; see the module."""

    accounts: Accounts
    watchers: KeyWatchers
    when_led: Callable[[Callable[[], None]], None]
    """Takes a step that only the leader may take; see ``ReplyGate``."""
    now_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._buckets: OrderedDict[str, _Buckets] = OrderedDict()
        """By gateway key; the key that was quiet longest is forgotten first."""
        self._reads: OrderedDict[tuple[str, str], _Reads] = OrderedDict()
        """By gateway key and key, in the order of their lines."""

    @handles(wire.GetKeySecret)
    def get(self, client: Client, request: wire.GetKeySecret) -> None:
        """Answer with the secret of a key, and whether the key is enabled."""
        secret_id = request.secret_id
        try:
            self._check_private(client)
            key = self.accounts.find_secret(secret_id)
            self._take_token(client.secret_id, is_known=key is not None)
            if key is None:
                raise KeyNotFound(None, secret_id)
        except (PermissionDenied, TooManySecretsRead, KeyNotFound) as refusal:
            self._log_refusal(client, secret_id, type(refusal).__name__)
            raise
        self._log_read(client, secret_id)
        reply = wire.KeySecret(request.request_id, key.secret_key, key.account, key.enabled)
        self.when_led(lambda: client.answer(reply))

    @handles(wire.WatchKeys)
    def watch(self, client: Client, request: wire.WatchKeys) -> None:
        """Push the changes of keys to the connection from now on."""
        self._check_private(client)
        self.watchers.add(client)
        client.answer(wire.Done(request.request_id))

    @staticmethod
    def _check_private(client: Client) -> None:
        if not client.is_private:
            raise PermissionDenied(
                f"key {client.secret_id!r} reads secrets only over TLS, loopback or a Unix socket: other machines could"
                f" read this connection",
                secret_id=client.secret_id,
            )

    def _take_token(self, gateway_id: str, *, is_known: bool) -> None:
        now_s = self.now_s()
        buckets = self._buckets.pop(gateway_id, None) or _Buckets(now_s)
        self._buckets[gateway_id] = buckets
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        bucket = buckets.known if is_known else buckets.unknown
        if not bucket.has_token(now_s):
            if is_known:
                raise TooManySecretsRead(READS_PER_SECOND, "secrets", RETRY_MS)
            raise TooManySecretsRead(UNKNOWN_PER_SECOND, "ids that no key has", RETRY_MS)
        bucket.tokens -= 1

    def _log_read(self, client: Client, secret_id: str) -> None:
        now_s = self.now_s()
        reads = self._reads.get((client.secret_id, secret_id))
        if reads is not None and now_s - reads.line_s < SAME_READ_S:
            reads.count += 1
            return
        earlier = {} if reads is None else {"reads_since_last_line": reads.count}
        self._reads.pop((client.secret_id, secret_id), None)
        self._reads[client.secret_id, secret_id] = _Reads(now_s)
        if len(self._reads) > MAX_REMEMBERED_READS:
            self._reads.popitem(last=False)
        _log.info("secret_read", peer=client.peer, by_key=client.secret_id, secret_id=secret_id, **earlier)

    def _log_refusal(self, client: Client, secret_id: str, reason: str) -> None:
        _log.warning(
            "secret_not_read",
            peer=client.peer,
            by_key=client.secret_id,
            secret_id=secret_id[:MAX_SECRET_ID_BYTES],
            reason=reason,
        )
