"""Real input for the demo: a repository's history, a file of JSON lines, or source files; as message bodies."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cmqd_protocol.limits import MAX_BATCH_BYTES

RECORD, FIELD = "\x1e", "\x1f"
"""ASCII separators, which do not occur in subjects."""
GIT_SECONDS = 30.0
MOST_COMMITS = 20_000
SOURCE_SUFFIXES = frozenset({".py", ".md", ".toml"})
UNNAMED = "message"
"""The routing key of an input line without a key."""
MAX_WORDS = 15
MAX_KEY_BYTES = 60
"""Limits of a key, below the limits of a topic, so that patterns can be derived from a key."""
SKIPPED_FOLDERS = frozenset({".git", ".venv", "node_modules", "__pycache__"})


class SourceError(Exception):
    """The input cannot be used; the text names file and line."""


@dataclass(frozen=True, slots=True)
class Source:
    """Bodies to send, repeated as often as needed."""

    description: str
    bodies: Sequence[bytes]
    routing_keys: Sequence[str] = (UNNAMED,)
    """Routing keys of the publishes: a key per body, or a single key for all bodies."""

    def __post_init__(self) -> None:
        if not self.bodies:
            raise SourceError(f"{self.description}: there is nothing in it")
        for number, body in enumerate(self.bodies, 1):
            if not 1 <= len(body) <= MAX_BATCH_BYTES:
                raise SourceError(
                    f"{self.description}: message {number} has {len(body)} bytes; 1 to {MAX_BATCH_BYTES} are allowed"
                )

    def body(self, number: int) -> bytes:
        """Return the body of message ``number``, from 0."""
        return self.bodies[number % len(self.bodies)]

    def routing_key(self, number: int) -> str:
        """Return the routing key of message ``number``."""
        return self.routing_keys[number % len(self.bodies) % len(self.routing_keys)]

    @property
    def longest(self) -> int:
        """Bytes of the longest body."""
        return max(map(len, self.bodies))


def routing_key_of(value: Any) -> str:
    """Return the routing key of a line of input.

    The key is ``routing_key``, or folders and suffix of the ``file``, or event and action as in webhooks
    (``issues.opened``).
    """
    if not isinstance(value, dict):
        return UNNAMED
    fields = cast("dict[str, Any]", value)
    if isinstance(given := fields.get("routing_key"), str):
        return _key(given.split("."))
    for name in ("path", "file"):
        if isinstance(path := fields.get(name), str):
            *folders, file = path.split("/")
            return _key([*folders, file.rpartition(".")[2]])
    inner = [cast("dict[str, Any]", fields[name]) for name in ("body", "payload") if isinstance(fields.get(name), dict)]
    found = [_first_text([fields, *inner], names) for names in (("event", "event_type", "type", "kind"), ("action",))]
    return _key([word for word in found if word])


def _first_text(objects: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return the first field that is a string; empty without a string."""
    return next((each[name] for each in objects for name in names if isinstance(each.get(name), str)), "")


def _key(words: Sequence[str]) -> str:
    """Return words as a legal key without characters that are special in patterns."""
    cleaned = [re.sub(r"[^A-Za-z0-9_-]+", "_", word) for word in words[:MAX_WORDS]]
    return ".".join(cleaned)[:MAX_KEY_BYTES] or UNNAMED


def parse_history(text: str) -> Iterator[Mapping[str, str]]:
    """Yield an entry per file and commit, from ``git log --name-status`` with our separators."""
    for record in text.split(RECORD)[1:]:
        head, _, changes = record.partition("\n")
        commit, author, date, subject = head.split(FIELD)
        for change in filter(None, changes.splitlines()):
            kind, _, path = change.partition("\t")
            yield {
                "commit": commit,
                "author": author,
                "date": date,
                "subject": subject,
                "change": kind,
                "path": path,
            }


def history(folder: Path) -> Source | None:
    """Return the history of the repository of ``folder``; None without git, repository or commit."""
    command = ["git", "-C", str(folder), "-c", "core.quotePath=false", "log", f"--max-count={MOST_COMMITS}"]
    command += ["--no-renames", "--name-status", "--date=iso-strict"]
    command += [f"--pretty=format:{RECORD}%H{FIELD}%an{FIELD}%ad{FIELD}%s"]
    try:
        log = subprocess.run(command, capture_output=True, timeout=GIT_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    entries = list(parse_history(log.decode(errors="replace")))
    if not entries:
        return None
    bodies = [json.dumps(entry, ensure_ascii=False).encode() for entry in entries]
    keys = [routing_key_of(entry) for entry in entries]
    return Source("the git history, one message for each file changed in each commit", bodies, keys)


def source_lines(folder: Path) -> Source:
    """Return the lines of the source files in ``folder``, as bodies."""
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in SOURCE_SUFFIXES
        and file.is_file()
        and SKIPPED_FOLDERS.isdisjoint(file.relative_to(folder).parts)
    )
    entries = [
        {"file": str(file.relative_to(folder)), "line": number, "text": line}
        for file in files
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
    ]
    bodies = [json.dumps(entry, ensure_ascii=False).encode() for entry in entries]
    return Source("the source files, one message for each line", bodies, [routing_key_of(entry) for entry in entries])


def body_of_line(line: str, where: str) -> bytes:
    """Return the body for a line of JSON: its ``body`` (text unchanged, other values as JSON), or the whole line.

    Raises SourceError, naming ``where``, for invalid JSON.
    """
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise SourceError(f"{where} is not JSON: {error}") from None
    if isinstance(value, dict) and "body" in value:
        body = cast("dict[str, Any]", value)["body"]
        if isinstance(body, str):
            return body.encode()
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return line.encode()


def json_lines(file: Path) -> Source:
    """Return the messages of an NDJSON file; blank lines are skipped.

    Raises:
        SourceError: the file cannot be read, or a line is not JSON.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{file} cannot be read: {error}") from error
    # Not splitlines(): JSON may hold the other line separators of Unicode.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    bodies = [body_of_line(line, f"line {number} of {file}") for number, line in lines]
    return Source(str(file), bodies, [routing_key_of(json.loads(line)) for _, line in lines] or [UNNAMED])


def repository_source() -> Source:
    """Return the default input of the demo: the history of this repository, else its source files."""
    folder = Path(__file__).resolve().parents[2]
    return history(folder) or source_lines(folder)
