"""The tables of ``docs/cmq-api-3.md``: the actions of API 3.0 with their parameters, and the codes of errors."""

from collections.abc import Iterable

from cmqd_bench.documents.cmq_tables import meaning, range_text
from cmqd_gateway.cmq.api3.action import Action
from cmqd_gateway.cmq.api3.actions import ACTIONS
from cmqd_gateway.cmq.api3.codes import CODES
from cmqd_gateway.cmq.api3.faults import Code
from cmqd_gateway.cmq.parameters import fields_of
from cmqd_gateway.cmq.reasons import NEVER_ANSWERED

QUERIES = {
    "DescribeQueue": "`GetQueueAttributes`",
    "DescribeQueues": "`ListQueue` and `GetQueueAttributes`",
    "DescribeTopics": "`ListTopic` and `GetTopicAttributes`",
    "DescribeSubscriptions": "`ListSubscriptionByTopic` and `GetSubscriptionAttributes`; by queue none",
}
"""The actions of API 2.0 for operations of API 3.0 alone."""


def actions_table() -> str:
    """Return the table of actions, in Markdown."""
    rows = [
        f"| `{action.name}` | {meaning(action.operation)} | {_twin(action)} | {'<br>'.join(_parameters(action))} |"
        for action in ACTIONS
    ]
    return "\n".join(["| action | effect | API 2.0 | parameters |", "| --- | --- | --- | --- |", *rows])


def codes_table() -> str:
    """Return the table of codes with the module codes of API 2.0, in Markdown."""
    rows = [f"| `{code}` | {', '.join(_modules(code)) or 'no code of its own'} |" for code in Code]
    return "\n".join(["| code | API 2.0: code (module code) |", "| --- | --- |", *rows])


def _modules(code: Code) -> list[str]:
    found = [reason for reason, of_reason in CODES.items() if of_reason is code and reason not in NEVER_ANSWERED]
    return list(
        dict.fromkeys(f"{reason.code} ({reason.module})" for reason in sorted(found, key=lambda each: each.value))
    )


def _twin(action: Action) -> str:
    return QUERIES.get(action.operation.name) or f"`{action.operation.name}`"


def _parameters(action: Action) -> Iterable[str]:
    """Yield the parameters of an action: the name, the kind and the range."""
    fields = {field.name: field for field in fields_of(action.operation.request_type)}
    for parameter in action.parameters.values():
        shown = f"`{parameter.name}`"
        field = fields.get(parameter.field)
        limits = () if field is None else (field.items, *field.checks)
        described = [parameter.kind.value, *map(range_text, limits)]
        yield f"{f'**{shown}**' if parameter.is_required else shown}: {', '.join(filter(None, described))}"
