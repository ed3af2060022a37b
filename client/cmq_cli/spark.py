"""Errors of reads of the log as errors of a command, and the rows that a command does not read.

The texts name the options of the command, not those of the readers.
"""

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.values import local_time
from cmqd_log.data_folder.plan import describe
from cmqd_log.errors import CmqdSourceError, OptionError

_OPTIONS = {
    "startingTimestamp": "--from",
    "endingTimestamp": "--to",
    "startingLsn": "--from-lsn",
    "endingLsn": "--to-lsn",
    "asOfLsn": "--as-of-lsn",
    "memoryLimit": "--memory-limit",
    "routingKey": "--routing-key",
    "includeActive": "--include-active",
    "failOnDataLoss": "--allow-data-loss",
    **{name: f"--{name}" for name in ("path", "queue", "topic", "tags", "mode", "account")},
}
"""Options of a command by options of the source."""

_NAME = "|".join(_OPTIONS)
_NAMED = re.compile(
    rf"option '(?P<option>{_NAME})'|'(?P<quoted>{_NAME})'(?= is given)|\b(?P<bare>{_NAME})=(?:true|false)\b"
    r"|\b(?P<start>startingTimestamp|startingLsn)\b"
)


def as_typed(text: str) -> str:
    """Return a text of the connector with the options of the command in place of the options of the source."""
    return _NAMED.sub(lambda match: _OPTIONS[match[match.lastgroup or 0]], text)


@contextmanager
def connector_errors(extra: str = "log") -> Generator[None]:
    """Turn errors of a read, of a missing extra and of Spark into CommandFailed, and refuse Windows."""
    if sys.platform == "win32":
        raise CommandFailed(
            "cmq commands that read a data folder run on Linux and macOS, not on Windows", ExitCode.USAGE
        )
    try:
        yield
    except ImportError as error:
        raise CommandFailed(f"this command needs the extra cmqd[{extra}]: {error}") from error
    except OptionError as error:
        raise CommandFailed(as_typed(str(error)), ExitCode.USAGE) from error
    except BrokenPipeError:
        # The program at the other end of the pipe closed it (``| head``).
        raise
    except (CmqdSourceError, OSError) as error:
        raise CommandFailed(as_typed(str(error))) from error


def show_range(starting_ms: int | None, ending_ms: int | None) -> str:
    """Return the remark about the requested times, with their zone; empty without times."""
    first = "" if starting_ms is None else f" at or after {local_time(starting_ms)}"
    last = "" if ending_ms is None else f" before {local_time(ending_ms)}"
    return f"messages sent{first}{' and' if first and last else ''}{last}" if first or last else ""


def show_unsealed(first: int, last: int, option: str = "--include-active") -> str:
    """Return the remark about rows that a command did not read, with the ways to include them."""
    return (
        f"the command did not read {describe([(first, last)])}, because segments are read once they are sealed; "
        f"{option} includes unsealed rows, and cmq segment seal seals them"
    )
