"""Names and units of the command line in the sentences of errors: options, durations as they are typed, local times."""

from collections.abc import Callable, Mapping

from cmq_cli.values import local_time
from cmqd_client.error_words import argument_name
from cmqd_types.sentences import Words, readable_duration, readable_size


def option_words(options: Mapping[str, str]) -> Words:
    """Return the words of a command, from its options by the name of the argument."""
    return Words(
        _option_of(options),
        readable_duration,
        local_time,
        readable_size,
        f"; use {options['ensure']}, or another name" if "ensure" in options else "",
    )


def _option_of(options: Mapping[str, str]) -> Callable[[str], str]:
    def name_of(field: str) -> str:
        name = argument_name(field)
        # An option that can be given several times has the name of one value: routing_keys, --routing-key.
        return options.get(name) or options.get(name.removesuffix("s")) or name.replace("_", " ")

    return name_of
