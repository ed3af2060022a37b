"""Exit codes of the command ``cmqd``, with their meanings."""

import enum


class ExitCode(enum.IntEnum):
    """An exit code; ``meaning`` is its line in the help."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> "ExitCode":
        """Make a member out of its code and its meaning."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = 0, "drained after SIGTERM or SIGINT"
    BUG = 1, "an internal error; the log says which"
    USAGE = 2, "a flag or setting is wrong"
    STORAGE_FAILED = 3, "the storage failed (I/O error, failed fsync, storage process gone)"
    CANNOT_OPEN = 4, "the data folder is in use, damaged, refused, or of a newer version"
    CANNOT_LISTEN = 5, "the address is taken, or the TLS files are unusable"
    DRAIN_INCOMPLETE = 6, "draining was not over in time (nothing acknowledged is lost)"
    FENCED = 7, "another broker leads the log: a supervisor starts this one again, as its standby"
    NOT_SAFE = 8, "cmqd ha: a setting or a state is not safe, or a handover was refused"
