"""The queues and the topic of a run: made before the run, and removed at its end, also after a failure."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import msgspec

from cmq_cli.bench.plans import Plan, Work
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.output import Output
from cmqd_client import Client, CmqError
from cmqd_client.address import Address, host_and_port
from cmqd_client.errors import (
    OutcomeUnknown,
    QueueExists,
    QueueNotFound,
    SubscriptionNotFound,
    TopicNotFound,
)
from cmqd_client.links.locating import Location

UNUSED_SECONDS = 600
"""Time without use after which the server removes a queue of a run that was killed."""
AT_ONCE = 64
"""Queues that are made or removed with one write."""
LONGEST_BODY = 65_536
"""Body that a queue and a topic of a run take at least, the default of both."""
GONE = (QueueNotFound, TopicNotFound, SubscriptionNotFound)


class Target(msgspec.Struct, frozen=True):
    """A queue or topic, and the addresses of its server in the order of the attempts."""

    name: str
    addresses: list[Address]


class Objects(msgspec.Struct, frozen=True):
    """The queues and the topic of a run."""

    queues: list[Target]
    topic: Target | None = None


@asynccontextmanager
async def made_objects(
    client: Client, address: Address, plan: Plan, work: Work, output: Output
) -> AsyncGenerator[Objects]:
    """Make the queues and the topic of a run, and remove the made objects at its end.

    Raises:
        CommandFailed: a queue exists, and the run is not allowed to use existing queues.
        CmqError: the server refuses, or cannot be reached.
    """
    made = _Made(client, output)
    try:
        yield await _make(made, address, plan, work)
    finally:
        # Also after Ctrl-C, which cancels this task once; a second Ctrl-C ends the removal.
        await made.remove()


async def _make(made: "_Made", address: Address, plan: Plan, work: Work) -> Objects:
    client, (given, may_exist) = made.client, plan.existing
    name = given or f"cmq-bench-{secrets.token_hex(4)}"
    names = [name] if work.queues == 1 else [f"{name}-{number}" for number in range(1, work.queues + 1)]
    if not may_exist:
        await _in_chunks(names, lambda queue: made.create_queue(queue, plan.size, is_new=given is None))
    topic = None
    if work.is_fanout:
        await made.create_topic(name, plan.size)
        await _in_chunks(names, lambda queue: made.subscribe(name, queue))
        topic = Target(name, _addresses(address, await client.topic(name).locate()))
    if made.is_alone is None:
        # A single look-up tells whether the server is alone: a server that is alone has every queue.
        located = await client.queue(names[0]).locate()
        made.is_alone = located.epoch == 0
    if made.is_alone:
        return Objects([Target(queue, address.each()) for queue in names], topic)
    places: dict[str, list[Address]] = {}

    async def locate(queue: str) -> None:
        places[queue] = _addresses(address, await client.queue(queue).locate())

    await _in_chunks(names, locate)
    return Objects([Target(queue, places[queue]) for queue in names], topic)


def _addresses(address: Address, location: Location) -> list[Address]:
    """Return the addresses to try: first the addresses of the leader that the server names, then those of the URL."""
    if location.epoch == 0:
        return address.each()
    named = [
        msgspec.structs.replace(address, host=host, port=port, others=())
        for host, port in map(host_and_port, location.addresses)
    ]
    return [*named, *(of_url for of_url in address.each() if of_url not in named)]


async def _in_chunks(names: Iterable[str], act: Callable[[str], Awaitable[object]]) -> None:
    names = list(names)
    for start in range(0, len(names), AT_ONCE):
        results = await asyncio.gather(*map(act, names[start : start + AT_ONCE]), return_exceptions=True)
        # Raised after the whole chunk: every object that the chunk has made is noted by now, and will be removed.
        for result in results:
            if isinstance(result, BaseException):
                raise result


class _Made:
    """The objects that a run has made.

    An object is noted before the request that makes the object, because the answer can be lost.
    """

    def __init__(self, client: Client, output: Output) -> None:
        self.client = client
        self.is_alone: bool | None = None
        self._output = output
        self._removals: dict[str, Callable[[], Awaitable[object]]] = {}
        """Removals by kind and name of the object, in the order of making."""

    async def create_queue(self, name: str, size: int, *, is_new: bool) -> None:
        object_name, remove = f"queue {name}", lambda: self.client.delete_queue(name)
        if is_new:
            self._removals[object_name] = remove
        try:
            await self.client.create_queue(
                name, auto_delete_after=UNUSED_SECONDS, max_message_bytes=max(size, LONGEST_BODY)
            )
        except QueueExists as error:
            raise CommandFailed(
                f"queue {name!r} exists, and this run has not made the queue; with --use-existing the run uses the "
                "queue, and receives and deletes its messages",
                ExitCode.USAGE,
            ) from error
        self._removals[object_name] = remove

    async def create_topic(self, name: str, size: int) -> None:
        self._removals[f"topic {name}"] = lambda: self.client.delete_topic(name)
        await self.client.create_topic(name, max_message_bytes=max(size, LONGEST_BODY))

    async def subscribe(self, topic: str, queue: str) -> None:
        handle = self.client.topic(topic)
        self._removals[f"subscription {topic}/{queue}"] = lambda: handle.subscription(queue).unsubscribe()
        await handle.subscribe(queue, queue=queue)

    async def remove(self) -> None:
        """Remove all objects, the newest kind first: a topic with subscriptions cannot be deleted."""
        left, error = dict(self._removals), None
        for kind in ("subscription", "topic", "queue"):
            names = [name for name in left if name.startswith(kind)]
            # The first error ends the removal: a server that does not answer would hold up every chunk.
            while names and error is None:
                chunk, names = names[:AT_ONCE], names[AT_ONCE:]
                for object_name, failure in zip(chunk, await asyncio.gather(*map(self._remove, chunk)), strict=True):
                    if failure is None:
                        del left[object_name]
                    error = failure or error
        if error is not None:
            shown = ", ".join(list(left)[:10]) + (f" and {len(left) - 10} more" if len(left) > 10 else "")
            self._output.warning(
                f"not removed: {shown} ({error.text}); the server removes a queue of the run after "
                f"{UNUSED_SECONDS // 60} minutes without use"
            )

    async def _remove(self, object_name: str) -> CmqError | None:
        """Remove an object; return the error. A removal with a lost answer is repeated."""
        last: CmqError | None = None
        for _ in range(3):
            try:
                await self._removals[object_name]()
            except GONE:
                return None
            except OutcomeUnknown as error:
                last = error
            except CmqError as error:
                return error
            else:
                return None
        return last
