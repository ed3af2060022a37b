"""Performing an operation for a key: the rate, the connection to the broker, and the errors as refusals."""

from collections.abc import Callable, Sequence
from typing import Any

from cmqd_client.errors import ClientClosed, CmqError
from cmqd_gateway.broker.broker_connections import TooManyKeysInUse, TooManyPolls
from cmqd_gateway.callers.caller import Caller
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.ignored_keys import API2
from cmqd_gateway.cmq.operation import NO_REPEATS, Call, Operation, Repeats
from cmqd_gateway.cmq.operations.routes import no_addresses
from cmqd_gateway.cmq.parameters import OperationRequest, camel
from cmqd_gateway.cmq.reasons import CMQ_WORDS, Reason, Refusal
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.hand_over import HandOver
from cmqd_types.actors import StatedClient
from cmqd_types.sentences import Words


async def perform(
    gateway: Gateway,
    key: KeySecret,
    operation: Operation,
    read: Callable[[], OperationRequest],
    hand_over: HandOver,
    *,
    stated: StatedClient,
    repeats: Repeats = NO_REPEATS,
    words: Words = CMQ_WORDS,
    shown: Callable[[str], str] = camel,
    door: str = API2,
    addresses: Callable[[], Sequence[str]] = no_addresses,
) -> Any:
    """Return the answer of an operation.

    Args:
        gateway: the gateway.
        key: the key of the caller, which the door has authenticated.
        operation: the operation.
        read: returns the request. Called after the key's rate was taken: a key above its rate causes no further work.
        hand_over: of the request, for received messages.
        stated: the client of the request.
        repeats: recognises repeated requests.
        words: of the door, for errors of the broker.
        shown: returns the door's name of a parameter.
        door: name of the door in metrics.
        addresses: returns the addresses of CMQ's TCP protocol, as the client can use them.

    Raises:
        Refusal: the operation was refused or failed.
    """
    if not gateway.rates.take(key.secret_id):
        raise operation.throttled("the key makes more requests per second than the gateway allows")
    request = read()
    connections = gateway.connections
    is_poll = operation.waits is not None and operation.waits(request)
    open_client = connections.polling if is_poll else connections.client
    try:
        async with open_client(key, stated) as client:
            caller, ignored_keys = Caller(key, client, stated), gateway.ignored_keys
            call = Call(operation, caller, hand_over, ignored_keys, repeats, words, shown, door, addresses)
            return await operation.run(call, request)
    except ClientClosed:
        if operation.waits is not None and gateway.is_draining:
            raise Refusal(Reason.NO_MESSAGE, "the gateway is shutting down") from None
        raise Refusal(Reason.INTERNAL_ERROR, "the gateway is shutting down; send the request again") from None
    except (TooManyKeysInUse, TooManyPolls) as full:
        raise Refusal(Reason.THROTTLED, str(full)) from None
    except CmqError as error:
        # Without the traceback: its frames hold the request, and frames that hold their own error would keep the
        # request until the garbage collector finds them, outside the budget of bodies.
        raise operation.refusal(error, words) from error.with_traceback(None)
