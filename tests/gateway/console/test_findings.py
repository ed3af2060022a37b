"""Rates, the disk forecast and the findings of the console, by an injected clock."""

import json
import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, get_args

import msgspec
import pytest

from cmqd_client.administration.metrics import Metrics, TopMetrics
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.console.findings import (
    MAX_NAMED,
    Code,
    DeadLetterQueue,
    Details,
    Finding,
    Findings,
    HalfDetail,
    Names,
    OldQueue,
    SubscriptionDetail,
)
from cmqd_gateway.console.forecast import DiskForecast, disk_forecast
from cmqd_gateway.console.history import NAMES
from cmqd_gateway.console.sampler import Feed
from cmqd_gateway.console.series_values import Interval, Reading, quantile
from cmqd_types.metrics import (
    DURATIONS_US,
    Histogram,
    MetricSums,
    QueueMetrics,
    ServerMetrics,
    SubscriptionMetrics,
    TopSubscription,
    histogram,
)
from cmqd_types.pins import StandingPinInfo
from cmqd_types.totals import QueueTotals, SubscriptionTotals, TopicTotals

START = 1_800_000_000.0
GIB = 1 << 30


def metrics(server: ServerMetrics | None = None, *, delivered: int = 0, **totals: int) -> Metrics:
    """Totals of an account."""
    time = datetime.fromtimestamp(START, UTC)
    subscriptions = SubscriptionTotals(delivered=delivered)
    return Metrics(time, QueueTotals(**totals), TopicTotals(), subscriptions, 1, 0, 0, server, 1)


def queue(
    name: str = "orders", *, age: float | None = None, totals: dict[str, int] | None = None, **counts: Any
) -> Any:
    """A queue, with an oldest message of an age at ``START``."""
    counts = {"active": 0, "in_flight": 0, "delayed": 0, "half": 0, "damaged": 0, "waiting_receives": 0} | counts
    return QueueMetrics(
        counts.pop("account", "shop"),
        name,
        hash(name),
        rewindable=0,
        oldest_message_ms=None if age is None else round((START - age) * 1_000),
        received_bytes=0,
        totals=QueueTotals(**(totals or {})),
        **counts,
    )


def subscription(*, blocked: bool = False, in_retry: int = 0, totals: dict[str, int] | None = None) -> TopSubscription:
    one = SubscriptionMetrics("invoices", 7, "https", 40, in_retry, blocked, None, SubscriptionTotals(**(totals or {})))
    return TopSubscription("shop", "sales", one)


def top(*queues: QueueMetrics, subscriptions: list[TopSubscription] | None = None) -> TopMetrics:
    return TopMetrics(datetime.fromtimestamp(START, UTC), MetricSums(), list(queues), [], subscriptions or [], 1)


def found_in(
    *readings: tuple[float, TopMetrics],
    server: list[ServerMetrics] | None = None,
    details: Details | None = None,
    forecast: DiskForecast | None = None,
) -> list[Finding]:
    """The findings after readings at these seconds after ``START``, and with these figures of the server."""
    findings = Findings()
    for index, (seconds, read_top) in enumerate(readings):
        findings.note(START + seconds, metrics(server[index] if server else None), read_top)
    return findings.found(details or Details("shop"), forecast)


