"""What can be wrong with a read.

CmqdSourceError
├── OptionError         an option is unknown, missing or out of range; say it otherwise
├── FolderError         the data folder cannot be read; its broker or its copy needs a look
└── DataLossError       rows that were asked for are not there any more; ask for later ones, or for what is left
"""


class CmqdSourceError(Exception):
    """Root of all errors of this package."""


class OptionError(CmqdSourceError, ValueError):
    """An option cannot be used; nothing was read. The text names it, its value and what is allowed."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(option, value, allowed)
        self.option = option
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        given = "is missing" if self.value is None else f"cannot be {self.value!r}"
        return f"option {self.option!r} {given}: {self.allowed}"


class FolderError(CmqdSourceError):
    """The data folder, or a file of it, cannot be read as its manifest says."""


class DataLossError(CmqdSourceError):
    """Rows that were asked for were reclaimed or lost. ``failOnDataLoss=false`` reads what is left."""
