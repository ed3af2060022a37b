"""Secrets of keys, for checking signatures: remembered for a second at most without a confirmation by the broker.

    find(id) ──► known, confirmed within a second ──► the secret
             ├─► unknown, asked for lately ─────────► None
             └─► a question to the broker; all requests of the same id share the question

The broker pushes changes, and a push forgets the key at once. A gateway that cannot ask the broker knows no secret, and
refuses. A question costs the broker work, and anyone can make up ids: ids that the gateway has not seen as valid have a
rate (:mod:`cmqd_gateway.callers.new_ids`), so that strangers cannot flood the broker through the gateway.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec

from cmqd_gateway.callers.new_ids import NEW_IDS_PER_SECOND, NewIdRate

CONFIRMED_SECONDS = 1.0
"""Time for which an answer of the broker is used."""
REFRESH_SECONDS = 0.5
"""Age of an answer from which a use asks the broker again, while the answer is still used. Without this, the requests
of a busy key would wait for the broker once a second."""
UNKNOWN_SECONDS = 5.0
"""Time for which an unknown id is remembered, unless the broker pushes a change of that id."""
MAX_KEYS = 10_000
MAX_UNKNOWN = 10_000
MAX_ID_CHARACTERS = 128


class KeySecret(msgspec.Struct, frozen=True):
    """A key with its secret."""

    secret_id: str
    secret_key: str
    enabled: bool = True
    reading: int = 0
    """Number of the reading from the broker, in ascending order; 0 = read from a file. Requests and tasks keep the key
    of their begin, so a former secret may come after its successor."""
    account: str = ""
    """Account of the key; empty = read from a file."""

    def is_former_of(self, other: "KeySecret") -> bool:
        """Return True if the broker has replaced this secret by the secret of ``other``, a key of the same id."""
        return 0 < self.reading < other.reading and self.secret_key != other.secret_key

    def __repr__(self) -> str:
        return f"KeySecret({self.secret_id!r}, enabled={self.enabled})"


class KeySource(Protocol):
    """The origin of secrets: the broker, or a table of a test."""

    async def fetch(self, secret_id: str) -> KeySecret | None:
        """Return the key, None if there is none.

        Raises:
            CmqError: the broker did not answer.
        """
        ...


class TooManyUnknownIds(Exception):
    """More new ids came, in all or from an address, than the gateway asks the broker for; a later request of the same
    id may succeed."""


class _Known(msgspec.Struct):
    key: KeySecret
    confirmed_at: float


class KeySecrets:
    """The secrets in use; see the module."""

    def __init__(
        self,
        source: KeySource,
        now: Callable[[], float] = time.monotonic,
        new_ids_per_second: int = NEW_IDS_PER_SECOND,
    ) -> None:
        self._source = source
        self._now = now
        self._known: OrderedDict[str, _Known] = OrderedDict()
        """Keys in the order of their last use."""
        self._valid: OrderedDict[str, None] = OrderedDict()
        """Ids that the broker has confirmed, without secrets, in the order of their last use. They outlive the secrets:
        without them, a valid key would pay from the rate of the strangers after each pause of a second."""
        self._unknown: OrderedDict[str, float] = OrderedDict()
        """Unknown ids with the time of the answer, the oldest first."""
        self._questions: dict[str, asyncio.Task[KeySecret | None]] = {}
        self._new_ids = NewIdRate(now, new_ids_per_second)

    def __len__(self) -> int:
        """Return the number of secrets in memory."""
        return len(self._known)

    async def find(self, secret_id: str, address: str | None) -> KeySecret | None:
        """Return the key with its secret, None if the broker has no such key. Safe to cancel.

        Args:
            secret_id: id of the key.
            address: IP address of the client, for its share of the rate of new ids.

        Raises:
            TooManyUnknownIds: the id is new, and too many new ids came in this second.
            CmqError: the broker did not answer; the gateway must refuse the request.
        """
        key = self.confirmed(secret_id)
        if key is not None:
            return key
        if secret_id in self._known or secret_id in self._valid:
            pass
        elif not 0 < len(secret_id) <= MAX_ID_CHARACTERS or not secret_id.isascii() or not secret_id.isprintable():
            return None
        else:
            unknown_since = self._unknown.get(secret_id)
            if unknown_since is not None and self._now() - unknown_since < UNKNOWN_SECONDS:
                return None
            if secret_id not in self._questions and not self._new_ids.take(address):
                raise TooManyUnknownIds
        return await asyncio.shield(self._question(secret_id))

    def confirmed(self, secret_id: str) -> KeySecret | None:
        """Return the key if the broker has confirmed it within a second; None = :meth:`find` may have to wait."""
        known = self._known.get(secret_id)
        if known is None:
            return None
        age = self._now() - known.confirmed_at
        if age >= CONFIRMED_SECONDS:
            return None
        self._known.move_to_end(secret_id)
        if age >= REFRESH_SECONDS:
            self._question(secret_id)
        return known.key

    def has_secret(self, key: KeySecret) -> bool:
        """Return True if the secret of this key is in memory. The key does not count as used."""
        known = self._known.get(key.secret_id)
        return known is not None and known.key.secret_key == key.secret_key

    def forget(self, secret_id: str | None = None) -> None:
        """Forget a key that the broker reports as changed; None = all keys."""
        if secret_id is None:
            self._known.clear()
            self._unknown.clear()
            self._questions.clear()
            return
        self._known.pop(secret_id, None)
        self._unknown.pop(secret_id, None)
        # A question that is under way may bring the state of before the change.
        self._questions.pop(secret_id, None)

    def drop_unconfirmed(self) -> None:
        """Drop the secrets that may no longer be used; to be called about once a second."""
        latest = self._now() - CONFIRMED_SECONDS
        for secret_id in [secret_id for secret_id, known in self._known.items() if known.confirmed_at <= latest]:
            del self._known[secret_id]

    async def close(self) -> None:
        """Cancel the questions that are under way."""
        questions = list(self._questions.values())
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)
        self.forget()

    # ------------------------------------------------------------------ inside

    def _question(self, secret_id: str) -> "asyncio.Task[KeySecret | None]":
        """Return the question for this id, a new question unless one is under way."""
        question = self._questions.get(secret_id)
        if question is None:
            question = asyncio.create_task(self._ask(secret_id))
            self._questions[secret_id] = question
            question.add_done_callback(lambda done: self._answered(secret_id, done))
        return question

    async def _ask(self, secret_id: str) -> KeySecret | None:
        return await self._source.fetch(secret_id)

    def _answered(self, secret_id: str, question: "asyncio.Task[KeySecret | None]") -> None:
        if self._questions.get(secret_id) is not question:
            # Forgotten meanwhile: the answer may be of before the change.
            return
        del self._questions[secret_id]
        if question.cancelled() or question.exception() is not None:
            # Reading the exception marks it as seen: a refresh has no caller that would await it.
            return
        key = question.result()
        if key is None:
            self._known.pop(secret_id, None)
            self._valid.pop(secret_id, None)
            self._unknown[secret_id] = self._now()
            self._unknown.move_to_end(secret_id)
            if len(self._unknown) > MAX_UNKNOWN:
                self._unknown.popitem(last=False)
            return
        self._unknown.pop(secret_id, None)
        self._known[secret_id] = _Known(key, self._now())
        self._known.move_to_end(secret_id)
        if len(self._known) > MAX_KEYS:
            self._known.popitem(last=False)
        self._valid[secret_id] = None
        self._valid.move_to_end(secret_id)
        if len(self._valid) > MAX_KEYS:
            self._valid.popitem(last=False)
