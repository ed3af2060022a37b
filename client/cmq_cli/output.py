"""What commands print: tables for people, JSON for programs.

With JSON nothing but one document (or, for streams, one document a line) goes to standard output. Remarks, progress
and errors go to standard error always.
"""

import base64
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, cast

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from cmqd_client import Message, Peeked

_REASONS = {"receives": "moved after too many receives", "age": "moved for its age", "redrive": "redriven"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class OutputForm(Enum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


class Output:
    """Where results, remarks and progress go."""

    def __init__(self, form: OutputForm) -> None:
        self.json = form is OutputForm.JSON
        # Not folded to 80 columns when it goes into a file or a pipe.
        self._out = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000, highlight=False)
        self._err = Console(file=sys.stderr, highlight=False, soft_wrap=True)

    # ------------------------------------------------------------------ results

    def document(self, value: Any) -> None:
        """One JSON document, or one line of a stream."""
        data = msgspec.json.encode(value)
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table for people; columns whose name ends with ``#`` are numbers."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(
                column.removesuffix("#"), justify="right" if column.endswith("#") else "left", no_wrap=True
            )
        for row in rows:
            # Text, not markup: names and values must not be able to colour or break the table.
            table.add_row(*(Text(cell) for cell in row))
        self._out.print(table)

    def pairs(self, pairs: Mapping[str, str]) -> None:
        """Names and values, one pair a line."""
        width = max(map(len, pairs), default=0)
        for name, value in pairs.items():
            self._out.print(Text(f"{name:<{width}}  ", style="bold") + Text(value, style="not bold"))

    def difference(self, name: str, difference: Mapping[str, tuple[Any, Any]], show: Callable[[str, Any], str]) -> None:
        """What something that exists has otherwise than was wanted; ``show`` shows an attribute's value."""
        if self.json:
            shown = {attribute: {"is": found, "wanted": wanted} for attribute, (found, wanted) in difference.items()}
            self.document({"name": name, "difference": shown})
            return
        rows = [
            (attribute.replace("_", " "), show(attribute, found), show(attribute, wanted))
            for attribute, (found, wanted) in difference.items()
        ]
        self.table(("attribute", "is", "wanted"), rows)

    def message(self, message: Message | Peeked) -> None:
        """A message: a line of facts, then its body; or a JSON document."""
        if self.json:
            self.document(message_document(message))
            return
        facts = [message.id, f"sent {show_time(message.enqueue_time)}", f"received {message.receive_count}x"]
        if isinstance(message, Message):
            facts.append(f"handle {message.receipt_handle}")
        else:
            facts.append(message.state.replace("_", " "))
            if message.visible_time is not None:
                facts.append(f"visible {show_time(message.visible_time)}")
        self._out.print(Text(" · ".join(facts), style="dim"))
        origin = message.origin
        if origin is not None:
            was = (f"from {origin.queue}", origin.id, f"sent {show_time(origin.enqueue_time)}")
            why = (f"received {origin.receive_count}x", _REASONS.get(origin.reason, origin.reason))
            self._out.print(Text(" · ".join((*was, *why)), style="dim"))
        copy_of = message.copy_of
        if copy_of is not None:
            was = (f"copy of {copy_of.id}", f"topic {copy_of.topic}", f"subscription {copy_of.subscription}")
            labels = [f"tag {tag}" for tag in copy_of.tags]
            if copy_of.routing_key is not None:
                labels.append(f"routing key {copy_of.routing_key}")
            published = f"published {show_time(copy_of.publish_time)}"
            self._out.print(Text(printable(" · ".join((*was, published, *labels))), style="dim"))
        for name, value in message.headers.items():
            self._out.print(Text(f"{name}: ", style="cyan") + Text(printable(value)))
        self._out.print(Text(show_body(message.body)))
        sys.stdout.flush()

    def raw(self, body: bytes) -> None:
        """A body as it is, and a line break."""
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()

    # ------------------------------------------------------------------ beside results

    def remark(self, text: str) -> None:
        """Tell a person what was done; programs see it in the exit code."""
        if not self.json:
            self._err.print(Text(text))

    def remark_rest(self, offset: int, shown: int, total: int) -> None:
        """Tell that a list goes on after the page that was shown, and how to see on."""
        if offset + shown < total:
            self.remark(f"{shown} of {total}; see on with --offset {offset + shown}")

    def warning(self, text: str) -> None:
        """Tell about something that is not as it should be, in either form."""
        self._err.print(Text("warning: ", style="yellow") + Text(text))

    def error(self, text: str) -> None:
        """Tell why it failed."""
        self._err.print(Text("cmq: ", style="bold red") + Text(text))

    def progress(self) -> Progress:
        """Progress of a stream: shown on a terminal, silent elsewhere."""
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=self._err,
            transient=True,
            disable=not sys.stderr.isatty(),
        )

    def confirm(self, question: str) -> bool:
        """Ask a person; a script (no terminal) means what it says."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return True
        self._err.print(Text(f"{question} [y/N] "), end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def message_document(message: Message | Peeked) -> dict[str, Any]:
    """A message for JSON. A handle is text, as 64 bits do not fit the numbers of many JSON readers."""
    body, encoding = encode_body(message.body)
    document: dict[str, Any] = {
        "id": message.id,
        "body": body,
        "body_encoding": encoding,
        "headers": message.headers,
        "enqueue_time": message.enqueue_time,
        "receive_count": message.receive_count,
    }
    if message.origin is not None:
        document["origin"] = msgspec.structs.asdict(message.origin)
    if message.copy_of is not None:
        document["copy_of"] = msgspec.structs.asdict(message.copy_of)
    if isinstance(message, Message):
        document["receipt_handle"] = str(message.receipt_handle)
        document["first_receive_time"] = message.first_receive_time
        document["next_visible_time"] = message.next_visible_time
    else:
        document["state"] = message.state
        document["visible_time"] = message.visible_time
    return document


def info_document(info: msgspec.Struct) -> dict[str, Any]:
    """What the server told of a queue, a topic or a subscription, for JSON; durations in seconds. Not what belongs to
    the answer alone, nor a secret, which is shown where it is made.
    """
    hidden = ("details", "request_id", "secret")
    return {field: value for field, value in msgspec.structs.asdict(info).items() if field not in hidden}


def encode_body(body: bytes) -> tuple[str, str]:
    """A body as text, and how: ``utf-8``, or ``base64`` if it is none."""
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def show_body(body: bytes) -> str:
    """A body for a person; what is not UTF-8 is shown as base64 and marked so."""
    text, encoding = encode_body(body)
    return f"(base64) {text}" if encoding == "base64" else printable(text)


def printable(text: str) -> str:
    """Text whose control characters cannot command the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def show_value(value: Any) -> str:
    """An attribute's value as it would be typed; ``-`` for none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, cast("Sequence[Any]", value))) or "-"
    return "-" if value is None or value == "" else str(value)


def show_time(moment: datetime | None) -> str:
    """A time for a person, in local time; ``-`` for none."""
    return "-" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def show_size(size: int) -> str:
    """A number of bytes for a person."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def show_unsealed(first: int, last: int) -> str:
    """Which rows a command that reads the log has not seen, and how they can be seen."""
    return (
        f"rows {first} to {last} are not sealed yet, and not looked at; "
        f"cmq segment seal makes them visible, and so does --include-active"
    )
