"""Binding keys against routing keys, as the broker matches them. Pure."""

import re


def routing_pattern(binding_key: str) -> "re.Pattern[str]":
    """What matches the whole of ``"." + routing_key``.

    A word ``*`` is exactly one word that is not empty, a word ``#`` any number of words, all else is literal.
    """
    words = {"*": r"\.[^.]+", "#": r"(?:\.[^.]*)*"}
    parts: list[str] = []
    for word in binding_key.split("."):
        part = words.get(word) or rf"\.{re.escape(word)}"
        # Two of them mean no more than one, and take much longer.
        if word != "#" or not parts or parts[-1] != part:
            parts.append(part)
    return re.compile("".join(parts))
