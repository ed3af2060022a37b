"""The output of ``cmqd ha``: lines for people, or one JSON document for programs."""

import json
from collections.abc import Callable
from typing import Any


class Output:
    """Prints lines, or with ``json`` the documents alone."""

    def __init__(self, out: Callable[[str], None], *, as_json: bool) -> None:
        self._out = out
        self._as_json = as_json

    def line(self, text: str) -> None:
        """Print a line for people."""
        if not self._as_json:
            self._out(text)

    def document(self, document: dict[str, Any]) -> None:
        """Print the result for programs; once."""
        if self._as_json:
            self._out(json.dumps(document, indent=2))

    def refuse(self, reason: str, **fields: Any) -> None:
        """Print why there is no result, in either form."""
        self.document({"ok": False, **fields, "problems": [reason]})
        self.line(f"cmqd: {reason}")
