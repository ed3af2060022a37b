"""The OpenAPI 3.1 document of the JSON API, generated from the table of operations and its types."""

import re
from collections.abc import Mapping
from functools import cache
from inspect import cleandoc
from typing import Any, get_type_hints

import msgspec

from cmqd_gateway.rest import types
from cmqd_gateway.rest.operation import Operation
from cmqd_gateway.rest.problems import CONTENT_TYPE, GATEWAY_PROBLEMS, STATUS_OF_CODE, Problem
from cmqd_gateway.rest.table import BASE, OPERATIONS
from cmqd_gateway.rest.views import Reply, descriptions
from cmqd_protocol.protocol_errors import ErrorCode

_COMMON = (
    "invalid_argument",
    "unauthorized",
    "permission_denied",
    "too_many_requests",
    "busy",
    "shutting_down",
    "internal_error",
)
"""Errors of every operation."""
_OF_CHANGES = ("outcome_unknown",)
_OF_BODIES = ("malformed_json", "request_too_large", "unsupported_media_type")

DESCRIPTION = """\
Queues, topics and keys of a cmqd broker, for curl and for languages without a client of cmqd.

Ids and receipt handles are strings: they are 64-bit numbers, and many JSON libraries read a number as a float of 53
bits. Durations are seconds, times are RFC 3339. An error is a problem (RFC 9457); programs switch on its `name`.

A reply to a change means: on disk. After 504 the outcome is unknown; repeat a send with the same `Idempotency-Key`.

The header `X-Cmqd-Client` of any request names the program, for the broker's lists and the history of messages.
"""

PARAMETERS: Mapping[str, str] = {
    "queue": "Name of a queue: 1-64 ASCII letters, digits, `-`, `_`.",
    "topic": "Name of a topic: 3-64 ASCII letters, digits, `-`, `_`.",
    "subscription": "Name of a subscription: 1-64 ASCII letters, digits, `-`, `_`.",
    "message": "Id of a message: `Msg-` and 16 hex digits.",
    "schedule": "Name of a schedule: 1-64 ASCII letters, digits, `-`, `_`.",
    "secret_id": "Id of a key.",
    "account": "Name of an account.",
}
"""The parameters of paths."""


def problem_status(name: str) -> int:
    """Return the status of an error by its name."""
    if name in GATEWAY_PROBLEMS:
        return GATEWAY_PROBLEMS[name][0]
    return STATUS_OF_CODE[ErrorCode[name.upper()]]


def problems_of(operation: Operation[Any, Any, Any]) -> list[str]:
    """Return the names of all errors of an operation, in the order of their statuses."""
    names = {*_COMMON, *operation.problems}
    if operation.method != "GET":
        names.update(_OF_CHANGES)
    if operation.body.__struct_fields__:
        names.update(_OF_BODIES)
    return sorted(names, key=lambda name: (problem_status(name), name))


@cache
def document() -> bytes:
    """Return the document in JSON."""
    return msgspec.json.format(msgspec.json.encode(build()), indent=1)


def build() -> dict[str, Any]:
    """Return the document."""
    kinds: dict[type[Any], None] = {Problem: None}
    for operation in OPERATIONS:
        kinds.update(dict.fromkeys([operation.query, operation.body]))
        if operation.reply is not None:
            kinds[operation.reply] = None
    references, components = msgspec.json.schema_components(list(kinds), ref_template="#/components/schemas/{name}")
    schemas = dict(zip(kinds, references, strict=True))
    for root in (types.Request, Reply):
        for kind in _with_subclasses(root):
            if kind.__name__ in components:
                _use_outer_annotations(components[kind.__name__], kind)
    for kind in _with_subclasses(Reply):
        if kind.__name__ in components:
            properties = components[kind.__name__]["properties"]
            for name, text in descriptions(kind).items():
                properties[name] = {"description": text, **properties[name]} | {"description": text}
    queries = {operation.query for operation in OPERATIONS}
    for kind in _with_subclasses(types.Request):
        if kind not in queries and kind.__name__ in components:
            _rename_defaults(components[kind.__name__])
    used = {name: schema for name, schema in components.items() if name not in {query.__name__ for query in queries}}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        item = paths.setdefault(BASE + operation.path, {})
        item[operation.method.lower()] = _operation(operation, schemas, components)
    return {
        "openapi": "3.1.0",
        "info": {
            # Not "cmqd": generators of Python clients would name their package cmqd_client.
            "title": "cmqd JSON API",
            "version": "1",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in OPERATIONS)],
        "security": [{"bearer": []}, {"basic": []}],
        "paths": paths,
        "components": {
            "schemas": used,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "`SecretId:SecretKey`"},
                "basic": {"type": "http", "scheme": "basic", "description": "SecretId as user, SecretKey as password"},
            },
        },
    }


