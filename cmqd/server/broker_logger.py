"""The broker's log lines: their form, and the kinds that have no limit of ``cmqd_logs``.

A broker inside the process of a test configures nothing: its lines go to the standard logger ``cmqd.broker``.
"""

from typing import Final

import structlog

from cmqd_logs import lines
from cmqd_logs.levels import LogFormat, LogLevel

UNLIMITED: Final = frozenset(
    {
        # Lines of the start alone, a line per damaged segment or file.
        "recovery_finding",
        # At most a line in ten minutes per gateway key and key, with the number of reads between.
        "secret_read",
    }
)
"""Kinds of lines that are always written."""


def configure_logs(log_format: LogFormat, level: LogLevel) -> None:
    """Choose the form of all log lines of this process."""
    lines.configure_logs(as_json=log_format is LogFormat.JSON, level=level, unlimited=UNLIMITED)


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """Return the logger; a module calls the function once."""
    return lines.get_logger("cmqd.broker")
