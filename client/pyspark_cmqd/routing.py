"""Binding keys against routing keys, as the broker matches them. Pure."""

import re


def routing_pattern(binding_key: str) -> "re.Pattern[str]":
    """Return the pattern for the whole of ``"." + routing_key``.

    A word ``*`` is exactly one non-empty word, a word ``#`` any number of words; other words are literal.
    """
    words = {"*": r"\.[^.]+", "#": r"(?:\.[^.]*)*"}
    parts: list[str] = []
    for word in binding_key.split("."):
        part = words.get(word) or rf"\.{re.escape(word)}"
        # Two neighbouring ``#`` match the same keys as a single ``#``, and take much longer.
        if word != "#" or not parts or parts[-1] != part:
            parts.append(part)
    return re.compile("".join(parts))
