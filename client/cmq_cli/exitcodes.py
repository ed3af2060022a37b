"""Exit codes, and the table from error to exit code."""

from collections.abc import Mapping
from enum import IntEnum

from cmqd_client import errors
from cmqd_client.errors import CmqError


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
        """Name for JSON of an error that has no error code of the server."""
        return self.name.lower()


HELP = """\
Durations: 1.5 (seconds), 250ms, 30s, 5m, 12h, 4d

Exit codes: 0 done · 1 failed · 2 wrong usage · 3 no such queue, topic, subscription, schedule, \
account, key or context · 4 not permitted (key, region, account) · 5 server unreachable or no answer in time · \
6 partly done · 130 interrupted"""

_BY_ERROR: Mapping[ExitCode, tuple[type[CmqError], ...]] = {
    ExitCode.PARTIAL: (errors.PartialFailure,),
    ExitCode.NOT_FOUND: (
        *(errors.QueueNotFound, errors.QueueDeleted, errors.TopicNotFound, errors.SubscriptionNotFound),
        *(errors.ScheduleNotFound, errors.AccountNotFound, errors.KeyNotFound),
        *(errors.MessageNotWaiting, errors.MessageNotPublished, errors.MessageNotFound),
    ),
    ExitCode.REFUSED: (errors.PermissionDenied, errors.ConnectionRefused),
    ExitCode.UNREACHABLE: (
        *(errors.ServerUnreachable, errors.ConnectionLost, errors.RequestTimeout),
        *(errors.ShuttingDown, errors.Elsewhere),
    ),
}
"""The first entry that fits decides; any other error is FAILED."""


def exit_code(error: CmqError) -> ExitCode:
    """Return the exit code for an error of the client. An unknown outcome has the exit code of its cause."""
    for code, classes in _BY_ERROR.items():
        if isinstance(error, classes):
            return code
    return exit_code(error.__cause__) if isinstance(error.__cause__, CmqError) else ExitCode.FAILED


class CommandFailed(Exception):
    """The command cannot continue; the text is printed, and ``code`` is the exit code."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code
