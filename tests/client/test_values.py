"""Durations, times, URLs and attributes: conversions without a server."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cmqd_client import connect
from cmqd_client.address import Address, parse_address
from cmqd_client.attributes import queue_attributes
from cmqd_client.durations import Duration, to_datetime, to_ms


@pytest.mark.parametrize(
    ("duration", "milliseconds"),
    [
        (0, 0),
        (1, 1000),
        (1.5, 1500),
        (1.1, 1100),
        (0.2999999, 300),
        (0.0001, 1),
        (-1, -1000),
        (timedelta(hours=2, milliseconds=5), 7_200_005),
        (timedelta(microseconds=1), 1),
    ],
)
def test_a_duration_becomes_milliseconds(duration: Duration, milliseconds: int) -> None:
    assert to_ms(duration, "wait") == milliseconds


@pytest.mark.parametrize("duration", [float("nan"), float("inf"), 1e300])
def test_a_duration_must_be_finite(duration: float) -> None:
    with pytest.raises(ValueError, match="wait is"):
        to_ms(duration, "wait")


@pytest.mark.parametrize("duration", ["1", None, True])
def test_a_duration_must_be_a_number(duration: Any) -> None:
    with pytest.raises(TypeError, match="wait must be seconds"):
        to_ms(duration, "wait")


def test_wire_times_are_exact_to_the_millisecond() -> None:
    assert to_datetime(1_700_000_000_123) == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


def test_a_url_is_read() -> None:
    assert parse_address("cmq://AKIDx:k%2Fey@example.org") == Address(
        secret_id="AKIDx", secret_key="k/ey", host="example.org", port=5680
    )
    address = parse_address("cmq://a:b@[::1]:99/?region=eu-1&tls=1")
    assert (address.host, address.port, address.region, address.tls) == ("::1", 99, "eu-1", True)


@pytest.mark.parametrize(
    "url", ["cmq://AKIDx:k%2Fey@example.org:5680", "cmq://a:b@[::1]:99/?region=eu-1&tls=1", "cmq://a:b@h:5680/?tls=1"]
)
def test_a_url_is_written_as_it_is_read(url: str) -> None:
    assert parse_address(url).url() == url


def test_the_secret_is_not_shown() -> None:
    address = parse_address("cmq://AKIDx:very-secret@example.org")
    for shown in (str(address), repr(address), repr(connect(address))):
        assert "very-secret" not in shown
        assert "AKIDx" in shown


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://a:secret@h", "must start with cmq://"),
        ("a:secret@h", "must start with cmq://"),
        ("cmq://h", "names no key pair"),
        ("cmq://a@h", "names no key pair"),
        ("cmq://a:secret@", "names no host"),
        ("cmq://a:secret@h/queue", "must have none"),
        ("cmq://a:secret@h?colour=red", "unknown option 'colour'"),
        ("cmq://a:secret@h?tls=maybe", "tls is 'maybe'"),
        ("cmq://a:secret@h:99999", "malformed"),
        ("cmq://a:secret@[h", "malformed"),
    ],
)
def test_a_wrong_url_is_refused_without_showing_its_secret(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"connections": 0}, {"connections": 65}, {"retries": -1}, {"request_timeout": 0}, {"connect_timeout": 0}],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        connect("cmq://a:b@h", **options)


def test_attributes_have_milliseconds_on_the_wire() -> None:
    assert queue_attributes({"retention": timedelta(days=4), "delay": 0.5, "max_delayed": 7}) == {
        "retention_ms": 345_600_000,
        "delay_ms": 500,
        "max_delayed": 7,
    }


@pytest.mark.parametrize("value", ["7", 7.0, True])
def test_counts_must_be_whole_numbers(value: Any) -> None:
    with pytest.raises(TypeError, match="max_delayed must be an int"):
        queue_attributes({"max_delayed": value})
