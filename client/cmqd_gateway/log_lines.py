"""Structured logs: events with fixed names and key=value pairs, for people or as JSON lines, on standard error.

No line is written per request or message, and no line has a secret. A gateway inside the process of a test leaves
logging unconfigured: its lines go to the standard logger ``cmqd.gateway``.
"""

import contextlib
import enum
import logging
import sys
from collections.abc import Callable
from typing import Any, Final, TextIO, cast

import structlog

SPARSE_SECONDS: Final = 10.0
"""Shortest time between two lines of a :class:`SparseWarning`."""


class LogFormat(enum.StrEnum):
    """Formats of log lines."""

    CONSOLE = "console"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The least severe line that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Output:
    """A stream that may end at any time: a terminal, pipe or disk that takes no line must not end the gateway."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure_logs(log_format: LogFormat, level: LogLevel) -> None:
    """Choose the form of all log lines of this process."""
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format is LogFormat.JSON:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        # The default formatter prints the local variables of every frame when the package rich is installed: secrets
        # and bodies would be in the log.
        processors.append(
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
            )
        )
    structlog.configure(
        processors=processors,
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Output(sys.stderr))),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        cache_logger_on_first_use=False,
    )


class SparseWarning:
    """A warning about an event that can be frequent: at most a line in ``SPARSE_SECONDS``, with the number of events
    since the line before."""

    def __init__(self, name: str, now: Callable[[], float]) -> None:
        """Make the object; ``name`` is the name of the line, ``now`` the clock in seconds."""
        self._name = name
        self._now = now
        self._events = 0
        self._written_at: float | None = None

    def note(self, **fields: object) -> None:
        """Count an event, and write a line with these fields unless the line before is too recent."""
        self._events += 1
        if self._written_at is None or self._now() - self._written_at >= SPARSE_SECONDS:
            self._write(**fields)

    def flush(self) -> None:
        """Write a line if events were counted that no line has."""
        if self._events:
            self._write()

    def _write(self, **fields: object) -> None:
        get_logger().warning(self._name, times=self._events, **fields)
        self._events = 0
        self._written_at = self._now()


_TEXT: list[Any] = [
    structlog.stdlib.filter_by_level,
    structlog.processors.format_exc_info,
    structlog.processors.KeyValueRenderer(key_order=["event"]),
]


class _Chosen:
    """The logger of the configuration of this process, or ``cmqd.gateway`` of ``logging`` if there is none."""

    def __new__(cls, logger: Any, processors: Any, context: Any) -> Any:
        if structlog.is_configured():
            return structlog.get_config()["wrapper_class"](logger, processors, context)
        return structlog.stdlib.BoundLogger(logging.getLogger("cmqd.gateway"), _TEXT, context)


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """Return the logger; a module calls the function once."""
    return cast(
        "structlog.typing.FilteringBoundLogger", structlog.wrap_logger(None, wrapper_class=cast("Any", _Chosen))
    )
