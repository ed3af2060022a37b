"""The execution of a request that has been read: over a client of the broker with the caller's key."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cmqd_client.errors import ClientClosed
from cmqd_gateway.broker.broker_connections import TooManyKeysInUse, TooManyPolls
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.hand_over import TakeBack, made_for
from cmqd_gateway.rest.answers import Answer
from cmqd_gateway.rest.operation import Call, Operation
from cmqd_gateway.rest.problems import of_code
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.actors import StatedClient

FREQUENT: Final = ("send_message", "receive_messages", "delete_message", "send_messages", "delete_messages")
"""Operations with most of the requests: each has a queue in its path, a body and no query."""

_encoder = msgspec.json.Encoder()


class Execution:
    """Executes the requests of an operation."""

    def __init__(self, gateway: Gateway, operation: Operation[Any, Any, Any]) -> None:
        self._gateway = gateway
        self._operation = operation

    async def run(
        self,
        key: KeySecret,
        names: Mapping[str, str],
        query: Any,
        body: Any,
        idempotency_key: str | None,
        received: Callable[[KeySecret, TakeBack], None],
        stated: StatedClient,
    ) -> Answer:
        """Execute a request for a caller and return its answer. ``received`` notes received messages: see ``HandOver``.

        Raises:
            ProblemError, CmqError: the request is refused.
        """
        operation = self._operation
        connections = self._gateway.connections
        is_poll = operation.waits is not None and operation.waits(body)

        def note(take_back: TakeBack) -> None:
            received(key, made_for(stated, take_back))

        try:
            use = connections.ready(key, polls=is_poll)
            if use is None:
                async with (connections.polling if is_poll else connections.client)(key, stated) as client:
                    reply = await operation.run(Call(client, self._gateway, names, query, body, idempotency_key, note))
            else:
                try:
                    reply = await operation.run(
                        Call(use.made_for(stated), self._gateway, names, query, body, idempotency_key, note)
                    )
                finally:
                    connections.release(use)
        except ClientClosed:
            text = "the gateway is shutting down; the request was not executed"
            raise of_code(ErrorCode.SHUTTING_DOWN, text) from None
        except (TooManyKeysInUse, TooManyPolls) as full:
            raise of_code(ErrorCode.TOO_MANY_CONNECTIONS, str(full)) from None
        return Answer(operation.status(reply), None if reply is None else _encoder.encode(reply))
