"""The actions of API 2.0: operations with their forms and the fields of their answers."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from cmqd_gateway.cmq.api2.form import FormReader
from cmqd_gateway.cmq.operation import Operation
from cmqd_gateway.cmq.operations import OPERATIONS

Fields: TypeAlias = Mapping[str, Any]
"""Fields of an answer, beside ``code``, ``message`` and ``requestId``."""


class Action(msgspec.Struct, frozen=True):
    """An action of API 2.0."""

    operation: Operation
    reader: FormReader
    """Reads the parameters, which have the lower-camel names of the fields."""

    @property
    def name(self) -> str:
        """The name of the action, which is the name of the operation."""
        return self.operation.name


ACTIONS: tuple[Action, ...] = tuple(Action(each, FormReader(each.request_type)) for each in OPERATIONS.values())
"""All actions."""

TABLE: Mapping[str, Action] = {action.name.lower(): action for action in ACTIONS}
"""The actions by their names in lower case: SDKs spell some names differently."""
