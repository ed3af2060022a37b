"""Bodies, queries and headers of the JSON API: each wrong value is refused with the name of its field."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd_gateway.http.turns import at_once
from cmqd_gateway.rest.problems import Problem, ProblemError
from cmqd_gateway.rest.reading import count_steps, read_body, read_idempotency_key, read_query
from cmqd_gateway.rest.table import OPERATIONS
from cmqd_gateway.rest.types import (
    AuditQuery,
    Decisions,
    HandleRequest,
    HandlesRequest,
    ListQuery,
    Nothing,
    PeekQuery,
    PublishMessages,
    ReceiveMessages,
    Rewind,
    RewindPreviewQuery,
    SendMessage,
    SendMessages,
    SetKey,
)
from cmqd_gateway.rest.values import body_bytes, json_body
from support.cases import each_case


def body(value: Any, kind: type[Any]) -> Any:
    return read_body("application/json", None, json.dumps(value).encode(), kind)


def refused(value: Any, kind: type[Any]) -> Problem:
    with pytest.raises(ProblemError) as caught:
        body(value, kind)
    assert caught.value.problem.status == 400
    return caught.value.problem


def test_an_empty_body_is_a_request_without_fields():
    assert read_body(None, None, b"", ReceiveMessages) == ReceiveMessages()
    with pytest.raises(ProblemError, match="body is missing"):
        read_body(None, None, b"", SendMessage)


def many(entry: str, count: int, name: str) -> bytes:
    return b'{"%s": [%s]}' % (name.encode(), b",".join([entry.encode()] * count))


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (many('"1"', 100_000, "receipt_handles"), HandlesRequest),
        (many('{"body":""}', 100_000, "messages"), SendMessages),
        (many('"\\\\"', 100_000, "receipt_handles"), HandlesRequest),
        (b'{"body": "x", "headers": {%s}}' % b",".join(b'"%d":""' % number for number in range(10_000)), SendMessage),
        (b'{"body": "x", %s}' % b",".join([b'"delay": 1'] * 10_000), SendMessage),
    ],
    ids=["handles", "messages", "escaped backslashes", "headers", "repeated fields"],
)
def test_far_too_many_entries_are_refused_before_they_are_decoded(raw: bytes, kind: type[Any]):
    with pytest.raises(ProblemError, match="too many entries") as caught:
        at_once(count_steps(raw, kind))

    assert (caught.value.problem.status, caught.value.problem.name) == (400, "invalid_argument")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"body": 'say "yes" \\' * 200_000}, SendMessage),
        ({"body": '"' * 1_000_000}, SendMessage),
        ({"body": "\\" * 1_000_000}, SendMessage),
        (
            {"messages": [{"body": '{"id": "1"}' * 300, "headers": {f"h{n}": "v" for n in range(32)}}] * 256},
            SendMessages,
        ),
        ({"receipt_handles": ["1" * 19] * 256}, HandlesRequest),
    ],
    ids=["escapes", "quotes", "backslashes", "the largest batch", "handles"],
)
@pytest.mark.parametrize("at_once_bytes", [999, 262_144])
def test_large_bodies_with_few_entries_are_counted_right(
    value: Any, kind: type[Any], at_once_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    # The small slices cut escaped quotes apart.
    monkeypatch.setattr("cmqd_gateway.rest.reading._COUNTED_AT_ONCE", at_once_bytes)

    at_once(count_steps(json.dumps(value).encode(), kind))


@each_case("operation", [operation for operation in OPERATIONS if operation.body.__struct_fields__])
def test_each_list_of_a_request_has_a_limit(operation: Any):
    # 20 KB of short strings: no operation but the batches of messages takes as many.
    raw = b'{"x": [%s]}' % b",".join([b'""'] * 25_000)

    with pytest.raises(ProblemError, match="too many entries"):
        at_once(count_steps(raw * 2, operation.body))


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/xml"])
def test_another_content_type_is_refused(content_type: str | None):
    with pytest.raises(ProblemError) as caught:
        read_body(content_type, None, b"{}", ReceiveMessages)

    assert (caught.value.problem.status, caught.value.problem.name) == (415, "unsupported_media_type")
    assert "application/json" in caught.value.problem.detail


def test_another_charset_is_refused():
    assert read_body("application/json", "UTF-8", b"{}", ReceiveMessages) == ReceiveMessages()
    with pytest.raises(ProblemError, match="charset=utf-16"):
        read_body("application/json", "utf-16", b"{}", ReceiveMessages)


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"{}x",
        b'{"body": "\xff"}',
        b'{"body": "\\ud800"}',
        b"[" * 50_000,
        b"\x00",
        b'{"wait": NaN}',
        b"\xff\xfe{}",
    ],
)
def test_bytes_that_are_not_json_are_refused(raw: bytes):
    with pytest.raises(ProblemError) as caught:
        read_body("application/json", None, raw, SendMessage)

    assert (caught.value.problem.status, caught.value.problem.name) == (400, "malformed_json")


WRONG: list[tuple[Any, type[Any], str | None, str]] = [
    ({"bdy": "x"}, SendMessage, "bdy", '"bdy" is not a field of this request; known are body, encoding,'),
    ({}, SendMessage, "body", "body is missing"),
    ({"body": 5}, SendMessage, "body", "body must be a string, not 5"),
    ({"body": "x", "delay": "5"}, SendMessage, "delay", 'delay must be a number or null, not "5"'),
    ({"body": "x", "delay": -1}, SendMessage, "delay", "delay must be a number >= 0, not -1"),
    ({"body": "x", "delay": 1e300}, SendMessage, "delay", "delay must be a number <= 1000000000"),
    ({"body": "x", "encoding": "hex"}, SendMessage, "encoding", 'encoding must be one of base64, utf-8, not "hex"'),
    ({"body": "x", "at": "now"}, SendMessage, "at", "at must be a time with its offset from UTC, like 2027-"),
    ({"body": "x", "at": "2027-01-01T00:00:00"}, SendMessage, "at", "at must be a time with"),
    ({"body": "x", "headers": {"a": "b", "c": 7}}, SendMessage, "headers.c", "headers.c must be a string, not 7"),
    ([], SendMessage, None, "the request must be an object, not a list"),
    ("a whole message", SendMessage, None, "the request must be an object, not a string"),
    (None, SendMessage, None, "the request must be an object, not null"),
    (
        {"messages": [{"body": "a"}, {"bdy": "b"}]},
        SendMessages,
        "messages[1].bdy",
        '"messages[1].bdy" is not a field',
    ),
    ({"messages": [{}]}, SendMessages, "messages[0].body", "messages[0].body is missing"),
    (
        {"messages": [{"body": "a", "tags": ["b", 1]}]},
        PublishMessages,
        "messages[0].tags[1]",
        "messages[0].tags[1] must be a string, not 1",
    ),
    ({"messages": [{"body": "a", "headers": {"n": 1}}]}, SendMessages, "messages[0].headers.n", "must be a string"),
    ({"enabled": "yes"}, SetKey, "enabled", 'enabled must be true or false, not "yes"'),
    ({"max_messages": 1.5}, ReceiveMessages, "max_messages", "max_messages must be an integer, not 1.5"),
    ({"max_messages": -1}, ReceiveMessages, "max_messages", "max_messages must be an integer >= 0, not -1"),
    (
        {"max_messages": 2**70},
        ReceiveMessages,
        "max_messages",
        "max_messages must be an integer <= 4294967295",
    ),
    ({"max_messages": None}, ReceiveMessages, "max_messages", "max_messages must be an integer, not null"),
    ({"receipt_handle": "x1"}, HandleRequest, "receipt_handle", 'must be a decimal number in a string, not "x1"'),
]


@each_case(("value", "kind", "field", "detail"), WRONG)
def test_a_wrong_field_is_refused_with_its_name(value: Any, kind: type[Any], field: str | None, detail: str):
    problem = refused(value, kind)

    assert problem.field == field
    assert detail in problem.detail
    assert (problem.name, problem.code) == ("invalid_argument", 200)


@pytest.mark.parametrize(
    ("value", "kind", "field"),
    [
        ({"receipt_handle": 7786329135173459053}, HandleRequest, "receipt_handle"),
        ({"receipt_handle": 2**70}, HandleRequest, "receipt_handle"),
        ({"receipt_handle": 1.5}, HandleRequest, "receipt_handle"),
        ({"receipt_handles": ["1", 2]}, HandlesRequest, "receipt_handles[1]"),
        ({"decisions": [{"message_id": 17, "decision": "commit"}]}, Decisions, "decisions[0].message_id"),
    ],
)
def test_a_number_in_place_of_an_id_is_refused_with_the_reason(value: Any, kind: type[Any], field: str):
    problem = refused(value, kind)

    assert problem.field == field
    assert problem.detail.startswith(f'{field} must be a string, write "')
    assert "float of 53 bits" in problem.detail


def test_an_error_repeats_no_long_value():
    assert len(refused({"body": "x", "delay": "9" * 10_000}, SendMessage).detail) < 300
    assert len(refused({"x" * 10_000: 1}, SendMessage).detail) < 300


def test_a_large_wrong_body_is_refused_without_its_value():
    large = {"receipt_handles": [*["1"] * 100_000, 5]}
    problem = refused(large, HandlesRequest)
    assert problem.detail.startswith("receipt_handles[100000] must be a string: many JSON libraries")
    assert refused({"body": "x" * 70_000, "delay": "5"}, SendMessage).detail == "delay must be a number or null"
    headers = {"body": "x" * 70_000, "headers": {"a": 1}}
    assert refused(headers, SendMessage).detail == "headers[...] must be a string"


def test_an_operation_without_a_body_takes_none():
    with pytest.raises(ProblemError, match="takes no body"):
        body({"name": "x"}, Nothing)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["body", "messages", "headers", "receipt_handles", "decisions"]), inner)
        ),
        max_leaves=10,
    )
)
def test_any_json_is_read_or_refused(value: Any):
    for operation in OPERATIONS:
        with contextlib.suppress(ProblemError):
            read_body("application/json", None, msgspec.json.encode(value), operation.body)


# ---------------------------------------------------------------- queries


def test_a_query_is_read_with_its_types():
    assert read_query([("search", "a"), ("limit", "5")], ListQuery) == ListQuery(search="a", limit=5)
    assert read_query([("states", "active"), ("states", "half")], PeekQuery) == PeekQuery(states=["active", "half"])
    assert read_query([("start", "12")], PeekQuery) == PeekQuery(start="12")


@pytest.mark.parametrize(
    ("pairs", "field", "detail"),
    [
        ([("srch", "x")], "srch", '"srch" is not a query parameter here; known are search, offset, limit'),
        ([("limit", "5"), ("limit", "6")], "limit", "the query parameter limit is given twice"),
        ([("limit", "many")], "limit", 'limit must be an integer, not "many"'),
        ([("offset", "-1")], "offset", "offset must be an integer >= 0"),
    ],
)
def test_a_wrong_query_is_refused_with_the_parameter(pairs: list[tuple[str, str]], field: str, detail: str):
    with pytest.raises(ProblemError) as caught:
        read_query(pairs, ListQuery)

    assert caught.value.problem.field == field
    assert detail in caught.value.problem.detail


# ---------------------------------------------------------------- idempotency keys


def test_quotes_are_no_part_of_an_idempotency_key():
    assert read_idempotency_key(['"8e03978e"']) == read_idempotency_key(["8e03978e"]) == "8e03978e"
    assert read_idempotency_key([]) is None


@pytest.mark.parametrize("values", [[""], ['""'], ["x" * 65], ["ä"], ["a\tb"], ["a", "b"]])
def test_a_wrong_idempotency_key_is_refused(values: list[str]):
    with pytest.raises(ProblemError) as caught:
        read_idempotency_key(values)

    assert caught.value.problem.field == "Idempotency-Key"


# ---------------------------------------------------------------- bodies of messages


@given(st.binary())
def test_bytes_round_trip_exactly(content: bytes):
    text, encoding = json_body(content)

    over_the_wire = msgspec.json.decode(msgspec.json.encode(text))
    assert body_bytes(over_the_wire, encoding) == content
    assert (encoding == "utf-8") == _is_text(content)


@given(st.text())
def test_text_is_sent_as_it_is(content: str):
    assert json_body(content.encode()) == (content, "utf-8")


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


@each_case("number", [b"1e999", b"-1e999", b"9" * 400, b"9" * 5_000, b"-" + b"9" * 5_000])
@each_case("form", [b'{"body":%s}', b'{"body":"x","delay":%s}', b'{"body":"x","nothing":[%s]}', b"%s"])
def test_a_number_that_no_double_holds_is_a_problem(form: bytes, number: bytes) -> None:
    with pytest.raises(ProblemError) as refused:
        read_body("application/json", None, form % number, SendMessage)
    assert refused.value.problem.status == 400
    assert len(refused.value.problem.detail) < 300


TIMES = [
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "1969-12-31T23:59:59.999Z",
    "1970-01-01T00:00:00+00:01",
    "9999-01-01T00:00:00Z",
    "9998-12-31T23:59:59-00:01",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-14:00",
]


@pytest.mark.parametrize("time", TIMES)
def test_a_time_outside_the_years_1970_to_9998_is_a_problem(time: str) -> None:
    for value, kind, field in (
        ({"time": time}, Rewind, "time"),
        ({"at": time, "body": "x"}, SendMessage, "at"),
        ({"at": time, "messages": [{"body": "x"}]}, SendMessages, "at"),
    ):
        problem = refused(value, kind)
        assert problem.field == field
        assert problem.detail.startswith(f"{field} must be a time from 1970 to 9998, not ")
    query: type[Any]
    for query, field in ((RewindPreviewQuery, "time"), (AuditQuery, "since"), (AuditQuery, "until")):
        with pytest.raises(ProblemError, match=f"{field} must be a time from 1970 to 9998"):
            read_query([(field, time)], query)


@pytest.mark.parametrize("number", ["253402300800", "1e300", "-1e18", "nan", "1e999"])
def test_a_number_in_place_of_a_time_is_a_problem(number: str) -> None:
    with pytest.raises(ProblemError) as refused:
        read_query([("until", number)], AuditQuery)
    assert (refused.value.problem.status, refused.value.problem.field) == (400, "until")


def test_two_wrong_times_are_a_problem() -> None:
    for pairs in ([("since", "x"), ("until", "253402300800")], [("since", "253402300800"), ("until", "x")]):
        with pytest.raises(ProblemError) as refused:
            read_query(pairs, AuditQuery)
        assert refused.value.problem.status == 400


def test_the_times_of_all_requests_are_checked() -> None:
    """Times stand at the top of a request, where ``reading`` looks for them."""

    def nested(info: msgspec.inspect.Type, depth: int) -> int:
        match info:
            case msgspec.inspect.DateTimeType():
                return depth
            case msgspec.inspect.Metadata():
                return nested(info.type, depth)
            case msgspec.inspect.UnionType():
                return max(nested(part, depth) for part in info.types)
            case msgspec.inspect.StructType():
                return max((nested(field.type, depth + 1) for field in info.fields), default=0)
            case msgspec.inspect.ListType():
                return nested(info.item_type, depth + 1)
            case _:
                return 0

    kinds = {kind for operation in OPERATIONS for kind in (operation.query, operation.body)}
    assert {nested(msgspec.inspect.type_info(kind), 0) for kind in kinds} == {0, 1}
