"""Every operation of CMQ at every door with a key of every role: allowed as the native operations behind it are.

``ROWS`` has the native requests behind each operation, and the parameters of a call. The operation is called over the
doors that have it, with keys of a single role, and with a key of all roles for names of no object. One gateway
and one broker serve all calls. A single role allows an operation, so the refused calls find the state unchanged.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import Enum
from itertools import count
from typing import Any, Final, NamedTuple, cast

import pytest

from cmqd_client import Client
from cmqd_client.events import ClientState
from cmqd_client.messages.message_ids import id_number
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.api2.actions import ACTIONS as API2_ACTIONS
from cmqd_gateway.cmq.api3.actions import ACTIONS as API3_ACTIONS
from cmqd_gateway.cmq.api3.codes import CODES
from cmqd_gateway.cmq.operations import OPERATIONS
from cmqd_gateway.cmq.parameters import camel
from cmqd_gateway.cmq.reasons import Reason
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.dispatch import ROWS as TCP_ROWS
from cmqd_protocol import messages as wire
from cmqd_protocol import operations as native
from cmqd_types.keys import Role
from support.cases import naming
from support.eventually import eventually
from support.gateway.api3_requests import Api3Calls
from support.gateway.cmq_calls import CmqCalls, Refused
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_program import TcpProgram

SINGLE: Final = (Role.MANAGE, Role.SEND, Role.CONSUME, Role.READ)
OTHER_NAMES: Final = "all roles, other names"
REGISTRATION: Final = {wire.RegisterChecker}
"""Behind the answer to a half message over TCP, with the key that sent it."""
MESSAGES: Final = 64
"""Messages of a kind: a call takes a message, whether it is allowed or refused."""


class Made(Enum):
    """A value that is made for a call."""

    NAME = "a name without an object"
    HANDLE = "handle of a message in flight in the queue taken"
    HALF = "id of an undecided half message of the queue tx"


class Stage:
    """The objects and messages of the calls."""

    def __init__(self) -> None:
        names = (f"new-{number}" for number in count())
        self._made: dict[Made, Iterator[Any]] = {Made.NAME: names}

    async def fill(self, admin: Client) -> None:
        await admin.create_queue("taken", visibility_timeout=43_200)
        await admin.create_queue("bare")
        await admin.create_queue("dead")
        await admin.create_queue("source", dead_letter_queue="dead", dead_letter_max_receives=1)
        await admin.create_queue("rewindable", rewind=3600)
        await admin.create_queue("tx", transactional=True)
        await (await admin.create_topic("news")).subscribe("sub", queue="orders")
        taken, tx = admin.queue("taken"), admin.queue("tx")
        handles: list[int] = []
        halves: list[str] = []
        for _ in range(MESSAGES // 16):
            await admin.queue("orders").send_batch([b"x"] * 16)
            await taken.send_batch([b"x"] * 16)
            handles += [message.receipt_handle for message in await taken.receive(16, wait=0)]
            halves += (await tx.send_half_batch([b"x"] * 16)).ids
        self._made |= {Made.HANDLE: iter(handles), Made.HALF: iter(halves)}

    def values(self, row: "Row") -> dict[str, Any]:
        """Return the parameters of a call."""
        return {field: self._made_or_given(value) for field, value in row.values.items()}

    def _made_or_given(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._made_or_given(entry) for entry in cast("list[Any]", value)]
        return next(self._made[value]) if isinstance(value, Made) else value


DELETED: Final[Mapping[str, Callable[[Client], Awaitable[Any]]]] = {
    "DeleteQueue": lambda admin: admin.create_queue("doomed"),
    "DeleteTopic": lambda admin: admin.create_topic("doomed"),
    "Unsubscribe": lambda admin: admin.topic("news").subscribe("doomed", queue="orders"),
}
"""Makes the object that an operation deletes."""


class Row(NamedTuple):
    """An operation."""

    behind: Sequence[type[wire.Request]]
    """The native requests of a call, in their order. The first has the names of the objects."""
    values: Mapping[str, Any]
    """The parameters, by the fields of the operation's request. A member of ``Made`` stands for a value of the call."""
    answer: Reason | None = None
    """The reason of the answer to an allowed call, if the broker finds no message or no time to rewind to."""


