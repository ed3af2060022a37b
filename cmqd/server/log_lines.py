"""Structured logs: events with fixed names and key=value pairs, for people or as JSON lines, on standard error."""

import contextlib
import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, TextIO, cast

import structlog

from cmqd.settings import LogFormat, LogLevel

_LEVELS: Final[Mapping[str, int]] = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}


class _LevelFilter:
    """Drops lines below a level that can change while loggers are in use.

    The loggers' own filter is a class that a logger keeps from its first line on.
    """

    def __init__(self) -> None:
        self.least = logging.INFO

    def __call__(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if _LEVELS.get(event["level"], logging.CRITICAL) < self.least:
            raise structlog.DropEvent
        return event


class _Output:
    """A stream that may end at any time: a terminal, pipe or disk that takes no line must not end the broker."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


_filter = _LevelFilter()


def set_log_level(level: LogLevel) -> None:
    """Drop lines below this level from now on."""
    _filter.least = _LEVELS[level]


def configure_logs(log_format: LogFormat, level: LogLevel) -> None:
    """Choose the form of all log lines of this process; to be called once, before the first line."""
    set_log_level(level)
    processors: list[Any] = [
        structlog.processors.add_log_level,
        _filter,
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
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Output(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """The logger; asked for once per module."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger
