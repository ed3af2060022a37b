"""The JSON shape of the API, field by field: ``rest_shape.txt`` shows a change that callers would notice.

python tests/gateway/test_rest_shape.py     write the file anew, after a change that is meant
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cmqd_gateway.rest import openapi

FILE = Path(__file__).with_name("rest_shape.txt")


def shape() -> str:
    """Return a line for each operation, parameter and field: its name and type, and its range and default."""
    document = openapi.build()
    return "".join(f"{line}\n" for line in (*_operations(document), *_schemas(document)))


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            yield f"{method.upper()} {path} ({operation['operationId']}): {'-' if body is None else _kind(body)}"
            for parameter in operation.get("parameters", []):
                if parameter["in"] != "path":
                    yield f"    {parameter['in']} {parameter['name']}: {_kind(parameter['schema'])}"
            for status, response in sorted(operation["responses"].items()):
                if status < "400":
                    reply = response.get("content", {}).get("application/json", {}).get("schema")
                    yield f"    {status}: {'-' if reply is None else _kind(reply)}"


def _schemas(document: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield name
        for field, kind in schema["properties"].items():
            required = " required" if field in schema.get("required", []) else ""
            yield f"    {field}: {_kind(kind)}{required}"


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        shown = schema["$ref"].rpartition("/")[2]
    elif "anyOf" in schema:
        shown = " | ".join(_kind(kind) for kind in schema["anyOf"])
    elif "enum" in schema:
        shown = ", ".join(map(repr, schema["enum"]))
    else:
        shown = schema.get("type", "any")
        shown += f"[{_kind(schema['items'])}]" if "items" in schema else ""
        shown += f"[{_kind(schema['additionalProperties'])}]" if schema.get("additionalProperties") else ""
    rules = {name: schema[name] for name in sorted(schema) if name in _RULES}
    return f"{shown} {rules}" if rules else shown


_RULES = {
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern", "format"),
    *("default", "x-default"),
}


def test_the_shape_of_the_api_is_the_stored_shape():
    assert shape() == FILE.read_text(), "callers would notice; if it is meant, run this file as a program"


if __name__ == "__main__":
    FILE.write_text(shape())
