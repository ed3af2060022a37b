"""Actors: the clients that change messages.

Account and key of an actor are proved. The name is the client's own word. The host is an address that the server saw,
or the word of a gateway, whose address stands beside it.
"""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

MAX_CLIENT_NAME: Final = 128
"""Characters of the name of a client, which have up to four bytes each."""
MAX_CLIENT_HOST: Final = 64
"""Characters of a stated host: an IPv6 address with a scope, or most names of machines."""
INVISIBLE: Final = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Line ends and marks of direction, and the characters without a form of their own (Unicode's
``Default_Ignorable_Code_Point``): joiners and spaces without width, fillers, selectors of variants, tags."""
NAME_PATTERN: Final = rf"^[^\x00-\x1f\x7f-\x9f{INVISIBLE}\ud800-\udfff]*\Z"
"""No control characters and none that is invisible, because names stand in tables, logs and terminals, and different
names must not look alike; and no surrogates, which UTF-8 cannot have."""
HOST_PATTERN: Final = r"^[0-9A-Za-z._:%-]*\Z"

PATTERNS: Final = {
    NAME_PATTERN: "printable text, without control characters, line ends and marks of direction",
    HOST_PATTERN: "ASCII letters, digits, '.', ':', '%', '_' and '-'",
}
"""The patterns in words, for errors."""

ClientName: TypeAlias = Annotated[str, Meta(max_length=MAX_CLIENT_NAME, pattern=NAME_PATTERN)]
ClientHost: TypeAlias = Annotated[str, Meta(max_length=MAX_CLIENT_HOST, pattern=HOST_PATTERN)]


class StatedClient(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The client for which a connection makes a request, as the connection states it, without proof.

    A gateway with a connection for many clients states the client of each request.
    """

    name: ClientName = ""
    """Empty = the client has no name."""
    host: ClientHost = ""
    """Address of the client; empty = the host of the connection."""


class Actor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A client that changes messages: equal for all its connections and requests."""

    account: str
    secret_id: str
    """Id of the key that authenticated the connection."""
    name: str = ""
    """Name of the client as the client states, without proof; empty if not stated."""
    host: str = ""
    """Address of the client's machine, without a port; empty if not known."""
    stated_by: str = ""
    """Address of the peer that stated ``host``; empty = the server saw ``host`` itself."""

    def stating(self, stated: StatedClient) -> "Actor":
        """Return the actor of a request that the connection of this actor makes for another client."""
        if stated.host in ("", self.host):
            return Actor(self.account, self.secret_id, stated.name, self.host)
        return Actor(self.account, self.secret_id, stated.name, stated.host, self.host)


NO_ACTOR: Final = Actor("", "")
"""The actor of a connection before its authentication."""
