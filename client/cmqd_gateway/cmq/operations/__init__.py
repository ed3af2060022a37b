"""The operations of CMQ: one declaration each, for all doors.

A module of this package declares its operations in a list; ``OPERATIONS`` has all of them. To add an operation: a
Struct for its parameters (see :mod:`cmqd_gateway.cmq.parameters`), a function, and a line in the list. A door adds its
own names and encodings (:mod:`cmqd_gateway.cmq.api2.actions`).
"""

from collections.abc import Mapping

from cmqd_gateway.cmq.operation import Operation
from cmqd_gateway.cmq.operations import (
    dead_letters,
    deliveries,
    descriptions,
    messages,
    publishing,
    queues,
    routes,
    subscriptions,
    topics,
    transactions,
)

OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        *queues.OPERATIONS,
        *dead_letters.OPERATIONS,
        *messages.OPERATIONS,
        *transactions.OPERATIONS,
        *topics.OPERATIONS,
        *publishing.OPERATIONS,
        *subscriptions.OPERATIONS,
        *deliveries.OPERATIONS,
        *descriptions.OPERATIONS,
        *routes.OPERATIONS,
    )
}
"""All operations by their names."""
