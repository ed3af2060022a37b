"""The table of operations and the doors of CMQ: an operation is reachable over its doors, with the same ranges.

A door registers here. ``DOORS`` has a class for a door: the class reads the request of an operation from values by
field, as a client of the door sends the values. ``REACHABLE`` names the operations of a door.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, cast

import pytest

from cmqd_gateway.cmq.api2.actions import ACTIONS as API2_ACTIONS
from cmqd_gateway.cmq.api3.actions import ACTIONS as API3_ACTIONS
from cmqd_gateway.cmq.operations import OPERATIONS
from cmqd_gateway.cmq.operations.dead_letters import DeadLetterPolicy
from cmqd_gateway.cmq.parameters import Field, Name, OperationRequest, Size, Whole, camel, fields_of
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import COMMANDS, Envelope, read_values
from cmqd_gateway.cmq.tcp.dispatch import ROWS
from cmqd_gateway.process.gateway_settings import Settings
from support.cases import each_case

HANDLES: Final = frozenset({"DeleteMessage", "BatchDeleteMessage"})
"""Operations with receipt handles, which are numbers over TCP. The tests of the frames have their ranges."""
DESCRIPTIONS: Final = frozenset({"DescribeQueue", "DescribeQueues", "DescribeTopics", "DescribeSubscriptions"})

REACHABLE: Final[Mapping[str, Iterable[str]]] = {
    "API 2.0": OPERATIONS.keys() - DESCRIPTIONS,
    "API 3.0": {
        *("CreateQueue", "SetQueueAttributes", "DeleteQueue", "ClearQueue", "RewindQueue", "UnbindDeadLetter"),
        *("CreateTopic", "SetTopicAttributes", "GetTopicAttributes", "DeleteTopic"),
        *("Subscribe", "SetSubscriptionAttributes", "Unsubscribe", "ClearSubscriptionFilterTags"),
        *("SendMessage", "PublishMessage", *DESCRIPTIONS),
    },
    "TCP": {
        *("SendMessage", "BatchSendMessage", "SendHalfMessage", "BatchSendHalfMessage"),
        *("ReceiveMessage", "BatchReceiveMessage", "DeleteMessage", "BatchDeleteMessage"),
        *("PublishMessage", "BatchPublishMessage", "CommitHalfMessage", "RollbackHalfMessage"),
    },
}
"""The operations, by door."""


class Door(Protocol):
    """The rows of a door."""

    @property
    def operations(self) -> Iterable[str]:
        """The operations, by their names."""
        ...

    def fields(self, operation: str) -> Iterable[str]:
        """Return the fields of an operation's request that the door has a parameter for."""
        ...

    def read(self, operation: str, values: Mapping[str, Any]) -> OperationRequest:
        """Return the request of an operation for values by field, as the door reads it."""
        ...


class Api2:
    """Forms: a value is bytes, and a list has indexes."""

    def __init__(self) -> None:
        self.readers = {action.name: action.reader for action in API2_ACTIONS}
        self.operations = self.readers.keys()

    def fields(self, operation: str) -> Iterable[str]:
        return {each.field.name for each in self.readers[operation].fields}

    def read(self, operation: str, values: Mapping[str, Any]) -> OperationRequest:
        names = {each.field.name: each.name for each in self.readers[operation].fields}
        form: dict[str, bytes] = {}
        for field, value in values.items():
            if isinstance(value, list):
                entries = enumerate(cast("list[Any]", value))
                form |= {f"{names[field]}.{index}": as_bytes(entry) for index, entry in entries}
            else:
                form[names[field]] = as_bytes(value)
        return self.readers[operation].read(form)


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


class Api3:
    """JSON: a body is text."""

    def __init__(self) -> None:
        self.actions = {action.operation.name: action for action in API3_ACTIONS}
        self.operations = self.actions.keys()
        # Refuses no parameter that has a counterpart by a setting alone.
        self.settings = Settings(listen="127.0.0.1:0", api3_retention=True)

    def fields(self, operation: str) -> Iterable[str]:
        return {each.field for each in self.actions[operation].parameters.values()}

    def read(self, operation: str, values: Mapping[str, Any]) -> OperationRequest:
        names = {each.field: each.name for each in self.actions[operation].parameters.values()}
        given = {names[field]: value.decode() if isinstance(value, bytes) else value for field, value in values.items()}
        return self.actions[operation].read(given, self.settings)


class Tcp:
    """Frames: the body of a command. Decisions are read from a list of items, so their frames are not made."""

    def __init__(self) -> None:
        self.operations = ROWS.keys()

    def fields(self, operation: str) -> Iterable[str]:
        names = {each.name for each in COMMANDS[COMMAND_OF[operation]].request.fields}
        decided = ["msg_id"] if COMMAND_OF[operation] == commands.DECIDE else []
        return [name for name in ROWS[operation][0].request_type.__struct_fields__ if camel(name) in names] + decided

    def read(self, operation: str, values: Mapping[str, Any]) -> OperationRequest:
        given = {camel(field): value for field, value in values.items()}
        command = COMMANDS[COMMAND_OF[operation]]
        if command.number != commands.DECIDE:
            given = read_values(Envelope(1, command.number, 0, command.body, command.request.encode(given)))
        return ROWS[operation][1].read(given)


