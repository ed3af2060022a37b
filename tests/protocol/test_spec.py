"""SPEC.md agrees with the code: every named operation, field, code and limit is compared."""

import re
from pathlib import Path
from typing import Any

import pytest

from cmqd.core import filter_matching
from cmqd.core.facts import retry_schedule
from cmqd.core.limits import Limits
from cmqd.core.urls import MAX_URL_LENGTH
from cmqd.server.clients.transaction_checkers import MAX_REGISTRATIONS
from cmqd.server.handlers.subscriptions import DEFAULT_OVERLAP_MS, MAX_OVERLAP_MS
from cmqd.server.loop.cron import HORIZON_YEARS, MAX_EXPRESSION_BYTES
from cmqd.settings import Settings
from cmqd_protocol import limits, messages
from cmqd_protocol.features import (
    ADDRESSES_FACT,
    EPOCH_FACT,
    FEATURES_FACT,
    FIELD_FEATURES,
    MAX_WAITING_REQUESTS_FACT,
    SHARD_FACT,
    ClientFeature,
    Feature,
)
from cmqd_protocol.messages import MESSAGE_TYPES, REQUEST_TYPES, operation_name
from cmqd_protocol.protocol_errors import RETRYABLE, ErrorCode
from cmqd_types.actors import MAX_CLIENT_HOST, MAX_CLIENT_NAME
from cmqd_types.attributes import ScheduleAttributes
from cmqd_types.deliveries import DeliveryReport, PendingMessage
from cmqd_types.inspection import ConnectionInfo, SettingInfo, WaitingReceiveInfo
from cmqd_types.messages import CopyOf, HalfMessage, Origin, PeekedMessage, ReceivedMessage
from cmqd_types.metrics import Histogram, QueueMetrics, ServerMetrics, SubscriptionMetrics, TopicMetrics
from cmqd_types.queues import QueueSummary
from cmqd_types.schedules import ScheduleSummary
from cmqd_types.topics import QueueSubscription
from cmqd_types.totals import QueueTotals, SubscriptionTotals, TopicTotals
from support.cases import each_case
from support.protocol.vectors import load

SPEC = (Path(__file__).parents[2] / "protocol" / "SPEC.md").read_text(encoding="utf-8")

_ERROR_ROW = re.compile(r"^\| (\d{3}) \| `(\w+)` \| ([\w. ]+) \| (yes|no) \|", re.MULTILINE)
_THEME_ROW = re.compile(r"^\| (\d+)(?:-(\d+))? \| (.+) \|$", re.MULTILINE)


def section(opcode: int) -> str:
    """The part of the document about an operation: from its heading or bold name to the next."""
    name = f"`{operation_name(MESSAGE_TYPES[opcode])}` ({opcode})"
    found = re.split(rf"^(?:#### {re.escape(name)}|\*\*{re.escape(name)}\*\*)", SPEC, flags=re.MULTILINE)
    assert len(found) == 2, f"{name} should head one part of SPEC.md"
    return re.split(r"^(?:#{2,4} |\*\*`\w+` \(\d+\)\*\*)", found[1], maxsplit=1, flags=re.MULTILINE)[0]


def number(text: str) -> int:
    return int(text.replace(",", ""))


@each_case("opcode", MESSAGE_TYPES)
def test_every_operation_is_described_with_every_field(opcode: int) -> None:
    described = section(opcode)

    fields = [name for name in MESSAGE_TYPES[opcode].__struct_fields__ if name != "request_id"]
    for name in fields:
        assert re.search(rf"\b{name}\b", described), f"operation {opcode} does not tell of {name}"


@each_case("opcode", REQUEST_TYPES)
def test_every_request_names_its_reply(opcode: int) -> None:
    [reply] = set(re.findall(r"Reply\s+`(\w+)`", section(opcode)))

    assert reply in {operation_name(kind) for opcode, kind in MESSAGE_TYPES.items() if opcode >= 192}


@each_case(
    "struct",
    [
        ReceivedMessage,
        PeekedMessage,
        Origin,
        CopyOf,
        messages.TransactionFailure,
        HalfMessage,
        QueueSubscription,
        PendingMessage,
        DeliveryReport,
        ScheduleSummary,
        messages.KeyInfo,
        QueueSummary,
        QueueMetrics,
        SubscriptionMetrics,
        TopicMetrics,
        Histogram,
        QueueTotals,
        TopicTotals,
        SubscriptionTotals,
        ConnectionInfo,
        WaitingReceiveInfo,
        SettingInfo,
    ],
)
def test_every_field_inside_a_reply_is_described(struct: Any) -> None:
    for index, name in enumerate(struct.__struct_fields__):
        assert re.search(rf"\b{index} `{name}`|^\| {index} \| {name} \|", SPEC, flags=re.MULTILINE), name


@each_case("name", ServerMetrics.__struct_fields__)
def test_every_figure_of_the_server_is_listed(name: str) -> None:
    assert f"`{name}`" in SPEC.partition("The figures of `server` are")[2].partition("\n\n")[0]


