"""Exit codes, and the table from error to exit code."""

from enum import IntEnum

from cmqd_client import CmqError
from cmqd_client.errors import (
    AccountNotFound,
    ConnectionLost,
    ConnectionRefused,
    KeyNotFound,
    PartialFailure,
    PermissionDenied,
    QueueDeleted,
    QueueNotFound,
    RequestTimeout,
    ServerUnreachable,
    ShuttingDown,
    SubscriptionNotFound,
    TopicNotFound,
)


class ExitCode(IntEnum):
    """Exit codes of ``cmq``, a part of its interface."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    PARTIAL = 6
    INTERRUPTED = 130

    @property
    def error_name(self) -> str:
        """The name of an error that has no code of the server's, for JSON."""
        return self.name.lower()


HELP = """\
Exit codes: 0 done · 1 failed · 2 wrong usage · 3 no such queue, topic, subscription, account, key or \
context · 4 not permitted (key, region, account) · 5 server unreachable or no answer in time · \
6 done in part · 130 interrupted"""

_BY_ERROR: tuple[tuple[type[CmqError], ExitCode], ...] = (
    (PartialFailure, ExitCode.PARTIAL),
    (QueueNotFound, ExitCode.NOT_FOUND),
    (QueueDeleted, ExitCode.NOT_FOUND),
    (TopicNotFound, ExitCode.NOT_FOUND),
    (SubscriptionNotFound, ExitCode.NOT_FOUND),
    (AccountNotFound, ExitCode.NOT_FOUND),
    (KeyNotFound, ExitCode.NOT_FOUND),
    (PermissionDenied, ExitCode.REFUSED),
    (ConnectionRefused, ExitCode.REFUSED),
    (ServerUnreachable, ExitCode.UNREACHABLE),
    (ConnectionLost, ExitCode.UNREACHABLE),
    (RequestTimeout, ExitCode.UNREACHABLE),
    (ShuttingDown, ExitCode.UNREACHABLE),
)
"""The first class that fits decides; everything else is FAILED."""


def exit_code(error: CmqError) -> ExitCode:
    """The exit code for an error of the client. An unknown outcome has that of its cause."""
    for cls, code in _BY_ERROR:
        if isinstance(error, cls):
            return code
    return exit_code(error.__cause__) if isinstance(error.__cause__, CmqError) else ExitCode.FAILED


class CommandFailed(Exception):
    """A command cannot go on, for a reason of its own: what to print, and the exit code."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code
