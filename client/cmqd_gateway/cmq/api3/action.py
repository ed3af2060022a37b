"""The declaration of an action of API 3.0: an operation with names, units and answer of this door."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec

from cmqd_gateway.cmq.api3.parameters import Kind, Parameter, Values, read_values
from cmqd_gateway.cmq.operation import Operation
from cmqd_gateway.cmq.parameters import OperationRequest, TypedReader, camel
from cmqd_gateway.cmq.reasons import cmq_name
from cmqd_gateway.process.gateway_settings import Settings
from cmqd_types.sentences import Words, in_bytes, in_seconds, iso_time

Fields: TypeAlias = Mapping[str, Any]
"""Fields of an answer, beside ``RequestId``."""
Adapt: TypeAlias = Callable[[Values, Settings], Values]
"""Changes the values of a request for the operation, in place.

Raises: Fault, for a parameter without a counterpart.
"""

_NAMES: Final = {
    "dead_letter_queue": "DeadLetterQueueName",
    "tags": "tags in MsgTag",
    "routing_key": "a routing key in MsgTag",
    "routing_keys": "a routing key in MsgTag",
    "bodies": "MsgContent",
    "transactional": "Transaction",
}
"""Names of the broker's fields that differ from API 2.0 in more than the first letter."""
NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


def upper_camel(field: str) -> str:
    """Return the name of a field of an operation's request, for fields without a name of their own."""
    name = camel(field)
    return name[:1].upper() + name[1:]


def _name_of(field: str) -> str:
    """Return the name of a field of the protocol, for the sentences of the broker's errors."""
    plain, bracket, rest = field.partition("[")
    name = cmq_name(plain)
    return f"{_NAMES.get(plain) or name[:1].upper() + name[1:]}{bracket}{rest}"


WORDS: Final = Words(_name_of, in_seconds, iso_time, in_bytes)
"""Words of API 3.0 for the errors of the broker."""


class Action(msgspec.Struct, frozen=True):
    """An action of API 3.0."""

    name: str
    operation: Operation
    parameters: Mapping[str, Parameter]
    """By their names."""
    encode: Callable[[Any], Fields]
    """Returns the fields for the answer of the operation."""
    adapt: Adapt
    names: Mapping[str, str]
    """The names of parameters by the fields of the operation's request."""
    reader: TypedReader

    def read(self, given: Mapping[str, Any], settings: Settings) -> OperationRequest:
        """Return the request of the operation.

        Args:
            given: the values of a JSON body or a form.
            settings: of the gateway.

        Raises:
            Fault, Refusal: a parameter is unknown, missing, of a wrong kind or out of range, or has no counterpart.
        """
        return self.reader.read(self.adapt(read_values(self.parameters, given, self.name), settings))

    def shown(self, field: str) -> str:
        """Return the name of a parameter, for texts of refusals; of a field of an object, ``object.field``."""
        return self.names.get(field) or upper_camel(field)


def _unchanged(values: Values, settings: Settings) -> Values:
    return values


def no_fields(answer: object) -> Fields:
    """Return the fields of an answer that has the number of the request alone."""
    return {}


def action(
    name: str,
    operation: Operation,
    *parameters: Parameter,
    encode: Callable[[Any], Fields] = no_fields,
    adapt: Adapt = _unchanged,
    further_names: Mapping[str, str] = NO_NAMES,
) -> Action:
    """Declare an action; ``further_names`` are of fields that no parameter gives, for texts of refusals."""
    names = {parameter.field: parameter.name for parameter in parameters if parameter.field}
    reader = TypedReader(operation.request_type, lambda field: names.get(field) or upper_camel(field))
    known = {parameter.name: parameter for parameter in parameters}
    return Action(name, operation, known, encode, adapt, {**names, **further_names}, reader)


def text(name: str, field: str = "", *, required: bool = False) -> Parameter:
    """Declare a text."""
    return Parameter(name, Kind.TEXT, field, required)


def number(name: str, field: str = "", *, required: bool = False) -> Parameter:
    """Declare a whole number."""
    return Parameter(name, Kind.NUMBER, field, required)


def truth(name: str) -> Parameter:
    """Declare a truth value."""
    return Parameter(name, Kind.TRUTH)


def texts(name: str, field: str = "") -> Parameter:
    """Declare a list of texts."""
    return Parameter(name, Kind.TEXTS, field)
