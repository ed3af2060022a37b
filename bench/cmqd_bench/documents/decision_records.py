"""Decision records, and their index by room.

The line under the title of a record tells whether the record still holds: *accepted*, *amended* by its successors, or
*replaced* by a successor. The index names the successors too, because a reader of the list should meet the newer record
first.
"""

import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

_FRONT = re.compile(
    r"# (?P<title>\d{4} [^\n]+)\n\n"
    r"Status: (?P<status>accepted|amended|replaced)\. Room: `(?P<room>[\w/]+)`\. "
    r"Successor: (?P<successors>[\d, ]+|none)\.\n"
)


@dataclass(frozen=True)
class DecisionRecord:
    """The front lines of a record."""

    path: Path
    title: str
    status: str
    room: str
    """The package that the decision is about, or ``bench``, ``docs`` or ``tests``."""
    successors: tuple[str, ...]
    """Numbers of the later records that change this record."""


def read_record(path: Path) -> DecisionRecord:
    """Return the front lines of a record.

    Raises ``ValueError`` if the lines have a different form, or if the status contradicts the successors.
    """
    front = _FRONT.match(path.read_text())
    if front is None:
        raise ValueError(
            f"{path.name} must begin with its title and the line"
            " 'Status: accepted. Room: `cmqd/core`. Successor: none.' (or amended, replaced, and numbers)"
        )
    successors = () if front["successors"] == "none" else tuple(front["successors"].split(", "))
    if (front["status"] == "accepted") != (not successors):
        raise ValueError(f"{path.name} is {front['status']} with {len(successors)} successors")
    return DecisionRecord(path, front["title"], front["status"], front["room"], successors)


def read_records(folder: Path) -> list[DecisionRecord]:
    """Return the front lines of all records of a folder, by number."""
    return [read_record(path) for path in sorted(folder.glob("[0-9]*.md"))]


def index_by_room(records: list[DecisionRecord]) -> str:
    """Return the records in Markdown, with a headline for each room."""
    parts: list[str] = []
    for room, group in groupby(
        sorted(records, key=lambda record: (record.room, record.title)), lambda record: record.room
    ):
        lines = [f"- [{record.title}](decisions/{record.path.name}){_remark(record)}" for record in group]
        parts.append("\n".join([f"## {room}", "", *lines]))
    return "\n\n".join(parts)


def _remark(record: DecisionRecord) -> str:
    return f" ({record.status} by {', '.join(record.successors)})" if record.successors else ""
