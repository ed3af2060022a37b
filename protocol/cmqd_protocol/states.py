"""States of a connection and their transitions, as a table.

``TRANSITIONS`` has every legal step. A step that is not in the table is an error and leaves the state unchanged. This
module does not know the bytes.

    server:  PREAMBLE ──preamble──► HELLO ──────── proof accepted ──────────► OPEN
    client:  PREAMBLE ──preamble──► HELLO ──hello──► PROOF ──proof accepted──► OPEN
                 │                    │                │                        │
                 └────────────────────┴──── ended ─────┴────────────────────────┴──► CLOSING ──closed──► CLOSED

PREAMBLE   the eight bytes of the peer's preamble are awaited.
HELLO      the peer's hello is awaited: frames of at most 4 KiB, before the timeout of the authentication.
PROOF      the client has sent its proof and awaits the proof of the server.
OPEN       requests one way, replies the other, heartbeats both ways.
CLOSING    the last bytes are to be written; arriving bytes are dropped.
CLOSED     the shell has closed the socket.
"""

from enum import Enum, auto
from typing import Final


class State(Enum):
    """State of a connection; the module describes the states."""

    PREAMBLE = auto()
    HELLO = auto()
    PROOF = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class Step(Enum):
    """Transition from a state to the next."""

    PREAMBLE_ACCEPTED = auto()
    HELLO_ANSWERED = auto()
    PROOF_ACCEPTED = auto()
    ENDED = auto()
    CLOSED = auto()


class Role(Enum):
    """Side of a connection."""

    SERVER = auto()
    CLIENT = auto()


_ENDS: Final = {Step.ENDED: State.CLOSING, Step.CLOSED: State.CLOSED}

TRANSITIONS: Final[dict[Role, dict[State, dict[Step, State]]]] = {
    Role.SERVER: {
        State.PREAMBLE: {Step.PREAMBLE_ACCEPTED: State.HELLO, **_ENDS},
        State.HELLO: {Step.PROOF_ACCEPTED: State.OPEN, **_ENDS},
        State.OPEN: {**_ENDS},
        State.CLOSING: {Step.CLOSED: State.CLOSED},
        State.CLOSED: {Step.CLOSED: State.CLOSED},
    },
    Role.CLIENT: {
        State.PREAMBLE: {Step.PREAMBLE_ACCEPTED: State.HELLO, **_ENDS},
        State.HELLO: {Step.HELLO_ANSWERED: State.PROOF, **_ENDS},
        State.PROOF: {Step.PROOF_ACCEPTED: State.OPEN, **_ENDS},
        State.OPEN: {**_ENDS},
        State.CLOSING: {Step.CLOSED: State.CLOSED},
        State.CLOSED: {Step.CLOSED: State.CLOSED},
    },
}
