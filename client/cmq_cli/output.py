"""The output of commands: tables, and JSON for programs.

With ``--output json`` standard output holds a single document (a stream: a document per line) and nothing else. Errors
and warnings go to standard error, as JSON documents too; remarks and progress are omitted.
"""

import base64
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from cmq_cli.error_words import option_words
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.reading import in_daemon_thread, reader
from cmq_cli.values import printable, show_time
from cmqd_client import CmqError, Message, Peeked

_REASONS = {
    "receives": "moved after too many receives",
    "age": "moved because of its age",
    "redrive": "redriven",
}
_NARROWEST_TEXT = 12
"""Columns of text are folded down to this width in a narrow terminal."""
_GAP = 2
"""Columns between two columns of a table."""


class OutputForm(Enum):
    """Output formats of results; the last two are of ``cmq log query`` alone."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class Output:
    """Writes results, remarks, errors and progress.

    ``verbose`` adds the numbers of the request and the connection to errors; the server's log has the same numbers.
    """

    def __init__(self, form: OutputForm, *, verbose: bool = False) -> None:
        self.json = form is OutputForm.JSON
        self.verbose = verbose
        self.options: Callable[[], Mapping[str, str]] = dict
        """Returns the options of the command by argument; called for an error that names arguments."""
        # A file or a pipe gets long lines: folding at 80 columns would break them for other programs.
        self._out = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000, highlight=False)
        self._err = Console(file=sys.stderr, highlight=False, soft_wrap=True)

    # ------------------------------------------------------------------ results

    def result(self, document: Any, remark: str) -> None:
        """Print the result of an action: a document, or a remark."""
        if self.json:
            self.document(document)
        else:
            self.remark(remark)

    def facts(self, document: Any, pairs: Mapping[str, str]) -> None:
        """Print facts: a document, or names and values, a pair per line."""
        if self.json:
            self.document(document)
        else:
            self._pairs(pairs)

    def listing(
        self, document: Any, columns: Sequence[str], rows: Iterable[Sequence[str]], spare: Sequence[str] = ()
    ) -> None:
        """Print a list: a document, or a table."""
        if self.json:
            self.document(document)
        else:
            self.table(columns, rows, spare)

    def document(self, value: Any) -> None:
        """Print a JSON document on a line of its own."""
        sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
        sys.stdout.buffer.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], spare: Sequence[str] = ()) -> None:
        """Print a table.

        No cell is cut. In a narrow terminal text is folded. If the columns do not fit even so, columns of ``spare`` are
        left out, in their order; if the rest does not fit either, each row is printed whole as names and values, a pair
        per line.

        Args:
            columns: a name that ends with ``#`` is of a column of numbers, with ``!`` of ids, which are not folded.
            rows: the cells.
            spare: names of columns as in ``columns``.
        """
        rows = list(rows)
        shown = list(range(len(columns)))
        if rows:
            widths = [_narrowest(column, [row[number] for row in rows]) for number, column in enumerate(columns)]
            left_out = [columns.index(column) for column in spare]
            while sum(widths[number] + _GAP for number in shown) - _GAP > self._out.width:
                if not left_out:
                    self._records([column.rstrip("#!") for column in columns], rows)
                    return
                shown.remove(left_out.pop(0))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number in shown:
            column = columns[number]
            is_whole = column.endswith(("#", "!"))
            table.add_column(
                column.rstrip("#!"),
                justify="right" if column.endswith("#") else "left",
                no_wrap=is_whole,
                overflow="fold",
                min_width=_narrowest(column, [row[number] for row in rows]),
            )
        for row in rows:
            # Text, not markup: names and values must not be able to colour or break the table.
            table.add_row(*(Text(row[number]) for number in shown))
        self._out.print(table, crop=False, soft_wrap=False)
        if len(shown) < len(columns):
            missing = ", ".join(column.rstrip("#!") for column in spare[: len(columns) - len(shown)])
            self.remark(f"without {missing}, for which the terminal is too narrow; --output json has all")

    def _records(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        for number, row in enumerate(rows):
            if number:
                self._out.print()
            self._pairs(dict(zip(names, row, strict=True)))

    def _pairs(self, pairs: Mapping[str, str]) -> None:
        width = max(map(len, pairs), default=0)
        for name, value in pairs.items():
            self._out.print(Text(f"{name:<{width}}  ", style="bold") + Text(value, style="not bold"))

    def sections(self, sections: Mapping[str, Mapping[str, str]]) -> None:
        """Print names and values under headings; the values of all sections share a column."""
        width = max((len(name) for pairs in sections.values() for name in pairs), default=0)
        for number, (heading, pairs) in enumerate(sections.items()):
            if number:
                self._out.print()
            self._out.print(Text(heading, style="bold"))
            for name, value in pairs.items():
                self._out.print(Text(f"  {name:<{width}}  {value}"))

    def message(self, message: Message | Peeked, *, raw: bool) -> None:
        """Print a message: a document, lines of facts above the body, or only the unchanged body (``raw``)."""
        if raw:
            self.raw(message.body)
            return
        if self.json:
            self.document(_message_document(message))
            return
        for facts in _facts(message):
            self._out.print(Text(printable(" · ".join(facts)), style="dim"))
        for name, value in message.headers.items():
            shown = printable(name).replace("\n", "\\n")
            self._out.print(Text(f"{shown}: ", style="cyan") + Text(printable(value)))
        body, encoding = encode_body(message.body)
        self._out.print(Text(f"(base64) {body}" if encoding == "base64" else printable(body)))
        sys.stdout.flush()

    def raw(self, body: bytes) -> None:
        """Print bytes unchanged, and a line break."""
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()

    # ------------------------------------------------------------------ beside results

    def remark(self, text: str) -> None:
        """Print a remark about a completed action; programs see the exit code instead."""
        if not self.json:
            self._err.print(Text(text))

    def remark_rest(self, offset: int, shown: int, total: int) -> None:
        """Print a remark if the list continues after the page that was shown."""
        if offset + shown < total:
            self.remark(f"{shown:,} of {total:,} shown; continue with --offset {offset + shown}")

    def warning(self, text: str) -> None:
        """Print a warning to standard error, in either form."""
        if self.json:
            self._error_document({"warning": text})
        else:
            self._err.print(Text("warning: ", style="yellow") + Text(text))

    def error(self, text: str, name: str = "failed") -> None:
        """Print the reason why the command, or a part of the command, failed.

        Args:
            text: the reason, a sentence.
            name: the stable name for programs, used with JSON: the name of an error code or of an exit code.
        """
        if self.json:
            self._error_document({"error": name, "text": text})
        else:
            self._err.print(Text("cmq: ", style="bold red") + Text(text))

    def client_error(self, error: CmqError, subject: str = "") -> None:
        """Print an error of the client or the server; ``subject`` names the queue, handle or line that failed."""
        text = error.text if error.parts is None else error.text_in(option_words(self.options()))
        # A refusal of the server names its queue or handle itself.
        text = f"{subject}: {text}" if subject and subject not in text else text
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
        """Return a progress display, shown on a terminal and silent elsewhere."""
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
            CommandFailed: there is no terminal. Scripts give ``--yes``, so that a command which lost its terminal by
                accident destroys nothing.
        """
        if not self.can_ask:
            raise CommandFailed(f"{question} Without a terminal, give --yes.", ExitCode.USAGE)
        answer = await self.read_answer(f"{question} [y/N] ")
        return answer.strip().lower() in (b"y", b"yes")

    async def read_answer(self, question: str) -> bytes:
        """Print a question and read the typed line; empty at the end of the input.

        A read in this thread would block the loop: Ctrl-C, which cancels the command, would wait for the line, and the
        heartbeats of the connection too.
        """
        self._err.print(Text(question), end="")
        answer = b""
        try:
            answer = await in_daemon_thread(reader(sys.stdin.buffer))
        finally:
            if not answer.endswith(b"\n"):
                self._err.print()
        return answer


