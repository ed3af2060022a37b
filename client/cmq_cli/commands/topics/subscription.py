"""``cmq sub``: deliveries of topics to queues and URLs."""

from typing import Annotated, Any, TypeAlias

import msgspec
from cyclopts import App, Parameter

from cmq_cli.attribute_options import AttributeOptions, attribute_options
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.nouns import as_document, created_remark, delete_each, differences_shown, existing, show_details, table_of
from cmq_cli.options import (
    FIRST_PAGE,
    CurrentSession,
    Ensure,
    Flag,
    MaxMessages,
    Paging,
    SubscriptionName,
    TopicName,
    Yes,
)
from cmq_cli.output import encode_body
from cmq_cli.session import Seconds
from cmq_cli.values import printable, show_time
from cmqd_client import Client
from cmqd_client.subscription import QueueSubscriptionPage, SubscriptionPage
from cmqd_client.topics.delivery_reports import PendingMessage
from cmqd_types.attributes import SUBSCRIPTION, SUBSCRIPTION_OPTIONS
from cmqd_types.sentences import counted

app = App(name="sub", help="Subscriptions: deliver the messages of a topic to a queue, or post them to a URL.")

_COLUMNS = ("name", "protocol", "endpoint", "waiting", "in_retry", "paused", "last_error")
_COLUMNS_OF_QUEUE = ("topic", "name", "waiting", "in_retry", "paused", "last_error")
_FIELDS = (
    *("topic", "name", *(each.argument for each in SUBSCRIPTION.values())),
    *("waiting", "in_retry", "delivered", "dropped", "blocked", "last_error", "last_error_time", "next_attempt_time"),
    *("create_time", "modify_time"),
)
_PENDING_COLUMNS = (
    *("id", "state", "publish_time", "size", "attempts", "next_attempt_time", "tags", "routing_key"),
    "last_error",
)
MAX_PAGE = 256
"""Maximum number of messages in a reply of the server."""
OneMessage: TypeAlias = Annotated[str | None, Parameter(help="Only this message: the id of its publish, Msg-...")]
_SHOWN_ONCE = "the secret is shown only now; keep it"


@attribute_options(SUBSCRIPTION_OPTIONS.values())
class Attributes(AttributeOptions):
    """The attributes of a subscription that can be set."""


_NO_ATTRIBUTES = Attributes()


@app.command
async def create(
    topic: TopicName,
    name: Annotated[str, Parameter(help="Name of the subscription: 1-64 ASCII letters, digits, - and _.")],
    /,
    *,
    queue: Annotated[str | None, Parameter(help="Deliver to this queue.")] = None,
    to_url: Annotated[str | None, Parameter(help="Post to this URL: http://... or https://...")] = None,
    attributes: Attributes = _NO_ATTRIBUTES,
    ensure: Ensure = False,
    session: CurrentSession,
) -> None:
    """Subscribe a queue or a URL to a topic, for messages that are published from now on.

    Requests to a URL are signed with a secret. Only this command shows the secret.
    """
    if (queue is None) == (to_url is None):
        raise CommandFailed("give one of: --queue, --to-url", ExitCode.USAGE)
    output = session.output
    async with session.client() as client:
        with differences_shown(output, name):
            info = await client.topic(topic).subscribe_info(
                name, queue=queue, url=to_url, ensure=ensure, **attributes.given()
            )
    if info.secret is not None and not output.json:
        output.facts({}, {"secret": info.secret})
        output.remark(_SHOWN_ONCE)
    output.result(as_document(info) | {"secret": info.secret}, created_remark("subscription", name, info.created))


