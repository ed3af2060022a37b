"""Structured logs: events with fixed names and key=value pairs, for people or as JSON lines, on standard error.

Every line passes the limit of the process (``limit``). Lines of libraries, of asyncio and of the client in a gateway,
are lines of the kind ``library`` and pass the limit too.

A process that embeds a broker or a gateway, such as a test, configures nothing: its lines go to a standard logger.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol, TextIO, cast

import structlog

from cmqd_logs.limit import LineLimit, shortened

REPORT_SECONDS: Final = 60.0
"""Time between two reports of lines that were left out."""

_limit = LineLimit()


class _Output:
    """A stream that may end at any time: a terminal, pipe or disk that takes no line must not end the process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


class _Libraries(logging.Handler):
    """Writes warnings and errors of standard loggers as lines of the process."""

    def emit(self, record: logging.LogRecord) -> None:
        log = get_logger("cmqd")
        write = log.error if record.levelno >= logging.ERROR else log.warning
        write("library", logger=record.name, text=record.getMessage(), exc_info=record.exc_info)


def _cut(logger: object, method: str, line: Any) -> Any:
    return shortened(line)


def _escaped(logger: object, method: str, line: Any) -> Any:
    """Escape the characters with which a caller's value could command a terminal, or look like another line."""
    return {name: _printable(value) if isinstance(value, str) else value for name, value in line.items()}


def _printable(text: str) -> str:
    """Return a text with the escapes of Python in place of characters that are not printable, but for line feeds."""
    # The formatter quotes a value with line feeds; a traceback keeps its lines.
    return "".join([char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text])


class CallLater(Protocol):
    """The method of an event loop."""

    def __call__(self, delay: float, callback: Callable[..., object], /, *arguments: object) -> object:
        """Call a function after a delay in seconds."""
        ...


def set_log_level(level: str) -> None:
    """Drop lines below this level from now on."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()])
    )


def configure_logs(
    *, as_json: bool, level: str, unlimited: Collection[str] = (), limit: LineLimit | None = None
) -> None:
    """Choose the form of all log lines of this process.

    Args:
        as_json: write JSON objects, and not key=value pairs.
        level: the least severe line that is written.
        unlimited: kinds that are always written: their number has a bound of its own.
        limit: the limit of all other lines; None = a limit with the clock of the machine.
    """
    global _limit
    kept = frozenset(unlimited)
    _limit = own = LineLimit() if limit is None else limit

    def limited(logger: object, method: str, line: Any) -> Any:
        if line["event"] not in kept and not own.admits(line):
            raise structlog.DropEvent
        return line

    processors: list[Any] = [
        # First: a line that is left out is not rendered.
        limited,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _cut,
    ]
    if as_json:
        processors.append(structlog.processors.JSONRenderer(default=str))
    else:
        # The default formatter prints the local variables of every frame when the package rich is installed: keys,
        # bodies and secrets would be in the log. JSON has escapes of its own.
        processors.append(_escaped)
        processors.append(
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
            )
        )
    structlog.configure(
        processors=processors,
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Output(sys.stderr))),
        # A cached logger would keep the level of its first line.
        cache_logger_on_first_use=False,
    )
    set_log_level(level)


def take_lines_of_libraries() -> None:
    """Write warnings of standard loggers through this module; else ``logging`` writes these without a limit."""
    handler = _Libraries(logging.WARNING)
    logging.getLogger().addHandler(handler)


def report_left_out() -> None:
    """Write how many lines were left out since the report before, a line for each kind."""
    log = get_logger("cmqd")
    for kind, count, busiest in _limit.take_left_out():
        log.warning("lines_left_out", kind=kind, count=count, **({"busiest": busiest} if busiest else {}))


def report_regularly(call_later: CallLater) -> None:
    """Report the lines that were left out, now and every ``REPORT_SECONDS``."""
    report_left_out()
    call_later(REPORT_SECONDS, report_regularly, call_later)


_TEXT: list[Any] = [
    structlog.stdlib.filter_by_level,
    structlog.processors.format_exc_info,
    structlog.processors.KeyValueRenderer(key_order=["event"]),
]


class _Chosen:
    """The logger of the configuration of this process, or a standard logger if there is no configuration.

    Without a configuration structlog prints, and the lines would be part of the output of the program under test.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, logger: Any, processors: Any, context: Any) -> Any:
        if structlog.is_configured():
            return structlog.get_config()["wrapper_class"](logger, processors, context)
        return structlog.stdlib.BoundLogger(logging.getLogger(self._name), _TEXT, context)


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger.

    Args:
        name: the standard logger that gets the lines of a process without a configuration.
    """
    return cast(
        "structlog.typing.FilteringBoundLogger", structlog.wrap_logger(None, wrapper_class=cast("Any", _Chosen(name)))
    )