def _narrowest(column: str, cells: Sequence[str]) -> int:
    """Return the smallest width of a column. Numbers and ids keep the width of the widest: a cut number is another."""
    width = max(map(cell_len, (column.rstrip("#!"), *cells)))
    return width if column.endswith(("#", "!")) else min(width, _NARROWEST_TEXT)


def _facts(message: Message | Peeked) -> Iterable[list[str]]:
    """Yield the lines above a body: the message, its queue of origin, the message of which it is a copy."""
    facts = [message.id, f"sent {show_time(message.enqueue_time)}", f"received {message.receive_count}x"]
    if isinstance(message, Message):
        facts.append(f"handle {message.receipt_handle}")
    else:
        facts.append(message.state.replace("_", " "))
        if message.visible_time is not None:
            facts.append(f"visible {show_time(message.visible_time)}")
    yield facts
    origin, copy_of = message.origin, message.copy_of
    if origin is not None:
        sent = f"sent {show_time(origin.enqueue_time)}"
        reason = _REASONS.get(origin.reason, origin.reason)
        why = f"{reason}: {origin.rejection}" if origin.rejection else reason
        yield [f"from {origin.queue}", origin.id, sent, f"received {origin.receive_count}x", why]
    if copy_of is not None:
        labels = [f"tag {tag}" for tag in copy_of.tags]
        if copy_of.routing_key is not None:
            labels.append(f"routing key {copy_of.routing_key}")
        source = [f"copy of {copy_of.id}", f"topic {copy_of.topic}", f"subscription {copy_of.subscription}"]
        yield [*source, f"published {show_time(copy_of.publish_time)}", *labels]


def _message_document(message: Message | Peeked) -> dict[str, Any]:
    """Return a message for JSON. A handle is text, because many JSON readers have no integers of 64 bits."""
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


def encode_body(body: bytes) -> tuple[str, str]:
    """Return a body as text and the encoding: ``utf-8``, or ``base64`` for other bytes."""
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"
