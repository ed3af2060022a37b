"""Roles of access keys, shared by server, wire and client.

A role stands for a set of operations; ``protocol/SPEC.md`` has the table. No role implies another role.
"""

from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """A role of a key; the value is the word on the wire, in files and on the command line."""

    ADMIN = "admin"
    """Keys and accounts."""
    MANAGE = "manage"
    """Create, change, delete, clear, rewind, redrive; subscriptions and schedules."""
    SEND = "send"
    """Send, publish, half messages and their decisions, checkers."""
    CONSUME = "consume"
    """Receive, delete, change the visibility, release, move to the dead-letter queue."""
    READ = "read"
    """Attributes, lists, peeks, counts, metrics."""
    GATEWAY = "gateway"
    """Read the secrets of keys, for a gateway that checks signatures. Only for keys of the account ``admin``."""


EVERY_ROLE: Final = (Role.ADMIN, Role.MANAGE, Role.SEND, Role.CONSUME, Role.READ)
"""The roles of a key that was created without roles. ``GATEWAY`` is not among them."""

EVERY_NAME: Final = ("*",)
"""The name patterns of a key that was created without patterns: all names of its account."""

MAX_PATTERNS: Final = 50
"""Name patterns of a key. A request with a few names is compared with each pattern."""