def test_every_error_code_is_in_the_table_with_its_name_and_whether_to_retry() -> None:
    rows = {int(code): (name, retry == "yes") for code, name, _, retry in _ERROR_ROW.findall(SPEC)}

    assert rows == {int(code): (code.wire_name, code in RETRYABLE) for code in ErrorCode}


def test_codes_below_200_close_the_connection_and_no_others_always() -> None:
    ends = {int(code): end for code, _, end, _ in _ERROR_ROW.findall(SPEC)}

    assert {code for code, end in ends.items() if end == "conn."} == {code for code in ends if code < 200}
    assert set(ends.values()) == {"conn.", "request", "both", "in a reply"}


def test_every_code_that_a_request_lists_exists() -> None:
    known = {code.wire_name for code in ErrorCode}

    for opcode in REQUEST_TYPES:
        errors = section(opcode).partition("Errors: ")[2]
        assert set(re.findall(r"`(\w+)`", errors)) <= known


def test_the_number_space_is_that_of_the_code() -> None:
    part = SPEC.partition("| operations | theme |")[2].partition("\n\n")[0]
    rows = {(int(first), int(last or first)): text for first, last, text in _THEME_ROW.findall(part)}

    # The document leaves out number 0, because 0 is no operation.
    assert [number for first, last in rows for number in range(first, last + 1)] == list(range(1, 256))
    theme_of = {number: text for (first, last), text in rows.items() for number in range(first, last + 1)}
    assert [theme_of[opcode] for opcode in MESSAGE_TYPES if "reserved" in theme_of[opcode]] == []
    assert {opcode for opcode in MESSAGE_TYPES if opcode >= 192} == {
        opcode for opcode in MESSAGE_TYPES if "replies" in theme_of[opcode] or "error" in theme_of[opcode]
    }
    for name in ("topics", "transactions", "consumer streams", "rewind"):
        assert any(name in text for text in rows.values())


@each_case(
    "value",
    [
        limits.HANDSHAKE_FRAME_BYTES,
        limits.MIN_MAX_FRAME_BYTES,
        limits.MAX_MAX_FRAME_BYTES,
        limits.MAX_REQUEST_ID,
        limits.MIN_HEARTBEAT_MS,
        limits.MAX_HEARTBEAT_MS,
        Limits().max_batch_bytes,
        Limits().max_headers_bytes,
        Limits().max_delay_ms,
        Limits().max_wait_ms,
        Limits().min_visibility_timeout_ms,
        Limits().max_visibility_timeout_ms,
        Limits().max_in_flight,
        Limits().max_list,
        Limits().session_answers,
        Limits().max_sessions,
        Limits().max_dedup_ids,
        Limits().max_check_interval_ms,
        MAX_REGISTRATIONS,
        Limits().max_topics_per_account,
        Limits().max_subscriptions,
        Limits().topic_life_ms,
        MAX_URL_LENGTH,
        MAX_OVERLAP_MS,
    ],
)
def test_a_limit_is_written_as_it_is(value: int) -> None:
    assert re.search(rf"(?<![\d,]){value:,}(?![\d,])", SPEC)


def test_small_limits_are_written_as_they_are() -> None:
    assert limits.AUTHENTICATION_TIMEOUT_MS == 5_000
    assert "within **5 s**" in SPEC
    assert (limits.MAX_BATCH, Limits().max_batch) == (256, 256)
    assert SPEC.count("**1-256**") >= 5
    assert limits.MAX_BATCH_BYTES == Limits().max_batch_bytes == 1_048_576
    assert "of a batch are **1,048,576** bytes at most" in SPEC
    assert (limits.MAX_HEADERS, Limits().max_headers) == (32, 32)
    assert "at most **32** headers" in SPEC
    assert f"at most {limits.MAX_ATTRIBUTES} entries" in SPEC
    assert limits.MAX_NAME_BYTES == limits.MAX_SECRET_ID_BYTES == 128
    assert f'at most {MAX_CLIENT_NAME} characters `= ""` | name of the client' in SPEC
    assert f'at most {MAX_CLIENT_HOST} characters `= ""` | address of the client' in SPEC
    assert Limits().session_life_ms == 10 * 60_000
    assert "**10 minutes**" in SPEC
    assert Limits().dedup_life_ms == 5 * 60_000
    assert "**5 minutes**" in SPEC
    assert (limits.MAX_DEDUP_ID_BYTES, Limits().max_dedup_id_bytes) == (64, 64)
    assert "**1-64** bytes" in SPEC
    assert "Names of topics have **3-64**, names of subscriptions **1-64** ASCII" in " ".join(SPEC.split())
    assert (Limits().max_queues_per_account, Limits().max_topics_per_account) == (10_000, 10_000)
    assert "| queues per account | 10,000 |" in SPEC
    assert "at most **10,000** accounts, an account at most **100** keys" in SPEC
    assert Limits().max_dead_letter_sources == 6
    assert "at most **6** queues" in SPEC


