"""Operations with which CMQ's TCP SDKs look for servers: refused, because nothing serves CMQ's TCP protocol."""

from typing import Final

from cmqd_gateway.cmq.operation import Call, operation
from cmqd_gateway.cmq.parameters import OperationRequest
from cmqd_gateway.cmq.reasons import Reason, Refusal


class RouteRequest(OperationRequest, frozen=True):
    """A request of a route; the name of its queue or topic is ignored."""


async def query_route(call: Call, request: RouteRequest) -> None:
    """Refuse: an SDK of CMQ's TCP protocol could not talk to any address in the answer."""
    raise Refusal(
        Reason.ACTION_UNKNOWN,
        "this broker does not serve CMQ's TCP protocol and has no addresses for TCP SDKs; use an HTTP SDK",
    )


OPERATIONS: Final = [
    operation("QueryQueueRoute", RouteRequest, query_route),
    operation("QueryTopicRoute", RouteRequest, query_route),
]
