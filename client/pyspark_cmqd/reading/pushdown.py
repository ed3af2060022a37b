"""Filters of a query as narrower options, which let through at least the messages of the filters. Spark applies the
filters again.

Comparisons of ``account``, ``queue``, ``lsn`` and ``enqueue_ts`` with constants narrow the options. All other filters
are left to Spark, and so are times without a zone, because only Spark knows the zone of its session.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from cmqd_log.options import Options


def narrowed(options: Options, filters: Iterable[Filter]) -> Options:
    """Return the options, narrowed to the messages that the filters can let through."""
    for one in filters:
        column = getattr(one, "attribute", ())
        if column == ("queue",):
            options = replace(options, only_queues=_common(options.only_queues, _names_in(one)))
        elif column == ("account",):
            options = replace(options, only_accounts=_common(options.only_accounts, _names_in(one)))
        elif column == ("lsn",):
            options = _by_lsn(options, one)
        elif column == ("enqueue_ts",):
            options = _by_time(options, one)
    return options


def _names_in(one: Filter) -> frozenset[str] | None:
    """Return the names that a filter lets through; None = any."""
    if isinstance(one, EqualTo | EqualNullSafe) and isinstance(one.value, str):
        return frozenset({one.value})
    if isinstance(one, In):
        return frozenset(value for value in one.value if isinstance(value, str))
    return None


def _common(names: frozenset[str] | None, others: frozenset[str] | None) -> frozenset[str] | None:
    """Return the names that are in both sets; None = any name."""
    if names is None or others is None:
        return others if names is None else names
    return names & others


def _by_lsn(options: Options, one: Filter) -> Options:
    first, last = options.only_lsns
    value = getattr(one, "value", None)
    if not isinstance(value, int):
        return options
    if isinstance(one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        first = max(first, value)
    if isinstance(one, EqualTo | EqualNullSafe | LessThan | LessThanOrEqual):
        last = min(last, value)
    return replace(options, only_lsns=(first, last))


def _by_time(options: Options, one: Filter) -> Options:
    value: Any = getattr(one, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return options
    at_ms = int((value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    starting_ms, ending_ms = options.starting_ms, options.ending_ms
    if isinstance(one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        # A constant may have microseconds, and the options have milliseconds: a millisecond more on either side.
        starting_ms = max(at_ms - 1, starting_ms or 0)
    if isinstance(one, EqualTo | EqualNullSafe | LessThan | LessThanOrEqual):
        ending_ms = at_ms + 2 if ending_ms is None else min(ending_ms, at_ms + 2)
    return replace(options, starting_ms=starting_ms, ending_ms=ending_ms)
