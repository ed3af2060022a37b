"""Arguments and options that several commands share, each with its help text."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypeAlias

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from cmq_cli.session import Session
from cmq_cli.values import parse_moment, parse_size


def _to_size(type_: object, tokens: Sequence[Token]) -> int:
    return parse_size(tokens[0].value)


def _to_moment(type_: object, tokens: Sequence[Token]) -> datetime:
    return parse_moment(tokens[0].value, time.time())


CurrentSession: TypeAlias = Annotated[Session, Parameter(parse=False)]
"""The session of the command; :mod:`cmq_cli.app` passes it."""

Flag: TypeAlias = Annotated[bool, Parameter(negative=(), show_default=False)]
"""An option without a value."""
Repeated: TypeAlias = Annotated[list[str] | None, Parameter(negative=())]
"""An option that can be given several times."""
Moment: TypeAlias = Annotated[datetime, Parameter(converter=_to_moment, n_tokens=1, metavar="TIME")]
Bytes: TypeAlias = Annotated[int, Parameter(converter=_to_size, n_tokens=1, metavar="SIZE")]
"""A size: bytes, or a number with a unit."""

QueueName: TypeAlias = Annotated[str, Parameter(help="Name of the queue.")]
TopicName: TypeAlias = Annotated[str, Parameter(help="Name of the topic.")]
SubscriptionName: TypeAlias = Annotated[str, Parameter(help="Name of the subscription.")]
ScheduleName: TypeAlias = Annotated[str, Parameter(help="Name of the schedule.")]
ReceiptHandle: TypeAlias = Annotated[int, Parameter(help="Receipt handles, as receive prints them.")]
MaxMessages: TypeAlias = Annotated[
    int, Parameter(name=["--max", "-n"], validator=Number(gte=1), help="Maximum number of messages.")
]
Header: TypeAlias = Annotated[Repeated, Parameter(help="A header of each message: name=value. Can be repeated.")]
DedupId: TypeAlias = Annotated[
    str | None,
    Parameter(help="Your own id of the message, up to 64 bytes: a repeat within 5 minutes is not stored again."),
]
Raw: TypeAlias = Annotated[Flag, Parameter(help="Print only the bodies, unchanged, with a line break after each body.")]
Yes: TypeAlias = Annotated[Flag, Parameter(help="Do not ask for confirmation. Required without a terminal.")]
Ensure: TypeAlias = Annotated[
    Flag, Parameter(help="Succeed if it exists with the same attributes; if they differ, show the differences.")
]
DataPath: TypeAlias = Annotated[
    str, Parameter(help="The data folder, or the URL of a copy. The broker of the folder may be running.")
]
IncludeActive: TypeAlias = Annotated[
    Flag, Parameter(help="Include rows that are not sealed yet; only on the machine of the broker.")
]


@Parameter(name="*")
@dataclass(frozen=True)
class Paging:
    """The part of a list to show."""

    search: Annotated[str, Parameter(show_default=False)] = ""
    "Only names that contain this text."
    offset: int = 0
    "Number of entries to skip."
    limit: int = 1000
    "Maximum number of entries: 1 to 1000."


FIRST_PAGE = Paging()