def _with_subclasses(kind: type[Any]) -> list[type[Any]]:
    return [kind, *(each for subclass in kind.__subclasses__() for each in _with_subclasses(subclass))]


def _use_outer_annotations(component: dict[str, Any], kind: type[Any]) -> None:
    """Give the fields of a schema the description, range and default of the outermost annotation.

    msgspec prefers the annotation of an alias, and would describe each duration with the words for all durations, with
    the limits of the wire in place of the limits of the field.
    """
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for meta in getattr(hint, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta):
                described = {} if meta.description is None else {"description": meta.description}
                component["properties"][name].update(described | (meta.extra_json_schema or {}))


def _rename_defaults(component: dict[str, Any]) -> None:
    """Rename ``default`` in the fields of a request body to ``x-default``.

    Generators of clients take a field with a default for one that is always present, and then require the field in
    requests. ``x-default`` is the default of the broker, for forms and for readers.
    """
    for field in component.get("properties", {}).values():
        default = field.pop("default", None)
        if default is not None:
            field["x-default"] = default


def _operation(
    operation: Operation[Any, Any, Any], schemas: Mapping[type[Any], Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": cleandoc(operation.run.__doc__ or ""),
    }
    if parameters := [*_path_parameters(operation), *_query_parameters(operation, components), *_headers(operation)]:
        described["parameters"] = parameters
    if operation.body.__struct_fields__:
        required = bool(components[operation.body.__name__].get("required"))
        described["requestBody"] = {
            "required": required,
            "content": {"application/json": {"schema": schemas[operation.body]}},
        }
    responses: dict[str, Any] = {}
    for status in operation.statuses:
        response: dict[str, Any] = {"description": _success(operation, status)}
        if operation.reply is not None:
            response["content"] = {"application/json": {"schema": schemas[operation.reply]}}
        responses[str(status)] = response
    by_status: dict[int, list[str]] = {}
    for name in problems_of(operation):
        by_status.setdefault(problem_status(name), []).append(name)
    for status, names in by_status.items():
        responses[str(status)] = {
            "description": ", ".join(f"`{name}`" for name in names),
            "content": {CONTENT_TYPE: {"schema": schemas[Problem]}},
        }
    return described | {"responses": responses}


def _success(operation: Operation[Any, Any, Any], status: int) -> str:
    if status == 204:
        return "Done."
    if len(operation.statuses) > 1:
        return "Created." if status == 201 else "Existed before."
    return cleandoc(operation.reply.__doc__ or "").partition("\n")[0]


def _path_parameters(operation: Operation[Any, Any, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "description": PARAMETERS[name], "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]


def _query_parameters(operation: Operation[Any, Any, Any], components: Mapping[str, Any]) -> list[dict[str, Any]]:
    properties: Mapping[str, Mapping[str, Any]] = components[operation.query.__name__]["properties"]
    parameters: list[dict[str, Any]] = []
    for name, schema in properties.items():
        # A query has no null: a parameter that may be null is a parameter that may be omitted.
        kinds = [kind for kind in schema.get("anyOf", []) if kind.get("type") != "null"]
        shown = dict(kinds[0] if len(kinds) == 1 else schema)
        description = schema.get("description") or shown.get("description", "")
        shown.pop("description", None)
        if schema.get("default") is not None:
            shown["default"] = schema["default"]
        parameters.append({"name": name, "in": "query", "description": description, "schema": shown})
    return parameters


def _headers(operation: Operation[Any, Any, Any]) -> list[dict[str, Any]]:
    if not operation.idempotency:
        return []
    text = (
        "Dedup id of the message for 5 minutes, in a batch with the index of each message: 1-64 printable characters."
    )
    schema = {"type": "string", "minLength": 1, "maxLength": 64}
    return [{"name": "Idempotency-Key", "in": "header", "description": text, "schema": schema}]
