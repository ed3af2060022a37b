"""Actions with which CMQ's TCP SDKs look for servers: refused, because the broker does not serve CMQ's TCP protocol."""

from typing import Final

from cmqd_gateway.cmq.call import Call, Fields, action
from cmqd_gateway.cmq.parameters import ActionRequest
from cmqd_gateway.cmq.reasons import Reason, Refusal


class RouteRequest(ActionRequest, frozen=True):
    """A request of a route; the name of its queue or topic is ignored."""


async def query_route(call: Call, request: RouteRequest) -> Fields:
    """Refuse: an SDK of CMQ's TCP protocol could not talk to any address in the answer."""
    raise Refusal(
        Reason.ACTION_UNKNOWN,
        "this broker does not serve CMQ's TCP protocol and has no addresses for TCP SDKs; use an HTTP SDK",
    )


ACTIONS: Final = [
    action("QueryQueueRoute", RouteRequest, query_route),
    action("QueryTopicRoute", RouteRequest, query_route),
]
