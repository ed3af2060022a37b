"""Findings: a state of the broker that an operator should know of, with names and figures. Pure.

A finding has a code and figures, and no sentence: the page makes the sentence in the language of its reader. Findings
come from three origins: the last reading, the differences to readings up to an hour old, and details that were asked
for the few queues and subscriptions in question. The memory is bounded: some thirty readings of the last hour, with the
largest queues and subscriptions of each.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from cmqd_client.administration.metrics import Metrics, TopMetrics
from cmqd_gateway.console.forecast import DiskForecast
from cmqd_gateway.console.series_values import age_seconds, quantile
from cmqd_types.metrics import QueueMetrics, ServerMetrics, TopSubscription

Severity: TypeAlias = Literal["critical", "warning", "notice"]
Code: TypeAlias = Literal[
    "backup_gap",
    "backup_old",
    "commits_slow",
    "connections_refused",
    "consumers_behind",
    "damaged_messages",
    "dead_letters_grow",
    "dead_letters_wait",
    "deliveries_dropped",
    "deliveries_fail",
    "disk_full_at",
    "half_used_up",
    "loop_late",
    "memory_closed",
    "memory_promised",
    "messages_expired",
    "near_retention",
    "no_consumers",
    "queue_damaged",
    "receives_time_out",
    "schedules_missed",
    "sends_refused",
    "subscription_blocked",
    "wrong_keys",
]
"""The kinds of findings; the texts of the console have a sentence for each."""

STEP_SECONDS: Final = 60.0
"""Time between two readings that are kept."""
HOUR_SECONDS: Final = 3_600.0
GROWTH_SECONDS: Final = 300.0
"""Time for which a queue must have grown without a consumer."""
BEHIND_SECONDS: Final = 900.0
"""Time for which a queue must have grown in spite of its consumers."""
BEHIND_MESSAGES: Final = 100
BEHIND_PART: Final = 0.2
NEAR_RETENTION: Final = 0.8
"""Part of the retention from which the oldest message of a queue is a finding."""
COMMIT_MS: Final = 250.0
"""Slow commit: one in a hundred takes as long."""
LOOP_LAG_MS: Final = 100.0
FULL_WITHIN_SECONDS: Final = 14 * 86_400
CRITICAL_WITHIN_SECONDS: Final = 86_400
MEMORY_PART: Final = 0.4
"""Part of the memory budget; an account with half of the budget gets no more new dedup ids."""
WRONG_KEYS: Final = 20
"""Failed authentications in five minutes."""
TIMED_OUT: Final = 10
"""Visibility timeouts in five minutes."""
MAX_NAMED: Final = 5
"""Findings of the same code; the last of them says how many more there are."""
MAX_KEPT: Final = 400
"""Queues, and subscriptions, with earlier figures."""

_ORDER: Final = {"critical": 0, "warning": 1, "notice": 2}


class Names(msgspec.Struct, frozen=True, omit_defaults=True):
    """The names of the object of a finding; empty = the server."""

    account: str = ""
    queue: str = ""
    topic: str = ""
    subscription: str = ""
    backup: str = ""
    """A backup has no page; its name keeps the findings of two backups apart."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state that an operator should know of."""

    code: Code
    """The kind, for the sentence."""
    severity: Severity
    figures: dict[str, float | str] = {}
    names: Names = Names()
    since: float = 0.0
    """Time at which the state was first found, in seconds since 1970."""
    more: int = 0
    """Number of further findings of the same code that are not listed."""

    @property
    def subject(self) -> tuple[Code, Names]:
        """The code with the names: a state that lasts keeps its subject."""
        return self.code, self.names


class OldQueue(msgspec.Struct, frozen=True):
    """A queue among the queues with the oldest messages."""

    queue: str
    age_seconds: float
    retention_seconds: float


class DeadLetterQueue(msgspec.Struct, frozen=True):
    """A dead-letter queue among the queues with the most dead letters."""

    queue: str
    active: int
    age_seconds: float


