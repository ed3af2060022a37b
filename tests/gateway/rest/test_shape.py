"""The JSON of the API keeps its shape: names, types, ranges and required fields of the OpenAPI document.

``openapi_shape.txt`` has a line for each field. A line that goes or changes breaks programs that use the API; a line
that comes is a new field. After a wanted change: ``python -m tests.gateway.rest.test_shape``.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from cmqd_gateway.rest import openapi

SHAPE = Path(__file__).parent / "openapi_shape.txt"
FOR_READERS = ("description", "title", "examples", "x-hint", "x-unit", "x-zero", "x-least", "x-fixed")


def shape() -> str:
    """Return the shape of the document in lines."""
    document = openapi.build()
    lines: list[str] = []
    for name, schema in document["components"]["schemas"].items():
        required = schema.get("required", ())
        for field, kind in schema["properties"].items():
            lines.append(f"{name}.{field}{'!' if field in required else ''} {_kind(kind)}")
    for path, item in document["paths"].items():
        for method, operation in item.items():
            lines.append(f"{method.upper()} {path} {', '.join(_parts(operation))}")
    return "\n".join(sorted(lines)) + "\n"


def _kind(schema: Any) -> str:
    return json.dumps(_without_texts(schema), sort_keys=True)


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, dict):
        fields = cast("dict[str, Any]", schema)
        shown = {key: _without_texts(value) for key, value in fields.items() if key not in FOR_READERS}
        if "anyOf" in shown:
            # Their order differs between versions of msgspec, and means nothing.
            shown["anyOf"].sort(key=json.dumps)
        return shown
    return [_without_texts(value) for value in cast("list[Any]", schema)] if isinstance(schema, list) else schema


def _parts(operation: Any) -> Iterator[str]:
    for parameter in operation.get("parameters", []):
        yield f"{parameter['in']} {parameter['name']} {_kind(parameter['schema'])}"
    if "requestBody" in operation:
        yield f"body {_kind(operation['requestBody'])}"
    for status, response in operation["responses"].items():
        if status < "300":
            yield f"{status} {_kind(response.get('content'))}"


def test_the_json_has_the_shape_that_programs_know() -> None:
    assert shape().splitlines() == SHAPE.read_text().splitlines()


if __name__ == "__main__":
    SHAPE.write_text(shape())
