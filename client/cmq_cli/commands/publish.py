"""``cmq publish``: messages to a topic."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

from cyclopts import Parameter

from cmq_cli.bodies import parse_headers, read_body
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.publishing import LineForm, publish_lines
from cmq_cli.reading import read_lines
from cmq_cli.session import Session
from cmqd_client import Published

_Session = Annotated[Session, Parameter(parse=False)]
_Flag = Annotated[bool, Parameter(negative=())]
_Several = Annotated[list[str] | None, Parameter(negative=())]


async def publish(
    topic: str,
    body: str | None = None,
    /,
    *,
    tag: _Several = None,
    routing_key: str | None = None,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    stdin: _Flag = False,
    ndjson: _Flag = False,
    body_field: str | None = None,
    tag_field: str | None = None,
    key_field: str | None = None,
    header: _Several = None,
    dedup_id: str | None = None,
    session: _Session,
) -> ExitCode:
    """Publish a message, or a stream of messages, to the subscriptions of a topic.

    A stream is published in order, up to 256 lines at a time and without waiting for more, so it may come from a
    program that runs for a long time. Empty lines are left out. The command ends at the first line that cannot be
    published, and names that line; the lines before it are published.

    Parameters
    ----------
    topic
        Name of the topic.
    body
        The message.
    tag
        A tag of the message, or of every message; can be repeated, up to 10.
    routing_key
        On a routing topic: the key of the message, or of every message.
    file
        Publish the content of this file as one message, or with --ndjson its lines; - is standard input.
    stdin
        Publish each line of standard input as a message.
    ndjson
        Publish one JSON object a line, of --file or standard input; the next three options say what of it.
    body_field
        Its field that is the body: the text of a string, the JSON of anything else. Without it, the line is the body.
    tag_field
        Its field with a tag or a list of tags.
    key_field
        Its field with the routing key.
    header
        A header of every message as name=value; can be repeated.
    dedup_id
        Your own id of the message, up to 64 bytes: a repeat within 5 minutes is not published again.
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
        form = LineForm(
            tags=tag or [],
            routing_key=routing_key,
            ndjson=ndjson,
            body_field=body_field,
            tag_field=tag_field,
            key_field=key_field,
        )
        with _opened(file) as stream:
            async with session.client() as client:
                return await publish_lines(client.topic(topic), read_lines(stream), form, session.output, headers)
    content = read_body(body, file)
    async with session.client() as client:
        published = await client.topic(topic).publish(
            content, tags=tag, routing_key=routing_key, headers=headers, dedup_id=dedup_id
        )
    if session.output.json:
        session.output.document({"id": published.id, "matched": published.matched, "request_id": published.request_id})
    else:
        session.output.pairs({"id": published.id, "matched": _matched(published)})
    return ExitCode.OK


def _matched(published: Published) -> str:
    if published.matched is None:
        return "not known: it had been published before"
    if not published.matched:
        return "no subscription, so it was discarded"
    return f"{published.matched} subscription{'s' if published.matched > 1 else ''}"


@contextmanager
def _opened(file: Path | None) -> Generator[BinaryIO]:
    """The stream of lines.

    Raises:
        CommandFailed: the file cannot be read.
    """
    if file is None or str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = file.open("rb")
    except OSError as problem:
        raise CommandFailed(f"{file} cannot be read: {problem.strerror}") from problem
    with stream:
        yield stream
