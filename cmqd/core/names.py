"""Rules for the names of queues, topics, subscriptions and schedules."""

import re

from cmqd.core.domain_errors import InvalidArgument, shown

MAX_NAME_BYTES = 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_LONG_NAME = re.compile(r"[A-Za-z0-9_-]{65,}", re.ASCII)
_LEAST = {"topic": 3}
"""Fewest characters of a name, where the minimum is not 1: CMQ's documents give topics a minimum, and no other kind."""


def check_queue_name(name: str) -> str:
    """Return ``name`` if a queue may have it.

    Raises:
        InvalidArgument: the name is not 1-64 ASCII letters, digits, ``-`` or ``_``.
    """
    return check_name("queue", name)


def check_name(field: str, name: str) -> str:
    """Return ``name`` if a queue, topic, subscription or schedule may have it; ``field`` names the kind.

    Raises:
        InvalidArgument: the name is not 1-64 (of a topic 3-64) ASCII letters, digits, ``-`` or ``_``.
    """
    least = _LEAST.get(field, 1)
    if len(name) < least or _NAME.fullmatch(name) is None:
        noun = "queue" if field in ("endpoint", "dead_letter_queue") else field
        raise InvalidArgument(
            f"{shown(name)} is not the name of a {noun}: a name has {least} to 64 ASCII letters, digits, '-' or '_'",
            field=field,
            value=name,
            limit=f"{least} to 64 ASCII letters, digits, '-' or '_'",
            form="name",
        )
    return name


def cut_topic_name(name: str) -> str:
    """Return the name under which a topic is created: the first 64 bytes of ``name``, as in CMQ's CreateTopic.

    A name with an illegal character anywhere is returned whole, for the caller to refuse.
    """
    return name[:MAX_NAME_BYTES] if _LONG_NAME.fullmatch(name) is not None else name


def every_name(name: str) -> bool:
    """Return True: the selection of a caller that may see every name."""
    return True


def folded(name: str) -> str:
    """Return the case-folded form of a name. Two names with the same form cannot coexist."""
    lower = name.lower()
    # The same string where possible: each queue is in a table by its name and by this form.
    return name if lower == name else lower
