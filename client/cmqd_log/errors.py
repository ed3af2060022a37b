"""Errors of a read.

CmqdSourceError
├── OptionError         an option is unknown, missing or out of range; correct the option
│   └── UnknownNameError  the log has no account, queue or topic of the given name
├── FolderError         the data folder cannot be read; check its broker, or its copy
│   ├── NewerFolderError  a newer cmqd wrote the folder; no file is damaged
│   ├── OtherLogError     the position or journal belongs to a different log
│   └── BehindError       the folder is a copy that lacks rows which a position names; wait for the rows
└── DataLossError       requested rows were reclaimed or lost; ask for later rows, or set failOnDataLoss=false
    ├── SegmentReclaimedError   the broker dropped a segment after a plan named it and before it was opened
    └── UnknownOutcomeError     rows that tell how messages left their queues were reclaimed or lost
"""

import re

HIDDEN = "…"
"""Shown in errors in place of a value that may contain a key."""
_USER_INFO = re.compile(r""":(//(?!ID:KEY@)|/(?!/))[^\s'"]*@""")


def masked(text: str) -> str:
    """Return the text with stars in place of the names and keys in its URLs (``s3://ID:KEY@bucket``).

    Everything up to the last ``@`` of a word is replaced: a key that is not percent-encoded may contain ``@`` itself,
    and hiding too much of a path is harmless.
    """
    return _USER_INFO.sub(r":\1***@", text)


class CmqdSourceError(Exception):
    """Root of all errors of this package. None of them holds the key of a URL, neither in its text nor when pickled."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(masked(one) if isinstance(one, str) else one for one in args))


class OptionError(CmqdSourceError, ValueError):
    """An option cannot be used; no row was read. The text has the option, its value and the allowed values."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(option, value, allowed)
        self.option = option
        self.value = masked(value) if isinstance(value, str) else value
        self.allowed = masked(allowed)

    def __str__(self) -> str:
        if self.value is None:
            problem = "is missing"
        else:
            problem = "cannot be used" if self.value == HIDDEN else f"cannot be {self.value!r}"
        return f"option {self.option!r} {problem}: {self.allowed}"


class UnknownNameError(OptionError):
    """The log has no account, queue or topic of the given name, as far as it was read; no message was read."""


class FolderError(CmqdSourceError):
    """The data folder, or a file of it, cannot be read as its manifest says."""


class NewerFolderError(FolderError):
    """The data folder was written by a newer cmqd. No file is damaged; use the newer version."""


class OtherLogError(FolderError):
    """The folder does not hold the log of the position or journal; no row was read."""


class BehindError(FolderError):
    """The folder is a copy that ends before the position of a reader of the same log; no row was read."""


class DataLossError(CmqdSourceError):
    """Requested rows were reclaimed or lost. ``failOnDataLoss=false`` reads the remaining rows."""


class UnknownOutcomeError(DataLossError):
    """Rows that tell how messages left their queues were reclaimed or lost, and no outcomes repeat them."""


class SegmentReclaimedError(DataLossError):
    """The broker reclaimed a segment between plan and read; none of its rows was read."""
