"""Requests that an SDK sends again after a dropped connection: recognised by their signature.

A repeat has the bytes of the first request, and so its signature: a keyed digest of the signed text, in which action,
bodies, nonce and time stamp stand. The digest of key and signature is the identity of a request. Parameters that the
signature leaves out, or into which its text can be cut anew, are no part of the identity: with them a captured request
would be a new request (decision 0206). Nonce and time stamp alone are no identity, because some SDKs draw their nonces
from 16 bits: a busy program would repeat a pair of nonce and second every few seconds, with another message.

Sends and publishes give the digest to the broker as a dedup id, so a repeat through any gateway is stored once. A batch
asks for all or none: messages that were added to a captured batch are new, and the others are not. With a nonce of 16
bits even all parameters of two different sends can be equal (the same body sent twice in a second); therefore these
sends have no dedup id. The answers of deletes are remembered here: a repeated delete would find its handle invalid.
"""

import asyncio
import base64
import hashlib
import string
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from cmqd_client import Client
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.api2.form import Form, whole_of
from cmqd_gateway.cmq.api2.signature import SIGNATURE
from cmqd_gateway.cmq.failures import NO_FAILURES, Failures
from cmqd_gateway.cmq.reasons import Reason, Refusal

OpenClient: TypeAlias = Callable[[KeySecret], AbstractAsyncContextManager[Client]]

SMALL_NONCE: Final = 65_535
"""A nonce up to here is drawn from too few numbers for an identity."""
ID_CHARACTERS: Final = 22
"""Characters of a dedup id: 126 bits of the digest, and a character for the place in the batch. The broker keeps
every id in memory for five minutes, at some 140 bytes and the id itself, and refuses the sends of an account that is
over its share of memory: each further character lowers the rate at which an account can send."""
_PLACES: Final = string.ascii_letters + string.digits + "-_"
"""A character for each place in a batch; a batch of API 2.0 has at most 16 messages."""
ANSWER_SECONDS: Final = 60.0
"""Time for which the answer of a delete is remembered."""
ANSWER_BYTES: Final = 200
"""Memory of an answer without failures, its share of the tables included."""
MAX_BYTES: Final = 64 << 20
"""Memory of the answers: enough for 5,500 deletes a second, over all keys, for a minute."""
_TABLES: Final = 64
"""Tables of answers: the growth of a single table with all answers would take 15 ms."""


def request_digest(secret_id: str, signature: bytes) -> str:
    """Return 43 ASCII characters that stand for a key and a signed text; ``signature`` must be right for the text.

    The signature itself would be a name that readers of the log could send in a request.
    """
    # msgpack puts the length before every part, so no value can look like the end of a part and the start of the next.
    parts = msgspec.msgpack.encode((secret_id, signature))
    return base64.urlsafe_b64encode(hashlib.sha256(parts).digest()).decode().rstrip("=")


def dedup_ids(digest: str, nonce: int, count: int) -> list[str | None]:
    """Return the dedup ids for the messages of a request: ``ID_CHARACTERS`` each, None for a nonce of 16 bits."""
    if nonce <= SMALL_NONCE:
        return [None] * count
    identity = digest[: ID_CHARACTERS - 1]
    return [identity + _PLACES[place] for place in range(count)]


class _Answer(msgspec.Struct, frozen=True, gc=False):
    digest: str
    decided_at: float
    encoded: bytes | None
    """The fields as JSON; None = no fields, as of a delete without failures."""

    @property
    def cost(self) -> int:
        """Bytes of memory."""
        return ANSWER_BYTES + (0 if self.encoded is None else len(self.encoded))


class _KeyAnswers:
    """The answers of a key, the oldest first."""

    __slots__ = ("answers", "cost")

    def __init__(self) -> None:
        self.answers: deque[_Answer] = deque()
        self.cost = 0


class Deletes(Protocol):
    """Executes each delete once."""

    async def answer(
        self, secret_id: str, digest: str, delete: Callable[[], Coroutine[Any, Any, Mapping[str, Any]]]
    ) -> Mapping[str, Any]:
        """Return the answer to a delete; a repeat gets the answer of the first request.

        Raises:
            CmqError: the delete failed, or the gateway cannot find out whether it was made.
        """
        ...


