"""Names and units of the Python interface in the sentences of errors.

The broker sends a sentence in parts (:mod:`cmqd_types.sentences`). ``CmqError.text`` has the sentence in the words of
this module; other faces on the client ask an error for the sentence in their own words (``CmqError.text_in``).
"""

from typing import Final

from cmqd_types.sentences import Words, iso_time, readable_duration, readable_size


def argument_name(field: str) -> str:
    """Return the name of a field of the protocol as an argument: durations and times have no ``_ms``."""
    name, bracket, rest = field.partition("[")
    return f"{name.removesuffix('_ms')}{bracket}{rest}"


PYTHON_WORDS: Final = Words(argument_name, readable_duration, iso_time, readable_size, "; use ensure, or another name")
"""Words of the errors that the client raises."""