ORDERS: Final = {"queue_name": "orders"}
NEWS: Final = {"topic_name": "news"}
SUB: Final = {**NEWS, "subscription_name": "sub"}
NO_ID: Final = "Msg-00000000000fffff"

ROWS: Final[Mapping[str, Row]] = {
    "CreateQueue": Row([wire.CreateQueue], {"queue_name": Made.NAME}),
    "ListQueue": Row([wire.ListQueues], {}),
    "GetQueueAttributes": Row([wire.GetQueueAttributes], ORDERS),
    "SetQueueAttributes": Row([wire.SetQueueAttributes], {"queue_name": "orders", "visibility_timeout": 60}),
    "DeleteQueue": Row(
        [wire.DeleteQueue],
        {"queue_name": "doomed"},
    ),
    "RewindQueue": Row([wire.RewindQueue], {"queue_name": "rewindable", "start_consume_time": 1}, Reason.REWIND_TIME),
    "ClearQueue": Row([wire.ClearQueue], {"queue_name": "bare"}),
    "UnbindDeadLetter": Row([wire.SetQueueAttributes], {"queue_name": "bare"}),
    "RedriveDeadLetters": Row([wire.StartRedrive], {"queue_name": "dead"}),
    "GetRedrive": Row([wire.GetRedrive], {"queue_name": "dead"}),
    "CancelRedrive": Row([wire.CancelRedrive], {"queue_name": "dead"}),
    "SendMessage": Row([wire.SendMessages], {"queue_name": "orders", "msg_body": "x"}),
    "BatchSendMessage": Row([wire.SendMessages], {"queue_name": "orders", "msg_body": ["x"]}),
    "ReceiveMessage": Row([wire.ReceiveMessages], {"queue_name": "orders", "polling_wait_seconds": 0}),
    "BatchReceiveMessage": Row(
        [wire.ReceiveMessages], {"queue_name": "orders", "num_of_msg": 2, "polling_wait_seconds": 0}
    ),
    "DeleteMessage": Row([wire.DeleteMessages], {"queue_name": "taken", "receipt_handle": Made.HANDLE}),
    "BatchDeleteMessage": Row([wire.DeleteMessages], {"queue_name": "taken", "receipt_handle": [Made.HANDLE]}),
    "ChangeMessageVisibility": Row(
        [wire.ChangeVisibility],
        {"queue_name": "taken", "receipt_handle": Made.HANDLE, "visibility_timeout": 60},
    ),
    "PeekMessage": Row([wire.PeekMessages], ORDERS),
    "SendHalfMessage": Row([wire.SendHalfMessages], {"queue_name": "tx", "msg_body": "x"}),
    "BatchSendHalfMessage": Row([wire.SendHalfMessages], {"queue_name": "tx", "msg_body": ["x"]}),
    "CommitHalfMessage": Row([wire.EndTransactions], {"queue_name": "tx", "msg_id": [Made.HALF]}),
    "RollbackHalfMessage": Row([wire.EndTransactions], {"queue_name": "tx", "msg_id": [Made.HALF]}),
    "ListHalfMessage": Row([wire.ListHalfMessages], {"queue_name": "tx"}),
    "CreateTopic": Row([wire.CreateTopic], {"topic_name": Made.NAME}),
    "SetTopicAttributes": Row([wire.SetTopicAttributes], {**NEWS, "max_msg_size": 2_048}),
    "GetTopicAttributes": Row([wire.GetTopicAttributes], NEWS),
    "ListTopic": Row([wire.ListTopics], {}),
    "DeleteTopic": Row(
        [wire.DeleteTopic],
        {"topic_name": "doomed"},
    ),
    "PublishMessage": Row([wire.PublishMessages], {**NEWS, "msg_body": "x"}),
    "BatchPublishMessage": Row([wire.PublishMessages], {**NEWS, "msg_body": ["x"]}),
    "Subscribe": Row(
        [wire.Subscribe],
        {**NEWS, "subscription_name": Made.NAME, "protocol": "queue", "endpoint": "orders"},
    ),
    "Unsubscribe": Row(
        [wire.Unsubscribe],
        {**NEWS, "subscription_name": "doomed"},
    ),
    "SetSubscriptionAttributes": Row([wire.SetSubscriptionAttributes], {**SUB, "notify_strategy": "BACKOFF_RETRY"}),
    "GetSubscriptionAttributes": Row([wire.GetSubscription], SUB),
    "ListSubscriptionByTopic": Row([wire.ListSubscriptions, wire.GetSubscription], NEWS),
    "ClearSubscriptionFilterTags": Row([wire.SetSubscriptionAttributes], SUB),
    "PeekDeliveries": Row([wire.PeekDeliveries], SUB),
    "RetryDelivery": Row([wire.RetryDelivery], {**SUB, "msg_id": NO_ID}, Reason.MESSAGE_ID_INVALID),
    "DropDelivery": Row([wire.DropDelivery], {**SUB, "msg_id": NO_ID}, Reason.MESSAGE_ID_INVALID),
    "QueryMessageDeliveries": Row([wire.GetMessageDeliveries], {**NEWS, "msg_id": NO_ID}, Reason.MESSAGE_ID_INVALID),
    "DescribeQueue": Row([wire.GetQueueAttributes], ORDERS),
    "DescribeQueues": Row([wire.ListQueues, wire.GetQueueAttributes], {"search_word": "orders"}),
    "DescribeTopics": Row([wire.ListTopics, wire.GetTopicAttributes], {}),
    "DescribeSubscriptions": Row([wire.ListSubscriptions, wire.GetSubscription], NEWS),
    # The broker is not asked.
    "QueryQueueRoute": Row([], ORDERS),
    "QueryTopicRoute": Row([], NEWS),
}


