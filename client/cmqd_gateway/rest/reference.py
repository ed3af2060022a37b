"""The page of the JSON API: every operation with a command of curl, made from the OpenAPI document.

The page has no script, so its policy allows none, and text of the document is escaped.
"""

import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from cmqd_gateway.rest import openapi

CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "style-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
"""The page loads its style sheet alone, and cannot be framed."""

Schema = Mapping[str, Any]
"""A schema of the document."""

_SCHEMAS = "#/components/schemas/"
_ROW = "<tr><td><code>{name}</code>{mark}</td><td>{kind}</td><td>{text}</td></tr>"


def style_sheet() -> bytes:
    """Return the style sheet of the page, ``reference.css``."""
    return (files("cmqd_gateway.rest") / "reference.css").read_bytes()


def page() -> bytes:
    """Return the page in HTML."""
    document = openapi.build()
    schemas: Mapping[str, Schema] = document["components"]["schemas"]
    by_tag: dict[str, list[str]] = {tag["name"]: [] for tag in document["tags"]}
    links: dict[str, list[str]] = {tag: [] for tag in by_tag}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            (tag,) = operation["tags"]
            by_tag[tag].append(_operation(method.upper(), path, operation, schemas))
            links[tag].append(f'<a href="#{operation["operationId"]}">{escape(operation["operationId"])}</a>')
    contents = "".join(f"<li>{escape(tag)}: {', '.join(names)}</li>" for tag, names in links.items())
    operations = "".join(f"<h2>{escape(tag)}</h2>{''.join(shown)}" for tag, shown in by_tag.items())
    types = "".join(_type(name, schema) for name, schema in schemas.items())
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>cmqd: JSON API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="reference.css">
</head>
<body>
<h1>The JSON API of cmqd</h1>
{_paragraphs(document["info"]["description"])}
<p>For programs: <a href="openapi.json">the OpenAPI 3.1 document</a>. In the commands, <code>$CMQD</code> is the address
of the gateway, and <code>$KEY</code> is a key pair, <code>SecretId:SecretKey</code>.</p>
<ul>{contents}</ul>
{operations}
<h2>Types</h2>
{types}
</body>
</html>
""".encode()


def _operation(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Schema]) -> str:
    parameters: list[Mapping[str, Any]] = operation.get("parameters", [])
    content = operation.get("requestBody", {}).get("content", {})
    body: Schema | None = content["application/json"]["schema"] if content else None
    rows = [_row(field["name"], field["schema"], field["description"], field["in"] == "path") for field in parameters]
    answers = "".join(
        f"<tr><td>{status}</td><td>{_answer_kind(answer)}</td><td>{_text(answer['description'])}</td></tr>"
        for status, answer in sorted(operation["responses"].items())
    )
    return (
        f'<h3 id="{operation["operationId"]}">{escape(operation["summary"])}</h3>'
        f"<p><code>{method} {escape(path)}</code></p>"
        f"{_paragraphs(operation['description'])}"
        f"<pre><code>{escape(_command(method, path, body, schemas))}</code></pre>"
        + (_table(["parameter", "type", "meaning"], rows) if rows else "")
        + ("" if body is None else f"<p>Body: {_kind(body)}</p>")
        + f"<table><tr><th>status</th><th>body</th><th>meaning</th></tr>{answers}</table>"
    )


def _command(method: str, path: str, body: Schema | None, schemas: Mapping[str, Schema]) -> str:
    """Return a command of curl with the required fields of the body."""
    # In capitals: curl takes braces for a list of URLs.
    shown = re.sub(r"\{(\w+)\}", lambda parameter: parameter[1].upper(), path)
    lines = [f'curl -X {method} "$CMQD{shown}" -H "Authorization: Bearer $KEY"']
    if body is not None:
        lines.append(f"-H \"Content-Type: application/json\" -d '{json.dumps(_example(body, schemas))}'")
    return " \\\n    ".join(lines)


def _example(schema: Schema, schemas: Mapping[str, Schema]) -> Any:
    """Return a value of a schema: the required fields of an object, and one item of a list."""
    if "$ref" in schema:
        return _example(schemas[_name_of(schema)], schemas)
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], schemas)
    if "examples" in schema:
        return schema["examples"][0]
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            required: list[str] = schema.get("required", [])
            return {name: _example(schema["properties"][name], schemas) for name in required}
        case "array":
            return [_example(schema["items"], schemas)]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case _:
            return "..."


def _type(name: str, schema: Schema) -> str:
    required: list[str] = schema.get("required", [])
    rows = [
        _row(field, kind, kind.get("description", ""), field in required)
        for field, kind in schema.get("properties", {}).items()
    ]
    shown = f'<h3 id="type-{name}">{name}</h3>{_paragraphs(schema.get("description", ""))}'
    return shown + (_table(["field", "type", "meaning"], rows) if rows else "")


def _table(heads: Iterable[str], rows: Iterable[str]) -> str:
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(rows)}</table>"


def _row(name: str, schema: Schema, description: str, is_required: bool) -> str:
    mark = " (required)" if is_required else ""
    return _ROW.format(name=escape(name), mark=mark, kind=_kind(schema), text=_text(description))


def _answer_kind(answer: Mapping[str, Any]) -> str:
    return ", ".join(_kind(kind["schema"]) for kind in answer.get("content", {}).values())


def _kind(schema: Schema) -> str:
    """Return the type of a value with its range and its default, types of the document as links."""
    if "$ref" in schema:
        name = _name_of(schema)
        shown = f'<a href="#type-{name}">{name}</a>'
    elif "anyOf" in schema:
        shown = " or ".join(_kind(kind) for kind in schema["anyOf"])
    elif "enum" in schema:
        shown = ", ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    elif schema.get("type") == "array":
        shown = f"list of {_kind(schema['items'])}"
    else:
        shown = escape(schema.get("type", "any value"))
    if "minimum" in schema:
        shown += f", {schema['minimum']} to {schema['maximum']}"
    default = schema.get("x-default", schema.get("default"))
    return shown if default in (None, "", {}, []) else f"{shown}, default {escape(json.dumps(default))}"


def _name_of(schema: Schema) -> str:
    return schema["$ref"].removeprefix(_SCHEMAS)


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{_text(paragraph)}</p>" for paragraph in text.strip().split("\n\n") if paragraph)


def _text(text: str) -> str:
    """Return text of the document as HTML; text between back quotes is code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
