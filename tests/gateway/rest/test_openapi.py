"""The OpenAPI document of the JSON API: generated from the table, complete, and without unused types."""

import json
import re
from html import unescape
from typing import Any

import pytest

from cmqd_gateway.rest import openapi, reference
from cmqd_gateway.rest.operation import Operation
from cmqd_gateway.rest.table import BASE, OPERATIONS
from cmqd_types.attributes import QUEUE, SUBSCRIPTION
from cmqd_types.inspection import ORIGINS
from support.cases import each_case
from support.gateway.rest_calls import RestCalls

DOCUMENT = openapi.build()


def operation_id(operation: Operation[Any, Any, Any]) -> str:
    return operation.name


def test_the_document_is_served_as_it_is_built():
    assert json.loads(openapi.document()) == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"


def test_names_and_routes_are_unique():
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    assert len({(operation.method, operation.path) for operation in OPERATIONS}) == len(OPERATIONS)


@each_case("operation", OPERATIONS, ids=operation_id)
def test_an_operation_is_described(operation: Operation[Any, Any, Any]):
    described = DOCUMENT["paths"][BASE + operation.path][operation.method.lower()]

    assert described["operationId"] == operation.name == operation.run.__name__  # pyright: ignore[reportFunctionMemberAccess]
    assert described["summary"]
    assert described["description"]
    assert ("requestBody" in described) == bool(operation.body.__struct_fields__)
    assert {str(status) for status in operation.statuses} <= set(described["responses"])
    assert {"400", "401", "403", "429", "503"} <= set(described["responses"])
    names = [parameter["name"] for parameter in described.get("parameters", []) if parameter["in"] == "path"]
    assert names == re.findall(r"\{(\w+)\}", operation.path)
    headers = [parameter["name"] for parameter in described.get("parameters", []) if parameter["in"] == "header"]
    assert headers == (["Idempotency-Key"] if operation.idempotency else [])


def test_every_schema_is_used_and_every_reference_leads_to_a_schema():
    text = json.dumps(DOCUMENT)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', text))

    assert references == set(DOCUMENT["components"]["schemas"])


def test_the_description_of_a_text_has_the_words_that_the_text_can_be():
    for schema, field, words in (
        ("Setting", "origin", ORIGINS),
        ("SubscriptionInfo", "protocol", SUBSCRIPTION["protocol"].choices),
        ("SubscriptionInfo", "strategy", SUBSCRIPTION["strategy"].choices),
    ):
        described = DOCUMENT["components"]["schemas"][schema]["properties"][field]["description"]
        assert [word for word in words if f"`{word}`" not in described] == [], described


def test_ids_and_handles_are_strings_in_every_schema():
    ids = re.compile(r"(^|_)(id|handle|start)$")
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for field, kind in schema["properties"].items():
            if ids.search(field):
                kinds = kind.get("anyOf", [kind])
                assert {entry["type"] for entry in kinds} <= {"string", "null"}, (name, field)


def test_requests_refuse_unknown_fields():
    for operation in OPERATIONS:
        if operation.body.__struct_fields__:
            assert DOCUMENT["components"]["schemas"][operation.body.__name__]["additionalProperties"] is False


def test_generators_of_clients_require_no_optional_field_and_do_not_name_their_package_cmqd_client():
    assert DOCUMENT["info"]["title"] == "cmqd JSON API"
    bodies = [operation.body.__name__ for operation in OPERATIONS if operation.body.__struct_fields__]
    fields: list[dict[str, Any]] = []
    for name in bodies:
        fields += DOCUMENT["components"]["schemas"][name]["properties"].values()
    for field in fields:
        for kind in [field, field.get("items", {}), *field.get("anyOf", [])]:
            if reference := kind.get("$ref", ""):
                fields += DOCUMENT["components"]["schemas"][reference.rpartition("/")[2]].get("properties", {}).values()
            assert "default" not in kind, kind


def test_attributes_of_queues_have_the_ranges_and_defaults_of_the_broker():
    fields = DOCUMENT["components"]["schemas"]["QueueAttributes"]["properties"]
    assert {attribute.argument for attribute in QUEUE.values()} == set(fields)
    for name, attribute in QUEUE.items():
        field = fields[attribute.argument]
        scale = 1000 if name.endswith("_ms") else 1
        assert field["x-default"] * scale == attribute.default, name
        if attribute.is_number:
            assert (field["minimum"] * scale, field["maximum"] * scale) == (attribute.low, attribute.high), name


