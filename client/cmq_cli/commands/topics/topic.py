"""``cmq topic``: create, list, show, change and delete topics, and test the filters of their subscriptions."""

from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from cmq_cli.attribute_options import AttributeOptions, attribute_options
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.nouns import (
    as_document,
    created_remark,
    delete_each,
    differences_shown,
    existing,
    show_details,
    show_location,
    table_of,
)
from cmq_cli.options import FIRST_PAGE, CurrentSession, Ensure, Paging, Repeated, TopicName, Yes
from cmqd_client import Client
from cmqd_client.topics.filter_tests import SubscriptionMatch
from cmqd_types.attributes import TOPIC, TOPIC_CHANGES
from cmqd_types.sentences import counted

app = App(name="topic", help="Create, list, show, change and delete topics.")

_COLUMNS = ("name", "filter_type", "subscriptions", "retained", "oldest_message_time")
_FIELDS = (
    *_COLUMNS,
    *(each.argument for each in TOPIC.values() if each.argument not in _COLUMNS),
    *("lifecycle", "create_time", "modify_time", "id", "region", "address"),
)

_REPORT_FIELDS = ("id", "publish_time", "size", "tags", "routing_key")
_DELIVERY_COLUMNS = (
    *("subscription", "state", "endpoint", "attempts", "delivered_time", "copy_id", "next_attempt_time"),
    *("last_error", "drop_reason"),
)

_MATCH_COLUMNS = ["subscription", "fate", "endpoint", "because"]


@attribute_options(TOPIC.values())
class Attributes(AttributeOptions):
    """The attributes of a topic."""


@attribute_options(TOPIC_CHANGES.values())
class Changes(AttributeOptions):
    """The attributes of a topic that can be changed."""


_NO_ATTRIBUTES = Attributes()
_NO_CHANGES = Changes()


@app.command
async def create(
    name: Annotated[str, Parameter(help="3-64 ASCII letters, digits, - and _. Without --ensure a longer name is cut.")],
    /,
    *,
    attributes: Attributes = _NO_ATTRIBUTES,
    ensure: Ensure = False,
    session: CurrentSession,
) -> None:
    """Create a topic."""
    output = session.output
    given = attributes.given()
    async with session.client() as client:
        if ensure:
            with differences_shown(output, name):
                info = await client.ensure_topic_info(name, **given)
        else:
            topic = await client.create_topic(name, **given)
            info = msgspec.structs.replace(await topic.attributes(), created=True)
    if info.name != name:
        output.remark(f"the name was cut to {len(info.name)} bytes")
    output.result(as_document(info), created_remark("topic", info.name, info.created))


@app.command(name="list")
async def list_topics(*, paging: Paging = FIRST_PAGE, session: CurrentSession) -> None:
    """List topics by name."""
    async with session.client() as client:
        page = await client.topics(**vars(paging))
        infos = await existing(client.topic(name).attributes() for name in page)
    document = {"total": page.total, "topics": [as_document(info) for info in infos]}
    session.output.listing(document, *table_of(infos, _COLUMNS))
    session.output.remark_rest(paging.offset, len(page), page.total)


@app.command
async def info(name: TopicName, /, *, session: CurrentSession) -> None:
    """Show the attributes and counts of a topic."""
    async with session.client() as client:
        show_details(session.output, await client.topic(name).attributes(), _FIELDS)


@app.command
async def locate(name: TopicName, /, *, session: CurrentSession) -> None:
    """Show the server that has a topic: addresses, shard, epoch."""
    async with session.client() as client:
        show_location(session.output, await client.topic(name).locate())


@app.command
async def deliveries(
    name: TopicName,
    message: Annotated[str, Parameter(help="Id of the published message, Msg-...")],
    /,
    *,
    session: CurrentSession,
) -> None:
    """Show the subscriptions that have had a published message, and the others."""
    async with session.client() as client:
        report = await client.topic(name).deliveries(message)
    output = session.output
    if not output.json:
        show_details(output, report, _REPORT_FIELDS)
    output.listing(as_document(report), *table_of(report, _DELIVERY_COLUMNS))


@app.command
async def match(
    name: TopicName,
    /,
    *,
    tag: Annotated[Repeated, Parameter(help="A tag of the message; can be repeated, up to 10.")] = None,
    routing_key: Annotated[str | None, Parameter(help="On a routing topic: the routing key of the message.")] = None,
    session: CurrentSession,
) -> None:
    """Show the subscriptions that would get a message with these tags or this routing key, and why the others not.

    Nothing is published.
    """
    async with session.client() as client:
        result = await client.topic(name).match(tags=tag, routing_key=routing_key)
    rows = [[each.subscription, each.fate, each.endpoint, _reason(each, routing_key)] for each in result]
    session.output.listing(as_document(result), _MATCH_COLUMNS, rows)
    matched = counted(result.matched, "subscription")
    session.output.remark(f"{matched} of {len(result)} would get the message")


def _reason(match: SubscriptionMatch, routing_key: str | None) -> str:
    """Return the filters that decided about a subscription, as text."""
    if not match.filters:
        return "every message"
    if match.matches:
        return ", ".join(each.text for each in match.filters if each.matches)
    if routing_key is None:
        return f"none of {', '.join(each.text for each in match.filters)}"
    words = routing_key.split(".")
    return "; ".join(f"{each.text} {_difference(each.differs_at, words)}" for each in match.filters)


def _difference(number: int | None, words: list[str]) -> str:
    if number is None:
        return "differs"
    return f"differs at {words[number - 1]!r}" if number <= len(words) else "has more words"


@app.command(name="set")
async def set_attributes(name: TopicName, /, *, attributes: Changes = _NO_CHANGES, session: CurrentSession) -> None:
    """Change attributes of a topic, for messages published from now on."""
    given = attributes.given()
    if not given:
        raise CommandFailed("name at least one attribute to change; see: cmq topic set --help", ExitCode.USAGE)
    async with session.client() as client:
        info = await client.topic(name).set_attributes(**given)
    show_details(session.output, info, _FIELDS)


@app.command
async def delete(
    *names: Annotated[str, Parameter(help="Names of the topics.")], yes: Yes = False, session: CurrentSession
) -> ExitCode:
    """Delete topics that have no subscriptions."""

    async def question(_: Client) -> str:
        return f"Delete {', '.join(names)}?"

    return await delete_each(session, "topic", names, Client.delete_topic, None if yes else question)