COMMAND_OF: Final = {
    "SendMessage": commands.SEND,
    "BatchSendMessage": commands.BATCH_SEND,
    "SendHalfMessage": commands.SEND,
    "BatchSendHalfMessage": commands.BATCH_SEND,
    "ReceiveMessage": commands.RECEIVE,
    "BatchReceiveMessage": commands.BATCH_RECEIVE,
    "PublishMessage": commands.PUBLISH,
    "BatchPublishMessage": commands.BATCH_PUBLISH,
    "CommitHalfMessage": commands.DECIDE,
    "RollbackHalfMessage": commands.DECIDE,
}
DOORS: Final[Mapping[str, Door]] = {"API 2.0": Api2(), "API 3.0": Api3(), "TCP": Tcp()}

SHORTENED: Final = {("API 2.0", "polling_wait_seconds")}
"""Parameters of which a door takes larger values than the operation, and shortens them, as CMQ does."""
BESIDE: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("API 3.0", "DescribeSubscriptions"): {"topic_name": "text"},
}
"""Parameters that a door needs, and the operation does not."""
EXCLUDED: Final = {
    ("API 3.0", "DescribeSubscriptions", "queue_name"),
    ("TCP", "SendHalfMessage", "first_query_interval"),
    ("TCP", "BatchSendHalfMessage", "first_query_interval"),
}
"""Parameters that a door takes in place of others, or in two units."""
UNSIGNED: Final = {("TCP", "delay_seconds")}
"""Parameters that have no negative number at a door."""


@pytest.mark.parametrize("door", DOORS)
def test_each_operation_is_reachable_over_the_doors_of_its_row(door: str) -> None:
    assert DOORS[door].operations == set(REACHABLE[door])


def test_each_operation_has_a_door() -> None:
    assert {name for names in REACHABLE.values() for name in names} == OPERATIONS.keys()
    assert all(name == operation.name for name, operation in OPERATIONS.items())


@each_case(
    ("door", "operation"),
    [
        (door, operation)
        for door, names in REACHABLE.items()
        for operation in sorted(names)
        if not (door == "TCP" and operation in HANDLES)
    ],
)
def test_a_door_has_all_parameters_that_an_operation_needs_and_its_ranges(door: str, operation: str) -> None:
    fields = {field.name: field for field in fields_of(OPERATIONS[operation].request_type)}
    offered = set(DOORS[door].fields(operation))
    needed = {name: accepted(field)[0] for name, field in fields.items() if field.is_required}
    assert needed.keys() <= offered
    needed |= BESIDE.get((door, operation), {})
    DOORS[door].read(operation, needed)

    for name, field in fields.items():
        if name not in offered or field.kind is DeadLetterPolicy or (door, operation, name) in EXCLUDED:
            continue
        for value in accepted(field):
            assert getattr(DOORS[door].read(operation, needed | {name: value}), name) == value
        for value, reason in refused(field):
            if ((door, name) in SHORTENED and value > 0) or ((door, name) in UNSIGNED and value < 0):
                continue
            with pytest.raises(Refusal) as refusal:
                DOORS[door].read(operation, needed | {name: value})
            assert refusal.value.reason is reason


# ---------------------------------------------------------------------- values


def accepted(field: Field) -> list[Any]:
    """Return values at the ends of the ranges."""
    values: list[Any] = {str: ["text"], bytes: [b"x"], int: [1], float: [1]}[field.kind]
    for check in field.checks:
        if isinstance(check, Whole):
            values = [check.low, check.high]
        elif isinstance(check, Name):
            values = ["n" * check.high, "n"]
        else:
            values = [b"x" * check.high if field.kind is bytes else "x" * check.high]
    if field.items is None:
        return values
    return [[value] for value in values] + [[values[0]] * field.items.high]


def refused(field: Field) -> list[tuple[Any, Reason]]:
    """Return values beyond the ranges, with the reasons of their refusals."""
    values: list[tuple[Any, Reason]] = []
    for check in field.checks:
        if isinstance(check, Whole):
            values += [(check.low - 1, check.reason), (check.high + 1, check.reason)]
        elif isinstance(check, Name):
            values += [("n" * (check.high + 1), check.reason), ("a b", check.reason)]
        elif isinstance(check, Size):  # pyright: ignore[reportUnnecessaryIsInstance]
            beyond = check.high + 1
            values += [(b"x" * beyond if field.kind is bytes else "x" * beyond, check.reason)]
    if field.items is None:
        return values
    too_many = [accepted(field)[0][0]] * (field.items.high + 1)
    return [*(([value], reason) for value, reason in values), (too_many, field.items.reason)]