class DeleteAnswers:
    """Answers of deletes, by the digest of their requests, for a minute.

    At most ``MAX_BYTES`` of answers are remembered. Beyond that the key with the most answers loses its oldest, so a
    busy key shortens the memory for its own deletes only.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._running: dict[str, asyncio.Task[Mapping[str, Any]]] = {}
        """Deletes without an answer so far, by digest."""
        self._decided: list[dict[str, _Answer]] = [{} for _ in range(_TABLES)]
        self._keys: OrderedDict[str, _KeyAnswers] = OrderedDict()
        """By SecretId; the first key is the next of which expired answers are forgotten."""
        self._cost = 0

    def __len__(self) -> int:
        """Return the number of remembered answers."""
        return sum(map(len, self._decided))

    @property
    def bytes_in_use(self) -> int:
        """Approximate memory of the remembered answers."""
        return self._cost

    async def answer(
        self, secret_id: str, digest: str, delete: Callable[[], Coroutine[Any, Any, Mapping[str, Any]]]
    ) -> Mapping[str, Any]:
        """Return the answer to a delete; a repeat gets the answer of the first request.

        The delete goes on when its caller is cancelled, so that the repeat finds its answer. A delete that failed
        before it was decided is forgotten: its repeat tries again.
        """
        self._forget_expired(secret_id)
        answer = self._table(digest).get(digest)
        if answer is not None and answer.decided_at > self._now() - ANSWER_SECONDS:
            return {} if answer.encoded is None else msgspec.json.decode(answer.encoded)
        task = self._running.get(digest)
        if task is None:
            task = asyncio.create_task(delete())
            self._running[digest] = task
            task.add_done_callback(lambda done: self._ended(secret_id, digest, done))
        return await asyncio.shield(task)

    # ------------------------------------------------------------------ inside

    def _ended(self, secret_id: str, digest: str, task: "asyncio.Task[Mapping[str, Any]]") -> None:
        del self._running[digest]
        if task.cancelled() or task.exception() is not None:
            return
        fields = task.result()
        answer = _Answer(digest, self._now(), msgspec.json.encode(fields) if fields else None)
        key = self._keys.get(secret_id)
        if key is None:
            key = self._keys[secret_id] = _KeyAnswers()
        key.answers.append(answer)
        key.cost += answer.cost
        self._cost += answer.cost
        self._table(digest)[digest] = answer
        while self._cost > MAX_BYTES:
            self._shorten_largest()

    def _table(self, digest: str) -> dict[str, _Answer]:
        return self._decided[hash(digest) % _TABLES]

    def _shorten_largest(self) -> None:
        """Forget the oldest answers of the key with the most, so many that the next search for this key is far off.

        That is about a millisecond for 1,300 answers.
        """
        secret_id, key = max(self._keys.items(), key=lambda item: item[1].cost)
        target = self._cost - MAX_BYTES // 256
        while key.answers and self._cost > target:
            self._forget_oldest(key)
        if not key.answers:
            del self._keys[secret_id]

    def _forget_expired(self, secret_id: str) -> None:
        """Forget some expired answers of a key, and of another key in turn: more than the request will add."""
        latest = self._now() - ANSWER_SECONDS
        for name in {secret_id, next(iter(self._keys), secret_id)}:
            key = self._keys.get(name)
            if key is None:
                continue
            for _ in range(4):
                if not key.answers or key.answers[0].decided_at > latest:
                    break
                self._forget_oldest(key)
            if key.answers:
                self._keys.move_to_end(name)
            else:
                del self._keys[name]

    def _forget_oldest(self, key: _KeyAnswers) -> None:
        answer = key.answers.popleft()
        key.cost -= answer.cost
        self._cost -= answer.cost
        # An expired answer may have a successor: the same delete, executed again.
        table = self._table(answer.digest)
        if table.get(answer.digest) is answer:
            del table[answer.digest]


class RequestRepeats:
    """The repeats of a request, for its operation."""

    __slots__ = ("_deletes", "_form", "_key", "_open_client")

    def __init__(self, key: KeySecret, form: Form, deletes: Deletes, open_client: OpenClient) -> None:
        self._key = key
        self._form = form
        self._deletes = deletes
        self._open_client = open_client

    def dedup_ids(self, count: int) -> list[str | None]:
        """Return the dedup ids for the messages of this request."""
        nonce = whole_of(self._form, "Nonce")
        return dedup_ids("" if nonce <= SMALL_NONCE else self._digest(), nonce, count)

    def _digest(self) -> str:
        """Return the identity of the request. Computed on demand: most operations need no identity."""
        return request_digest(self._key.secret_id, self._form[SIGNATURE])

    async def delete_once(self, client: Client, delete: Callable[[Client], Awaitable[Failures]]) -> Failures:
        """Return the failures of a delete; a repeated request gets those of the first request.

        ``delete`` gets a client for its own length: it goes on when the request is cancelled, and the client of the
        request may be closed then.
        """

        async def delete_with_client() -> Mapping[str, Any]:
            async with self._open_client(self._key) as own_client:
                return _fields_of_failures(await delete(own_client))

        return _failures(await self._deletes.answer(self._key.secret_id, self._digest(), delete_with_client))


def _fields_of_failures(failures: Failures) -> Mapping[str, Any]:
    """Return failures as values of JSON; no fields without failures, which is the smallest answer to remember."""
    if not failures.refusals:
        return {}
    refusals = [(item, refusal.reason.name, refusal.detail) for item, refusal in failures.refusals.items()]
    return {"count": failures.count, "refusals": refusals}


def _failures(fields: Mapping[str, Any]) -> Failures:
    if not fields:
        return NO_FAILURES
    refusals = {item: Refusal(Reason[reason], detail) for item, reason, detail in fields["refusals"]}
    return Failures(fields["count"], refusals)