@app.command(name="list")
async def list_subscriptions(
    topic: Annotated[str | None, Parameter(help="Name of the topic.")] = None,
    /,
    *,
    queue: Annotated[str | None, Parameter(help="List the subscriptions of all topics to this queue.")] = None,
    paging: Paging = FIRST_PAGE,
    session: CurrentSession,
) -> None:
    """List the subscriptions of a topic, or of all topics to a queue, by name, with their waiting messages."""
    if (topic is None) == (queue is None):
        raise CommandFailed("give one of: a topic, --queue", ExitCode.USAGE)
    if queue is not None and paging.search:
        raise CommandFailed(
            "--search searches the subscriptions of a topic; with --queue there is none", ExitCode.USAGE
        )
    async with session.client() as client:
        page: SubscriptionPage | QueueSubscriptionPage
        if topic is not None:
            page = await client.topic(topic).subscriptions(**vars(paging))
            of, columns = {"topic": topic}, _COLUMNS
        else:
            page = await client.queue(str(queue)).subscriptions(offset=paging.offset, limit=paging.limit)
            of, columns = {"queue": queue}, _COLUMNS_OF_QUEUE
    document = {**of, "total": page.total, "subscriptions": [msgspec.structs.asdict(each) for each in page]}
    session.output.listing(document, *table_of(page, columns))
    session.output.remark_rest(paging.offset, len(page), page.total)


@app.command
async def info(topic: TopicName, name: SubscriptionName, /, *, session: CurrentSession) -> None:
    """Show the attributes, counts and last error of a subscription."""
    async with session.client() as client:
        show_details(session.output, await client.topic(topic).subscription(name).info(), _FIELDS)


@app.command(name="set")
async def set_attributes(
    topic: TopicName,
    name: SubscriptionName,
    /,
    *,
    attributes: Attributes = _NO_ATTRIBUTES,
    no_filter_tags: Annotated[Flag, Parameter(help="Remove the filter tags: every message matches.")] = False,
    session: CurrentSession,
) -> None:
    """Change a subscription; the other attributes stay. The queue or URL cannot be changed.

    New filter tags and binding keys apply to messages published from now on, a new strategy also to deliveries that
    failed before.
    """
    given = attributes.given()
    if "filter_tags" in given and no_filter_tags:
        raise CommandFailed("give --filter-tag or --no-filter-tags, not both", ExitCode.USAGE)
    if not given and not no_filter_tags:
        raise CommandFailed("name at least one attribute to change; see: cmq sub set --help", ExitCode.USAGE)
    if no_filter_tags:
        given["filter_tags"] = []
    async with session.client() as client:
        info = await client.topic(topic).subscription(name).set(**given)
    show_details(session.output, info, _FIELDS)


@app.command
async def pause(topic: TopicName, name: SubscriptionName, /, *, session: CurrentSession) -> None:
    """Pause the deliveries of a subscription; messages wait, each for a day after its publish."""
    async with session.client() as client:
        await client.topic(topic).subscription(name).pause()
    document = {"topic": topic, "name": name, "paused": True}
    session.output.result(document, f"subscription {name!r} is paused")


@app.command
async def resume(topic: TopicName, name: SubscriptionName, /, *, session: CurrentSession) -> None:
    """Resume the deliveries of a subscription."""
    async with session.client() as client:
        await client.topic(topic).subscription(name).resume()
    document = {"topic": topic, "name": name, "paused": False}
    session.output.result(document, f"subscription {name!r} resumed")


@app.command
async def peek(
    topic: TopicName,
    name: SubscriptionName,
    /,
    *,
    max_messages: MaxMessages = 10,
    start: int = 0,
    bodies: Flag = False,
    session: CurrentSession,
) -> None:
    """Show messages that the subscription has not had, in the order of their publishes.

    Parameters
    ----------
    start
        Position to begin at: 0, or the position that an earlier peek printed.
    bodies
        Show bodies and headers too.
    """
    shown: list[PendingMessage] = []
    next_start: int | None = start
    async with session.client() as client:
        subscription = client.topic(topic).subscription(name)
        while next_start is not None and len(shown) < max_messages:
            most = min(max_messages - len(shown), MAX_PAGE)
            page = await subscription.peek(most, start=next_start, bodies=bodies)
            shown += page
            next_start = page.next_start
    columns, rows = table_of(shown, _PENDING_COLUMNS)
    if bodies:
        columns.append("body")
        for row, message in zip(rows, shown, strict=True):
            text, encoding = encode_body(message.body or b"")
            row.append(f"(base64) {text}" if encoding == "base64" else printable(text))
    document = {"topic": topic, "name": name, "next_start": next_start, "messages": list(map(_document, shown))}
    session.output.listing(document, columns, rows)
    if not shown:
        session.output.remark(f"no message waits for {name!r}")
    elif next_start is not None:
        session.output.remark(f"more messages follow; list them with --start {next_start}")


