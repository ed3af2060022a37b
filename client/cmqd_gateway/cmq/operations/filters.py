"""Tags and keys: the checks of publishes and subscriptions, with CMQ's reasons.

The broker checks tags and keys again. The checks are here too, because CMQ has a reason of its own for each rule.
"""

from collections.abc import Sequence
from typing import Final

from cmqd_gateway.cmq.reasons import Reason, Refusal

MAX_TAG_CHARACTERS: Final = 16
MAX_KEY_BYTES: Final = 64
MAX_DOTS: Final = 15


def is_tag(text: str) -> bool:
    """Return True for a legal tag."""
    return 1 <= len(text) <= MAX_TAG_CHARACTERS and "," not in text and text.isprintable()


def check_tags(name: str, tags: Sequence[str]) -> list[str]:
    """Return different tags in their order.

    Args:
        name: the parameter, for the text of an error.
        tags: the tags of a message or of a subscription.

    Raises:
        Refusal: a tag is empty, too long or has a comma.
    """
    different = list(dict.fromkeys(tags))
    for tag in different:
        if not is_tag(tag):
            raise Refusal(
                Reason.OUT_OF_RANGE,
                f"a tag of {name} has 1 to {MAX_TAG_CHARACTERS} characters without commas and control characters;"
                f" {tag[:80]!r} does not",
            )
    return different


def check_key(name: str, key: str) -> str:
    """Return a routing key or binding key.

    Raises:
        Refusal: the key is empty, has more than 64 bytes, or has more than 15 dots.
    """
    if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
        raise Refusal(Reason.OUT_OF_RANGE, f"{name} has 1 to {MAX_KEY_BYTES} bytes; {key[:80]!r} does not")
    if key.count(".") > MAX_DOTS:
        raise Refusal(Reason.TOO_MANY_DOTS, f"{name} has at most {MAX_DOTS} dots; {key[:80]!r} has {key.count('.')}")
    return key
