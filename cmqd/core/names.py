"""What a legal name is."""

import re

from cmqd.core.errors import InvalidArgument, shown

MAX_NAME_BYTES = 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_LONG_NAME = re.compile(r"[A-Za-z0-9_-]{65,}", re.ASCII)
_LEAST = {"topic": 3, "subscription": 3}
"""Fewest characters of a name, where that is more than one."""


def check_queue_name(name: str) -> str:
    """``name`` if a queue may bear it.

    Raises:
        InvalidArgument: it is not 1-64 ASCII letters, digits, ``-`` or ``_``.
    """
    return check_name("queue", name)


def check_name(field: str, name: str) -> str:
    """``name`` if a queue, a topic or a subscription may bear it; ``field`` says of which the question is.

    Raises:
        InvalidArgument: it is not 1-64 (of a topic or a subscription 3-64) ASCII letters, digits, ``-`` or ``_``.
    """
    least = _LEAST.get(field, 1)
    if len(name) < least or _NAME.fullmatch(name) is None:
        noun = "queue" if field == "endpoint" else field
        raise InvalidArgument(
            f"{shown(name)} is not the name of a {noun}: a name has {least} to 64 ASCII letters, digits, '-' or '_'",
            field=field,
            value=name,
            limit=f"{least} to 64 ASCII letters, digits, '-' or '_'",
        )
    return name


def cut_topic_name(name: str) -> str:
    """Return the name under which a topic is created: the first 64 bytes of ``name`` (as CMQ's CreateTopic does it).

    A name with an illegal character anywhere is not cut, so that the caller refuses it.
    """
    return name[:MAX_NAME_BYTES] if _LONG_NAME.fullmatch(name) is not None else name


def folded(name: str) -> str:
    """The form in which two names that differ only in case are equal; such two cannot coexist."""
    return name.lower()