def only(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


# ---------------------------------------------------------------- rates


def named(values: list[float]) -> dict[str, float]:
    return {name: value for name, value in zip(NAMES, values, strict=True) if value == value}


def test_rates_are_differences_of_totals_over_the_time_between_two_readings() -> None:
    before = Reading(START, metrics(sent=100, received=50, deleted=40), None, 0)
    after = Reading(START + 4, metrics(sent=180, received=90, deleted=40, delivered=8), None, 0)

    rates = named(Interval(before, after).values())

    assert rates == {"sent": 20, "received": 10, "deleted": 0, "published": 0, "delivered": 2, "failed": 0}
    assert named(Interval(None, after).values()) == {}


def test_a_total_that_sank_has_no_rate() -> None:
    before = Reading(START, metrics(sent=100, received=50), None, 0)
    after = Reading(START + 4, metrics(sent=0, received=60), None, 0)

    rates = named(Interval(before, after).values())

    assert "sent" not in rates
    assert rates["received"] == 2.5


def test_counts_of_the_moment_and_ages_come_from_the_sums() -> None:
    sums = MetricSums(active=5, in_flight=4, oldest_message_ms=round(START * 1_000) - 30_000, undelivered=2)

    values = named(Interval(None, Reading(START, metrics(), sums, round(START * 1_000))).values())

    assert (values["active"], values["in_flight"], values["undelivered"]) == (5, 4, 2)
    assert (values["oldest_s"], values["oldest_undelivered_s"]) == (30, 0)


def commits(*microseconds: int) -> Histogram:
    values = histogram(DURATIONS_US)
    for value in microseconds:
        values.note(value)
    return values


def test_latencies_are_of_the_commits_between_two_readings() -> None:
    old = ServerMetrics(uptime_ms=1_000, commit_us=commits(*[9_000_000] * 100), bytes_in_total=1_000)
    new = ServerMetrics(
        uptime_ms=5_000, commit_us=commits(*[9_000_000] * 100, *[400] * 50), bytes_in_total=5_000, free_bytes=9
    )

    values = named(Interval(Reading(START, metrics(old), None, 0), Reading(START + 4, metrics(new), None, 0)).values())

    assert 0.25 < values["commit_p50_ms"] < values["commit_p99_ms"] <= 0.5
    assert (values["bytes_in"], values["free_bytes"]) == (1_000, 9)


def test_a_restart_of_the_broker_makes_no_negative_rate() -> None:
    old = ServerMetrics(uptime_ms=500_000, bytes_in_total=10_000, loop_cpu_us_total=9_000_000)
    new = ServerMetrics(uptime_ms=2_000, bytes_in_total=800, loop_cpu_us_total=1_000_000)

    values = named(Interval(Reading(START, metrics(old), None, 0), Reading(START + 4, metrics(new), None, 0)).values())

    assert (values["bytes_in"], values["cpu_cores"]) == (400, 0.5)


def test_without_a_commit_there_is_no_latency() -> None:
    values = commits(400, 500)

    assert quantile(values, values, 0.99) != quantile(values, values, 0.99), "NaN"
    assert quantile(None, None, 0.5) != 0


def test_a_commit_above_all_bounds_counts_as_the_highest_bound() -> None:
    assert quantile(None, commits(99_000_000), 0.5) == DURATIONS_US[-1]


class Page:
    """A page that keeps its frames."""

    def __init__(self) -> None:
        self.key = KeySecret("id", "secret")
        self.frames: list[tuple[str, Any]] = []

    def post(self, kind: str, frame: bytes) -> None:
        self.frames.append((kind, json.loads(frame.split(b"data: ", 1)[1])))

    def check(self) -> None:
        raise AssertionError("no reading was refused")

    def rates(self) -> list[float | None]:
        """The rates of sends in the figures so far."""
        return [content["now"]["sent"] for kind, content in self.frames if kind == "figures"]


def test_two_readings_in_a_row_make_no_rate_and_the_next_rate_is_over_all_the_time() -> None:
    feed, page = Feed("shop"), Page()
    feed.viewers[page] = None
    for seconds, sent in ((0, 100), (0.01, 101), (4, 140), (4.01, 141), (6, 160)):
        feed.note(START + seconds, metrics(sent=sent), None, 11)

    assert page.rates() == [None, None, 10, None, 10]


def test_a_gap_has_no_rates_and_shows_as_a_gap() -> None:
    feed, page = Feed("shop"), Page()
    feed.viewers[page] = None
    for seconds, sent in ((0, 0), (5, 50), (20, 9_000), (25, 9_050)):
        feed.note(START + seconds, metrics(sent=sent), None, 11)

    assert page.rates() == [None, 10, None, 10]
    assert feed.history.read("1h", START + 25).columns["sent"][-5:] == [10, None, None, None, 10]


def test_without_a_page_nothing_is_encoded_and_the_history_goes_on() -> None:
    feed, page = Feed("shop"), Page()
    feed.note(START, metrics(sent=0), top(), 11)
    feed.note(START + 5, metrics(sent=50), top(), 11)
    feed.post_findings()

    assert (feed.last, page.frames) == ({}, [])
    assert feed.history.read("1h", START + 5).columns["sent"][-1] == 10


# ---------------------------------------------------------------- the disk


def falling(
    hours: float, *, free: float = 50 * GIB, loss: float = GIB / 3_600, step: int = 60
) -> list[tuple[float, float]]:
    """Readings of free space that sinks by ``loss`` bytes a second down to ``free``."""
    count = round(hours * 3_600 / step) + 1
    return [(START - step * (count - 1 - index), free + loss * step * (count - 1 - index)) for index in range(count)]


def test_a_steady_loss_of_space_says_when_the_disk_is_full() -> None:
    forecast = disk_forecast(falling(6), START)

    assert forecast is not None
    assert forecast.full_at == pytest.approx(START + 50 * 3_600)
    assert forecast.bytes_per_second == pytest.approx(GIB / 3_600)
    assert forecast.observed_seconds == 6 * 3_600


def test_a_short_observation_says_nothing_about_the_far_future() -> None:
    # A quarter of an hour reaches six hours far, and the space lasts 50 hours.
    assert disk_forecast(falling(0.25), START) is None
    assert disk_forecast(falling(0.25, free=4 * GIB), START) is not None


@pytest.mark.parametrize("readings", [[], falling(0.1), [(START - 60 * i, 9.0 * GIB) for i in range(360, 0, -1)]])
def test_without_a_trend_there_is_no_forecast(readings: list[tuple[float, float]]) -> None:
    assert disk_forecast(readings, START) is None


def test_space_that_comes_back_with_each_segment_is_no_trend() -> None:
    sawtooth = [(START - 60 * (359 - index), 20.0 * GIB - (index % 15) * GIB / 10) for index in range(360)]
    # The last quarter of an hour sinks steadily, and alone would say that the disk is full in hours.
    assert disk_forecast(sawtooth, START) is None


def test_growing_space_is_no_forecast() -> None:
    assert disk_forecast(falling(6, loss=-GIB / 36_000), START) is None


def test_a_load_that_began_an_hour_ago_shows_in_spite_of_a_day_of_rest() -> None:
    hour = falling(1, free=10 * GIB)
    rest = [(START - 60 * minutes, hour[0][1]) for minutes in range(24 * 60, 60, -1)]

    forecast = disk_forecast(rest + hour, START)

    assert forecast is not None
    assert forecast.full_at == pytest.approx(START + 10 * 3_600, rel=0.2)


# ---------------------------------------------------------------- queues


def test_a_queue_that_grows_without_consumers_is_found_after_minutes_of_growth() -> None:
    before = top(queue(active=10, age=5, totals={"sent": 10, "received": 3}))
    later = top(queue(active=25, age=5, totals={"sent": 25, "received": 3}))

    assert found_in((0, before), (60, later)) == []
    finding = only(found_in((0, before), (300, later)))

    assert (finding.code, finding.severity, finding.names) == ("no_consumers", "warning", Names("shop", "orders"))
    assert finding.figures == {"active": 25, "age_seconds": 5, "grown": 15, "seconds": 300}


@pytest.mark.parametrize("changes", [{"waiting_receives": 1}, {"in_flight": 2}])
def test_a_queue_with_a_consumer_is_not_without_consumers(changes: dict[str, Any]) -> None:
    before = top(queue(active=10, totals={"sent": 10, "received": 3}))
    later = top(queue(active=25, totals={"sent": 25, "received": 3}, **changes))

    assert found_in((0, before), (300, later)) == []


def test_a_queue_that_was_never_received_from_is_found_without_an_observation() -> None:
    waiting = queue(active=10, age=400, totals={"sent": 10})

    finding = only(found_in((0, top(waiting))))

    assert (finding.code, finding.severity) == ("no_consumers", "notice")
    assert found_in((0, top(queue(active=10, age=100, totals={"sent": 10})))) == []


def test_consumers_that_fall_behind_are_found() -> None:
    before = top(queue(active=100, in_flight=5, totals={"sent": 1_000, "received": 900}))
    later = top(queue(active=900, in_flight=5, totals={"sent": 3_000, "received": 2_100}))

    finding = only(found_in((0, before), (900, later)))

    assert (finding.code, finding.figures["grown"]) == ("consumers_behind", 800)


def test_visibility_timeouts_that_pass_are_found() -> None:
    before = top(queue(in_flight=5, totals={"received": 100, "timed_out": 0}))
    later = top(queue(in_flight=5, totals={"received": 200, "timed_out": 30}))

    finding = only(found_in((0, before), (120, later)))

    assert (finding.code, finding.figures) == ("receives_time_out", {"count": 30, "seconds": 120})


def test_a_dead_letter_queue_that_fills_is_found_and_needs_no_consumer() -> None:
    before = top(queue("dead", active=2, age=4_000, totals={"dead_letters": 2}))
    later = top(queue("dead", active=9, age=4_000, totals={"dead_letters": 9}))

    assert only(found_in((0, before))).code == "dead_letters_wait"
    finding = only(found_in((0, before), (600, later)))

    assert (finding.code, finding.severity, finding.figures["count"]) == ("dead_letters_grow", "warning", 7)


def test_messages_near_the_end_of_their_retention_are_found_in_queues_of_any_size() -> None:
    finding = only(found_in((0, top()), details=Details("shop", [OldQueue("orders", 3_400, 3_600)])))

    assert (finding.code, finding.names) == ("near_retention", Names("shop", "orders"))
    assert finding.figures == {"age_seconds": 3_400, "retention_seconds": 3_600}
    assert found_in((0, top()), details=Details("shop", [OldQueue("orders", 3_400, 36_000)])) == []


def test_dead_letters_of_queues_that_are_not_among_the_largest_are_found_once() -> None:
    details = Details("shop", dead_letter_queues=[DeadLetterQueue("dead", 2, 50), DeadLetterQueue("empty", 0, 0)])

    assert only(found_in((0, top()), details=details)).figures == {"active": 2, "age_seconds": 50}
    ranked = top(queue("dead", active=3, age=60, totals={"dead_letters": 3}))
    assert only(found_in((0, ranked), details=details)).figures == {"active": 3, "age_seconds": 60}


def test_a_queue_that_others_name_as_their_dead_letter_queue_needs_no_consumer() -> None:
    filled_by_hand = (0.0, top(queue("dead", active=3, age=900, totals={"sent": 3})))
    details = Details("shop", dead_letter_queues=[DeadLetterQueue("dead", 3, 900)])

    assert only(found_in(filled_by_hand)).code == "no_consumers"
    assert only(found_in(filled_by_hand, details=details)).code == "dead_letters_wait"
    of_another = found_in(filled_by_hand, details=msgspec.structs.replace(details, account="another"))
    assert {(finding.code, finding.names.account) for finding in of_another} == {
        ("dead_letters_wait", "another"),
        ("no_consumers", "shop"),
    }


def test_messages_that_expired_and_damaged_messages_are_found() -> None:
    before, later = top(queue(totals={"sent": 9})), top(queue(damaged=1, totals={"sent": 9, "expired": 4}))

    assert [finding.code for finding in found_in((0, before), (120, later))] == ["queue_damaged", "messages_expired"]


def test_half_messages_whose_checks_are_used_up_are_found() -> None:
    details = Details("shop", half=[HalfDetail("orders", 2, 7_200), HalfDetail("others", 0, 0)])

    assert only(found_in((0, top()), details=details)).figures == {"count": 2, "age_seconds": 7_200}


# ---------------------------------------------------------------- subscriptions


def test_a_blocked_subscription_is_found_with_its_url_and_last_error() -> None:
    reading = (0.0, top(subscriptions=[subscription(blocked=True, in_retry=2)]))
    detail = SubscriptionDetail("sales", "invoices", "https://example.com/in", "status 500", START + 60)

    finding = only(found_in(reading, details=Details("shop", subscriptions=[detail])))

    assert (finding.code, finding.names) == (
        "subscription_blocked",
        Names("shop", topic="sales", subscription="invoices"),
    )
    assert finding.figures == {
        "waiting": 42,
        "age_seconds": 0,
        "endpoint": "https://example.com/in",
        "last_error": "status 500",
        "next_attempt": START + 60,
    }


def test_failing_and_dropped_deliveries_are_found() -> None:
    before = top(subscriptions=[subscription(totals={"dropped": 1})])
    later = top(subscriptions=[subscription(in_retry=3, totals={"dropped": 5})])

    found = found_in((0, before), (120, later))

    assert [(finding.code, finding.figures.get("count")) for finding in found] == [
        ("deliveries_dropped", 4),
        ("deliveries_fail", None),
    ]
    assert found_in((0, before)) == []


# ---------------------------------------------------------------- the server


def test_refused_sends_and_promised_memory_are_found_at_once() -> None:
    server = ServerMetrics(sends_refused=True, memory_budget_bytes=100, memory_promised_bytes=45)

    assert [finding.code for finding in found_in((0, top()), server=[server])] == ["sends_refused", "memory_promised"]


def test_slow_commits_are_found_by_the_commits_of_the_last_minutes() -> None:
    slow, quick = [400_000] * 50, [400] * 1_000
    before = ServerMetrics(uptime_ms=1_000, commit_us=commits(*quick))
    later = ServerMetrics(uptime_ms=200_000, commit_us=commits(*quick, *slow))

    finding = only(found_in((0, top()), (120, top()), server=[before, later]))

    assert finding.code == "commits_slow"
    assert float(finding.figures["p99_ms"]) > 250
    assert found_in((0, top()), (120, top()), server=[later, msgspec.structs.replace(later, uptime_ms=300_000)]) == []


def test_figures_of_before_a_restart_do_not_count() -> None:
    before = ServerMetrics(uptime_ms=900_000, damaged_total=0)
    later = ServerMetrics(uptime_ms=1_000, damaged_total=3)

    assert found_in((0, top()), (120, top()), server=[before, later]) == []
    last = msgspec.structs.replace(later, uptime_ms=121_000, damaged_total=5)
    found = found_in((0, top()), (120, top()), (240, top()), server=[before, later, last])
    assert only(found).figures == {"count": 2, "seconds": 120}


@pytest.mark.parametrize(("days", "severity"), [(0.5, "critical"), (4, "warning")])
def test_a_disk_that_will_be_full_is_found(days: float, severity: str) -> None:
    forecast = DiskForecast(START + days * 86_400, 1_000, 3_600)

    finding = only(found_in((0, top()), server=[ServerMetrics(free_bytes=9)], forecast=forecast))

    assert (finding.code, finding.severity, finding.figures["at"]) == ("disk_full_at", severity, forecast.full_at)


def test_a_disk_that_lasts_for_weeks_is_no_finding() -> None:
    assert found_in((0, top()), server=[ServerMetrics()], forecast=DiskForecast(START + 30 * 86_400, 1, 9)) == []


# ---------------------------------------------------------------- the list


def test_the_console_has_a_sentence_for_each_kind_of_finding() -> None:
    texts = files("cmqd_gateway.console").joinpath("static/pages/overview.text.js").read_text()

    assert set(re.findall(r"'overview\.finding\.(\w+)'", texts)) == set(get_args(Code))


def test_the_readings_of_the_last_hour_are_few_and_span_the_hour() -> None:
    findings = Findings()
    for minute in range(300):
        letters = top(queue("dead", active=1, totals={"dead_letters": minute}))
        findings.note(START + 60 * minute, metrics(), letters)

    assert findings.readings <= 30
    finding = only(findings.found(Details(), None))
    assert 55 * 60 <= float(finding.figures["seconds"]) <= 61 * 60
    assert finding.figures["count"] == float(finding.figures["seconds"]) / 60


def test_the_most_severe_finding_stands_first_and_keeps_its_first_time() -> None:
    findings = Findings()
    blocked = top(queue("dead", active=2, totals={"dead_letters": 2}), subscriptions=[subscription(blocked=True)])
    for seconds in (0, 10):
        findings.note(START + seconds, metrics(ServerMetrics(sends_refused=seconds == 10)), blocked)
        found = findings.found(Details(), None)

    assert [(finding.code, finding.since - START) for finding in found] == [
        ("sends_refused", 10),
        ("subscription_blocked", 0),
        ("dead_letters_wait", 0),
    ]
    findings.note(START + 20, metrics(), top())
    assert findings.found(Details(), None) == []
    findings.note(START + 30, metrics(), blocked)
    assert {finding.since for finding in findings.found(Details(), None)} == {START + 30}


def test_many_findings_of_a_kind_are_counted_and_not_listed() -> None:
    queues = [queue(f"q{number}", active=1, age=900, totals={"sent": 1}) for number in range(40)]

    found = found_in((0, top(*queues)))

    assert len(found) == MAX_NAMED
    assert [finding.more for finding in found] == [*[0] * (MAX_NAMED - 1), 40 - MAX_NAMED]


def test_only_failing_subscriptions_of_the_own_account_are_asked_for() -> None:
    findings = Findings()
    findings.note(START, metrics(), top(subscriptions=[subscription(in_retry=1), subscription()]))

    assert findings.failing_subscriptions("shop") == [("sales", "invoices")]
    assert findings.failing_subscriptions("another") == []


def test_a_clock_that_is_set_back_begins_the_observation_anew() -> None:
    before = top(queue(active=10, totals={"sent": 10, "received": 3}))
    later = top(queue(active=25, totals={"sent": 25, "received": 3}))

    assert found_in((3_600, before), (0, later)) == []


# ---------------------------------------------------------------- backups


def test_a_backup_whose_last_copy_is_three_intervals_old_is_a_finding() -> None:
    def found(age_ms: int, gaps: int = 0) -> list[Finding]:
        pins = [StandingPinInfo("hourly", 7, age_ms, 60_000, gaps), StandingPinInfo("weekly", None, 1, 60_000, 0)]
        before = [StandingPinInfo("hourly", 7, 0, 60_000, 1)]
        server = [ServerMetrics(uptime_ms=1, standing_pins=before), ServerMetrics(uptime_ms=9, standing_pins=pins)]
        return found_in((0, top()), (60, top()), server=server)

    assert found(180_000) == []
    old = only(found(180_001))
    assert (old.code, old.severity, old.names) == ("backup_old", "warning", Names(backup="hourly"))
    assert old.figures == {"backup": "hourly", "age_seconds": 180.001}
    # Gaps of before the last hour are no news.
    assert found(0, gaps=1) == []
    gap = only(found(0, gaps=2))
    assert (gap.code, gap.names) == ("backup_gap", Names(backup="hourly"))
