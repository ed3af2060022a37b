"""A stream of lines, published: one message a line, several at a time, in order."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from cmq_cli.exitcodes import ExitCode, exit_code
from cmq_cli.lines import INTERRUPTED, advance, batches, stored_so_far, weight_of
from cmq_cli.output import Output
from cmqd_client import CmqError, Published, Topic
from cmqd_client.errors import BatchTooLarge, InvalidArgument, MessageTooLarge

_LINE_UNUSABLE = "line_unusable"
"""Name of the error of a line that is no message, for JSON."""

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)
_TAGS = msgspec.json.Decoder(str | list[str] | None)


class LineError(Exception):
    """A line cannot be published; the text says why."""


class Line(msgspec.Struct, frozen=True):
    """A message to publish, and where it comes from."""

    number: int
    """From 1, empty lines counted."""
    body: bytes
    tags: list[str]
    routing_key: str | None


class LineForm(msgspec.Struct, frozen=True, kw_only=True):
    """The forms of a line that becomes a message."""

    tags: list[str] = []
    """Of every message."""
    routing_key: str | None = None
    """Of every message."""
    ndjson: bool = False
    """A line is a JSON object."""
    body_field: str | None = None
    """Its field that holds the body: a string is taken as its text, anything else as its JSON. None = the line."""
    tag_field: str | None = None
    """Its field with a tag or a list of tags; without it or null, a message has none."""
    key_field: str | None = None
    """Its field with the routing key."""

    def read(self, number: int, line: bytes) -> Line:
        """The message of a line.

        Raises:
            LineError: it is no JSON object, or a field is missing or of the wrong type.
        """
        if not self.ndjson:
            return Line(number, line, self.tags, self.routing_key)
        try:
            fields = _OBJECT.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
            raise LineError(f"it is no JSON object: {wrong}") from wrong
        body, tags, key = line, self.tags, self.routing_key
        if self.body_field is not None:
            raw = bytes(_field(fields, self.body_field))
            body = _decoded(_TEXT, raw, self.body_field, "").encode() if raw.startswith(b'"') else raw
        if self.tag_field is not None:
            found = fields.get(self.tag_field)
            read = None if found is None else _decoded(_TAGS, found, self.tag_field, "a string or a list of strings")
            tags = [read] if isinstance(read, str) else read or []
        if self.key_field is not None:
            key = _decoded(_TEXT, _field(fields, self.key_field), self.key_field, "a string")
        return Line(number, body, tags, key)


def _field(fields: Mapping[str, msgspec.Raw], name: str) -> msgspec.Raw:
    if name not in fields:
        raise LineError(f"it has no field {name!r}")
    return fields[name]


def _decoded(decoder: "msgspec.json.Decoder[Any]", raw: msgspec.Raw | bytes, name: str, wanted: str) -> Any:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        why = f"must be {wanted}" if isinstance(wrong, msgspec.ValidationError) else f"is no JSON: {wrong}"
        raise LineError(f"its field {name!r} {why}") from wrong


class _Totals(msgspec.Struct):
    """Counts of the lines so far, by result."""

    published: int = 0
    matched: int = 0
    """Copies: subscriptions that matched, of all messages together."""
    discarded: int = 0
    """Messages without a matching subscription."""
    repeated: int = 0
    """Messages whose first answer was lost, so that the number of matches is unknown."""

    def add(self, results: list[Published]) -> None:
        self.published += len(results)
        for one in results:
            if one.matched is None:
                self.repeated += 1
            else:
                self.matched += one.matched
                self.discarded += one.matched == 0


class _RefusedError(Exception):
    """The server wants none of this line."""

    def __init__(self, line: Line, error: CmqError) -> None:
        super().__init__(str(error))
        self.line = line
        self.error = error


async def publish_lines(
    topic: Topic,
    chunks: AsyncIterator[list[bytes]],
    form: LineForm,
    output: Output,
    headers: Mapping[str, str] | None,
) -> ExitCode:
    """Publish every line that is not empty, report the number published, and return the exit code.

    The next batch leaves when the one before is stored, up to the first line that cannot be published.

    Raises:
        asyncio.CancelledError: interrupted; the report is printed before.
    """
    started = time.monotonic()
    extra = weight_of(headers)
    totals = _Totals()
    number = empty = under_way = 0
    interrupted: asyncio.CancelledError | None = None
    bad_line: int | None = None
    problem: str | None = None
    failure: CmqError | None = None
    subject = ""
    with output.progress() as progress:
        task = progress.add_task("publishing", total=None, rate="")
        try:
            async for chunk in chunks:
                lines: list[Line] = []
                for text in chunk:
                    number += 1
                    if not text:
                        empty += 1
                        continue
                    try:
                        lines.append(form.read(number, text))
                    except LineError as wrong:
                        bad_line, problem = number, f"line {number}: {wrong}"
                        break
                for batch in batches(lines, lambda line: _weight(line) + extra):
                    goal = totals.published + len(batch)
                    under_way = len(batch)
                    try:
                        await _publish(topic, batch, headers, totals)
                    finally:
                        # A batch that is published line by line may have been stored in part.
                        under_way = goal - totals.published
                    advance(progress, task, totals.published, started)
                if problem is not None:
                    break
        except _RefusedError as refused:
            failure, bad_line = refused.error, refused.line.number
            subject = f"line {bad_line}"
        except CmqError as error:
            failure = error
            subject = f"after {totals.published:,} messages"
        except asyncio.CancelledError as cancelled:
            interrupted = cancelled
    name = failure.name if failure is not None else None if problem is None else _LINE_UNUSABLE
    if interrupted is not None:
        name = INTERRUPTED
    if output.json:
        output.document(
            msgspec.structs.asdict(totals)
            | {
                "unanswered": under_way if interrupted is not None else 0,
                "empty_lines_skipped": empty,
                "seconds": round(time.monotonic() - started, 3),
                "error": name,
                "line": bad_line,
            }
        )
    output.remark(_summary(totals, empty))
    if interrupted is not None:
        output.error(stored_so_far(totals.published, under_way), INTERRUPTED)
        raise interrupted
    if failure is not None:
        output.client_error(failure, subject)
    elif problem is not None:
        output.error(problem, _LINE_UNUSABLE)
    else:
        return ExitCode.OK
    if totals.published:
        return ExitCode.PARTIAL
    return ExitCode.FAILED if failure is None else exit_code(failure)


async def _publish(topic: Topic, batch: list[Line], headers: Mapping[str, str] | None, totals: _Totals) -> None:
    """Publish a batch; if the server refuses a line of it, the lines before that line.

    Raises:
        _RefusedError: a line is refused; the lines before it are published.
        CmqError: the batch could not be published for another reason.
    """
    try:
        totals.add(await _publish_whole(topic, batch, headers))
    except (InvalidArgument, MessageTooLarge, BatchTooLarge) as error:
        if len(batch) == 1:
            raise _RefusedError(batch[0], error) from error
        # Nothing of it was published; one by one, the guilty line names itself.
        for line in batch:
            await _publish(topic, [line], headers, totals)


async def _publish_whole(topic: Topic, batch: list[Line], headers: Mapping[str, str] | None) -> list[Published]:
    first = batch[0]
    bodies = [line.body for line in batch]
    tags = first.tags if all(line.tags == first.tags for line in batch) else [line.tags for line in batch]
    keys = [line.routing_key for line in batch if line.routing_key is not None]
    if not keys or all(key == keys[0] for key in keys):
        return await topic.publish_batch(bodies, tags=tags, routing_key=first.routing_key, headers=headers)
    return await topic.publish_batch(bodies, tags=tags, routing_keys=keys, headers=headers)


def _weight(line: Line) -> int:
    return len(line.body) + sum(map(len, line.tags)) + len(line.routing_key or "")


def _summary(totals: _Totals, empty: int) -> str:
    parts = [
        f"{totals.published:,} published",
        f"{totals.matched:,} {'copy' if totals.matched == 1 else 'copies'} for subscriptions",
    ]
    if totals.discarded:
        parts.append(f"{totals.discarded:,} discarded without a matching subscription")
    if totals.repeated:
        parts.append(f"{totals.repeated:,} repeated, so the number of matches is unknown")
    if empty:
        parts.append(f"{empty:,} empty lines left out")
    return "; ".join(parts)
