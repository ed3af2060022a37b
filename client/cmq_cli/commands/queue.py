"""``cmq queue``: make, look at, change and delete queues."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, cast

import msgspec
from cyclopts import App, Parameter

from cmq_cli.deletions import delete_each
from cmq_cli.durations import Seconds, show_duration, typed_duration
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.output import info_document, show_count, show_size, show_time, show_value
from cmq_cli.session import Session
from cmqd_client import Client, QueueAttributes, QueueInfo
from cmqd_client.errors import QueueDiffers, QueueNotFound

app = App(name="queue", help="Make, look at, change and delete queues.")

_Session = Annotated[Session, Parameter(parse=False)]
_Flag = Annotated[bool, Parameter(negative=())]

_DURATIONS = frozenset(
    {"polling_wait", "visibility_timeout", "retention", "delay", "rewind", "dead_letter_after", "first_check"}
)
"""Attributes whose values are durations."""


@Parameter(name="*")
@dataclass(frozen=True)
class Attributes:
    """The attributes of a queue that can be set. Durations: 1.5 (seconds), 250ms, 30s, 5m, 12h, 4d."""

    polling_wait: Seconds | None = None
    "Wait of a receive that names no wait: 0 to 30s."
    visibility_timeout: Seconds | None = None
    "Visibility timeout of received messages: 1s to 12h."
    max_message_bytes: int | None = None
    "Longest body: 1024 to 1048576."
    retention: Seconds | None = None
    "Life of a message: 1m to 15d."
    delay: Seconds | None = None
    "Delay of sends that name none: 0 to 1h."
    max_backlog: int | None = None
    "Messages beyond which sends are refused: 1000000 to 100000000."
    max_delayed: int | None = None
    "Limit of delayed messages; further delayed messages wait: 1 to 1000000."
    rewind: Seconds | None = None
    "Rewind window: time after its send in which a deleted message can become active again: 0 (off) to the retention."
    dead_letter_queue: str | None = None
    'Dead-letter queue; "" for none. It needs one of the next two options.'
    dead_letter_max_receives: int | None = None
    "Receives after which a message goes there: 1 to 1000; 0 = however many."
    dead_letter_after: Seconds | None = None
    "Time after which a message goes there: 5m to 12h; 0 = however long."
    transactional: Annotated[bool | None, Parameter(negative=())] = None
    "Accept half messages, which become active when they are committed; at creation only."
    first_check: Seconds | None = None
    "Time after which a producer is asked about an undecided half message: 1s to 1h."
    max_checks: int | None = None
    "Number of checks of a half message: 1 to 100."

    def given(self) -> QueueAttributes:
        """Those that were named."""
        return cast("QueueAttributes", {name: value for name, value in vars(self).items() if value is not None})


@app.command
async def create(
    name: str, /, *, ensure: _Flag = False, attributes: Attributes | None = None, session: _Session
) -> None:
    """Create a queue.

    Parameters
    ----------
    name
        1-64 ASCII letters, digits, - and _.
    ensure
        Accept an existing queue with the same attributes; else show the differences.
    """
    given = (attributes or Attributes()).given()
    async with session.client() as client:
        if ensure:
            try:
                info = await client.ensure_queue_info(name, **given)
            except QueueDiffers as differs:
                session.output.difference(name, differs.difference, _shown)
                raise
        else:
            await client.create_queue(name, **given)
            info = await client.queue(name).attributes()
            info = msgspec.structs.replace(info, created=True)
    if session.output.json:
        session.output.document(info_document(info))
    else:
        session.output.remark(f"queue {name!r} {'created' if info.created else 'exists and agrees'}")


@app.command(name="list")
async def list_queues(
    *,
    search: str = "",
    offset: int = 0,
    limit: int = 1000,
    counts: Annotated[bool, Parameter()] = True,
    session: _Session,
) -> None:
    """List queues by name.

    Parameters
    ----------
    search
        Only names that contain this text.
    offset
        Number of entries to skip.
    limit
        Number of entries at most, 1-1000.
    counts
        Show the message counts of each queue as well.
    """
    infos: list[QueueInfo] = []
    async with session.client() as client:
        page = await client.queues(search=search, offset=offset, limit=limit)
        if counts:
            # All in one write; a queue that was deleted since is left out.
            found = await asyncio.gather(*(_info_if_there(client, name) for name in page))
            infos = [info for info in found if info is not None]
    output = session.output
    if output.json:
        queues: list[Any] = [info_document(info) for info in infos] if counts else [{"name": name} for name in page]
        output.document({"total": page.total, "queues": queues})
        return
    if counts:
        rows = [
            (
                info.name,
                show_count(info.active),
                show_count(info.in_flight),
                show_count(info.delayed),
                show_time(info.oldest_message_time),
            )
            for info in infos
        ]
        output.table(("name", "active#", "in flight#", "delayed#", "oldest message"), rows)
    else:
        output.table(("name",), [(name,) for name in page])
    output.remark_rest(offset, len(page), page.total)


@app.command
async def info(name: str, /, *, session: _Session) -> None:
    """Show a queue's attributes and counts."""
    async with session.client() as client:
        _show(session, await client.queue(name).attributes())


