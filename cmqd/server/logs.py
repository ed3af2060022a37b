"""Structured logs: events with fixed names and key=value pairs, for people or as JSON lines, on standard error."""

import logging
import sys
from typing import Any

import structlog

from cmqd.settings import LogFormat, LogLevel

_LEVELS = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}


def configure_logs(log_format: LogFormat, level: LogLevel) -> None:
    """Choose the form of all log lines of this process; to be called once, before the first line."""
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format is LogFormat.JSON:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        # The default formatter prints the local variables of every frame when the package rich is installed: keys,
        # bodies and secrets would be in the log.
        processors.append(
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
            )
        )
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """The logger; asked for once per module."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger
