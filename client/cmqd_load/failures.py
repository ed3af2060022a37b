"""The failures of a load."""

from cmqd_protocol.messages import Error


class LoadError(Exception):
    """A load cannot go on; the text is a sentence for the command line."""


class RequestFailed(LoadError):
    """The server refused a request of the load for good; ``error`` is the server's refusal, None without one."""

    def __init__(self, text: str, error: Error | None = None) -> None:
        super().__init__(text)
        self.error = error
