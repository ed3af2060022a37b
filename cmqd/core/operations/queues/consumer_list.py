"""Lists of the consumers of queues: their names, messages in flight, last receives and failures.

A list is made in steps, in order of queue and consumer, because an account may have 10,000 queues. Each queue is shown
as of its own moment. Messages in flight are counted by the clients of the leases, and waiting receives by their
clients, unless a queue has too many for a step.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Final

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import check_range
from cmqd.core.names import every_name
from cmqd.core.runtime.consumers import MAX_OF_QUEUE, Consumer, is_idle
from cmqd.core.runtime.queue import QueueRuntime
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.leases import InFlight
from cmqd_types.actors import Actor
from cmqd_types.inspection import ConsumerInfo

MAX_LIMIT: Final = 1_000
"""Largest ``limit`` of a page."""
EXAMINED_A_STEP: Final = 400
"""Queues or consumers of a step: less than a millisecond."""
COUNTED: Final = 10_000
"""Leases or waiting receives of a queue that a step counts by their clients, in less than a millisecond."""

LEASES_A_CONSUMER: Final = COUNTED // EXAMINED_A_STEP
UNUSED: Final = QueueRuntime()
"""Stands for a queue that is not used since the start, and that may have leases from before."""

HIDDEN: Final = "(hidden)"
"""Stands for a host that the caller may not see."""

_client: Callable[[InFlight], int] = attrgetter("actor")
_order: Callable[[ConsumerInfo], tuple[str, str, str]] = attrgetter("name", "secret_id", "host")


class ConsumerList:
    """Makes lists of consumers; see the module."""

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._queues = facts.queues
        self._actors = facts.actors
        self._runtime = runtime.queues
        self._consumers = runtime.consumers

    @staticmethod
    def check(offset: int, limit: int) -> None:
        """Check the arguments of a list.

        Raises:
            InvalidArgument: the offset or the limit is out of range.
        """
        check_range("offset", offset, 0, 1 << 31)
        check_range("limit", limit, 1, MAX_LIMIT)

    def page(
        self,
        account: str | None,
        queue: str,
        search: str,
        offset: int,
        limit: int,
        now_ms: int,
        *,
        shows: Callable[[str], bool] = every_name,
        shows_hosts: bool = True,
        most_compared: int = EXAMINED_A_STEP,
    ) -> Generator[None, None, tuple[int, list[ConsumerInfo]]]:
        """Return the number of matching consumers, and a page of them, in steps.

        Args:
            account: of the queues; None = all accounts.
            queue: only consumers of the queue with this name; empty = of all queues.
            search: only consumers with this text in queue, account, key, name or host, in any case.
            offset: number of matching consumers before the page.
            limit: most consumers of the page.
            now_ms: broker time.
            shows: selects the names of queues that the caller may see.
            shows_hosts: the caller may see the hosts of clients.
            most_compared: most names that a step compares by ``shows``; the cost of a comparison is the caller's.
        """
        at_once = min(EXAMINED_A_STEP, most_compared)
        page: list[ConsumerInfo] = []
        total = 0
        after = (account or "", "")
        while queues := self._queues.in_order.behind(account, after, at_once):
            examined = 0
            for one in queues:
                after = (one.account, one.name)
                examined += 1
                if queue in ("", one.name) and shows(one.name):
                    consumers = self._of_queue(one, now_ms, shows_hosts)
                    # A lease that is counted costs a fraction of a consumer.
                    examined += len(consumers) + min(one.index.in_flight_count, COUNTED) // LEASES_A_CONSUMER
                    for info in consumers:
                        if not search or _matches(info, search):
                            if offset <= total < offset + limit:
                                page.append(info)
                            total += 1
                if examined >= at_once:
                    # The rest is read again, because queues may be deleted before the next step.
                    break
            yield
        return total, page

    def _of_queue(self, queue: Queue, now_ms: int, shows_hosts: bool) -> list[ConsumerInfo]:
        """Return the consumers of a queue in order of name, and forget those that are gone."""
        runtime = self._runtime.get(queue.queue_id) or UNUSED
        # Asked before the table of leases, which a look at would make.
        leases = queue.index.leases.by_number if queue.index.is_made("leases") else {}
        waiters = runtime.line.waiting
        if not runtime.consumers and not leases:
            return []
        held = Counter(map(_client, leases.values())) if len(leases) <= COUNTED else None
        waiting = Counter([waiter.actor for waiter in waiters.values()]) if len(waiters) <= COUNTED else None
        infos: list[ConsumerInfo] = []
        gone: list[Actor] = []
        for actor, consumer in runtime.consumers.items():
            # Taken out of the table: clients beyond the share of their key have one number together.
            in_flight = None if held is None else held.pop(self._actors.known_number(actor), 0)
            if is_idle(consumer, now_ms) and not in_flight:
                gone.append(actor)
            else:
                waits = None if waiting is None else waiting[actor]
                infos.append(_info(queue, consumer, waits, in_flight, shows_hosts))
        if gone:
            self._consumers.drop(queue.account, runtime.consumers, gone)
        if held:
            shown = islice(self._holders(leases, held), max(MAX_OF_QUEUE - len(infos), 0))
            infos += [
                _info(queue, one, None if waiting is None else waiting[one.actor], held[number], shows_hosts)
                for number, one in shown
            ]
        infos.sort(key=_order)
        return infos

    def _holders(self, leases: Mapping[int, InFlight], held: Mapping[int, int]) -> Iterator[tuple[int, Consumer]]:
        """Yield the clients that hold messages and are in no table, such as those that ask no more since the start."""
        # Leases come in the order of their numbers, so the last lease of a client is its newest.
        received_ms = {lease.actor: lease.first_receive_ms for lease in leases.values()}
        for number in held:
            actor = self._actors.find(number)
            if actor is not None:
                time_ms = received_ms[number]
                yield number, Consumer(actor, time_ms, time_ms, time_ms)


def _info(
    queue: Queue, consumer: Consumer, waiting: int | None, in_flight: int | None, shows_hosts: bool
) -> ConsumerInfo:
    actor = consumer.actor
    return ConsumerInfo(
        account=queue.account,
        queue=queue.name,
        secret_id=actor.secret_id,
        name=actor.name,
        host=actor.host if shows_hosts or not actor.host else HIDDEN,
        stated_by=actor.stated_by if shows_hosts or not actor.stated_by else HIDDEN,
        since_ms=consumer.since_ms,
        asked_ms=consumer.last_asked_ms,
        last_receive_ms=consumer.last_receive_ms or None,
        waiting=waiting,
        in_flight=in_flight,
        received=consumer.received,
        failed=consumer.failed,
    )


def _matches(info: ConsumerInfo, search: str) -> bool:
    texts = (info.queue, info.account, info.secret_id, info.name, info.host)
    return any(search in text.casefold() for text in texts)