# ---------------------------------------------------------------------- doors


class Api2Door:
    """API 2.0: a parameter has the name of its field."""

    operations: Final = frozenset(action.name for action in API2_ACTIONS)

    def __init__(self, rig: GatewayRig, key: KeySecret, _: TcpProgram) -> None:
        self._calls = CmqCalls(rig, key=key)

    async def answer(self, operation: str, values: Mapping[str, Any]) -> Reason | None:
        answer = await self._calls.answer(operation, **{camel(field): value for field, value in values.items()})
        return Refused(answer).reason if answer["code"] else None


class Api3Door:
    """API 3.0: actions and parameters have names of their own."""

    _ACTIONS: Final = {action.operation.name: action for action in API3_ACTIONS}
    operations: Final = frozenset(_ACTIONS)

    def __init__(self, rig: GatewayRig, key: KeySecret, _: TcpProgram) -> None:
        self._calls = Api3Calls(rig, key=key)

    async def answer(self, operation: str, values: Mapping[str, Any]) -> Reason | None:
        action = self._ACTIONS[operation]
        given = {action.shown(field): value for field, value in values.items()}
        answer = await self._calls.send(self._calls.prepare(action.name, given))
        if "Error" not in answer:
            return None
        fault = answer["Error"]
        (reason,) = [
            reason
            for reason, code in CODES.items()
            if code == fault["Code"] and fault["Message"].startswith(f"({reason.module}){reason.text}")
        ]
        return reason


