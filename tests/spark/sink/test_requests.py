"""Arrow batches as requests. No Spark."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportMissingModuleSource=false

import pickle
from typing import Any

import pyarrow as pa
import pytest

from cmqd_log.copy.requests import MAX_REQUEST_BYTES, Request
from pyspark_cmqd.sending.default_ids import DefaultIds, DoubledRowsError
from pyspark_cmqd.sending.sink_requests import ColumnError, RowError, chosen_columns, requests_of

pytestmark = pytest.mark.spark

HEADERS = pa.map_(pa.string(), pa.string())
TAGS = pa.list_(pa.string())


def batch(**columns: Any) -> pa.RecordBatch:
    types = {"headers": HEADERS, "tags": TAGS}
    return pa.RecordBatch.from_arrays(
        [pa.array(values, type=types.get(name)) for name, values in columns.items()], names=list(columns)
    )


def requests(
    most: int = 256, first_row: int = 0, *, defaults: DefaultIds | None = None, **columns: Any
) -> list[Request]:
    made = batch(**columns)
    return list(
        requests_of(made, {name: name for name in columns}, defaults or DefaultIds("row-", "write"), first_row, most)
    )


def test_rows_are_cut_into_requests_and_named_by_their_place() -> None:
    found = requests(2, 10, body=[b"a", b"bb", b"c"])

    assert [one.bodies for one in found] == [[b"a", b"bb"], [b"c"]]
    assert [one.dedup_ids for one in found] == [["row-10", "row-11"], ["row-12"]]
    assert [one.size for one in found] == [3, 1]
    assert found[0].headers is found[0].delays is found[0].tags is found[0].routing_keys is None


def test_text_is_sent_as_utf8() -> None:
    (found,) = requests(body=["größe"])
    assert found.bodies == ["größe".encode()]


def test_a_request_keeps_to_the_size_and_a_large_message_goes_alone() -> None:
    large = b"x" * (MAX_REQUEST_BYTES // 2)
    found = requests(body=[large, large, b"a", b"x" * (MAX_REQUEST_BYTES + 1), b"b", b"c"])

    assert [[len(body) for body in one.bodies] for one in found] == [
        [len(large), len(large)],
        [1],
        [MAX_REQUEST_BYTES + 1],
        [1, 1],
    ]
    assert [name for one in found for name in one.dedup_ids] == [f"row-{row}" for row in range(6)]


def test_headers_count_for_the_size() -> None:
    headers = [[("k", "v" * 100)], None, []]
    (found,) = requests(body=[b"a", b"b", b"c"], headers=headers)
    assert found.headers == [{"k": "v" * 100}, None, None]
    assert found.size == 3 + 101

    many = [[(f"{number}", "ö" * 4000)] for number in range(200)]
    assert len(requests(body=[b"a"] * 200, headers=many)) == 2


def test_labels_and_delays_are_those_of_each_row() -> None:
    (found,) = requests(body=[b"a", b"b"], tags=[["red", "big"], None], delay=[1, None])
    assert (found.tags, found.delays) == ([["red", "big"], []], [1.0, None])

    first, second = requests(1, body=[b"a", b"b"], routing_key=["a.b", None])
    assert (first.routing_keys, second.routing_keys) == (["a.b"], None)

    (found,) = requests(body=[b"a"], tags=pa.array([None], TAGS), routing_key=pa.array([None], pa.string()))
    assert (found.tags, found.routing_keys) == (None, None)


def test_a_row_may_bring_its_own_dedup_id() -> None:
    (found,) = requests(body=[b"a", b"b"], dedup_id=["order-1", None])
    assert found.dedup_ids == ["order-1", "row-1"]

    (found,) = requests(body=[b"a", b"b"], dedup_id=[7, 8])
    assert found.dedup_ids == ["7", "8"]


@pytest.mark.parametrize(
    ("columns", "column", "row", "text"),
    [
        ({"body": [b"a", None]}, "body", 101, "is null"),
        ({"body": [b"a", b""]}, "body", 101, "is empty"),
        ({"body": [b"a"], "dedup_id": ["x" * 65]}, "dedup_id", 100, "1 to 64 bytes"),
        ({"body": [b"a"], "dedup_id": [""]}, "dedup_id", 100, "1 to 64 bytes"),
        ({"body": [b"a"], "delay": [-1]}, "delay", 100, "must not be negative"),
        ({"body": [b"a"], "delay": [float("nan")]}, "delay", 100, "must not be negative"),
        ({"body": [b"a"], "headers": [[("k", None)]]}, "headers", 100, "null value"),
        ({"body": [b"a"], "tags": [["a", None]]}, "tags", 100, "a tag that is null"),
    ],
)
def test_a_value_that_cannot_be_sent_is_named(columns: dict[str, Any], column: str, row: int, text: str) -> None:
    with pytest.raises(RowError, match=text) as refused:
        requests(first_row=100, **columns)
    assert (refused.value.column, refused.value.row) == (column, row)


def log_rows(*pairs: tuple[int | None, int | None]) -> dict[str, Any]:
    return {
        "body": [b"x"] * len(pairs),
        "lsn": pa.array([lsn for lsn, _ in pairs], pa.int64()),
        "row_index": pa.array([index for _, index in pairs], pa.int32()),
    }


def test_a_row_of_a_log_has_its_name_and_other_rows_have_their_place() -> None:
    defaults = DefaultIds("place-", "monday", "0123abcd")

    (found,) = requests(defaults=defaults, **log_rows((7, 0), (7, 300), (None, 1), (2, None), (-1, 0)))

    write = defaults.by_row[:8]
    assert found.dedup_ids == [
        *(f"{write}:0123abcd:7:0", f"{write}:0123abcd:7:300"),
        *("place-2", "place-3", "place-4"),
    ]
    assert defaults.rows.names(9) == ["7:0", "7:300"]
    longest = requests(defaults=DefaultIds("", "", "0123abcd"), **log_rows((2**55 - 1, 2**31 - 1)))
    assert len(longest[0].dedup_ids[0]) <= 48


def test_an_id_of_the_user_goes_before_the_name_of_a_row_and_may_repeat() -> None:
    columns = log_rows((7, 0), (7, 0), (7, 0))

    (found,) = requests(defaults=DefaultIds("", "w", "0123abcd"), dedup_id=["mine", "mine", None], **columns)

    assert [name[-13:] for name in found.dedup_ids] == ["mine", "mine", ":0123abcd:7:0"]


def test_a_row_of_a_log_that_comes_twice_ends_it_before_the_second() -> None:
    defaults = DefaultIds("", "w")
    assert len(requests(defaults=defaults, **log_rows((7, 0), (7, 1), (8, 0)))) == 1
    with pytest.raises(DoubledRowsError, match=r"twice: 7:1, 8:0 \(lsn:row_index\)\. The broker answers a repeat"):
        requests(defaults=defaults, **log_rows((7, 1), (9, 0), (8, 0)))

    with pytest.raises(DoubledRowsError, match="twice: 9:600 "):
        requests(defaults=DefaultIds("", "w"), **log_rows((9, 600), (8, 0), (9, 600)))


def test_columns_are_those_of_a_log_by_name_and_type_alone() -> None:
    columns = {"body": "body"}

    def chosen(**types: str) -> dict[str, str]:
        return chosen_columns({"body": "string", **types}, columns, frozenset({"body"}), ("body",))

    assert chosen(lsn="bigint", row_index="int") == {"body": "body", "lsn": "lsn", "row_index": "row_index"}
    assert chosen(lsn="string", row_index="int") == chosen(lsn="bigint") == chosen(row_index="int") == columns


def test_no_rows_make_no_request() -> None:
    assert requests(body=pa.array([], pa.binary())) == []


def test_errors_reach_the_driver_whole() -> None:
    for error in (RowError("body", 3, "is null"), ColumnError("body", "is missing"), DoubledRowsError("7:0")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
