"""The errors of a log.

LogError
├── LogFailed   an append, a read or a commit failed: nothing more becomes durable
└── ...         an implementation's own refusals to open (``cmqd.storage.storage_errors``)
"""


class LogError(Exception):
    """Root of the errors of a log. ``open`` raises it when the log cannot be used; the text names the reason."""


class LogFailed(LogError):
    """The log stopped working while it was open: an I/O error, a failed fsync, a lost process or machine.

    Pending rows will not become durable. Whether the last commit is durable is unknown until the next start. The error
    is passed to ``on_fatal`` once, and raised by every later call. The broker must end and report the reason.
    """