HANDLE = {"receipt_handle": "1"}


@pytest.mark.parametrize(
    ("operation", "schema", "needed", "field", "lowest", "highest"),
    [
        ("receive_messages", "ReceiveMessages", {}, "max_messages", 1, 256),
        ("receive_messages", "ReceiveMessages", {}, "wait", 0, 30),
        ("receive_messages", "ReceiveMessages", {}, "visibility_timeout", 1, 43_200),
        ("change_visibility", "ChangeVisibility", HANDLE, "timeout", 0, 43_200),
        ("change_visibilities", "ChangeVisibilities", {"receipt_handles": ["1"]}, "timeout", 0, 43_200),
        ("send_half_message", "SendHalfMessage", {"body": "x"}, "first_check", 1, 3_600),
        ("start_redrive", "StartRedrive", {}, "max_per_second", 1, 1_000_000),
    ],
)
async def test_ranges_of_requests_are_those_of_the_broker(
    rest: RestCalls, operation: str, schema: str, needed: dict[str, Any], field: str, lowest: float, highest: float
):
    """The console checks the fields of its forms by these ranges."""
    described = DOCUMENT["components"]["schemas"][schema]["properties"][field]
    assert (described["minimum"], described["maximum"]) == (lowest, highest)

    await rest.ok("create_queue", queue="halves", body={"transactional": True})
    step = 1 if field.startswith("max_") else 0.001
    for outside in [highest + step, *([lowest - step] if lowest > 0 else [])]:
        problem = await rest.refused(operation, queue="halves", body={**needed, field: outside})
        assert (problem.status, problem.field) == (400, field)
        assert problem.detail.startswith(field)


def test_a_field_is_described_in_its_own_words():
    properties = DOCUMENT["components"]["schemas"]["QueueAttributes"]["properties"]

    assert properties["retention"]["description"].startswith("Life of a message")
    assert len({field["description"] for field in properties.values()}) == len(properties)


# ---------------------------------------------------------------- the page


PAGE = reference.page().decode()


def test_the_page_loads_its_style_sheet_alone_and_runs_no_script():
    loaded = re.findall(r'<link[^>]*href="([^"]*)"', PAGE)

    assert set(loaded) == {"data:,", "reference.css"}
    assert not re.search(r"<script|<style|<img|\bon\w+=|\bsrc=|\bstyle=", PAGE), "the policy forbids it"


def test_the_policy_of_the_page_forbids_scripts_and_requests():
    parts = [part.partition(" ") for part in reference.CONTENT_SECURITY_POLICY.split("; ")]
    directives = {name: sources for name, _, sources in parts}

    assert directives["default-src"] == "'none'"
    assert "script-src" not in directives
    assert "connect-src" not in directives
    assert directives["style-src"] == "'self'"


def test_the_page_has_every_operation_and_type_and_every_link_leads_somewhere():
    targets = set(re.findall(r'id="([^"]*)"', PAGE))

    assert {operation.name for operation in OPERATIONS} <= targets
    assert {f"type-{name}" for name in DOCUMENT["components"]["schemas"]} <= targets
    assert set(re.findall(r'href="#([^"]*)"', PAGE)) <= targets


def test_the_bodies_of_the_commands_have_the_required_fields():
    commands = [unescape(text) for text in re.findall(r"<pre><code>(.*?)</code></pre>", PAGE, re.DOTALL)]
    first_words = [command.partition(" -H ")[0] for command in commands]
    by_request = dict(zip(first_words, commands, strict=True))

    assert len(by_request) == len(OPERATIONS)
    for operation in OPERATIONS:
        path = re.sub(r"\{(\w+)\}", lambda parameter: parameter[1].upper(), operation.path)
        command = by_request[f'curl -X {operation.method} "$CMQD{BASE}{path}"']
        if operation.body.__struct_fields__:
            body = json.loads(command.partition(" -d '")[2].removesuffix("'"))
            schema = DOCUMENT["components"]["schemas"][operation.body.__name__]
            assert set(body) == set(schema.get("required", [])), operation.name
        else:
            assert " -d " not in command


def test_text_of_the_document_is_escaped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(openapi.PARAMETERS, "queue", "<b>`a < b`</b>")  # pyright: ignore[reportArgumentType]

    page = reference.page().decode()

    assert "&lt;b&gt;<code>a &lt; b</code>&lt;/b&gt;" in page
    assert "<b>" not in page
