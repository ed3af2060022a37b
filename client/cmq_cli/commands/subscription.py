"""``cmq sub``: what topics deliver to queues and URLs."""

from contextlib import suppress
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from cmq_cli.deletions import delete_each
from cmq_cli.durations import Seconds
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.output import Output, info_document, printable, show_count, show_time, show_value
from cmq_cli.session import Session
from cmqd_client import Client, ContentFormat, RetryStrategy, SubscriptionInfo
from cmqd_client.errors import SubscriptionDiffers, SubscriptionNotFound

app = App(name="sub", help="Subscriptions: deliver the messages of a topic to a queue, or post them to a URL.")

_Session = Annotated[Session, Parameter(parse=False)]
_Flag = Annotated[bool, Parameter(negative=())]
_Several = Annotated[list[str] | None, Parameter(negative=())]


@app.command
async def create(
    topic: str,
    name: str,
    /,
    *,
    queue: str | None = None,
    to_url: str | None = None,
    filter_tag: _Several = None,
    binding_key: _Several = None,
    strategy: RetryStrategy | None = None,
    content_format: ContentFormat | None = None,
    ensure: _Flag = False,
    session: _Session,
) -> None:
    """Subscribe a queue or a URL to a topic, for messages that are published from now on.

    Requests to a URL are signed with a secret, which is shown only here.

    Parameters
    ----------
    topic
        Name of the topic.
    name
        Name of the subscription: 3-64 ASCII letters, digits, - and _.
    queue
        Deliver to this queue.
    to_url
        Post to this URL: http://... or https://...
    filter_tag
        Only messages with this tag; can be repeated, up to 5. Without the option every message matches.
    binding_key
        On a routing topic: only messages with a matching key; * is one word, # any number of words; can be repeated,
        up to 5.
    strategy
        What is done when a delivery fails: try again at growing intervals for a day, other messages going past it (the
        default), or three times within a minute, those behind waiting, and then drop it.
    content_format
        What is posted to a URL: a JSON object with facts and body (the default), or the body alone.
    ensure
        Accept an existing topic with the same attributes; else show the differences.
    """
    if (queue is None) == (to_url is None):
        raise CommandFailed("give one of: --queue, --to-url", ExitCode.USAGE)
    output = session.output
    async with session.client() as client:
        try:
            info = await client.topic(topic).subscribe_info(
                name,
                queue=queue,
                url=to_url,
                filter_tags=filter_tag,
                binding_keys=binding_key,
                strategy=strategy,
                content_format=content_format,
                ensure=ensure,
            )
        except SubscriptionDiffers as differs:
            output.difference(name, differs.difference, lambda _, value: show_value(value))
            raise
    if output.json:
        output.document(info_document(info) | {"secret": info.secret})
        return
    if info.secret is not None:
        output.pairs({"secret": info.secret})
        output.remark("the secret is shown only now; keep it")
    output.remark(f"subscription {name!r} {'created' if info.created else 'exists and agrees'}")


@app.command(name="list")
async def list_subscriptions(
    topic: str, /, *, search: str = "", offset: int = 0, limit: int = 1000, session: _Session
) -> None:
    """List a topic's subscriptions by name, with their waiting messages.

    Parameters
    ----------
    topic
        Name of the topic.
    search
        Only names that contain this text.
    offset
        Number of entries to skip.
    limit
        Number of entries at most, 1-1000.
    """
    async with session.client() as client:
        page = await client.topic(topic).subscriptions(search=search, offset=offset, limit=limit)
    output = session.output
    if output.json:
        found = [msgspec.structs.asdict(one) for one in page]
        output.document({"topic": topic, "total": page.total, "subscriptions": found})
        return
    rows = [
        (
            one.name,
            one.protocol,
            one.endpoint,
            show_count(one.waiting),
            show_count(one.in_retry),
            "yes" if one.paused else "no",
            _line(one.last_error),
        )
        for one in page
    ]
    output.table(("name", "protocol", "endpoint", "waiting#", "in retry#", "paused", "last error"), rows)
    output.remark_rest(offset, len(page), page.total)


@app.command
async def info(topic: str, name: str, /, *, session: _Session) -> None:
    """Show a subscription's attributes, counts and last error."""
    async with session.client() as client:
        _show(session.output, await client.topic(topic).subscription(name).info())


@app.command(name="set")
async def set_attributes(
    topic: str,
    name: str,
    /,
    *,
    filter_tag: _Several = None,
    no_filter_tags: _Flag = False,
    binding_key: _Several = None,
    strategy: RetryStrategy | None = None,
    content_format: ContentFormat | None = None,
    session: _Session,
) -> None:
    """Change a subscription; other attributes stay. The queue or URL cannot be changed.

    Parameters
    ----------
    topic
        Name of the topic.
    name
        Name of the subscription.
    filter_tag
        New filter tags, for messages published from now on; can be repeated, up to 5.
    no_filter_tags
        Remove the filter tags: every message published from now on matches.
    binding_key
        New binding keys, for messages published from now on; can be repeated, up to 5.
    strategy
        The strategy of failed deliveries, also for deliveries that have failed before.
    content_format
        Format of the requests to a URL from now on.
    """
    if filter_tag and no_filter_tags:
        raise CommandFailed("give --filter-tag or --no-filter-tags, not both", ExitCode.USAGE)
    tags = [] if no_filter_tags else filter_tag
    if tags is None and binding_key is None and strategy is None and content_format is None:
        raise CommandFailed("name at least one thing to change; see: cmq sub set --help", ExitCode.USAGE)
    async with session.client() as client:
        found = await (
            client.topic(topic)
            .subscription(name)
            .set(filter_tags=tags, binding_keys=binding_key, strategy=strategy, content_format=content_format)
        )
    _show(session.output, found)


