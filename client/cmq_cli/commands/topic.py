"""``cmq topic``: make, look at, change and delete topics."""

import asyncio
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from cmq_cli.deletions import delete_each
from cmq_cli.durations import show_duration
from cmq_cli.exitcodes import ExitCode
from cmq_cli.output import info_document, show_count, show_size, show_time, show_value
from cmq_cli.session import Session
from cmqd_client import Client, FilterType, TopicInfo
from cmqd_client.errors import TopicDiffers, TopicNotFound

app = App(name="topic", help="Make, look at, change and delete topics.")

_Session = Annotated[Session, Parameter(parse=False)]
_Flag = Annotated[bool, Parameter(negative=())]


@app.command
async def create(
    name: str,
    /,
    *,
    filter_type: FilterType | None = None,
    max_message_bytes: int | None = None,
    ensure: _Flag = False,
    session: _Session,
) -> None:
    """Create a topic.

    Parameters
    ----------
    name
        3-64 ASCII letters, digits, - and _. A longer name is cut, unless --ensure is given.
    filter_type
        Matching of messages with subscriptions: by tags (the default) or by a routing key. It cannot be changed later.
    max_message_bytes
        Longest body: 1024 to 1048576; 65536 by default.
    ensure
        Accept an existing topic with the same attributes; else show the differences.
    """
    async with session.client() as client:
        if ensure:
            try:
                info = await client.ensure_topic_info(
                    name, filter_type=filter_type, max_message_bytes=max_message_bytes
                )
            except TopicDiffers as differs:
                session.output.difference(name, differs.difference, lambda _, value: show_value(value))
                raise
        else:
            topic = await client.create_topic(name, filter_type=filter_type, max_message_bytes=max_message_bytes)
            info = msgspec.structs.replace(await topic.attributes(), created=True)
    if info.name != name:
        session.output.remark(f"the name was cut to {len(info.name)} bytes")
    if session.output.json:
        session.output.document(info_document(info))
    session.output.remark(f"topic {info.name!r} {'created' if info.created else 'exists and agrees'}")


@app.command(name="list")
async def list_topics(*, search: str = "", offset: int = 0, limit: int = 1000, session: _Session) -> None:
    """List topics by name.

    Parameters
    ----------
    search
        Only names that contain this text.
    offset
        Number of entries to skip.
    limit
        Number of entries at most, 1-1000.
    """
    async with session.client() as client:
        page = await client.topics(search=search, offset=offset, limit=limit)
        # All in one write; a topic that was deleted since is left out.
        found = await asyncio.gather(*(_info_if_there(client, name) for name in page))
    infos = [info for info in found if info is not None]
    output = session.output
    if output.json:
        output.document({"total": page.total, "topics": [info_document(info) for info in infos]})
        return
    rows = [
        (
            info.name,
            info.filter_type,
            show_count(info.subscriptions),
            show_count(info.retained),
            show_time(info.oldest_message_time),
        )
        for info in infos
    ]
    output.table(("name", "filter", "subscriptions#", "retained#", "oldest message"), rows)
    output.remark_rest(offset, len(page), page.total)


@app.command
async def info(name: str, /, *, session: _Session) -> None:
    """Show a topic's attributes and counts."""
    async with session.client() as client:
        _show(session, await client.topic(name).attributes())


@app.command(name="set")
async def set_attributes(name: str, /, *, max_message_bytes: int, session: _Session) -> None:
    """Change the longest body that a topic accepts; other attributes cannot be changed.

    Parameters
    ----------
    name
        The topic.
    max_message_bytes
        1024 to 1048576.
    """
    async with session.client() as client:
        _show(session, await client.topic(name).set_attributes(max_message_bytes=max_message_bytes))


@app.command
async def delete(*names: str, yes: _Flag = False, session: _Session) -> ExitCode:
    """Delete topics that have no subscriptions.

    Parameters
    ----------
    names
        The topics.
    yes
        Do not ask. Needed without a terminal.
    """

    async def question(_: Client) -> str:
        return f"Delete {', '.join(names)}?"

    return await delete_each(session, "topic", names, Client.delete_topic, ask=None if yes else question)


async def _info_if_there(client: Client, name: str) -> TopicInfo | None:
    try:
        return await client.topic(name).attributes()
    except TopicNotFound:
        return None


def _show(session: Session, info: TopicInfo) -> None:
    if session.output.json:
        session.output.document(info_document(info))
        return
    session.output.pairs(
        {
            "name": info.name,
            "filter": info.filter_type,
            "subscriptions": show_count(info.subscriptions),
            "retained": show_count(info.retained),
            "oldest message": show_time(info.oldest_message_time),
            "max message size": show_size(info.max_message_bytes),
            "lifecycle": show_duration(info.lifecycle),
            "created": show_time(info.create_time),
            "modified": show_time(info.modify_time),
            "id": str(info.id),
            "region": info.region,
            "address": info.address,
        }
    )
