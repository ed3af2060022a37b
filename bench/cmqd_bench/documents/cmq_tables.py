"""The tables of ``docs/cmq-api.md``: actions of CMQ's API 2.0 with their parameters and tests, and errors."""

import ast
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from cmqd_gateway.cmq.call import Action
from cmqd_gateway.cmq.operations import ACTIONS
from cmqd_gateway.cmq.parameters import Items, Size, Whole
from cmqd_gateway.cmq.reasons import NEVER_ANSWERED, Reason

TESTS = Path(__file__).parents[3] / "tests/gateway/cmq"
SHOWN_TESTS = ("queues", "messages", "transactions", "topics", "deliveries", "every_error", "official_sdk")
"""Test files of which the table tells, so that a further file does not change the page."""
KINDS = {str: "text", bytes: "bytes", int: "number"}


def actions_table() -> str:
    """Return the table of actions, in Markdown."""
    names = strings_of_tests()
    rows = [
        f"| `{action.name}` | {_meaning(action)} | {'<br>'.join(_parameters(action))} |"
        f" {', '.join(tests_of(action.name, names))} |"
        for action in ACTIONS
    ]
    return "\n".join(["| action | effect | parameters | tests |", "| --- | --- | --- | --- |", *rows])


def errors_table() -> str:
    """Return the table of errors by their codes, in Markdown."""
    rows = [
        f"| {reason.code} | {reason.module} | {reason.text} | {NEVER_ANSWERED.get(reason, '')} |"
        for reason in sorted(Reason, key=lambda reason: (reason.code, reason.module))
    ]
    return "\n".join(["| code | module code | text | never answered, because |", "| ---: | ---: | --- | --- |", *rows])


def strings_of_tests() -> dict[str, set[str]]:
    """Return the texts in the source of the test files, in lower case, by name of the file."""
    return {
        name: {
            node.value.lower()
            for node in ast.walk(ast.parse((TESTS / f"test_{name}.py").read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        for name in SHOWN_TESTS
    }


def tests_of(action: str, strings: dict[str, set[str]]) -> list[str]:
    """Return the test files that call an action."""
    return [f"`{name}`" for name, texts in strings.items() if action.lower() in texts]


def _meaning(action: Action) -> str:
    """Return the first sentence of the function's docstring."""
    text = " ".join((action.run.__doc__ or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].removesuffix(".").replace("``", "`")


def _parameters(action: Action) -> Iterable[str]:
    """Yield the parameters of an action: the name, ``.n`` for a list, the kind and the range."""
    hints = get_type_hints(action.request_type, include_extras=True)
    for field in msgspec.structs.fields(action.request_type):
        kind, limits = _unwrapped(hints[field.name])
        is_list = get_origin(kind) is list
        if is_list:
            kind, more = _unwrapped(get_args(kind)[0])
            limits += more
        name = f"`{field.encode_name}{'.n' if is_list else ''}`"
        name = f"**{name}**" if field.required else name
        described = [KINDS[kind], *(_range(limit) for limit in limits)]
        yield f"{name}: {', '.join(filter(None, described))}"


def _range(limit: Any) -> str:
    match limit:
        case Whole():
            return f"{limit.low}-{limit.high}"
        case Size():
            return f"to {limit.high} bytes"
        case Items():
            return f"to {limit.high} entries"
        case _:
            return ""


def _unwrapped(hint: Any) -> tuple[Any, list[Any]]:
    """Return the type without ``Annotated`` and ``| None``, and the annotations."""
    limits: list[Any] = []
    while True:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            limits += more
        elif get_origin(hint) in (Union, types.UnionType):
            hint = next(part for part in get_args(hint) if part is not type(None))
        else:
            return hint, limits
