"""The OpenAPI document of the JSON API: generated from the table, complete, and without unused types."""

import json
import re
from typing import Any

import pytest

from cmqd_gateway.rest import openapi
from cmqd_gateway.rest.operation import Operation
from cmqd_gateway.rest.page import CONTENT_SECURITY_POLICY, page_files
from cmqd_gateway.rest.table import BASE, OPERATIONS

DOCUMENT = openapi.build()


def operation_id(operation: Operation[Any, Any, Any]) -> str:
    return operation.name


def test_the_document_is_served_as_it_is_built():
    assert json.loads(openapi.document()) == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"


def test_names_and_routes_are_unique():
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    assert len({(operation.method, operation.path) for operation in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS, ids=operation_id)
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


# ---------------------------------------------------------------- the page


def test_the_page_loads_its_own_files_alone():
    page = page_files()[""].content.decode()
    referenced = re.findall(r'(?:src|href|spec-url)="([^"]*)"', page)

    assert set(referenced) == {"data:,", "page.css", "rapidoc-9.3.8.min.js", "openapi.json"}
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=", page), "the policy forbids inline code"


def test_the_policy_of_the_page_forbids_requests_to_other_hosts():
    parts = [part.partition(" ") for part in CONTENT_SECURITY_POLICY.split("; ")]
    directives = {name: sources for name, _, sources in parts}

    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == directives["connect-src"] == "'self'"
    sources = {source for sources in directives.values() for source in sources.split()}
    assert sources == {"'none'", "'self'", "'unsafe-inline'", "data:"}


def test_the_vendored_file_has_its_licence():
    files = page_files()

    assert b"RapiDoc 9.3.8" in files["rapidoc-9.3.8.min.js"].content[:200]
    licence = files["rapidoc-9.3.8.LICENSE.txt"].content
    assert b"MIT License" in licence
    assert b"js-yaml" in licence
