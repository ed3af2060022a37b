"""``cmq publish``: messages to a topic."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cmq_cli.bodies import opened, parse_headers, read_body
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.lines import Line, LineFormat
from cmq_cli.options import CurrentSession, DedupId, Flag, Header, Repeated, TopicName
from cmq_cli.output import Output
from cmq_cli.reading import read_lines
from cmq_cli.streams import LineStream
from cmqd_client import Published, Topic


async def publish(
    topic: TopicName,
    body: Annotated[str | None, Parameter(help="The message.")] = None,
    /,
    *,
    tag: Repeated = None,
    routing_key: str | None = None,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    stdin: Flag = False,
    ndjson: Flag = False,
    body_field: str | None = None,
    tag_field: str | None = None,
    key_field: str | None = None,
    header: Header = None,
    dedup_id: DedupId = None,
    session: CurrentSession,
) -> ExitCode:
    """Publish a message, or a stream of messages, to the subscriptions of a topic.

    A stream is published in order, up to 256 lines at a time and without waiting for more, so it may come from a
    program that runs for a long time. Empty lines are skipped. The command ends at the first line that cannot be
    published, and names that line; the lines before it are published.

    Parameters
    ----------
    tag
        A tag of each message; can be repeated, up to 10.
    routing_key
        On a routing topic: the routing key of each message.
    file
        Publish the content of this file as one message, or with --ndjson its lines; - is standard input.
    stdin
        Publish each line of standard input as a message.
    ndjson
        Publish each line of --file or standard input as a message. A line is a JSON object.
    body_field
        With --ndjson: the field with the body, the text of a string or the JSON of any other value. By default the
        line is the body.
    tag_field
        With --ndjson: the field with a tag or a list of tags.
    key_field
        With --ndjson: the field with the routing key.
    """
    if not ndjson and (body_field or tag_field or key_field):
        raise CommandFailed("--body-field, --tag-field and --key-field need --ndjson", ExitCode.USAGE)
    if (tag and tag_field) or (routing_key is not None and key_field):
        raise CommandFailed("give --tag or --tag-field, --routing-key or --key-field, not both", ExitCode.USAGE)
    if (tag or tag_field) and (routing_key is not None or key_field):
        raise CommandFailed("a topic takes tags or routing keys, not both", ExitCode.USAGE)
    if (body is not None) + stdin + (file is not None or ndjson) != 1:
        raise CommandFailed("give one of: a body, --file, --stdin, --ndjson (perhaps with --file)", ExitCode.USAGE)
    if (stdin or ndjson) and dedup_id is not None:
        raise CommandFailed("--dedup-id names one message; a stream has many", ExitCode.USAGE)
    headers = parse_headers(header)
    if stdin or ndjson:
        line_format = LineFormat(
            tags=tag or [],
            routing_key=routing_key,
            ndjson=ndjson,
            body_field=body_field,
            tag_field=tag_field,
            key_field=key_field,
        )
        with opened(file) as stream:
            async with session.client() as client:
                publisher = _Publisher(client.topic(topic), session.output, line_format, headers)
                await publisher.stream.run(read_lines(stream))
        return publisher.report()
    content = read_body(body, file)
    async with session.client() as client:
        published = await client.topic(topic).publish(
            content, tags=tag, routing_key=routing_key, headers=headers, dedup_id=dedup_id
        )
    session.output.facts(
        {"id": published.id, "matched": published.matched, "request_id": published.request_id},
        {"id": published.id, "matched": _matched(published)},
    )
    return ExitCode.OK


def _matched(published: Published) -> str:
    if published.matched is None:
        return "not known: it had been published before"
    if not published.matched:
        return "no subscription, so it was discarded"
    return f"{published.matched} subscription{'s' if published.matched > 1 else ''}"


class _Publisher:
    """Publishes the lines of a stream and counts the results."""

    def __init__(self, topic: Topic, output: Output, line_format: LineFormat, headers: dict[str, str] | None) -> None:
        self.stream = LineStream(
            output, "publishing", self._publish, line_format=line_format, headers=headers, splits_batches=True
        )
        self._topic = topic
        self._headers = headers
        self._matched = 0
        """Copies: matching subscriptions of all messages."""
        self._discarded = 0
        """Messages without a matching subscription."""
        self._repeated = 0
        """Messages whose first answer was lost, so that the number of matches is unknown."""

    async def _publish(self, batch: list[Line]) -> None:
        first = batch[0]
        keys = [line.routing_key for line in batch if line.routing_key is not None]
        has_one_key = len(set(keys)) <= 1
        # Tags or a key that all messages share are sent once.
        results = await self._topic.publish_batch(
            [line.body for line in batch],
            tags=first.tags if all(line.tags == first.tags for line in batch) else [line.tags for line in batch],
            routing_key=first.routing_key if has_one_key else None,
            routing_keys=None if has_one_key else keys,
            headers=self._headers,
        )
        for result in results:
            self._matched += result.matched or 0
            self._discarded += result.matched == 0
            self._repeated += result.matched is None

    def report(self) -> ExitCode:
        """Report the counts and return the exit code."""
        published = self.stream.stored
        parts = [
            f"{published:,} published",
            f"{self._matched:,} {'copy' if self._matched == 1 else 'copies'} for subscriptions",
        ]
        if self._discarded:
            parts.append(f"{self._discarded:,} discarded without a matching subscription")
        if self._repeated:
            parts.append(f"{self._repeated:,} repeated, so the number of matches is unknown")
        if self.stream.empty:
            parts.append(f"{self.stream.empty:,} empty lines left out")
        totals = {"published": published, "matched": self._matched, "discarded": self._discarded}
        return self.stream.report(totals | {"repeated": self._repeated}, "; ".join(parts), "messages")
