"""The commands of a program that has logged in: from the body of a request to an operation and back to a reply."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from cmqd_client.messages.message_ids import printed_id
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.callers.stated_clients import stated_client
from cmqd_gateway.cmq.ignored_keys import TCP
from cmqd_gateway.cmq.operation import Operation
from cmqd_gateway.cmq.operations import OPERATIONS
from cmqd_gateway.cmq.operations.messages import MAX_WAIT_SECONDS
from cmqd_gateway.cmq.parameters import TypedReader
from cmqd_gateway.cmq.performing import perform
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import DECIDE_REPLY, Envelope
from cmqd_gateway.cmq.tcp.connection import Answer, Connection
from cmqd_gateway.cmq.tcp.proto2 import Values, encode_bytes
from cmqd_gateway.cmq.tcp.receiving import receive_batch
from cmqd_gateway.cmq.tcp.replies import batch_received_content, ids_content, not_deleted_content, received_content
from cmqd_gateway.cmq.tcp.transaction_checks import TransactionChecks
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.hand_over import HandOver
from cmqd_gateway.process.gateway_logger import SparseWarning

_TRANSACTION: Final = 1
_LEAST_MILLISECONDS: Final = 1_000
"""From here on a ``firstQueryInterval`` is in milliseconds; below in seconds."""


class _Request:
    """A request on its way to an operation."""

    __slots__ = ("connection", "envelope", "gateway", "hand_over", "key", "values")

    def __init__(
        self,
        gateway: Gateway,
        connection: Connection,
        envelope: Envelope,
        key: KeySecret,
        hand_over: HandOver,
        values: Values,
    ) -> None:
        self.gateway = gateway
        self.connection = connection
        self.envelope = envelope
        self.key = key
        self.hand_over = hand_over
        self.values = values

    async def perform(self, name: str, values: Mapping[str, Any] | None = None) -> Any:
        """Return the answer of an operation to these values, by default those of the request."""
        operation, reader = ROWS[name]
        read = partial(reader.read, self.values if values is None else values)
        stated = stated_client(self.connection.client_id, self.connection.remote)
        return await perform(self.gateway, self.key, operation, read, self.hand_over, stated=stated, door=TCP)


class Dispatch:
    """Performs requests; see the module."""

    def __init__(
        self,
        gateway: Gateway,
        checks: TransactionChecks,
        sleep: Callable[[float], Awaitable[Any]],
    ) -> None:
        """Make the object; ``sleep`` pauses for so many seconds."""
        self._gateway = gateway
        self._checks = checks
        self._not_checked = SparseWarning("half_message_without_checker", gateway.now)
        self._sleep = sleep
        self._handlers: dict[int, Callable[[_Request], Awaitable[Answer]]] = {
            commands.SEND: partial(self._send, "SendMessage", "SendHalfMessage"),
            commands.BATCH_SEND: partial(self._send, "BatchSendMessage", "BatchSendHalfMessage"),
            commands.RECEIVE: self._receive,
            commands.BATCH_RECEIVE: self._batch_receive,
            commands.DELETE: self._delete,
            commands.BATCH_DELETE: self._batch_delete,
            commands.PUBLISH: partial(self._stored, "PublishMessage"),
            commands.BATCH_PUBLISH: partial(self._stored, "BatchPublishMessage"),
            commands.DECIDE: self._decide,
        }

    async def answer(self, connection: Connection, envelope: Envelope, key: KeySecret, hand_over: HandOver) -> Answer:
        """Perform a request.

        Raises:
            Refusal: the request is refused or failed.
        """
        request = _Request(self._gateway, connection, envelope, key, hand_over, envelope.values)
        return await self._handlers[envelope.cmd](request)

    # ------------------------------------------------------------------ the commands

    async def _send(self, plain: str, half: str, request: _Request) -> Answer:
        values = request.values
        kind = values.get("isTransaction", 0)
        if kind not in (0, _TRANSACTION):
            raise Refusal(Reason.OUT_OF_RANGE, f"isTransaction is {kind}; the range is 0 to {_TRANSACTION}")
        if not kind:
            return await self._stored(plain, request)
        if values.get("delaySeconds"):
            raise Refusal(Reason.DELAY, "a half message takes no delay")
        values["firstQueryInterval"] = first_query_seconds(values.get("firstQueryInterval", 0))
        answer = await self._stored(half, request)
        queue = values["queueName"]
        if not self._checks.half_sent(request.connection, queue) and request.connection.transport is not None:
            self._not_checked.note(key=request.key.secret_id, queue=queue)
        return answer

    async def _stored(self, name: str, request: _Request) -> Answer:
        """Send or publish; a repeat of the request is stored once."""

        async def send() -> bytes:
            return ids_content(await request.perform(name))

        return 0, "", await request.connection.send_once(request.envelope, send)

    async def _receive(self, request: _Request) -> Answer:
        _check_receive(request.values)
        return 0, "", received_content(await request.perform("ReceiveMessage"))

    async def _batch_receive(self, request: _Request) -> Answer:
        values = request.values
        _check_receive(values)

        async def receive(count: int, wait: int | None) -> Any:
            asked = {**values, "numOfMsg": count, "pollingWaitSeconds": wait}
            return await request.perform("BatchReceiveMessage", asked)

        messages = await receive_batch(
            receive,
            values["numOfMsg"],
            values.get("pollingWaitSeconds"),
            now=self._gateway.now,
            wall_clock=self._gateway.wall_clock,
            sleep=self._sleep,
        )
        return 0, "", batch_received_content(messages)

    async def _delete(self, request: _Request) -> Answer:
        request.values["receiptHandle"] = str(request.values["receiptHandle"])
        await request.perform("DeleteMessage")
        return 0, "", b""

    async def _batch_delete(self, request: _Request) -> Answer:
        values = request.values
        values["receiptHandle"] = [str(handle) for handle in values.get("receiptHandle", ())]
        failures = await request.perform("BatchDeleteMessage")
        if not failures.refusals:
            return 0, "", b""
        refusal = Refusal(Reason.DELETES_FAILED if failures.are_all else Reason.DELETES_PARTLY_FAILED)
        return refusal.code, refusal.message, not_deleted_content(list(failures.refusals.items()))

    async def _decide(self, request: _Request) -> Answer:
        """Decide half messages independently; the reply has an entry for each item."""
        values = request.values
        items: list[Values] = values.get("item", [])
        if not items:
            raise Refusal(Reason.BATCH_SIZE, "item has 0 entries; the range is 1 to 16")
        refusals: dict[tuple[int, int], Refusal] = {}
        asked = {state: [item["msgId"] for item in items if item["state"] == state] for state in _DECISIONS}
        asked = {state: numbers for state, numbers in asked.items() if numbers}
        refused: list[Refusal] = []
        for state, numbers in asked.items():
            printed = {printed_id(number): number for number in numbers}
            asked_values = {"queueName": values["queueName"], "msgId": list(printed)}
            try:
                failures = (await request.perform(_DECISIONS[state], asked_values)).refusals
            except Refusal as refusal:
                # The decisions with the other state stand, and are answered.
                refused.append(refusal)
                failures = dict.fromkeys(printed, refusal)
            refusals |= {(printed[failed], state): refusal for failed, refusal in failures.items()}
        if refused and len(refused) == len(asked):
            raise refused[0]
        for item in items:
            if item["state"] not in _DECISIONS:
                text = f"state is {item['state']}; it must be {commands.COMMIT} (commit) or {commands.ROLL_BACK}"
                refusals[item["msgId"], item["state"]] = Refusal(Reason.OUT_OF_RANGE, text)
        decided = {item["msgId"] for item in items} - {
            number for (number, _), refusal in refusals.items() if refusal.reason not in _HAS_DECISION
        }
        self._checks.decided(request.connection, values["queueName"], decided)
        content = {"queueName": values["queueName"], "item": [_decided(item, refusals) for item in items]}
        result, text = _result_of_decisions(list(refusals.values()), len(items))
        return result, text, encode_bytes(DECIDE_REPLY.encode(content), commands.DECIDE_BODY)


def first_query_seconds(interval: int) -> float | None:
    """Return the time to the first check of a half message in seconds; None = the queue's own.

    CMQ names no unit: its default of 5000 is milliseconds, its example of 5 seconds.
    """
    if not interval:
        return None
    return interval / 1_000 if interval >= _LEAST_MILLISECONDS else float(interval)


def _check_receive(values: Values) -> None:
    """Cut the wait of a receive to the longest wait.

    Raises:
        Refusal: the receive has a visibility timeout of its own, which no SDK sends.
    """
    if values.get("visibilityTimeout"):
        raise Refusal(Reason.OUT_OF_RANGE, "visibilityTimeout must be absent: that of the queue counts")
    wait = values.get("pollingWaitSeconds")
    if wait is not None:
        values["pollingWaitSeconds"] = min(wait, MAX_WAIT_SECONDS)


def _decided(item: Values, refusals: Mapping[tuple[int, int], Refusal]) -> Values:
    refusal = refusals.get((item["msgId"], item["state"]))
    if refusal is None:
        return item
    return {"msgId": item["msgId"], "state": commands.UNKNOWN, "code": refusal.code, "message": refusal.message}


def _result_of_decisions(refusals: list[Refusal], count: int) -> tuple[int, str]:
    """Return result and text of a reply, as API 2.0 has them."""
    if not refusals:
        return 0, ""
    if count == 1:
        return refusals[0].code, refusals[0].message
    reason = Reason.DECISIONS_PARTLY_FAILED if len(refusals) < count else Reason.DECISIONS_FAILED
    refusal = Refusal(reason, f"{len(refusals)} of {count} messages were not decided")
    return refusal.code, refusal.message


_HAS_DECISION: Final = frozenset({Reason.DECISION_CONFLICT, Reason.MESSAGE_ID_INVALID})
"""Reasons of a refused decision about a message that the broker asks no more for."""
_DECISIONS: Final = {commands.COMMIT: "CommitHalfMessage", commands.ROLL_BACK: "RollbackHalfMessage"}
ROWS: Final[Mapping[str, tuple[Operation, TypedReader]]] = {
    name: (OPERATIONS[name], TypedReader(OPERATIONS[name].request_type))
    for name in (
        "SendMessage",
        "BatchSendMessage",
        "SendHalfMessage",
        "BatchSendHalfMessage",
        "ReceiveMessage",
        "BatchReceiveMessage",
        "DeleteMessage",
        "BatchDeleteMessage",
        "PublishMessage",
        "BatchPublishMessage",
        "CommitHalfMessage",
        "RollbackHalfMessage",
    )
}
"""The operations of this door with the readers of their requests, by the names of the operations."""
