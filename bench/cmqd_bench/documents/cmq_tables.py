"""The tables of ``docs/cmq-api.md``: actions of CMQ's API 2.0 with their parameters and tests, and errors."""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from cmqd_gateway.cmq.api2.actions import ACTIONS, Action
from cmqd_gateway.cmq.operation import Operation
from cmqd_gateway.cmq.parameters import Items, Size, Whole
from cmqd_gateway.cmq.reasons import NEVER_ANSWERED, Reason

TESTS = Path(__file__).parents[3] / "tests/gateway/cmq"
SHOWN_TESTS = ("queues", "messages", "transactions", "topics", "deliveries", "every_error", "official_sdk")
"""Test files of which the table tells, so that a further file does not change the page."""
KINDS = {str: "text", bytes: "bytes", int: "number", float: "number"}


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


@cache
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


def meaning(operation: Operation) -> str:
    """Return the first sentence of the function's docstring."""
    text = " ".join((operation.run.__doc__ or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].removesuffix(".").replace("``", "`")


def _meaning(action: Action) -> str:
    """Return the meaning of the operation, and the note of API 2.0."""
    text = meaning(action.operation)
    return f"{text}; {action.note}".replace("``", "`") if action.note else text


def _parameters(action: Action) -> Iterable[str]:
    """Yield the parameters of an action: the name, ``.n`` for a list, the kind and the range."""
    for parameter in action.reader.fields:
        field = parameter.field
        described = [KINDS.get(field.kind, "JSON"), *(range_text(limit) for limit in (field.items, *field.checks))]
        shown, *twins = (f"`{name}{'.n' if field.items else ''}`" for name in (parameter.name, *parameter.twins))
        names = [f"**{shown}**" if field.is_required else shown, *twins]
        yield f"{' or '.join(names)}: {', '.join(filter(None, described))}"


def range_text(limit: Any) -> str:
    """Return the words for the limit of a parameter; empty for a limit without words."""
    match limit:
        case Whole():
            return f"{limit.low}-{limit.high}"
        case Size():
            return f"to {limit.high} bytes"
        case Items():
            return f"to {limit.high} entries"
        case _:
            return ""
