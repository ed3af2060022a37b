"""The output of commands: tables, and JSON for programs.

With ``--output json`` standard output holds one document (a stream: one document a line) and nothing else. Errors and
warnings go to standard error, as JSON documents too; remarks and progress are left out.
"""

import base64
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, cast

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.reading import in_daemon_thread, reader
from cmqd_client import CmqError, Message, Peeked

_REASONS = {"receives": "moved after too many receives", "age": "moved for its age", "redrive": "redriven"}
_NARROWEST_TEXT = 12
"""Columns of text are folded down to this width in a narrow terminal."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class OutputForm(Enum):
    """Output formats of results."""

    TABLE = "table"
    JSON = "json"


class Output:
    """Writes results, remarks, errors and progress.

    ``verbose`` adds the numbers of request and connection to errors, to be looked up in the server's log.
    """

    def __init__(self, form: OutputForm, *, verbose: bool = False) -> None:
        self.json = form is OutputForm.JSON
        self.verbose = verbose
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
        """Print a table; columns with names that end with ``#`` contain numbers.

        No cell is ever cut. In a narrow terminal text is folded; if the numbers alone are too wide, the terminal
        wraps the lines.
        """
        rows = list(rows)
        table = Table(box=None, pad_edge=False, header_style="bold")
        narrowest = 0
        for number, column in enumerate(columns):
            is_number = column.endswith("#")
            cells = [column.removesuffix("#"), *(row[number] for row in rows)]
            # A column of numbers keeps the width of its widest cell: a number that is cut is another number.
            width = max(map(cell_len, cells)) if is_number else min(max(map(cell_len, cells)), _NARROWEST_TEXT)
            narrowest += width + 2
            table.add_column(
                cells[0],
                justify="right" if is_number else "left",
                no_wrap=is_number,
                overflow="fold",
                min_width=width,
            )
        for row in rows:
            # Text, not markup: names and values must not be able to colour or break the table.
            table.add_row(*(Text(cell) for cell in row))
        self._out.print(table, width=max(self._out.width, narrowest), crop=False, soft_wrap=False)

    def pairs(self, pairs: Mapping[str, str]) -> None:
        """Names and values, one pair a line."""
        width = max(map(len, pairs), default=0)
        for name, value in pairs.items():
            self._out.print(Text(f"{name:<{width}}  ", style="bold") + Text(value, style="not bold"))

    def sections(self, sections: Mapping[str, Mapping[str, str]]) -> None:
        """Print names and values under headings; the values of all sections stand in one column."""
        width = max((len(name) for pairs in sections.values() for name in pairs), default=0)
        for number, (heading, pairs) in enumerate(sections.items()):
            if number:
                self._out.print()
            self._out.print(Text(heading, style="bold"))
            for name, value in pairs.items():
                self._out.print(Text(f"  {name:<{width}}  {value}"))

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
        """Print a remark about a completed action; programs see it in the exit code."""
        if not self.json:
            self._err.print(Text(text))

    def remark_rest(self, offset: int, shown: int, total: int) -> None:
        """Tell that a list goes on after the page that was shown, and how to see on."""
        if offset + shown < total:
            self.remark(f"{shown:,} of {total:,}; see on with --offset {offset + shown}")

    def warning(self, text: str) -> None:
        """Print a warning to standard error, in either form."""
        if self.json:
            self._error_document({"warning": text})
        else:
            self._err.print(Text("warning: ", style="yellow") + Text(text))

    def error(self, text: str, name: str = "failed") -> None:
        """Print the reason why the command, or a part of it, failed.

        Args:
            text: the reason, a sentence.
            name: the stable name for programs, used with JSON: that of an error code, or of an exit code.
        """
        if self.json:
            self._error_document({"error": name, "text": text})
        else:
            self._err.print(Text("cmq: ", style="bold red") + Text(text))

    def client_error(self, error: CmqError, subject: str = "") -> None:
        """Print an error of the client or the server; ``subject`` names the one of several things that it is about."""
        text = error.text if not subject else f"{subject}: {error.text}"
        numbers = {"request_id": error.request_id, "connection_id": error.connection_id} if self.verbose else {}
        numbers = {field: number for field, number in numbers.items() if number is not None}
        if self.json:
            document: dict[str, Any] = {"error": error.name, "text": text, "retryable": error.retryable}
            if error.retry_after is not None:
                document["retry_after"] = error.retry_after
            if error.details:
                document["details"] = error.details
            self._error_document(document | numbers)
            return
        shown = ", ".join(f"{field.removesuffix('_id')} {number}" for field, number in numbers.items())
        self.error(f"{text} ({shown})" if shown else text)

    def _error_document(self, document: Mapping[str, Any]) -> None:
        sys.stderr.write(msgspec.json.encode(document, enc_hook=str).decode() + "\n")
        sys.stderr.flush()

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

    @property
    def can_ask(self) -> bool:
        """True if a user at a terminal can answer a question."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    async def confirm(self, question: str) -> bool:
        """Ask a question with the answers yes and no.

        Raises:
            CommandFailed: there is no terminal. A script says ``--yes``, so that a command which lost its terminal by
                accident destroys nothing.
        """
        if not self.can_ask:
            raise CommandFailed(f"{question} Without a terminal, say --yes.", ExitCode.USAGE)
        answer = await self.read_answer(f"{question} [y/N] ")
        return answer.strip().lower() in (b"y", b"yes")

    async def read_answer(self, question: str) -> bytes:
        """Print a question and read the line that is typed; empty at the end of the input.

        A read in this thread would hold the loop: Ctrl-C, which cancels the command, would wait for the line, and the
        connection's heartbeats too.
        """
        self._err.print(Text(question), end="")
        answer = b""
        try:
            answer = await in_daemon_thread(reader(sys.stdin.buffer))
        finally:
            if not answer.endswith(b"\n"):
                self._err.print()
        return answer


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
    """Return a body for a table; a body that is not UTF-8 is shown as base64, with a mark."""
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


def show_count(count: int) -> str:
    """Return a number with separators of thousands: ``1,461,173``."""
    return f"{count:,}"


def show_time(moment: datetime | None) -> str:
    """A time for a person, in local time; ``-`` for none."""
    return "-" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def show_size(size: int) -> str:
    """Return a number of bytes in the largest unit that fits: ``64 KiB``, ``1.5 GiB``, ``512 bytes``."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} bytes"


def show_unsealed(first: int, last: int, option: str = "--include-active") -> str:
    """Print the rows that a command did not read, and the ways to include them."""
    return (
        f"rows {first} to {last} are not sealed yet, and not looked at; "
        f"cmq segment seal makes them visible, and so does {option}"
    )
