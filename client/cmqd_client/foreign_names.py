"""Names of other systems as names of queues and topics: ``celery@host.pidbox`` becomes a legal name, always the same.

Frameworks name queues freely: with dots, ``@`` and letters of any script, of any length, and with names that differ in
case alone. A queue of cmqd has 1-64 ASCII letters, digits, ``-`` and ``_``, a topic 3-64, and two names of an account
cannot differ in case alone.

A legal name without capital letters stays as it is. Every other name becomes ``<readable part>--<digest>``; the digest
is 128 bits of the SHA-256 of the name. Two different names never get the same result, not even in another case, short
of a collision of the digests: a legal name in the form of a result, or with capital letters, gets a digest itself.
Therefore a result must not be mapped again. The results are part of the interface: no version changes them, because
queues that exist are found by them.
"""

import base64
import hashlib
import re

__all__ = ["queue_name", "topic_name", "usable_queue_name", "usable_topic_name"]

MAX_NAME_LENGTH = 64
DIGEST_LENGTH = 26
"""128 bits as base32, in lower case and without padding."""
READABLE_LENGTH = MAX_NAME_LENGTH - DIGEST_LENGTH - len("--")

_PLAIN = re.compile(r"[a-z0-9_-]{1,64}", re.ASCII)
_LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_RESULT = re.compile(rf"[a-z0-9_-]+--[a-z2-7]{{{DIGEST_LENGTH}}}", re.ASCII)
_OTHERS = re.compile(r"[^A-Za-z0-9_]+", re.ASCII)


def queue_name(name: str) -> str:
    """Return the name of the queue that stands for ``name``; see the module.

    Any text has a name, the empty text and texts that UTF-8 cannot encode included.
    """
    return _name(name, shortest=1)


def topic_name(name: str) -> str:
    """Return the name of the topic that stands for ``name``, as :func:`queue_name`; it has at least 3 characters."""
    return _name(name, shortest=3)


def usable_queue_name(name: str) -> str:
    """Return ``name`` itself if a queue can have it, else :func:`queue_name`.

    For frameworks that share queues with other programs: a queue that exists is found by its own name, capital letters
    included, and the result can be mapped again. Unlike :func:`queue_name`, two different names can have one result, if
    one of them is the result of the other.
    """
    return name if _LEGAL.fullmatch(name) else queue_name(name)


def usable_topic_name(name: str) -> str:
    """Return ``name`` itself if a topic can have it, else :func:`topic_name`; see :func:`usable_queue_name`."""
    return name if len(name) >= 3 and _LEGAL.fullmatch(name) else topic_name(name)


def _name(name: str, shortest: int) -> str:
    if len(name) >= shortest and _PLAIN.fullmatch(name) and not _RESULT.fullmatch(name):
        return name
    # "surrogatepass" keeps texts apart that came from bytes without a meaning in UTF-8.
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:16]
    # A name that begins with "-" would be an option on a command line.
    readable = _OTHERS.sub("-", name).strip("-")[:READABLE_LENGTH] or "unnamed"
    return f"{readable}--{base64.b32encode(digest).decode('ascii').rstrip('=').lower()}"
