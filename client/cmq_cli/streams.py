"""Streams of lines, stored as messages: a message per line, several per request, in order."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from rich.progress import Progress, TaskID

from cmq_cli.exitcodes import ExitCode, exit_code
from cmq_cli.lines import Line, LineError, LineFormat
from cmq_cli.output import Output
from cmqd_client import CmqError
from cmqd_client.errors import BatchTooLarge, InvalidArgument, MessageTooLarge
from cmqd_protocol.limits import MAX_BATCH, MAX_BATCH_BYTES

T = TypeVar("T")

_INTERRUPTED = ExitCode.INTERRUPTED.error_name
_LINE_UNUSABLE = "line_unusable"
"""Name of the error of a line that is not a message, for JSON."""


class LineStream:
    """Stores lines in order and reports the number of stored lines.

    A batch is sent only after the batch before it is stored. With several batches in progress a repeated batch could be
    stored behind a later batch, and after a failure no single line would be the line to continue at.
    """

    def __init__(
        self,
        output: Output,
        verb: str,
        store: Callable[[list[Line]], Awaitable[None]],
        *,
        line_format: LineFormat,
        headers: Mapping[str, str] | None,
        splits_batches: bool = False,
    ) -> None:
        """Create a stream.

        Args:
            output: the output of the command.
            verb: the action, shown with the progress: ``sending``.
            store: stores a batch as a whole or not at all.
            line_format: turns a line into a message.
            headers: the headers of every message.
            splits_batches: store the lines of a refused batch one by one, so that the error names the refused line.
        """
        self.stored = 0
        self.empty = 0
        self.failed_line: int | None = None
        """Number of the line that failed, if one line is the reason."""
        self._output = output
        self._verb = verb
        self._store = store
        self._format = line_format
        self._headers_size = sum(len(name.encode()) + len(value.encode()) for name, value in (headers or {}).items())
        self._splits_batches = splits_batches
        self._unanswered = 0
        self._number = 0
        self._started = time.monotonic()
        self._failure: CmqError | LineError | asyncio.CancelledError | None = None

    async def run(self, chunks: AsyncIterator[list[bytes]]) -> None:
        """Store the lines, up to the end of the stream or the first line that fails."""
        with self._output.progress() as progress:
            task = progress.add_task(self._verb, total=None, rate="")
            try:
                async for chunk in chunks:
                    lines, error = self._read(chunk)
                    for batch in batches(lines, self._size):
                        await self._store_batch(batch)
                        self._show_rate(progress, task)
                    if error is not None:
                        raise error
            except (CmqError, LineError, asyncio.CancelledError) as error:
                self._failure = error

    def _read(self, chunk: list[bytes]) -> tuple[list[Line], LineError | None]:
        """Return the lines up to the first line that is not a message, and its error."""
        lines: list[Line] = []
        for text in chunk:
            self._number += 1
            if not text:
                self.empty += 1
                continue
            try:
                lines.append(self._format.read(self._number, text))
            except LineError as error:
                self.failed_line = self._number
                return lines, error
        return lines, None

    def _size(self, line: Line) -> int:
        return line.size + self._headers_size

    async def _store_batch(self, batch: list[Line]) -> None:
        self._unanswered = len(batch)
        try:
            await self._store(batch)
        except (InvalidArgument, MessageTooLarge, BatchTooLarge):
            if not self._splits_batches:
                raise
            if len(batch) == 1:
                self.failed_line = batch[0].number
                raise
            # No line of the refused batch was stored. Sent one by one, the lines before the refused line are stored,
            # and the error names the refused line.
            for line in batch:
                await self._store_batch([line])
        else:
            self.stored += len(batch)
            self._unanswered = 0

    def _show_rate(self, progress: Progress, task: TaskID) -> None:
        rate = self.stored / max(time.monotonic() - self._started, 0.001)
        progress.update(task, completed=self.stored, rate=f"{rate:,.0f}/s")

    def report(self, totals: Mapping[str, Any], summary: str, unit: str) -> ExitCode:
        """Report the result and return the exit code.

        Args:
            totals: counts for JSON.
            summary: the counts as a sentence.
            unit: what was stored before a failure without a line: ``messages``.

        Raises:
            asyncio.CancelledError: the stream was interrupted.
        """
        output, failure = self._output, self._failure
        is_interrupted = isinstance(failure, asyncio.CancelledError)
        error_name = failure.name if isinstance(failure, CmqError) else None if failure is None else _LINE_UNUSABLE
        if output.json:
            output.document(
                {
                    **totals,
                    "unanswered": self._unanswered if is_interrupted else 0,
                    "empty_lines_skipped": self.empty,
                    "seconds": round(time.monotonic() - self._started, 3),
                    "error": _INTERRUPTED if is_interrupted else error_name,
                    **({"line": self.failed_line} if self._splits_batches else {}),
                }
            )
        output.remark(summary)
        if failure is None:
            return ExitCode.OK
        subject = f"after {self.stored:,} {unit}" if self.failed_line is None else f"line {self.failed_line}"
        if isinstance(failure, asyncio.CancelledError):
            # The batch on its way may have been stored although no answer came.
            rest = f", and the next {self._unanswered:,} may be" if self._unanswered else ""
            output.error(f"interrupted: {self.stored:,} messages are stored{rest}", _INTERRUPTED)
            raise failure
        if isinstance(failure, CmqError):
            output.client_error(failure, subject)
        else:
            output.error(f"{subject}: {failure}", _LINE_UNUSABLE)
        if self.stored:
            return ExitCode.PARTIAL
        return exit_code(failure) if isinstance(failure, CmqError) else ExitCode.FAILED


def batches(messages: Iterable[T], size_of: Callable[[T], int]) -> list[list[T]]:
    """Split messages into batches that the server accepts; a message that is too large is a batch of its own."""
    batches: list[list[T]] = []
    size = 0
    for message in messages:
        message_size = size_of(message)
        if not batches or len(batches[-1]) == MAX_BATCH or size + message_size > MAX_BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(message)
        size += message_size
    return batches
