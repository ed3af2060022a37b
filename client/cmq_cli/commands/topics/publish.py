"""``cmq publish``: messages to a topic."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.lines import Line, LineFormat
from cmq_cli.message_bodies import opened, parse_headers, read_body
from cmq_cli.options import CurrentSession, DedupId, Flag, Header, TopicName
from cmq_cli.reading import read_lines
from cmq_cli.session import Session
from cmq_cli.streams import LineStream
from cmqd_client import Published, Topic
from cmqd_types.sentences import counted

_WHOLE_LINES = LineFormat()


async def publish(
    topic: TopicName,
    body: Annotated[str | None, Parameter(help="The message.")] = None,
    /,
    *,
    line_format: LineFormat = _WHOLE_LINES,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    stdin: Flag = False,
    header: Header = None,
    dedup_id: DedupId = None,
    session: CurrentSession,
) -> ExitCode:
    """Publish a message, or a stream of messages, to the subscriptions of a topic.

    A stream is published in order, up to 256 lines at a time. Lines are published at once, so the stream can come from
    a program that runs for a long time. Empty lines are skipped. The command ends at the first line that cannot be
    published, and names that line; the lines before are published.

    Parameters
    ----------
    file
        Publish the content of this file as one message, or with --ndjson its lines; - is standard input.
    stdin
        Publish each line of standard input as a message.
    """
    line_format.check()
    is_stream = stdin or line_format.ndjson
    if (body is not None) + stdin + (file is not None or line_format.ndjson) != 1:
        raise CommandFailed("give one of: a body, --file, --stdin, --ndjson (optionally with --file)", ExitCode.USAGE)
    if is_stream and dedup_id is not None:
        raise CommandFailed("--dedup-id identifies a single message, and a stream has many", ExitCode.USAGE)
    headers = parse_headers(header)
    if is_stream:
        with opened(file) as stream:
            async with session.client() as client:
                return await _publish_lines(client.topic(topic), read_lines(stream), line_format, headers, session)
    content = read_body(body, file)
    async with session.client() as client:
        published = await client.topic(topic).publish(
            content, tags=line_format.tag, routing_key=line_format.routing_key, headers=headers, dedup_id=dedup_id
        )
    session.output.facts(
        {"id": published.id, "matched": published.matched, "request_id": published.request_id},
        {"id": published.id, "matched": _matched(published)},
    )
    return ExitCode.OK


def _matched(published: Published) -> str:
    if published.matched is None:
        return "unknown, because the message was published before"
    if not published.matched:
        return "no subscription; the message was discarded"
    return f"{published.matched} subscription{'s' if published.matched > 1 else ''}"


async def _publish_lines(
    topic: Topic,
    chunks: AsyncIterator[list[bytes]],
    line_format: LineFormat,
    headers: dict[str, str] | None,
    session: Session,
) -> ExitCode:
    """Publish the lines of a stream, report the counts, and return the exit code."""
    totals = {"published": 0, "matched": 0, "discarded": 0, "repeated": 0}

    async def store(batch: list[Line]) -> None:
        first = batch[0]
        keys = [line.routing_key for line in batch if line.routing_key is not None]
        has_one_key = len(set(keys)) <= 1
        # Tags or a key that all messages share are sent once.
        results = await topic.publish_batch(
            [line.body for line in batch],
            tags=first.tags if all(line.tags == first.tags for line in batch) else [line.tags for line in batch],
            routing_key=first.routing_key if has_one_key else None,
            routing_keys=None if has_one_key else keys,
            headers=headers,
        )
        totals["published"] += len(results)
        totals["matched"] += sum(result.matched or 0 for result in results)
        totals["discarded"] += sum(result.matched == 0 for result in results)
        # After a lost answer the number of matches is unknown.
        totals["repeated"] += sum(result.matched is None for result in results)

    stream = LineStream(
        session.output, "publishing", store, line_format=line_format, headers=headers, splits_batches=True
    )
    await stream.run(chunks)
    copies = "copy" if totals["matched"] == 1 else "copies"
    parts = [f"{totals['published']:,} published", f"{totals['matched']:,} {copies} for subscriptions"]
    if totals["discarded"]:
        parts.append(f"{totals['discarded']:,} discarded without a matching subscription")
    if totals["repeated"]:
        parts.append(f"{totals['repeated']:,} repeated, so the number of matches is unknown")
    if stream.empty:
        parts.append(f"{counted(stream.empty, 'empty line')} left out")
    return stream.report(totals, "; ".join(parts), "messages")
