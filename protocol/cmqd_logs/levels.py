"""Formats and levels of log lines, as settings name them."""

import enum


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