def _document(message: PendingMessage) -> dict[str, Any]:
    document = msgspec.structs.asdict(message)
    if message.body is None:
        del document["body"], document["headers"]
    else:
        document["body"], document["body_encoding"] = encode_body(message.body)
    return document


@app.command
async def retry(
    topic: TopicName, name: SubscriptionName, /, *, message: OneMessage = None, session: CurrentSession
) -> None:
    """Retry all failed deliveries at once, or one message; a delivery without retries left is tried once more."""
    async with session.client() as client:
        subscription = client.topic(topic).subscription(name)
        done = await (subscription.retry_now() if message is None else subscription.retry(message))
    count = done.messages
    remark = f"{count:,} messages are retried"
    if message is not None:
        remark = f"message {message} is retried" if count else f"message {message} waits for its turn"
    session.output.result({"retried": count}, remark)


@app.command
async def drop(
    topic: TopicName,
    name: SubscriptionName,
    /,
    *,
    message: OneMessage = None,
    yes: Yes = False,
    session: CurrentSession,
) -> ExitCode:
    """Drop all waiting deliveries of a subscription, retries included, or one message.

    Other subscriptions keep theirs.
    """
    async with session.client() as client:
        subscription = client.topic(topic).subscription(name)
        if message is not None:
            await subscription.drop(message)
            session.output.result({"dropped": 1}, f"message {message} dropped")
            return ExitCode.OK
        if not yes:
            info = await subscription.info()
            question = f"Drop {counted(info.waiting + info.in_retry, 'message')} of {topic} for {name}?"
            if not await session.output.confirm(question):
                return ExitCode.FAILED
        count = (await subscription.drop_waiting()).messages
    session.output.result({"dropped": count}, f"{counted(count, 'message')} dropped")
    return ExitCode.OK


@app.command
async def rotate_secret(
    topic: TopicName, name: SubscriptionName, /, *, overlap: Seconds | None = None, session: CurrentSession
) -> None:
    """Create a new signing secret for a subscription to a URL. Only this command shows the secret.

    Parameters
    ----------
    overlap
        Time for which requests are also signed with the old secret, so that the receiver can change over: 1d by
        default.
    """
    async with session.client() as client:
        rotated = await client.topic(topic).subscription(name).rotate_secret(overlap=overlap)
    session.output.facts(
        {"secret": rotated.secret, "overlap_until": rotated.overlap_until},
        {"secret": rotated.secret, "old one until": show_time(rotated.overlap_until)},
    )
    session.output.remark(_SHOWN_ONCE)


@app.command
async def delete(
    topic: TopicName,
    /,
    *names: Annotated[str, Parameter(help="Names of the subscriptions.")],
    yes: Yes = False,
    session: CurrentSession,
) -> ExitCode:
    """Delete subscriptions and drop their waiting deliveries; copies in queues stay."""

    async def unsubscribe(client: Client, name: str) -> None:
        await client.topic(topic).subscription(name).unsubscribe()

    async def question(client: Client) -> str:
        infos = await existing(client.topic(topic).subscription(name).info() for name in names)
        undelivered = sum(info.waiting + info.in_retry for info in infos)
        return f"Delete {', '.join(names)} of {topic} with {counted(undelivered, 'undelivered message')}?"

    return await delete_each(session, "subscription", names, unsubscribe, None if yes else question)