class HalfDetail(msgspec.Struct, frozen=True):
    """The half messages of a queue whose checks are used up."""

    queue: str
    used_up: int
    """Their number among the first 100 half messages."""
    oldest_seconds: float


class SubscriptionDetail(msgspec.Struct, frozen=True):
    """Details of a subscription of the own account."""

    topic: str
    subscription: str
    endpoint: str
    last_error: str
    next_attempt: float | None
    """Time in seconds since 1970."""


class Details(msgspec.Struct, frozen=True):
    """Details that the sampler asked for."""

    account: str = ""
    """The account of the names; the details of other accounts cannot be read."""
    old_queues: Sequence[OldQueue] = ()
    dead_letter_queues: Sequence[DeadLetterQueue] = ()
    half: Sequence[HalfDetail] = ()
    subscriptions: Sequence[SubscriptionDetail] = ()


class _QueueThen(msgspec.Struct, frozen=True, gc=False):
    active: int
    received: int
    sent: int
    dead_letters: int
    expired: int
    timed_out: int


class _SubscriptionThen(msgspec.Struct, frozen=True, gc=False):
    failed: int
    dropped: int


class _Minute(msgspec.Struct, frozen=True):
    """A reading of a moment."""

    time: float
    queues: dict[int, _QueueThen]
    subscriptions: dict[int, _SubscriptionThen]
    server: ServerMetrics | None


