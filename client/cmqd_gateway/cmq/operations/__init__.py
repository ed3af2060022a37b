"""The actions of API 2.0: a table of name, request type and function.

A module of this package declares its actions in a list ``ACTIONS``; ``TABLE`` has all of them. To add an action: a
Struct for its parameters (see :mod:`cmqd_gateway.cmq.parameters`), a function, and a line in the list.
"""

from collections.abc import Mapping

from cmqd_gateway.cmq.call import Action
from cmqd_gateway.cmq.operations import (
    dead_letters,
    deliveries,
    messages,
    publishing,
    queues,
    routes,
    subscriptions,
    topics,
    transactions,
)

ACTIONS: tuple[Action, ...] = (
    *queues.ACTIONS,
    *dead_letters.ACTIONS,
    *messages.ACTIONS,
    *transactions.ACTIONS,
    *topics.ACTIONS,
    *publishing.ACTIONS,
    *subscriptions.ACTIONS,
    *deliveries.ACTIONS,
    *routes.ACTIONS,
)
"""All actions."""

TABLE: Mapping[str, Action] = {action.name.lower(): action for action in ACTIONS}
"""The actions by their names in lower case: SDKs spell some names differently."""
