"""Operations with which CMQ's TCP SDK looks for the addresses of CMQ's TCP protocol. The broker is not asked.

The SDK asks before the first use of a queue, and before every decision of a transaction. An answer with an address that
does not work would cost a program its decision, so a gateway without such an address refuses.
"""

from collections.abc import Sequence
from typing import Final

from cmqd_gateway.cmq.operation import Call, operation
from cmqd_gateway.cmq.parameters import OperationRequest
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_gateway.process.gateway_settings import Settings


class RouteRequest(OperationRequest, frozen=True):
    """A request of a route; the name of its queue or topic is ignored."""


async def query_route(call: Call, request: RouteRequest) -> Sequence[str]:
    """Return the addresses of CMQ's TCP protocol; an unknown queue or topic is refused at its first use."""
    return call.addresses()


def no_addresses() -> Sequence[str]:
    """Refuse a route at a door that has no names of the gateway."""
    raise Refusal(Reason.ACTION_UNKNOWN, "routes are answered over CMQ's API 2.0 alone")


def route_addresses(settings: Settings, port: int | None, host: str) -> Sequence[str]:
    """Return the addresses for an answer.

    Args:
        settings: of the gateway.
        port: port of the listener, None if the gateway does not serve the protocol.
        host: the Host header of the request.

    Raises:
        Refusal: there is no listener, or its address cannot be written.
    """
    if port is None:
        text = "this gateway does not serve CMQ's TCP protocol (its setting listen_cmq_tcp); use an HTTP SDK"
        raise Refusal(Reason.ACTION_UNKNOWN, text)
    if settings.cmq_tcp_addresses:
        return settings.cmq_tcp_addresses
    name = host.partition(":")[0]
    if not name or name.startswith("["):
        text = "the host of the request is an IPv6 address, which no route can name; set cmq_tcp_addresses"
        raise Refusal(Reason.INVALID_REQUEST, text if name else "the request names no host")
    return [f"{name}:{port}"]


OPERATIONS: Final = [
    operation("QueryQueueRoute", RouteRequest, query_route),
    operation("QueryTopicRoute", RouteRequest, query_route),
]
