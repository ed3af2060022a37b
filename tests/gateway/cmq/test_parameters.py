"""Forms of API 2.0, and the reading of forms and of Python values into typed requests."""

from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd_gateway.cmq.api2.form import MAX_PARAMETERS, FormReader, form_steps, parse_form
from cmqd_gateway.cmq.parameters import Items, Name, OperationRequest, Size, TypedReader, Whole
from cmqd_gateway.cmq.reasons import Reason, Refusal
from support.cases import each_case


class Example(OperationRequest, frozen=True):
    text: str
    some_bytes: bytes = b"none"
    whole: Annotated[int, Whole(0, 9)] | None = None
    named: Annotated[str, Name(1, 4, Reason.QUEUE_NAME)] = "n"
    sized: Annotated[str, Size(0, 3)] = ""
    words: Annotated[list[str], Items(1, 3)] = []  # noqa: RUF012, copied by msgspec
    numbers: Annotated[list[Annotated[int, Whole(1, 5)]], Items(1, 3)] = []  # noqa: RUF012, copied by msgspec


def read(**parameters: str | bytes) -> Example:
    form = {name: value if isinstance(value, bytes) else value.encode() for name, value in parameters.items()}
    request = FormReader(Example).read(form)
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
        patch.setattr("cmqd_gateway.cmq.api2.form._SLICE", size)
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


class Twins(OperationRequest, frozen=True):
    kind: str
    words: Annotated[list[str], Items(1, 3)]


@pytest.mark.parametrize(
    ("form", "kind", "words"),
    [
        ({"kind": b"a", "kint": b"b", "words": b"c", "word": b"d"}, "a", ["c"]),
        ({"kint": b"b", "word.1": b"d", "word.2": b"e"}, "b", ["d", "e"]),
        ({"kind": b"", "kint": b"b", "word": b"d"}, "b", ["d"]),
    ],
)
def test_a_parameter_may_have_a_second_spelling(form: dict[str, bytes], kind: str, words: list[str]):
    assert FormReader(Twins, {"kint": "kind", "word": "words"}).read(form) == Twins(kind, words)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"words": b"c"}, "kind"),
        ({"kint": b"b"}, "words.n"),
        ({"kint": b"b", **{f"word.{number}": b"" for number in range(4)}}, "word has 4 entries; the range is 1 to 3"),
        ({"kint.1": b"b", "word": b"c"}, "the parameter kint is not a list, but the request has 'kint.1'"),
    ],
)
def test_a_refusal_names_the_spelling_of_the_request(form: dict[str, bytes], text: str):
    with pytest.raises(Refusal) as refusal:
        FormReader(Twins, {"kint": "kind", "word": "words"}).read(form)

    assert refusal.value.detail == text


def shown(field: str) -> str:
    return field.title()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"Text": "t"}, Example("t")),
        ({"Text": b"t", "Some_Bytes": "b", "Whole": None, "Unknown": 1}, Example("t", b"b")),
        (
            {"Text": "", "Whole": 9, "Words": ["w"], "Numbers": [1, 5]},
            Example("", whole=9, words=["w"], numbers=[1, 5]),
        ),
    ],
)
def test_values_are_read(values: dict[str, Any], expected: Example):
    assert TypedReader(Example, shown).read(values) == expected


@pytest.mark.parametrize(
    ("values", "reason", "text"),
    [
        ({"Text": None}, Reason.MISSING_PARAMETER, "Text"),
        ({"Text": 1}, Reason.WRONG_TYPE, "Text is 1; it must be text"),
        ({"Text": b"\xff"}, Reason.WRONG_TYPE, "Text is not UTF-8"),
        ({"Whole": "1"}, Reason.WRONG_TYPE, "Whole is '1'; it must be a whole number"),
        ({"Whole": True}, Reason.WRONG_TYPE, "Whole is True; it must be a whole number"),
        ({"Whole": 1.5}, Reason.WRONG_TYPE, "Whole is 1.5; it must be a whole number"),
        ({"Whole": {}}, Reason.WRONG_TYPE, "Whole is an object; it must be a whole number"),
        ({"Whole": 10}, Reason.OUT_OF_RANGE, "Whole is 10; the range is 0 to 9"),
        ({"Named": ""}, Reason.QUEUE_NAME, "Named is ''; it must be 1 to 4 letters, digits, - or _"),
        ({"Sized": "\u20ac\u20ac"}, Reason.OUT_OF_RANGE, "Sized has 6 bytes; the range is 0 to 3"),
        ({"Words": "w"}, Reason.WRONG_TYPE, "Words is 'w'; it must be a list"),
        ({"Words": []}, Reason.BATCH_SIZE, "Words has 0 entries; the range is 1 to 3"),
        ({"Words": ["w", ["w"]]}, Reason.WRONG_TYPE, "Words.1 is a list; it must be text"),
        ({"Numbers": [1, 6]}, Reason.OUT_OF_RANGE, "Numbers.1 is 6; the range is 1 to 5"),
        ({"Whole": "9" * 1000}, Reason.WRONG_TYPE, f"Whole is '{'9' * 40}'; it must be a whole number"),
    ],
)
def test_wrong_values_are_refused_in_the_names_of_the_door(values: dict[str, Any], reason: Reason, text: str):
    with pytest.raises(Refusal) as refusal:
        TypedReader(Example, shown).read({"Text": "x"} | values)

    assert (refusal.value.reason, refusal.value.detail) == (reason, text)