class Findings:
    """The findings of an account; see the module."""

    def __init__(self) -> None:
        self._minutes: list[_Minute] = []
        """Readings of the last hour, the oldest first: one a minute, beyond ``BEHIND_SECONDS`` one in five."""
        self._since: dict[tuple[Code, Names], float] = {}
        """The present subjects, with the time of their first finding."""
        self._now = 0.0
        self._metrics: Metrics | None = None
        self._top: TopMetrics | None = None

    def note(self, now: float, metrics: Metrics, top: TopMetrics) -> None:
        """Take a reading.

        Args:
            now: time in seconds since 1970.
            metrics: totals, and figures of the server for ``admin``.
            top: the largest queues and subscriptions.
        """
        if self._minutes and now < self._minutes[-1].time:
            # The clock was set back: differences to later times would be no figures.
            self._minutes = []
        self._now, self._metrics, self._top = now, metrics, top
        self._forget(now)
        if not self._minutes or now >= self._minutes[-1].time + STEP_SECONDS:
            self._minutes.append(
                _Minute(
                    now,
                    {queue.queue_id: _then(queue) for queue in top.queues[:MAX_KEPT]},
                    {
                        entry.subscription.subscription_id: _SubscriptionThen(
                            entry.subscription.totals.failed, entry.subscription.totals.dropped
                        )
                        for entry in top.subscriptions[:MAX_KEPT]
                    },
                    metrics.server,
                )
            )

    def _forget(self, now: float) -> None:
        """Drop the readings from before the last hour, and most readings that only the comparison with it needs."""
        kept: list[_Minute] = []
        for minute in self._minutes:
            age = now - minute.time
            is_recent = age <= BEHIND_SECONDS + 2 * STEP_SECONDS
            if is_recent or (
                age <= HOUR_SECONDS + STEP_SECONDS and (not kept or minute.time >= kept[-1].time + GROWTH_SECONDS)
            ):
                kept.append(minute)
        self._minutes = kept

    @property
    def readings(self) -> int:
        """Number of earlier readings in memory; each takes up to 50 KB."""
        return len(self._minutes)

    def failing_subscriptions(self, account: str) -> list[tuple[str, str]]:
        """Return topic and name of the subscriptions of an account whose last error is wanted, the largest first."""
        if self._top is None:
            return []
        return [
            (entry.topic, entry.subscription.subscription)
            for entry in self._top.subscriptions
            if entry.account == account and (entry.subscription.blocked or entry.subscription.in_retry)
        ]

    def found(self, details: Details, forecast: DiskForecast | None) -> list[Finding]:
        """Return the present findings, the most severe first."""
        if self._metrics is None or self._top is None:
            return []
        findings = [
            *self._of_server(self._metrics.server),
            *self._of_disk(self._metrics.server, forecast),
            *self._of_queues(self._top, details),
            *self._of_details(self._top, details),
            *self._of_subscriptions(self._top, details),
        ]
        findings.sort(key=lambda finding: (_ORDER[finding.severity], finding.code))
        listed = list(_limited(findings))
        self._since = {finding.subject: self._since.get(finding.subject, self._now) for finding in listed}
        return [msgspec.structs.replace(finding, since=self._since[finding.subject]) for finding in listed]

    # ------------------------------------------------------------------ the server

    def _of_server(self, server: ServerMetrics | None) -> Iterator[Finding]:
        if server is None:
            return
        if server.sends_refused:
            yield Finding("sends_refused", "critical", {"free_bytes": server.free_bytes})
        for pin in server.standing_pins:
            if pin.is_overdue:
                age_s = pin.copied_age_ms / 1_000
                yield Finding(
                    "backup_old", "warning", {"backup": pin.name, "age_seconds": age_s}, Names(backup=pin.name)
                )
        budget = server.memory_budget_bytes
        if budget and server.memory_promised_bytes > MEMORY_PART * budget:
            figures: dict[str, float | str] = {"bytes": server.memory_promised_bytes, "budget_bytes": budget}
            yield Finding("memory_promised", "warning", figures)
        hour = self._server_before(server, HOUR_SECONDS)
        if hour is not None:
            seconds, before = hour
            counts: tuple[tuple[Code, Severity, int], ...] = (
                ("damaged_messages", "critical", server.damaged_total - before.damaged_total),
                ("schedules_missed", "warning", server.schedules_missed_total - before.schedules_missed_total),
                ("memory_closed", "warning", server.memory_closed_total - before.memory_closed_total),
            )
            gaps_before = {pin.name: pin.gaps_total for pin in before.standing_pins}
            for pin in server.standing_pins:
                if pin.gaps_total > gaps_before.get(pin.name, 0):
                    figures = {"backup": pin.name, "seconds": seconds}
                    yield Finding("backup_gap", "warning", figures, Names(backup=pin.name))
            for code, severity, more in counts:
                if more > 0:
                    yield Finding(code, severity, {"count": more, "seconds": seconds})
        recent = self._server_before(server, GROWTH_SECONDS)
        if recent is None:
            return
        seconds, before = recent
        commit_ms = quantile(before.commit_us, server.commit_us, 0.99) / 1_000
        if commit_ms >= COMMIT_MS:
            yield Finding("commits_slow", "warning", {"p99_ms": commit_ms, "seconds": seconds})
        lag_ms = quantile(before.loop_lag_us, server.loop_lag_us, 0.99) / 1_000
        if lag_ms >= LOOP_LAG_MS:
            yield Finding("loop_late", "warning", {"p99_ms": lag_ms, "seconds": seconds})
        refused = server.connections_refused_total - before.connections_refused_total
        if refused > 0:
            yield Finding("connections_refused", "warning", {"count": refused, "seconds": seconds})
        wrong = server.authentications_failed_total - before.authentications_failed_total
        if wrong >= WRONG_KEYS:
            yield Finding("wrong_keys", "notice", {"count": wrong, "seconds": seconds})

    def _server_before(self, server: ServerMetrics, seconds: float) -> tuple[float, ServerMetrics] | None:
        """Return the oldest figures of the last ``seconds``, and their age; None before a minute of observation.

        Figures of before a start of the broker do not count: the broker began to count at 0.
        """
        for minute in self._minutes:
            age = self._now - minute.time
            if minute.server is None or age > seconds + STEP_SECONDS / 2 or age < STEP_SECONDS:
                continue
            if minute.server.uptime_ms <= server.uptime_ms:
                return age, minute.server
        return None

    def _of_disk(self, server: ServerMetrics | None, forecast: DiskForecast | None) -> Iterator[Finding]:
        if server is None or forecast is None:
            return
        left = forecast.full_at - self._now
        if left < FULL_WITHIN_SECONDS:
            severity: Severity = "critical" if left < CRITICAL_WITHIN_SECONDS else "warning"
            yield Finding(
                "disk_full_at",
                severity,
                {
                    "at": forecast.full_at,
                    "free_bytes": server.free_bytes,
                    "bytes_per_second": forecast.bytes_per_second,
                    "observed_seconds": forecast.observed_seconds,
                },
            )

    # ------------------------------------------------------------------ queues

    def _of_queues(self, top: TopMetrics, details: Details) -> Iterator[Finding]:
        now_ms = round(top.time.timestamp() * 1_000)
        dead_letter_queues = {detail.queue for detail in details.dead_letter_queues}
        for queue in top.queues:
            names = Names(queue.account, queue.queue)
            age = age_seconds(queue.oldest_message_ms, now_ms)
            if queue.damaged:
                yield Finding("queue_damaged", "critical", {"count": queue.damaged}, names)
            is_named = queue.account == details.account and queue.queue in dead_letter_queues
            if is_named or is_dead_letter_queue(queue):
                yield from self._of_dead_letters(queue, age, names)
            else:
                yield from self._of_backlog(queue, age, names)
            hour = self._queue_before(queue, HOUR_SECONDS)
            if hour is not None and queue.totals.expired > hour[1].expired:
                more = queue.totals.expired - hour[1].expired
                yield Finding("messages_expired", "warning", {"count": more, "seconds": hour[0]}, names)

    @staticmethod
    def _of_details(top: TopMetrics, details: Details) -> Iterator[Finding]:
        """Yield findings about queues that need not be among the largest."""
        for old in details.old_queues:
            if old.age_seconds >= NEAR_RETENTION * old.retention_seconds:
                ages: dict[str, float | str] = {
                    "age_seconds": old.age_seconds,
                    "retention_seconds": old.retention_seconds,
                }
                yield Finding("near_retention", "warning", ages, Names(details.account, old.queue))
        for half in details.half:
            if half.used_up:
                counts: dict[str, float | str] = {"count": half.used_up, "age_seconds": half.oldest_seconds}
                yield Finding("half_used_up", "warning", counts, Names(details.account, half.queue))
        ranked = {queue.queue for queue in top.queues if queue.account == details.account}
        for dead in details.dead_letter_queues:
            if dead.active and dead.queue not in ranked:
                letters: dict[str, float | str] = {"active": dead.active, "age_seconds": dead.age_seconds}
                yield Finding("dead_letters_wait", "notice", letters, Names(details.account, dead.queue))

    def _of_dead_letters(self, queue: QueueMetrics, age: float, names: Names) -> Iterator[Finding]:
        if not queue.active:
            return
        figures: dict[str, float | str] = {"active": queue.active, "age_seconds": age}
        hour = self._queue_before(queue, HOUR_SECONDS)
        if hour is not None and queue.totals.dead_letters > hour[1].dead_letters:
            figures |= {"count": queue.totals.dead_letters - hour[1].dead_letters, "seconds": hour[0]}
            yield Finding("dead_letters_grow", "warning", figures, names)
        else:
            yield Finding("dead_letters_wait", "notice", figures, names)

    def _of_backlog(self, queue: QueueMetrics, age: float, names: Names) -> Iterator[Finding]:
        figures: dict[str, float | str] = {"active": queue.active, "age_seconds": age}
        before = self._queue_before(queue, GROWTH_SECONDS)
        was_never_received = not queue.totals.received and not queue.totals.deleted
        if queue.active and not queue.waiting_receives and not queue.in_flight:
            if before is not None and before[0] >= GROWTH_SECONDS / 2 and before[1].received == queue.totals.received:
                grown = queue.active - before[1].active
                if grown > 0:
                    figures |= {"grown": grown, "seconds": before[0]}
                    yield Finding("no_consumers", "warning", figures, names)
                    return
            if was_never_received and age >= GROWTH_SECONDS:
                yield Finding("no_consumers", "notice", figures, names)
                return
        behind = self._queue_before(queue, BEHIND_SECONDS)
        if behind is not None and behind[0] >= BEHIND_SECONDS / 2:
            seconds, then = behind
            grown = queue.active - then.active
            if grown >= max(BEHIND_MESSAGES, BEHIND_PART * then.active) and queue.totals.received > then.received:
                figures |= {"grown": grown, "seconds": seconds}
                yield Finding("consumers_behind", "notice", figures, names)
        if before is not None:
            timed_out = queue.totals.timed_out - before[1].timed_out
            received = queue.totals.received - before[1].received
            if timed_out >= TIMED_OUT and timed_out * 10 >= received:
                figures = {"count": timed_out, "seconds": before[0]}
                yield Finding("receives_time_out", "warning", figures, names)

    def _queue_before(self, queue: QueueMetrics, seconds: float) -> tuple[float, _QueueThen] | None:
        """Return the oldest figures of a queue in the last ``seconds``, and their age."""
        for minute in self._minutes:
            age = self._now - minute.time
            if age < STEP_SECONDS:
                return None
            then = minute.queues.get(queue.queue_id)
            # After a loss in the log totals begin at 0 again.
            if then is not None and age <= seconds + STEP_SECONDS / 2 and then.sent <= queue.totals.sent:
                return age, then
        return None

    # ------------------------------------------------------------------ subscriptions

    def _of_subscriptions(self, top: TopMetrics, details: Details) -> Iterator[Finding]:
        now_ms = round(top.time.timestamp() * 1_000)
        details_by_name = {(detail.topic, detail.subscription): detail for detail in details.subscriptions}
        for entry in top.subscriptions:
            subscription = entry.subscription
            names = Names(entry.account, topic=entry.topic, subscription=subscription.subscription)
            figures: dict[str, float | str] = {
                "waiting": subscription.waiting + subscription.in_retry,
                "age_seconds": age_seconds(subscription.oldest_message_ms, now_ms),
            }
            detail = (
                details_by_name.get((entry.topic, subscription.subscription))
                if entry.account == details.account
                else None
            )
            if detail is not None:
                figures |= {"endpoint": detail.endpoint, "last_error": detail.last_error}
                if detail.next_attempt is not None:
                    figures["next_attempt"] = detail.next_attempt
            if subscription.blocked:
                yield Finding("subscription_blocked", "warning", figures, names)
            elif subscription.in_retry:
                yield Finding("deliveries_fail", "warning", figures | {"in_retry": subscription.in_retry}, names)
            hour = self._subscription_before(entry, HOUR_SECONDS)
            if hour is not None and subscription.totals.dropped > hour[1].dropped:
                more = subscription.totals.dropped - hour[1].dropped
                yield Finding("deliveries_dropped", "warning", {"count": more, "seconds": hour[0]}, names)

    def _subscription_before(self, entry: TopSubscription, seconds: float) -> tuple[float, _SubscriptionThen] | None:
        for minute in self._minutes:
            age = self._now - minute.time
            if age < STEP_SECONDS:
                return None
            then = minute.subscriptions.get(entry.subscription.subscription_id)
            if then is not None and age <= seconds + STEP_SECONDS / 2:
                return age, then
        return None


def is_dead_letter_queue(queue: QueueMetrics) -> bool:
    """Return True if most messages that the queue ever got are dead letters."""
    totals = queue.totals
    return totals.dead_letters > 0 and totals.dead_letters >= totals.sent + totals.copied


def _then(queue: QueueMetrics) -> _QueueThen:
    totals = queue.totals
    return _QueueThen(queue.active, totals.received, totals.sent, totals.dead_letters, totals.expired, totals.timed_out)


def _limited(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield at most ``MAX_NAMED`` findings of a code; the last of them counts the others."""
    by_code: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        by_code.setdefault((finding.severity, finding.code), []).append(finding)
    for same in by_code.values():
        yield from same[: MAX_NAMED - 1]
        if len(same) >= MAX_NAMED:
            yield msgspec.structs.replace(same[MAX_NAMED - 1], more=len(same) - MAX_NAMED)
