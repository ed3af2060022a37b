"""A subscriber of a topic, driven by hand."""

from pyroaring import BitMap64

from cmqd.core.facts.retry_schedule import EXPONENTIAL_DECAY, next_attempt_ms
from cmqd.core.facts.subscription_backlog import Deliveries, Retry
from cmqd_segment.records import DeliveriesDropped, DeliveriesFailed, MessagesDelivered, runs_of
from support.core.invariants import check_deliveries

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
JITTER_MS = 15_000

Fact = MessagesDelivered | DeliveriesFailed | DeliveriesDropped | tuple[str, int, int]
"""A record; or ``("waiting", first, stop)``, ``("floor", floor, 0)``."""


def apply(deliveries: Deliveries, fact: Fact) -> None:
    match fact:
        case MessagesDelivered():
            deliveries.apply_delivered(fact)
        case DeliveriesFailed():
            deliveries.apply_failed(fact)
        case DeliveriesDropped():
            deliveries.apply_dropped(fact)
        case ("floor", floor, _):
            deliveries.apply_floor(floor)
        case (_, first, stop):
            deliveries.apply_waiting(first, stop)


def facts(deliveries: Deliveries) -> dict[str, object]:
    """All that a restart must bring back."""
    return {
        "waiting": list(deliveries.waiting),
        "retries": dict(deliveries.retries),
        "exhausted": list(deliveries.exhausted),
        "blocked": deliveries.blocked,
        "totals": (deliveries.delivered, deliveries.dropped),
        "last error": (deliveries.last_error, deliveries.last_error_ms),
        "drops": deliveries.drops.packed(),
    }


class Subscriber:
    """Deliveries with a clock, a substitute for the broker, and the recorded facts."""

    def __init__(self, published: int = 0, strategy: str = EXPONENTIAL_DECAY, *, max_known: int = 100_000) -> None:
        self.deliveries = Deliveries(strategy, max_known=max_known)
        self.facts: list[Fact] = []
        self.started_ms: dict[int, int] = {}
        self.now_ms = START_MS
        self.count = 0
        if published:
            self.publish(published)

    def note(self, fact: Fact) -> None:
        self.facts.append(fact)
        apply(self.deliveries, fact)
        check_deliveries(self.deliveries)

    def publish(self, count: int = 1) -> None:
        self.note(("waiting", self.count, self.count + count))
        self.count += count
        self.deliveries.published()

    def begin(self, room: int = 16) -> list[tuple[int, int]]:
        started = self.deliveries.start(self.now_ms, room)
        check_deliveries(self.deliveries)
        self.started_ms |= {position: self.now_ms for position, _ in started}
        return started

    def start(self, room: int = 16) -> list[int]:
        """The positions that are begun now."""
        return [position for position, _ in self.begin(room)]

    def deliver(self, *positions: int) -> None:
        self.note(MessagesDelivered(1, 2, runs_of(sorted(positions)), self.now_ms))

    def fail(self, *positions: int, jitter_ms: int = JITTER_MS) -> None:
        """Record failures as a broker does: also the failure of a message that is dropped afterwards."""
        for position in positions:
            attempts, strategy = self.deliveries.under_way[position], self.deliveries.strategy
            next_ms = next_attempt_ms(strategy, attempts, self.started_ms[position], self.now_ms, jitter_ms)
            self.note(DeliveriesFailed(1, 2, [position, 1], [attempts], [next_ms or 0], "no answer", self.now_ms))
            if next_ms is None:
                self.drop(position, reason="retries")

    def drop(self, *positions: int, reason: str = "operator") -> None:
        self.note(DeliveriesDropped(1, 2, runs_of(sorted(positions)), reason, self.now_ms))

    def floor(self, floor: int) -> None:
        self.note(("floor", floor, 0))

    def give_back(self, *positions: int) -> None:
        for position in positions:
            self.deliveries.given_back(position)
            check_deliveries(self.deliveries)

    @property
    def due_in_ms(self) -> int | None:
        due_ms = self.deliveries.next_due_ms(self.now_ms)
        return None if due_ms is None else max(due_ms - self.now_ms, 0)

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms

    def wait(self) -> None:
        """Wait until an attempt is due; not a millisecond earlier is an attempt begun."""
        due_in_ms = self.due_in_ms
        assert due_in_ms is not None
        if due_in_ms:
            self.pass_ms(due_in_ms - 1)
            assert self.start() == []
            self.pass_ms(1)

    def block(self) -> None:
        """The oldest message fails twice, with no other message tried; a third attempt is due in two seconds."""
        (first,) = self.start(1)
        self.fail(first)
        self.pass_ms(1000)
        assert self.start(1) == [first]
        self.fail(first)
        assert self.deliveries.blocked

    def exhaust(self) -> None:
        """All that are tried fail until no retry is left."""
        while (due_in_ms := self.due_in_ms) is not None:
            self.pass_ms(due_in_ms)
            self.fail(*self.start())

    def restarted(self) -> Deliveries:
        """From the facts alone."""
        restarted = Deliveries(self.deliveries.strategy, paused=self.deliveries.paused)
        for fact in self.facts:
            apply(restarted, fact)
        check_deliveries(restarted)
        return restarted


def scheduled(deliveries: Deliveries) -> dict[int, Retry]:
    """Attempts and next times of the messages in retry, without the reasons of the failures."""
    return {position: Retry(retry.attempts, retry.next_ms) for position, retry in deliveries.retries.items()}


def reloaded(deliveries: Deliveries) -> Deliveries:
    """Through a checkpoint."""
    waiting = BitMap64.deserialize(deliveries.waiting.serialize())
    parts = list(deliveries.retry_parts(2))
    assert all(1 <= len(retries) == len(failures) <= 2 for retries, _, failures in parts)

    loaded = Deliveries(deliveries.strategy, paused=deliveries.paused, max_known=deliveries.max_known)
    loaded.load(
        waiting,
        blocked=deliveries.blocked,
        delivered=deliveries.delivered,
        failed=deliveries.failed,
        dropped=deliveries.dropped,
        last_error=deliveries.last_error,
        last_error_ms=deliveries.last_error_ms,
    )
    for part in parts:
        loaded.load_retries(part)
    loaded.drops.load(deliveries.drops.known_from, *deliveries.drops.packed())
    check_deliveries(loaded)
    return loaded


def exhausted(waiting: int = 0) -> Subscriber:
    """The first message has used up its retries."""
    subscriber = Subscriber(1)
    subscriber.exhaust()
    assert list(subscriber.deliveries.exhausted) == [0]
    if waiting:
        subscriber.note(("waiting", 1, 1 + waiting))
        subscriber.count += waiting
    return subscriber