@app.command
async def pause(topic: str, name: str, /, *, session: _Session) -> None:
    """Hold a subscription's deliveries back; messages wait, each for a day from its publish."""
    await _pause(session, topic, name, True)


@app.command
async def resume(topic: str, name: str, /, *, session: _Session) -> None:
    """Go on with a subscription's deliveries."""
    await _pause(session, topic, name, False)


@app.command
async def retry(topic: str, name: str, /, *, session: _Session) -> None:
    """Retry all failed deliveries at once; deliveries without retries left are tried once more."""
    async with session.client() as client:
        count = await client.topic(topic).subscription(name).retry_now()
    if session.output.json:
        session.output.document({"retried": count})
    session.output.remark(f"{count:,} messages are tried again")


@app.command
async def drop(topic: str, name: str, /, *, yes: _Flag = False, session: _Session) -> ExitCode:
    """Drop all waiting deliveries of a subscription, retries included; other subscriptions keep theirs.

    Parameters
    ----------
    topic
        Name of the topic.
    name
        Name of the subscription.
    yes
        Do not ask. Needed without a terminal.
    """
    async with session.client() as client:
        subscription = client.topic(topic).subscription(name)
        if not yes:
            held = await subscription.info()
            question = f"Drop {held.waiting + held.in_retry:,} messages of {topic} for {name}?"
            if not await session.output.confirm(question):
                return ExitCode.FAILED
        count = await subscription.drop_waiting()
    if session.output.json:
        session.output.document({"dropped": count})
    session.output.remark(f"{count:,} messages dropped")
    return ExitCode.OK


@app.command
async def rotate_secret(topic: str, name: str, /, *, overlap: Seconds | None = None, session: _Session) -> None:
    """Give a subscription to a URL a new signing secret, which is shown only here.

    Parameters
    ----------
    topic
        Name of the topic.
    name
        Name of the subscription.
    overlap
        Time for which the old secret signs as well, so that the receiver can change over: 1d by default.
    """
    async with session.client() as client:
        rotated = await client.topic(topic).subscription(name).rotate_secret(overlap=overlap)
    output = session.output
    if output.json:
        output.document({"secret": rotated.secret, "overlap_until": rotated.overlap_until})
        return
    output.pairs({"secret": rotated.secret, "old one until": show_time(rotated.overlap_until)})
    output.remark("the secret is shown only now; keep it")


@app.command
async def delete(topic: str, /, *names: str, yes: _Flag = False, session: _Session) -> ExitCode:
    """End subscriptions and drop their waiting deliveries; copies in queues stay.

    Parameters
    ----------
    topic
        Name of the topic.
    names
        The subscriptions.
    yes
        Do not ask. Needed without a terminal.
    """

    async def unsubscribe(client: Client, name: str) -> None:
        await client.topic(topic).subscription(name).unsubscribe()

    async def question(client: Client) -> str:
        held = 0
        for name in names:
            with suppress(SubscriptionNotFound):
                info = await client.topic(topic).subscription(name).info()
                held += info.waiting + info.in_retry
        return f"Delete {', '.join(names)} of {topic} with {held:,} undelivered messages?"

    return await delete_each(session, "subscription", names, unsubscribe, ask=None if yes else question)


async def _pause(session: Session, topic: str, name: str, paused: bool) -> None:
    async with session.client() as client:
        subscription = client.topic(topic).subscription(name)
        await (subscription.pause() if paused else subscription.resume())
    if session.output.json:
        session.output.document({"topic": topic, "name": name, "paused": paused})
    session.output.remark(f"subscription {name!r} {'is paused' if paused else 'goes on'}")


def _show(output: Output, info: SubscriptionInfo) -> None:
    if output.json:
        output.document(info_document(info))
        return
    output.pairs(
        {
            "topic": info.topic,
            "name": info.name,
            "protocol": info.protocol,
            "endpoint": info.endpoint,
            "filter tags": show_value(info.filter_tags),
            "binding keys": show_value(info.binding_keys),
            "strategy": info.strategy,
            "content format": info.content_format,
            "paused": show_value(info.paused),
            "waiting": show_count(info.waiting),
            "in retry": show_count(info.in_retry),
            "delivered": "-" if info.delivered is None else show_count(info.delivered),
            "dropped": show_count(info.dropped),
            "blocked": show_value(info.blocked),
            "last error": _line(info.last_error),
            "last error at": show_time(info.last_error_time),
            "next attempt": show_time(info.next_attempt_time),
            "created": show_time(info.create_time),
            "modified": show_time(info.modify_time),
        }
    )


def _line(text: str | None) -> str:
    """An error, part of which a stranger's server may have written."""
    return "-" if not text else printable(text).replace("\n", " ")