@app.command(name="set")
async def set_attributes(name: str, /, *, attributes: Attributes | None = None, session: _Session) -> None:
    """Change attributes of a queue; those not named stay."""
    given = (attributes or Attributes()).given()
    if not given:
        raise CommandFailed("name at least one attribute to change; see: cmq queue set --help", ExitCode.USAGE)
    async with session.client() as client:
        _show(session, await client.queue(name).set_attributes(**given))


@app.command
async def delete(*names: str, yes: _Flag = False, session: _Session) -> ExitCode:
    """Delete queues with all their messages.

    Parameters
    ----------
    names
        The queues.
    yes
        Do not ask. Needed without a terminal.
    """

    async def question(client: Client) -> str:
        found = await asyncio.gather(*(_info_if_there(client, name) for name in names))
        held = sum(_held(info) for info in found if info is not None)
        return f"Delete {', '.join(names)} with {held:,} messages?"

    return await delete_each(session, "queue", names, Client.delete_queue, ask=None if yes else question)


@app.command
async def clear(name: str, /, *, yes: _Flag = False, session: _Session) -> ExitCode:
    """Drop all messages of a queue, whatever their state.

    Parameters
    ----------
    name
        The queue.
    yes
        Do not ask. Needed without a terminal.
    """
    async with session.client() as client:
        queue = client.queue(name)
        if not yes:
            question = f"Drop all {_held(await queue.attributes()):,} messages of {name}?"
            if not await session.output.confirm(question):
                return ExitCode.FAILED
        await queue.clear()
    if session.output.json:
        session.output.document({"cleared": name})
    session.output.remark(f"queue {name!r} cleared")
    return ExitCode.OK


async def _info_if_there(client: Client, name: str) -> QueueInfo | None:
    try:
        return await client.queue(name).attributes()
    except QueueNotFound:
        return None


def _held(info: QueueInfo) -> int:
    """Count the messages that go with their queue, or when it is cleared: every state, rewindable too."""
    return info.active + info.in_flight + info.delayed + info.half + info.rewindable


def _show(session: Session, info: QueueInfo) -> None:
    if session.output.json:
        session.output.document(info_document(info))
        return
    session.output.pairs(
        {
            "name": info.name,
            "active": show_count(info.active),
            "in flight": show_count(info.in_flight),
            "delayed": show_count(info.delayed),
            "half": show_count(info.half),
            "rewindable": show_count(info.rewindable),
            "oldest message": show_time(info.oldest_message_time),
            "polling wait": show_duration(info.polling_wait),
            "visibility timeout": show_duration(info.visibility_timeout),
            "max message size": show_size(info.max_message_bytes),
            "retention": show_duration(info.retention),
            "delay": show_duration(info.delay),
            "max backlog": show_count(info.max_backlog),
            "max delayed": show_count(info.max_delayed),
            "rewind": show_duration(info.rewind) if info.rewind else "off",
            "dead letters to": _dead_letters(info),
            "dead letters from": ", ".join(info.dead_letter_sources) or "-",
            "transactional": "yes" if info.transactional else "no",
            "first check": show_duration(info.first_check),
            "max checks": show_count(info.max_checks),
            "created": show_time(info.create_time),
            "modified": show_time(info.modify_time),
            "id": str(info.id),
            "region": info.region,
            "address": info.address,
        }
    )


def _dead_letters(info: QueueInfo) -> str:
    if not info.dead_letter_queue:
        return "-"
    if info.dead_letter_max_receives:
        return f"{info.dead_letter_queue}, after {info.dead_letter_max_receives:,} receives"
    return f"{info.dead_letter_queue}, after {show_duration(info.dead_letter_after)}"


def _shown(attribute: str, value: Any) -> str:
    """An attribute's value as it would be typed."""
    if attribute in _DURATIONS:
        return typed_duration(value)
    return show_value(value)
