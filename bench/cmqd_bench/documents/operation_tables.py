"""The tables of operations by role and by cost, made from ``cmqd_protocol.operations``."""

from collections.abc import Callable
from typing import Any

from cmqd_protocol.operations import OPERATIONS, Cost, Operation
from cmqd_types.keys import Role


def roles_table() -> str:
    """Return the table of SPEC.md: the operations by role."""
    rows = [f"| `{role}` | {_names(lambda operation, role=role: operation.role is role)} |" for role in Role]
    rows.append(f"| any role | {_names(lambda operation: operation.role is None)} |")
    return "\n".join(["| role | operations |", "| --- | --- |", *rows])


def costs_table() -> str:
    """Return the table of ARCHITECTURE.md: the operations by class of cost."""
    rows = [
        f"| {cost.value} | {_names(lambda operation, cost=cost: operation.cost is cost)} |"
        for cost in (Cost.CONSTANT, Cost.SLICED)
    ]
    rows.append(f"| {Cost.TIMED.value} | all others |")
    return "\n".join(["| cost of a request | operations |", "| --- | --- |", *rows])


def _names(fits: Callable[[Operation[..., Any]], bool]) -> str:
    return ", ".join(f"`{operation.name}`" for operation in OPERATIONS.values() if fits(operation))