class TcpDoor:
    """CMQ's TCP protocol: a command for a plain and for a half message, and for both decisions."""

    operations: Final = frozenset(TCP_ROWS)
    _COMMANDS: Final = {
        "SendMessage": commands.SEND,
        "BatchSendMessage": commands.BATCH_SEND,
        "SendHalfMessage": commands.SEND,
        "BatchSendHalfMessage": commands.BATCH_SEND,
        "ReceiveMessage": commands.RECEIVE,
        "BatchReceiveMessage": commands.BATCH_RECEIVE,
        "DeleteMessage": commands.DELETE,
        "BatchDeleteMessage": commands.BATCH_DELETE,
        "PublishMessage": commands.PUBLISH,
        "BatchPublishMessage": commands.BATCH_PUBLISH,
        "CommitHalfMessage": commands.DECIDE,
        "RollbackHalfMessage": commands.DECIDE,
    }

    def __init__(self, _: GatewayRig, __: KeySecret, program: TcpProgram) -> None:
        self._program = program

    async def answer(self, operation: str, values: Mapping[str, Any]) -> Reason | None:
        given: dict[str, Any] = {camel(field): _as_bytes(field, value) for field, value in values.items()}
        if "Half" in operation and "msg_body" in values:
            given["isTransaction"] = 1
        elif "Half" in operation:
            state = commands.COMMIT if operation.startswith("Commit") else commands.ROLL_BACK
            given["item"] = [{"msgId": id_number(printed), "state": state} for printed in given.pop("msgId")]
        reply = await self._program.ask(self._COMMANDS[operation], **given)
        return Refused({"code": reply.result, "message": reply.error}).reason if reply.result else None


def _as_bytes(field: str, value: Any) -> Any:
    if field != "msg_body":
        return value
    return value.encode() if isinstance(value, str) else [body.encode() for body in value]


DOORS: Final = {"API 2.0": Api2Door, "API 3.0": Api3Door, "TCP": TcpDoor}


# ---------------------------------------------------------------------- the cells


@pytest.fixture
async def rig() -> AsyncGenerator[GatewayRig]:
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0") as rig:
        yield rig
        # The connection for checks may be on its way: the end of the broker would leave its socket open.
        states = ClientState.CONNECTED, ClientState.CLOSED
        await eventually(lambda: all(client.state in states for client in rig.clients))


async def doors_of(rig: GatewayRig, stack: AsyncExitStack) -> Mapping[str, Mapping[str, Any]]:
    """Return the doors by name, for the keys by name."""
    doors: dict[str, Mapping[str, Any]] = {}
    for name, roles, names in (*((role, [role], ["*"]) for role in SINGLE), (OTHER_NAMES, SINGLE, ["other-*"])):
        created = await rig.server.admin.accounts.create_key(roles=list(roles), names=names)
        assert created.secret_key is not None
        key = rig.add_key(created.secret_id, created.secret_key)
        program = await stack.enter_async_context(TcpProgram(rig))
        assert (await program.log_in(key)).result == 0
        doors[name] = {door: kind(rig, key, program) for door, kind in DOORS.items()}
    return doors


def is_allowed(row: Row, key: str) -> bool:
    """Return True if the native operations behind a row are allowed with a key."""
    if key == OTHER_NAMES:
        # A first request without names lists the objects of the key: here an empty list, and no further request.
        return not (row.behind and native.OPERATIONS[row.behind[0]].names)
    return all(native.OPERATIONS[request].role in (None, key) for request in row.behind)


def test_each_operation_has_a_row_and_each_door_its_operations() -> None:
    assert ROWS.keys() == OPERATIONS.keys()
    assert frozenset().union(*(door.operations for door in DOORS.values())) == OPERATIONS.keys()


async def test_an_operation_is_allowed_at_each_door_exactly_as_natively(rig: GatewayRig) -> None:
    stage = Stage()
    await stage.fill(rig.server.admin)
    cells = 0
    async with AsyncExitStack() as stack:
        doors = await doors_of(rig, stack)
        for operation, row in ROWS.items():
            asked = set(row.behind)
            for door in [name for name, kind in DOORS.items() if operation in kind.operations]:
                if operation in DELETED:
                    await DELETED[operation](rig.server.admin)
                for key, of_key in doors.items():
                    with naming((operation, door, key)):
                        before = len(rig.server.link.handled)
                        reason = await of_key[door].answer(operation, stage.values(row))

                        requests = {type(request) for request in rig.server.link.handled[before:]} - REGISTRATION
                        cells += 1
                        if is_allowed(row, key):
                            assert reason is row.answer
                            if key != OTHER_NAMES:
                                assert requests == asked
                        else:
                            assert reason is Reason.NO_PERMISSION
                            assert requests <= asked
    assert cells == len(doors) * sum(len(door.operations) for door in DOORS.values())
