"""Names of exchanges, bindings and levels in the broker's alphabet, and routing keys.

AMQP's names are any text of up to 255 bytes; :mod:`cmqd_client.foreign_names` maps them. A queue with a legal name
keeps the name, so a queue ``orders`` is ``orders`` in the command line too. All other names of this module are the
transport's own: different texts have different names, in any case.
"""

from cmqd_client import foreign_names

EMPTY_KEY = "empty.key"
"""The routing key of the broker for AMQP's empty key. Has a dot, which a mapped key never has."""
_LONGEST_KEY = 64
_MOST_DOTS = 15


def level_name(queue: str, step: int) -> str:
    """Return the name of the queue that holds a priority level; level 0 is the queue itself."""
    return queue if step == 0 else foreign_names.queue_name(f"{queue}.priority.{step}")


def topic_name(exchange: str, prefix: str = "") -> str:
    """Return the name of the topic of an exchange."""
    return foreign_names.topic_name(f"{prefix}kombu-{exchange}")


def subscription_name(queue: str, key: str | None = None) -> str:
    """Return the name of the subscription of a queue (a name of the broker); ``key``: of this binding alone."""
    return foreign_names.topic_name(f"kombu-{queue}" if key is None else f"kombu-{queue}.{key}")


def exact_key(routing_key: str) -> str:
    """Return the routing key of the broker for a key of a direct exchange: no dots, no wildcards, any length."""
    return foreign_names.queue_name(routing_key) if routing_key else EMPTY_KEY


def dotted_key(routing_key: str) -> str:
    """Return the routing or binding key of the broker for a key of a topic exchange.

    Raises:
        ValueError: the key is longer than 64 bytes or has more than 15 dots.
    """
    if not routing_key:
        return EMPTY_KEY
    if len(routing_key.encode()) > _LONGEST_KEY or routing_key.count(".") > _MOST_DOTS:
        raise ValueError(
            f"the routing key {routing_key!r} has {len(routing_key.encode())} bytes and {routing_key.count('.')} dots; "
            f"a key of a topic exchange has at most {_LONGEST_KEY} bytes and {_MOST_DOTS} dots"
        )
    return routing_key


def matches(binding_key: str, routing_key: str) -> bool:
    """True if a binding key matches: ``*`` stands for a word, ``#`` for any number of words."""
    return _match(binding_key.split("."), routing_key.split("."))


def _match(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_match(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _match(pattern[1:], words[1:])
