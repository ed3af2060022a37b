"""The keys that requests name, for all doors of CMQ.

key = await known_key(gateway, secret_id, remote)
...                                                     the door checks the signature with key.secret_key
check_enabled(key)                                      after the signature: strangers learn nothing about a key
"""

from typing import Final

from cmqd_client.errors import CmqError
from cmqd_gateway.callers.key_secrets import KeySecret, TooManyUnknownIds
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_gateway.gateway import Gateway

WRONG_KEY: Final = frozenset({Reason.AUTHENTICATION_FAILED, Reason.SECRET_ID_UNKNOWN})
"""Reasons before whose answer a door pauses; see :meth:`cmqd_gateway.gateway.Gateway.pause_refusal`."""


async def known_key(gateway: Gateway, secret_id: str, remote: str | None) -> KeySecret:
    """Return the key of an id, from the gateway's memory or the broker.

    Args:
        gateway: the gateway.
        secret_id: the id.
        remote: IP address of the client.

    Raises:
        Refusal: there is no such key, the client asks for too many unknown keys, or the broker does not answer.
    """
    try:
        key = await gateway.secrets.find(secret_id, remote)
    except TooManyUnknownIds:
        raise Refusal(Reason.THROTTLED, "too many unknown keys were asked for; try again") from None
    except CmqError as error:
        raise Refusal(Reason.INTERNAL_ERROR, f"the gateway cannot ask the broker for keys: {error.text}") from error
    if key is None:
        raise Refusal(Reason.SECRET_ID_UNKNOWN)
    return key


def check_enabled(key: KeySecret) -> None:
    """Check that a key is enabled; to be called when the caller has proved the key.

    Raises:
        Refusal: the key is disabled.
    """
    if not key.enabled:
        raise Refusal(Reason.SECRET_ID_STATUS, "the key is disabled")
