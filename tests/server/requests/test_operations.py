"""The operations of a server: each has a request, a handler, a method of the client and its documents, and no other is
anywhere.
"""

import inspect
import re
from pathlib import Path
from typing import Any

from cmqd.server.access.accounts import Accounts
from cmqd.server.handlers.accounts import AccountOperations
from cmqd.server.handlers.messages import Deletes, Receives, Sends
from cmqd.server.handlers.publishing import Publishes
from cmqd.server.requests.dispatch import Dispatcher
from cmqd.server.requests.handler import handlers_of, late_answers_of
from cmqd.server.requests.operations import (
    ACCOUNT_CHANGES,
    ACCOUNT_LOOKUPS,
    method_of,
    parameters_of,
)
from cmqd.server.wiring import HANDLERS, LATE_ANSWERS
from cmqd_protocol import operations
from cmqd_protocol.features import ON_BEHALF_OF
from cmqd_protocol.messages import REQUEST_TYPES
from cmqd_protocol.operations import OPERATIONS, Cost, Kind, Repeat, Wait, requests_of
from cmqd_types.keys import Role
from support.server.server_rig import ServerRig

ROOT = Path(__file__).parents[3]
SPEC = (ROOT / "protocol/SPEC.md").read_text(encoding="utf-8")


def test_every_request_of_the_wire_is_declared_under_its_name() -> None:
    assert OPERATIONS.keys() == set(REQUEST_TYPES.values())
    for operation in OPERATIONS.values():
        assert getattr(operations, operation.name.upper()) is operation


async def test_every_operation_has_a_handler_and_only_operations_that_wait_have_late_answers(rig: ServerRig) -> None:
    handlers = rig.server.part(Dispatcher).handlers
    kinds: list[Any] = [*LATE_ANSWERS]
    late = {request for kind in kinds for request in late_answers_of(rig.server.part(kind))}

    assert handlers.keys() == OPERATIONS.keys()
    assert late == requests_of(lambda operation: operation.wait is not Wait.NONE)


def test_every_operation_is_asked_by_the_client_and_described_in_the_specification() -> None:
    client = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "client/cmqd_client").rglob("*.py"))

    for operation in OPERATIONS.values():
        assert re.search(rf"\b({operation.name.upper()}|{operation.request.__name__})\b", client), operation.name
        described = SPEC.partition(f"#### `{operation.name}` ")[2].partition("####")[0]
        assert re.search(rf"Reply\s+`{re.sub(r'(?<!^)(?=[A-Z])', '_', operation.reply.__name__).lower()}`", described)


def test_the_names_of_queues_topics_and_schedules_in_a_request_are_compared() -> None:
    for operation in OPERATIONS.values():
        fields = set(operation.request.__struct_fields__)
        own = {name for name in operation.names.split() if "." not in name}
        assert own <= fields
        assert fields & {"queue", "topic", "schedule"} <= own, operation.name
        assert ("." in operation.names) <= ("attributes" in fields)
        assert not (operation.repeat is Repeat.ONCE and operation.kind is Kind.LOOKUP)


def test_an_operation_that_is_safe_to_repeat_is_not_among_the_others_of_the_specification() -> None:
    safe, _, unsafe = SPEC.partition("- Safe to repeat")[2].partition("\n\n")[0].partition("Not safe:")

    for operation in OPERATIONS.values():
        if operation.kind is Kind.ADMINISTRATION and operation.repeat is Repeat.SAFE:
            assert f"`{operation.name}`" in safe
            assert f"`{operation.name}`" not in unsafe


def test_operations_on_messages_alone_have_a_constant_cost_and_need_the_storage() -> None:
    constant = requests_of(lambda operation: operation.cost is Cost.CONSTANT)

    assert constant <= requests_of(lambda operation: operation.kind is Kind.MESSAGES)
    assert requests_of(lambda operation: not operation.needs_storage) <= requests_of(
        lambda operation: operation.kind is Kind.LOOKUP
    )
    assert {operation.role for operation in OPERATIONS.values()} == {None, *Role}


async def test_a_plain_operation_has_the_parameters_of_its_method(rig: ServerRig) -> None:
    kinds: list[Any] = [*HANDLERS, AccountOperations, Sends, Publishes, Deletes, Receives]
    handled = {request for kind in kinds for request in handlers_of(rig.server.part(kind))}
    of_accounts = (*ACCOUNT_CHANGES, *ACCOUNT_LOOKUPS)
    handled |= {operation.request for operation in of_accounts}
    plain = [operation for request, operation in OPERATIONS.items() if request not in handled]
    assert len(plain) > 20
    for operation in (*plain, *of_accounts):
        parameters = parameters_of(operation, Accounts if operation in of_accounts else rig.broker)
        positional = [
            name
            for name, parameter in parameters.items()
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY and name not in ("self", "now_ms")
        ]
        # In place of the number of the request: the account of the client.
        fields = [field for field in operation.request.__struct_fields__ if field != ON_BEHALF_OF]
        assert len(positional) == len(fields), method_of(operation)
