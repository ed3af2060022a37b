"""The tables of plain operations: the names of a line exist, and fit the method."""

import inspect

from cmqd.core.broker import Broker
from cmqd.server.access.accounts import Accounts
from cmqd.server.requests.operations import ACCOUNT_CHANGES, ACCOUNT_LOOKUPS, CHANGES, CREATIONS, LOOKUPS, Operation
from support.cases import each_case
from support.core_builders import KEY

OF_THE_BROKER = (*CREATIONS, *CHANGES, *LOOKUPS)
ALL = (*OF_THE_BROKER, *ACCOUNT_CHANGES, *ACCOUNT_LOOKUPS)
BROKER = Broker(KEY)


@each_case("operation", ALL, ids=lambda operation: operation.request.__name__)
def test_a_line_names_fields_of_its_request_that_fill_the_parameters_of_its_method(operation: Operation):
    method = getattr(BROKER if operation in OF_THE_BROKER else Accounts, operation.method)
    parameters = [
        parameter
        for parameter in inspect.signature(method).parameters.values()
        if parameter.kind is not parameter.KEYWORD_ONLY and parameter.name != "self"
    ]

    assert set(operation.fields) <= set(operation.request.__struct_fields__)
    # Beside the arguments: the account of the client.
    assert len(parameters) == 1 + len(operation.arguments.split())
    assert operation.takes_time == (parameters[-1].name == "now_ms")


def test_a_request_has_one_line():
    assert len({operation.request for operation in ALL}) == len(ALL)