def test_the_limits_and_defaults_of_topics_are_written_as_they_are() -> None:
    chapter = " ".join(SPEC.partition("### 7.4 Topics")[2].partition("### 7.5")[0].split())
    assert filter_matching.TAG_CHARACTERS == 16
    assert "**1-16** code points" in chapter
    assert Limits().max_tags == 10
    assert "at most **10** different tags" in chapter
    assert (filter_matching.KEY_BYTES, filter_matching.KEY_WORDS) == (64, 16)
    assert "**1-64** bytes of UTF-8 and at most 15 dots, that is **16** words" in chapter
    assert (retry_schedule.DECAY_ATTEMPTS, retry_schedule.LONGEST_GAP_MS) == (177, 512_000)
    assert "tried again up to **176** times, after 1, 2, 4, ... 512, 512, ... s" in chapter
    assert retry_schedule.BACKOFF_ATTEMPTS == 4
    assert "tried again up to **3** times" in chapter
    assert (Settings(data=Path()).push_timeout_ms, Settings(data=Path()).max_pushes_per_endpoint) == (15_000, 16)
    assert "Any 2xx within 15 s" in chapter
    assert "At most 16 requests to one URL" in chapter
    assert DEFAULT_OVERLAP_MS == 24 * 3_600_000
    assert "`= null` (a day)" in chapter


def test_the_limits_and_attributes_of_schedules_are_written_as_they_are() -> None:
    chapter = " ".join(SPEC.partition("### 7.7 Schedules")[2].partition("## 8 ")[0].split())

    assert f"at most **{Limits().max_schedules_per_account:,}** schedules" in chapter
    assert f"| schedules per account | {Limits().max_schedules_per_account:,} | `too_many_schedules` |" in SPEC
    assert f"at most {MAX_EXPRESSION_BYTES} bytes" in chapter
    assert f"within {HORIZON_YEARS} years" in chapter
    assert re.findall(r"\| `([a-z]+)` \|", chapter) == list(ScheduleAttributes.__struct_fields__)
    assert ScheduleAttributes().zone == "UTC"


def test_the_waiting_requests_that_a_server_takes_by_default_are_written_as_they_are() -> None:
    default = limits.DEFAULT_MAX_WAITING_REQUESTS

    assert Settings(data=Path()).max_requests_per_connection == default
    assert f"by default\n  {default:,}): `too_many_requests`" in SPEC
    assert f"| requests waiting, per connection | `max_waiting_requests` of the welcome ({default:,}) |" in SPEC


def test_every_fact_and_feature_is_in_a_table() -> None:
    chapter = SPEC.partition("### 4.4")[2].partition("### 4.5")[0]
    facts, features, words = (part.partition("\n\n")[0] for part in re.split(r"\|(?: --- \|)+\n", chapter)[1:4])

    assert set(re.findall(r"^\| `(\w+)` \|", facts, re.MULTILINE)) == {
        MAX_WAITING_REQUESTS_FACT,
        FEATURES_FACT,
        SHARD_FACT,
        EPOCH_FACT,
        ADDRESSES_FACT,
    }
    assert set(re.findall(r"^\| `(\w+)` \|", features, re.MULTILINE)) == set(Feature)
    assert set(re.findall(r"^\| `(\w+)` \|", words, re.MULTILINE)) == set(ClientFeature)


@pytest.mark.parametrize(("kind", "fields"), FIELD_FEATURES.items())
def test_a_field_of_a_feature_has_a_default_and_its_word_is_known(kind: Any, fields: dict[str, str]) -> None:
    names = kind.__struct_fields__
    optional = names[len(names) - len(kind.__struct_defaults__) :]

    assert set(fields) <= set(optional)
    assert set(fields.values()) <= set(Feature)


def test_the_worked_example_is_the_golden_vector() -> None:
    [plain] = [vector for vector in load("handshake") if vector["name"] == "plain"]
    example = SPEC.partition("### 4.5")[2].partition("```")[2].partition("```")[0]

    said, transcript = example.split("transcript:")
    nonces = (("000102..1f", plain["server_nonce"]), ("202122..3f", plain["client_nonce"]))
    for short, whole in nonces:
        said, transcript = said.replace(short, whole), transcript.replace(short, whole)
    hexadecimal = r"(?<![\w\"])(?:[0-9a-f]{2})+(?![\w\"])"
    # Left of two spaces stand the bytes, right of them their meaning.
    sent = "".join(
        "".join(re.findall(hexadecimal, re.split(r"\s{3,}\S*[A-Z\"a-z0-9]", line[3:].strip() + "   x")[0]))
        for line in said.splitlines()
    )

    assert sent == "".join(step["bytes"] for step in plain["steps"])
    assert "".join(transcript.split()) == plain["transcript"]
