"""Values of parameters by their kinds, from JSON and from forms."""

from typing import Any

import pytest

from cmqd_gateway.cmq.api3.faults import Code, Fault
from cmqd_gateway.cmq.api3.parameters import Kind, Parameter, read_values
from cmqd_gateway.cmq.api3.request_values import form_values
from support.cases import each_case


def by_name(*parameters: Parameter) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in parameters}


PARAMETERS = by_name(
    Parameter("Name", is_required=True),
    Parameter("Count", Kind.NUMBER),
    Parameter("Trace", Kind.TRUTH),
    Parameter("MsgTag", Kind.TEXTS),
    Parameter("Tags", Kind.TAGS),
    Parameter("Filters", Kind.FILTERS),
)
VALUES: dict[str, Any] = {
    "Name": "orders é",
    "Count": -5,
    "Trace": False,
    "MsgTag": ["a", ""],
    "Tags": [{"TagKey": "a", "TagValue": ""}],
    "Filters": [{"Name": "tag:a", "Values": ["x", "y"]}],
}


def test_values_of_json_keep_their_kinds():
    assert read_values(PARAMETERS, VALUES, "Action") == VALUES


@pytest.mark.parametrize(("true", "false"), [("true", "false"), ("True", "False")])
def test_values_of_a_form_become_their_kinds(true: str, false: str):
    form = {
        "Name": "orders é", "Count": "-5", "Trace": false, "MsgTag.0": "a", "MsgTag.1": "", "Tags.0.TagKey": "a",
        "Tags.0.TagValue": "", "Filters.0.Name": "tag:a", "Filters.0.Values.0": "x", "Filters.0.Values.1": "y",
    }  # fmt: skip

    def read(form: dict[str, str]) -> dict[str, Any]:
        return read_values(PARAMETERS, form_values({name: text.encode() for name, text in form.items()}), "Action")

    assert read(form) == VALUES
    assert read(form | {"Trace": true})["Trace"] is True


def test_null_and_optional_texts_and_lists_without_content_are_absent():
    parameters = by_name(
        Parameter("a"), Parameter("b", Kind.TEXTS), Parameter("c"), Parameter("Name", is_required=True)
    )

    assert read_values(parameters, {"a": "", "b": [], "c": None, "Name": ""}, "Action") == {"Name": ""}


@each_case(
    ("changes", "code", "text"),
    [
        ({"Name": None}, Code.MISSING_PARAMETER, "the parameter Name of Action is missing"),
        ({"name": "a"}, Code.UNKNOWN_PARAMETER, "Action has no parameter 'name'; its parameters are Name, Count,"),
        ({"x" * 5_000: 1}, Code.UNKNOWN_PARAMETER, "Action has no parameter 'xxx"),
        ({"Name": 5}, Code.INVALID_PARAMETER_VALUE, "Name must be a text, not a number"),
        ({"Name": ["a"]}, Code.INVALID_PARAMETER_VALUE, "Name must be a text, not a list"),
        ({"Name": {}}, Code.INVALID_PARAMETER_VALUE, "Name must be a text, not an object"),
        ({"Count": "5"}, Code.INVALID_PARAMETER_VALUE, "Count must be a whole number, not '5'"),
        ({"Count": 5.0}, Code.INVALID_PARAMETER_VALUE, "Count must be a whole number, not 5.0"),
        ({"Count": True}, Code.INVALID_PARAMETER_VALUE, "Count must be a whole number, not true"),
        ({"Count": 1 << 63}, Code.INVALID_PARAMETER_VALUE, "Count must be a whole number of 64 bits"),
        ({"Count": -(10**4_000)}, Code.INVALID_PARAMETER_VALUE, "Count must be a whole number of 64 bits"),
        ({"Trace": 0}, Code.INVALID_PARAMETER_VALUE, "Trace must be true or false, not a number"),
        ({"Trace": "false"}, Code.INVALID_PARAMETER_VALUE, "Trace must be true or false, not 'false'"),
        ({"MsgTag": "a"}, Code.INVALID_PARAMETER_VALUE, "MsgTag must be a list of texts, not 'a'"),
        ({"MsgTag": ["a", 1]}, Code.INVALID_PARAMETER_VALUE, "MsgTag.1 must be a text, not a number"),
        ({"Tags": ["a"]}, Code.INVALID_PARAMETER_VALUE, "Tags.0 must be an object with TagKey and TagValue"),
        ({"Tags": [{"Key": "a"}]}, Code.UNKNOWN_PARAMETER, "'Tags.0.Key' is unknown; Tags.0 has TagKey and TagValue"),
        (
            {"Filters": [{"Values": [[]]}]},
            Code.INVALID_PARAMETER_VALUE,
            "Filters.0.Values.0 must be a text, not a list",
        ),
        ({"Name": b"\xff"}, Code.INVALID_PARAMETER_VALUE, "Name is not UTF-8"),
        ({"Count": b"5.0"}, Code.INVALID_PARAMETER_VALUE, "Count must be a whole number, not '5.0'"),
        ({"Count": b""}, Code.INVALID_PARAMETER_VALUE, "Count must be a whole number, not ''"),
        ({"Count": b"-"}, Code.INVALID_PARAMETER_VALUE, "Count must be a whole number, not '-'"),
        ({"Count": b"9" * 5_000}, Code.INVALID_PARAMETER_VALUE, "Count must be a whole number, not '999"),
        ({"Count": b"9223372036854775808"}, Code.INVALID_PARAMETER_VALUE, "Count must be a whole number of 64 bits"),
        ({"Count": "٣".encode()}, Code.INVALID_PARAMETER_VALUE, "Count must be a whole number, not '٣'"),
        ({"Trace": b"1"}, Code.INVALID_PARAMETER_VALUE, "Trace must be true or false, not '1'"),
        ({"MsgTag": b"a"}, Code.INVALID_PARAMETER_VALUE, "MsgTag must be a list of texts, not 'a'"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_another_value_is_refused_with_the_name_of_its_parameter(changes: dict[str, Any], code: Code, text: str):
    with pytest.raises(Fault) as fault:
        read_values(PARAMETERS, VALUES | changes, "Action")

    assert fault.value.code is code
    assert fault.value.message.startswith(text)
    assert len(fault.value.message) < 250
