"""The 20 actions of API 3.0 on CMQ: a table of name, operation, parameters and answer."""

from collections.abc import Mapping

from cmqd_gateway.cmq.api3.action import Action
from cmqd_gateway.cmq.api3.actions import messages, queues, subscriptions, topics

ACTIONS: tuple[Action, ...] = (
    *queues.ACTIONS,
    *topics.ACTIONS,
    *subscriptions.ACTIONS,
    *messages.ACTIONS,
)
"""All actions."""

TABLE: Mapping[str, Action] = {action.name: action for action in ACTIONS}
"""The actions by their names, whose case matters."""
