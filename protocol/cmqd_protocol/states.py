"""The life of a connection as a table.

Two rules: everything that moves a connection from one state to another is in ``TRANSITIONS``; and this module does
not know what the bytes are. A step that is not in the table is illegal and changes nothing.

    server:  PREAMBLE ──preamble──► HELLO ──────── proof accepted ──────────► OPEN
    client:  PREAMBLE ──preamble──► HELLO ──hello──► PROOF ──proof accepted──► OPEN
                 │                    │                │                        │
                 └────────────────────┴──── ended ─────┴────────────────────────┴──► CLOSING ──closed──► CLOSED

PREAMBLE   nothing but eight bytes is understood.
HELLO      waiting for the peer's hello: frames of at most 4 KiB, and the clock of the authentication runs.
PROOF      client: its proof is on its way, the server's is awaited.
OPEN       requests one way, replies the other, heartbeats both ways.
CLOSING    the last bytes are waiting to be written; what arrives is thrown away.
CLOSED     the shell has closed; nothing more happens.
"""

from enum import Enum, auto
from typing import Final


class State(Enum):
    """Where a connection is; see the module."""

    PREAMBLE = auto()
    HELLO = auto()
    PROOF = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class Step(Enum):
    """What moves it."""

    PREAMBLE_ACCEPTED = auto()
    HELLO_ANSWERED = auto()
    PROOF_ACCEPTED = auto()
    ENDED = auto()
    CLOSED = auto()


class Role(Enum):
    """Which side of the connection a machine is."""

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
