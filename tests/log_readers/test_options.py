"""Every option is checked before any read, and a refusal names the option."""

import pickle
import re
import time

import pytest

from cmqd_log.errors import DataLossError, FolderError, OptionError, masked
from cmqd_log.options import LAST_LSN, Mode, Options, parse_options
from support.cases import each_case


def parsed(**options: str) -> Options:
    return parse_options({"path": "data", **options})


def test_defaults():
    assert parsed() == Options("data")


def test_names_come_in_any_case():
    assert parsed(INCLUDEACTIVE="True", batchrows="10").include_active
    assert parsed(BatchRows="10").batch_rows == 10


def test_names_of_queues():
    assert parsed(queue="a, b").queues == ("a", "b")
    assert parsed(topic="t").topics == ("t",)
    assert parsed(queuePattern="a.*").queue_pattern == "a.*"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20.5Z", 1_700_000_000_500),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000_000),
        ("2023-11-15T00:00+00:00", 1_700_006_400_000),
    ],
)
def test_times(text: str, expected: int):
    assert parsed(startingTimestamp=text).starting_ms == expected


@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize("text", ["2023-11-15T09:30", "2023-11-15T09:30:00", "2023-11-15"])
def test_a_time_without_a_zone_is_refused_with_both_readings(option: str, text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        with pytest.raises(OptionError, match="names no zone") as refused:
            parsed(**{option: text})
    finally:
        monkeypatch.undo()
        time.tzset()

    assert refused.value.option == option
    in_utc, local = re.findall(r"2023-11-15T[\d:]+[+][\d:]+", str(refused.value))
    assert (in_utc[-6:], local[-6:]) == ("+00:00", "+08:00")
    eight_hours = 8 * 3_600_000
    assert (parsed(startingTimestamp=in_utc).starting_ms or 0) - eight_hours == parsed(
        startingTimestamp=local
    ).starting_ms


def test_rows():
    assert parsed(startingLsn="5", endingLsn="9").starting_lsn == 5
    assert parsed(startingLsn="earliest").starting_lsn == "earliest"
    assert parsed(endingLsn="latest").ending_lsn == LAST_LSN
    assert parsed(mode="Backlog").mode is Mode.BACKLOG


def test_no_error_tells_a_key():
    url = "cmq://ID1:a-key@host:5680"
    for options in ({"url": url}, {"queue": "q", "minPartitions": url}, {"startingTimestamp": url}):
        with pytest.raises(OptionError) as refused:
            parsed(**options)
        assert "a-key" not in f"{refused.value} {refused.value!r} {refused.value.args} {refused.value.value}"

    for error in (
        FolderError("the manifest of s3://ID1:a-key@bucket/data cannot be read"),
        DataLossError("rows 1 to 2 of http://ID1:a-/key@host/data were reclaimed"),
        OptionError("queue", "x", "the log of ftp://ID1:a-key@host/data has no queue of this name"),
    ):
        assert "key" not in f"{error} {error!r}"
        assert "://***@" in str(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)

    assert masked("say cmq://ID:KEY@host:port, or a@b") == "say cmq://ID:KEY@host:port, or a@b"


@each_case(
    ("options", "culprit"),
    [
        ({"path": ""}, "path"),
        ({"qname": "a"}, "qname"),
        ({"queue": "a", "topic": "t"}, "topic"),
        ({"queue": "a,"}, "queue"),
        ({"queuePattern": "("}, "queuePattern"),
        ({"queuePattern": ""}, "queuePattern"),
        ({"startingLsn": "-1"}, "startingLsn"),
        ({"startingLsn": "9", "endingLsn": "8"}, "endingLsn"),
        ({"startingLsn": "9", "startingTimestamp": "2023-11-15"}, "startingTimestamp"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"startingTimestamp": "1700000000"}, "startingTimestamp"),
        ({"startingTimestamp": "2023-11-15T00Z", "endingTimestamp": "2023-11-14T00Z"}, "endingTimestamp"),
        ({"routingKey": ""}, "routingKey"),
        ({"routingKey": "eu.#", "tags": "a"}, "routingKey"),
        ({"mode": "everything"}, "mode"),
        ({"mode": "all", "topic": "t"}, "topic"),
        ({"includeActive": "yes"}, "includeActive"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"batchRows": "1.5"}, "batchRows"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger"),
    ],
)
def test_what_is_refused(options: dict[str, str], culprit: str):
    with pytest.raises(OptionError) as refused:
        parse_options({"path": "data", **options})

    assert refused.value.option.lower() == culprit.lower()
    assert repr(culprit).lower() in str(refused.value).lower()
