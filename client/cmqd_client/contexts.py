"""Contexts: named servers with their keys, in a file that only its owner can read.

    current = "kitchen"

    [contexts.kitchen]
    url = "cmq://ID:KEY@host:5680"

``cmq``, the Spark sink and :func:`cmqd_client.connect` without a URL read the file. The server writes a file of the
same form, with its first key, into its data folder (``admin.context.toml``).
"""

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import msgspec

from cmqd_client.address import Address, parse_address

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class ContextError(Exception):
    """A context file is unreadable or malformed, or a context is missing; ``missing`` tells a missing context."""

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self.missing = missing


class Contexts(msgspec.Struct):
    """The content of a context file."""

    path: Path
    urls: dict[str, str]
    """URL by name, secret key included."""
    current: str | None = None

    def address(self, name: str | None) -> Address:
        """Return the address of the named (None: the current) context.

        Raises:
            ContextError: the context does not exist, or its URL is malformed.
        """
        chosen = name or self.current
        if chosen is None:
            raise ContextError(
                "no server chosen: give a URL (cmq: --url), set CMQ_URL, or add a context (cmq context add); "
                f"{self.path} has none",
                missing=True,
            )
        url = self.urls.get(chosen)
        if url is None:
            known = ", ".join(sorted(self.urls)) or "none"
            raise ContextError(f"{self.path} has no context {chosen!r}; its contexts are {known}", missing=True)
        try:
            return parse_address(url)
        except ValueError as problem:
            raise ContextError(f"context {chosen!r} of {self.path}: {problem}") from problem

    def add(self, name: str, url: str) -> None:
        """Add or replace a context; the first context becomes the current context.

        Raises:
            ContextError: the name or the URL is malformed; the contexts were not changed.
        """
        if _NAME.fullmatch(name) is None:
            raise ContextError(f"{name!r} is not a context name; a name has 1 to 64 ASCII letters, digits, '-' or '_'")
        try:
            parse_address(url)
        except ValueError as problem:
            raise ContextError(str(problem)) from problem
        self.urls[name] = url
        self.current = self.current or name

    def use(self, name: str) -> None:
        """Make a context the current context.

        Raises:
            ContextError: the context does not exist.
        """
        self.address(name)
        self.current = name

    def remove(self, name: str) -> None:
        """Remove a context.

        Raises:
            ContextError: the context does not exist.
        """
        if self.urls.pop(name, None) is None:
            raise ContextError(f"{self.path} has no context {name!r}", missing=True)
        if self.current == name:
            self.current = None

    def save(self) -> None:
        """Write the file atomically, readable by its owner only."""
        lines = [] if self.current is None else [f"current = {_quoted(self.current)}\n"]
        lines += [f"\n[contexts.{name}]\nurl = {_quoted(url)}\n" for name, url in sorted(self.urls.items())]
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        # Created with owner-only permissions: a chmod afterwards would leave a moment in which other users can read the
        # keys.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write("".join(lines).lstrip())
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def load_contexts(path: Path, *, must_exist: bool = False) -> Contexts:
    """Read a context file; a missing file is empty.

    Raises:
        ContextError: the file is unreadable, no TOML, or malformed.
    """
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise ContextError(f"there is no context file {path}", missing=True) from None
        return Contexts(path, {})
    except OSError as problem:
        raise ContextError(f"{path} cannot be read: {problem.strerror}") from problem
    except ValueError as problem:
        raise ContextError(f"{path} is not a context file: {problem}") from problem
    current: Any = content.get("current")
    tables: Any = content.get("contexts", {})
    if not isinstance(tables, dict) or not isinstance(current, str | None):
        raise ContextError(f"{path} is not a context file: current must be a string and contexts a table")
    urls: dict[str, str] = {}
    for name, table in cast("dict[str, Any]", tables).items():
        url: Any = cast("dict[str, Any]", table).get("url") if isinstance(table, dict) else None
        if not isinstance(url, str):
            raise ContextError(f"{path}: context {name!r} has no url")
        urls[name] = url
    return Contexts(path, urls, current)


def find_address(context: str | None = None) -> Address:
    """Return the address that ``cmq`` would use without --url.

    The first of: the named context; the environment variable CMQ_URL; the current context. Contexts are read from the
    file of the environment variable CMQ_CONTEXT_FILE, else from :func:`default_path`.

    Raises:
        ContextError: no server is chosen, or the context is missing or malformed.
        ValueError: CMQ_URL is malformed.
    """
    url = os.environ.get("CMQ_URL")
    if url and context is None:
        return parse_address(url)
    named = os.environ.get("CMQ_CONTEXT_FILE")
    return load_contexts(Path(named) if named else default_path(), must_exist=bool(named)).address(context)


def default_path() -> Path:
    """``cmq/contexts.toml`` where the user's settings are kept."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "cmq" / "contexts.toml"


def is_exposed(path: Path) -> bool:
    """True if users other than the owner can read the file. False on Windows, where the mode does not tell."""
    if sys.platform == "win32":
        return False
    try:
        return bool(path.stat().st_mode & 0o077)
    except OSError:
        return False


def _quoted(text: str) -> str:
    """Return a TOML basic string. JSON quotes in the same way, except for DEL, which no URL contains."""
    return msgspec.json.encode(text).decode()
