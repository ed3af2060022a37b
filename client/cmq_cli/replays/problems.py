"""Errors of a replay as sentences that name the options of the command, with their exit codes."""

from collections.abc import Generator
from contextlib import contextmanager

from cmq_cli.exitcodes import CommandFailed, ExitCode


def check_installed() -> None:
    """Raises CommandFailed if the Spark set is not there."""
    from pyspark_cmqd.session import SparkError, check_installed

    try:
        check_installed()
    except SparkError as error:
        raise CommandFailed(str(error)) from error


def check_java() -> None:
    """Raises CommandFailed if there is no Java that Spark can use."""
    from pyspark_cmqd.java import JavaError, use_java

    try:
        use_java()
    except JavaError as error:
        raise CommandFailed(str(error)) from error


@contextmanager
def in_words() -> Generator[None]:
    """Turn errors of the connector into CommandFailed, with a sentence and an exit code."""
    from pyspark_cmqd.errors import CmqdSourceError, OptionError

    try:
        yield
    except OptionError as error:
        raise CommandFailed(as_typed(str(error)), ExitCode.USAGE) from error
    except (CmqdSourceError, OSError) as error:
        raise CommandFailed(as_typed(str(error))) from error


_TYPED = {
    "startingTimestamp": "--from",
    "endingTimestamp": "--to",
    "startingLsn": "--from-lsn",
    "endingLsn": "--to-lsn",
    "routingKey": "--routing-key",
    "includeActive=true": "--include-active",
    "includeActive": "--include-active",
    "failOnDataLoss=false": "--allow-data-loss",
    **{name: f"--{name}" for name in ("path", "queue", "topic", "tags", "mode", "account")},
}


def as_typed(text: str) -> str:
    """Replace the names of the source's options by the names of the command's options."""
    for name, option in _TYPED.items():
        text = text.replace(f"option '{name}'", option).replace(f"'{name}' is given", f"{option} is given")
        if "=" in name or name in ("startingLsn", "startingTimestamp"):
            text = text.replace(name, option)
    return text
