"""Requests that an SDK sends again after a dropped connection: recognised by all their parameters.

A repeat has the bytes of the first request: the same action, bodies, nonce and time stamp. The digest of all decoded
parameters is the identity of a request. Nonce and time stamp alone are no identity, because some SDKs draw their nonces
from 16 bits: a busy program would repeat a pair of nonce and second every few seconds, with another message.

Sends and publishes give the digest to the broker as a dedup id, so a repeat through any gateway is stored once. With a
nonce of 16 bits even all parameters of two different sends can be equal (the same body sent twice in a second);
therefore these sends have no dedup id. The answers of deletes are remembered here: a repeated delete would find its
handle invalid.
"""

import asyncio
import base64
import hashlib
import string
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

SMALL_NONCE: Final = 65_535
"""A nonce up to here is drawn from too few numbers for an identity."""
ID_CHARACTERS: Final = 22
"""Characters of a dedup id: 126 bits of the digest, and a character for the place in the batch. The broker keeps
every id in memory for five minutes, at some 170 bytes and the id itself, and refuses the sends of an account that is
over its share of memory: each further character lowers the rate at which an account can send."""
_PLACES: Final = string.ascii_letters + string.digits + "-_"
"""A character for each place in a batch; a batch of API 2.0 has at most 16 messages."""
ANSWER_SECONDS: Final = 60.0
"""Time for which the answer of a delete is remembered."""
MAX_ANSWERS: Final = 100_000


def request_digest(secret_id: str, form: Mapping[str, bytes]) -> str:
    """Return 43 ASCII characters that stand for a key and all parameters of a request."""
    # msgpack puts the length before every part, so no value can look like the end of a part and the start of the next.
    parts = msgspec.msgpack.encode((secret_id, form))
    return base64.urlsafe_b64encode(hashlib.sha256(parts).digest()).decode().rstrip("=")


def dedup_ids(digest: str, nonce: int, count: int) -> list[str | None]:
    """Return the dedup ids for the messages of a request: ``ID_CHARACTERS`` each, None for a nonce of 16 bits."""
    if nonce <= SMALL_NONCE:
        return [None] * count
    identity = digest[: ID_CHARACTERS - 1]
    return [identity + _PLACES[place] for place in range(count)]


class _Answer(msgspec.Struct):
    task: "asyncio.Task[Mapping[str, Any]]"
    begun_at: float


class DeleteAnswers:
    """Answers of deletes, by the digest of their requests, for a minute."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of remembered answers."""
        return len(self._answers)

    async def answer(
        self, digest: str, delete: Callable[[], Coroutine[Any, Any, Mapping[str, Any]]]
    ) -> Mapping[str, Any]:
        """Return the answer to a delete; a repeat gets the answer of the first request.

        The delete goes on when its caller is cancelled, so that the repeat finds its answer. A delete that failed
        before it was decided is forgotten: its repeat tries again.
        """
        self._forget_old()
        remembered = self._answers.get(digest)
        if remembered is None:
            task = asyncio.create_task(delete())
            self._answers[digest] = remembered = _Answer(task, self._now())
            task.add_done_callback(lambda done: self._done(digest, done))
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        return await asyncio.shield(remembered.task)

    def _done(self, digest: str, task: "asyncio.Task[Mapping[str, Any]]") -> None:
        failed = task.cancelled() or task.exception() is not None
        remembered = self._answers.get(digest)
        if failed and remembered is not None and remembered.task is task:
            del self._answers[digest]

    def _forget_old(self) -> None:
        oldest = self._now() - ANSWER_SECONDS
        while self._answers:
            digest, answer = next(iter(self._answers.items()))
            if answer.begun_at > oldest:
                return
            del self._answers[digest]
