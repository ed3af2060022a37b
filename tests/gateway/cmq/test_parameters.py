"""Forms and typed requests of API 2.0."""

from typing import Annotated
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd_gateway.cmq.parameters import (
    MAX_PARAMETERS,
    ActionRequest,
    Items,
    Name,
    RequestReader,
    Size,
    Whole,
    form_steps,
    parse_form,
)
from cmqd_gateway.cmq.reasons import Reason, Refusal
from support.cases import each_case


class Example(ActionRequest, frozen=True):
    text: str
    some_bytes: bytes = b"none"
    whole: Annotated[int, Whole(0, 9)] | None = None
    named: Annotated[str, Name(1, 4, Reason.QUEUE_NAME)] = "n"
    sized: Annotated[str, Size(0, 3)] = ""
    words: Annotated[list[str], Items(1, 3)] = []  # noqa: RUF012, copied by msgspec
    numbers: Annotated[list[Annotated[int, Whole(1, 5)]], Items(1, 3)] = []  # noqa: RUF012, copied by msgspec


def read(**parameters: str | bytes) -> Example:
    form = {name: value if isinstance(value, bytes) else value.encode() for name, value in parameters.items()}
    request = RequestReader(Example).read(form)
    assert isinstance(request, Example)
    return request


def reason_of(**parameters: str | bytes) -> Reason:
    with pytest.raises(Refusal) as refusal:
        read(**({"text": "x"} | parameters))
    return refusal.value.reason


@pytest.mark.parametrize(
    ("parts", "form"),
    [
        ([b"a=1&b=2"], {"a": b"1", "b": b"2"}),
        ([b"a=1", b"b=2"], {"a": b"1", "b": b"2"}),
        ([b"a=%2B+%20%e9&b"], {"a": b"+  \xe9", "b": b""}),
        ([b"&&a==&"], {"a": b"="}),
        ([b"a=1=2%3D%3d"], {"a": b"1=2=="}),
        ([b"a=%"], {"a": b"%"}),
        ([b"a=%4&b=%zz%41"], {"a": b"%4", "b": b"%zzA"}),
        ([b"a%2Eb=x;y"], {"a.b": b"x;y"}),
        ([b"a=x\ny=\r\n"], {"a": b"x\ny=\r\n"}),
        ([b""], {}),
    ],
)
def test_forms_are_decoded(parts: list[bytes], form: dict[str, bytes]):
    assert parse_form(*parts) == form


@given(st.binary(max_size=200))
def test_a_value_decodes_as_by_urllib(raw: bytes):
    value = raw.replace(b"&", b"")

    assert parse_form(b"v=" + value) == {"v": unquote_to_bytes(value.replace(b"+", b" "))}


@given(st.text(alphabet="%0123456789abcdefABCDEF=\n _", max_size=60))
def test_escapes_decode_as_by_urllib(raw: str):
    assert parse_form(b"v=" + raw.encode()) == {"v": unquote_to_bytes(raw)}


@given(st.text(alphabet="%+14aF=", max_size=60), st.integers(3, 9))
def test_a_value_that_is_decoded_in_slices_decodes_as_a_whole(raw: str, size: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cmqd_gateway.cmq.parameters._SLICE", size)
        assert parse_form(b"v=" + raw.encode()) == {"v": unquote_to_bytes(raw.replace("+", " "))}


@pytest.mark.parametrize(
    "part",
    [
        b"v=" + b"%" * 1_000_000,
        b"v=" + b"%41" * 333_333,
        b"&".join(b"v%d=" % number + b"%" * 4_000 for number in range(250)),
    ],
    ids=["percent signs", "escapes", "many values"],
)
def test_a_large_form_leaves_turns_to_other_requests(part: bytes):
    # No call decodes more than a slice, and 20 KiB of percent signs, the slowest bytes, take about 2 ms.
    assert sum(1 for _ in form_steps(part)) >= 49


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (b"a=1&a=2", Reason.NOT_REPEATABLE),
        (b"a=1&%61=2", Reason.NOT_REPEATABLE),
        (b"%ff=1", Reason.KEY_FORMAT),
        (b"n" * 1000 + b"=1", Reason.KEY_FORMAT),
        (b"&".join(b"p%d=" % number for number in range(MAX_PARAMETERS + 1)), Reason.KEY_FORMAT),
        (b"&" * 1_000_000, Reason.KEY_FORMAT),
    ],
    ids=["twice", "twice, escaped", "not UTF-8", "long name", "many", "separators"],
)
def test_malformed_forms_are_refused(part: bytes, reason: Reason):
    with pytest.raises(Refusal) as refusal:
        parse_form(part)

    assert refusal.value.reason is reason
    assert len(refusal.value.message) < 300


def test_a_form_may_have_as_many_parameters_as_the_limit_says():
    assert len(parse_form(b"&".join(b"p%d=" % number for number in range(MAX_PARAMETERS)))) == MAX_PARAMETERS


def test_parameters_have_the_lower_camel_names_of_cmq():
    assert read(text="t", someBytes=b"\xff", whole="9", words="w", numbers="5") == Example(
        "t", b"\xff", 9, words=["w"], numbers=[5]
    )


def test_unknown_parameters_are_ignored():
    assert read(text="t", unknown="1", **{"unknown.1": "2", "UserpollingWaitSeconds": "30"}) == Example("t")


def test_empty_values_are_values_left_out_but_not_for_bytes():
    assert read(text="t", whole="", sized="", someBytes=b"") == Example("t", b"")
    assert reason_of(text="") is Reason.MISSING_PARAMETER


@each_case(
    ("parameters", "reason"),
    [
        ({"text": b"\xff"}, Reason.WRONG_TYPE),
        ({"whole": "10"}, Reason.OUT_OF_RANGE),
        ({"whole": "-1"}, Reason.OUT_OF_RANGE),
        ({"whole": "1.0"}, Reason.WRONG_TYPE),
        ({"whole": "\u0661"}, Reason.WRONG_TYPE),
        ({"whole": "9" * 30}, Reason.WRONG_TYPE),
        ({"named": "a b"}, Reason.QUEUE_NAME),
        ({"named": "abcde"}, Reason.QUEUE_NAME),
        ({"named": "é"}, Reason.QUEUE_NAME),
        ({"named": "a\n"}, Reason.QUEUE_NAME),
        ({"sized": "éé"}, Reason.OUT_OF_RANGE),
        ({"text.1": "x"}, Reason.NOT_REPEATABLE),
        ({f"words.{number}": "w" for number in range(4)}, Reason.BATCH_SIZE),
        ({"words.1": "a", "words.3": "c"}, Reason.NOT_CONSECUTIVE),
        ({"words.2": "a"}, Reason.NOT_CONSECUTIVE),
        ({"words.999999999": "a"}, Reason.NOT_CONSECUTIVE),
        ({"words.-1": "a"}, Reason.KEY_FORMAT),
        ({"words.": "a"}, Reason.KEY_FORMAT),
        ({"words.1.2": "a"}, Reason.KEY_FORMAT),
        ({"words": "a", "words.0": "b"}, Reason.KEY_FORMAT),
        ({"numbers.1": "6"}, Reason.OUT_OF_RANGE),
    ],
)
def test_values_out_of_range_are_refused(parameters: dict[str, str | bytes], reason: Reason):
    assert reason_of(**parameters) is reason


def test_lists_begin_at_0_or_1_in_the_order_of_their_indexes():
    assert read(text="t", **{"words.2": "b", "words.1": "a"}).words == ["a", "b"]
    assert read(text="t", **{"words.0": "a", "words.1": "b", "words.2": "c"}).words == ["a", "b", "c"]
