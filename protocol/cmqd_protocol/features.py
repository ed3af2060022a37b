"""Features: words with which a server names the later additions to the protocol that it supports.

A peer ignores unknown fields. A field that changes the effect of a request must not be ignored, because an older server
would carry out the request without the field. This module gives the field a word. A server
names its words in the welcome (``facts``), and ``ClientConnection.send`` refuses a request that uses the field unless
the server named the word. The older server never receives the request.

A new feature is a member of ``Feature``, an entry of ``FIELD_FEATURES`` and a row of the table in SPEC.md, section 4.4.

A client names words too (``ClientFeature``), in its hello: answers that an older client would take for the end of a
call. A server gives such an answer only to a client that named the word.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar, cast

from msgspec import Struct, structs

from cmqd_protocol.messages import (
    ChangeVisibility,
    DeadLetterMessages,
    DeleteMessages,
    EndTransactions,
    PublishMessages,
    ReceiveMessages,
    ReleaseMessages,
    Request,
    RewindQueue,
    SendHalfMessages,
    SendMessages,
)
from cmqd_protocol.protocol_errors import LocalProtocolError
from cmqd_types.actors import StatedClient

RequestT = TypeVar("RequestT", bound=Request)

MAX_WAITING_REQUESTS_FACT: Final = "max_waiting_requests"
FEATURES_FACT: Final = "features"
SHARD_FACT: Final = "shard"
EPOCH_FACT: Final = "epoch"
ADDRESSES_FACT: Final = "addresses"


class Feature(StrEnum):
    """The features of this version; the value is the word on the wire."""

    REWIND_AGO = "rewind_ago"
    ORDERED_SENDS = "ordered_sends"
    ORDERED_PUBLISHES = "ordered_publishes"
    SEND_AT = "send_at"
    LONG_DELAYS = "long_delays"
    """Delays beyond ``CMQ_MAX_DELAY_MS``; named only by a server with such a setting."""
    ACKNOWLEDGE = "acknowledge"
    ALL_OR_NONE = "all_or_none"
    ON_BEHALF_OF = "on_behalf_of"


class ClientFeature(StrEnum):
    """The words of a client of this version; the value is the word on the wire."""

    STALLED_RECEIVES = "stalled_receives"
    """A waiting receive may be answered ``busy`` with ``stalled``: the client looks for another leader, and repeats the
    receive for the rest of its wait. An older client would use up a repeat with each such answer."""


STALLED: Final = "stalled"
"""Name in the details of a refusal, with the value True: the storage of the server does not answer, so another server
may lead."""


ON_BEHALF_OF: Final = "on_behalf_of"
"""Field of the requests that change messages: the client that the request is made for."""
_FOR_OTHERS: Final[Mapping[str, str]] = {ON_BEHALF_OF: Feature.ON_BEHALF_OF}

FIELD_FEATURES: Final[Mapping[type[Struct], Mapping[str, str]]] = {
    RewindQueue: {"ago_ms": Feature.REWIND_AGO},
    SendMessages: {
        "after": Feature.ORDERED_SENDS,
        "at_ms": Feature.SEND_AT,
        "all_or_none": Feature.ALL_OR_NONE,
        **_FOR_OTHERS,
    },
    SendHalfMessages: {"all_or_none": Feature.ALL_OR_NONE, **_FOR_OTHERS},
    PublishMessages: {"after": Feature.ORDERED_PUBLISHES, "all_or_none": Feature.ALL_OR_NONE, **_FOR_OTHERS},
    EndTransactions: _FOR_OTHERS,
    ReceiveMessages: {"acknowledge": Feature.ACKNOWLEDGE, **_FOR_OTHERS},
    DeleteMessages: _FOR_OTHERS,
    ChangeVisibility: _FOR_OTHERS,
    ReleaseMessages: _FOR_OTHERS,
    DeadLetterMessages: _FOR_OTHERS,
}
"""Fields of requests that need a feature. A field with its default value needs no feature."""


_MADE_FOR_OTHERS: Final = frozenset(kind for kind, fields in FIELD_FEATURES.items() if ON_BEHALF_OF in fields)


class ServerFacts(Struct, frozen=True):
    """Facts of a server, read from the welcome."""

    max_waiting_requests: int | None = None
    """Requests of one connection that may wait for their replies; None if the server did not say."""
    features: frozenset[str] = frozenset()
    """Words of the server, including words that this version does not know."""
    shard: int = 0
    """Shard of the server's log; 0 also if the server did not say."""
    epoch: int = 0
    """Epoch of the server's leadership; 0 = the server is alone, or did not say."""
    addresses: tuple[str, ...] = ()
    """Addresses of the servers of the log, this server included; empty = the server is alone, or did not say."""

    @classmethod
    def from_wire(cls, facts: Mapping[str, Any]) -> "ServerFacts":
        """Read the map of a welcome. A value of another type than SPEC.md gives is ignored like an unknown name."""
        limit = facts.get(MAX_WAITING_REQUESTS_FACT)
        return cls(
            limit if type(limit) is int and limit > 0 else None,
            frozenset(_texts(facts.get(FEATURES_FACT))),
            _count(facts.get(SHARD_FACT)),
            _count(facts.get(EPOCH_FACT)),
            _texts(facts.get(ADDRESSES_FACT)),
        )


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in cast("list[Any]", value) if isinstance(text, str)) if isinstance(value, list) else ()


class FeatureNotNamed(LocalProtocolError):
    """A request uses a field that this server would ignore. The request was not queued."""

    def __init__(self, request: Struct, field: str, feature: str) -> None:
        super().__init__(
            f"the server does not support {field!r} of {type(request).__name__}: it did not name feature {feature!r}"
        )
        self.field = field
        self.feature = feature


def made_for(request: RequestT, client: StatedClient | None) -> RequestT:
    """Return a request that is made for a client, None = for the client of the connection. A request that changes no
    messages states no client, and is returned as it is."""
    return structs.replace(request, on_behalf_of=client) if type(request) in _MADE_FOR_OTHERS else request


def fields_not_named(
    fields: Mapping[type[Struct], Mapping[str, str]], named: frozenset[str]
) -> dict[type[Struct], dict[str, str]]:
    """Return the part of ``fields`` (see ``FIELD_FEATURES``) that a server would ignore; usually empty."""
    left = {
        kind: {field: feature for field, feature in features.items() if feature not in named}
        for kind, features in fields.items()
    }
    return {kind: features for kind, features in left.items() if features}


def check_unused(request: Struct, fields: Mapping[str, str]) -> None:
    """Check that a request uses none of ``fields``, the fields that the server would ignore.

    Raises:
        FeatureNotNamed: the request uses a field of ``fields``.
    """
    names, defaults = request.__struct_fields__, request.__struct_defaults__
    first_default = len(names) - len(defaults)
    for field, feature in fields.items():
        if getattr(request, field) != defaults[names.index(field) - first_default]:
            raise FeatureNotNamed(request, field, feature)
