"""``cmq queue``: create, list, show, change, clear and delete queues."""

from typing import Annotated, Any

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
    label,
    show_details,
    show_location,
    table_of,
)
from cmq_cli.options import FIRST_PAGE, CurrentSession, Ensure, Flag, Paging, QueueName, Yes
from cmq_cli.output import Output
from cmq_cli.values import from_ms, show_count, show_duration
from cmqd_client import Client, QueueInfo
from cmqd_client.administration.queue_summaries import QueueSummaryPage
from cmqd_types.attributes import QUEUE
from cmqd_types.queues import QueueSelection, QueueSort
from cmqd_types.sentences import counted

app = App(name="queue", help="Create, list, show, change, clear and delete queues.")

_COLUMNS = ("name", "active", "in_flight", "delayed", "oldest_message_time")
_FIGURES = ("active", "in_flight", "delayed", "half", "waiting_receives", "arrived", "deleted", "dead_lettered")
"""Columns of a sorted list."""
_COMBINED: dict[str, tuple[str, ...]] = {
    "dead_letter_queue": ("dead_letters_to", "dead_letter_sources"),
    "dead_letter_max_receives": (),
    "dead_letter_after": (),
    "auto_delete_after": ("auto_delete",),
    "auto_delete_only_empty": (),
}
"""Lines that show several attributes as a sentence."""
_SPARE = ("half", "waiting_receives", "dead_lettered", "deleted", "arrived")
"""Columns of a sorted list that a narrow terminal goes without, in this order, unless the list is sorted by them."""
_FIELDS = (
    *("name", "active", "in_flight", "delayed", "half", "rewindable", "oldest_message_time"),
    *(field for each in QUEUE.values() for field in _COMBINED.get(each.argument, (each.argument,))),
    *("create_time", "modify_time", "id", "region", "address"),
)


@attribute_options(QUEUE.values())
class Attributes(AttributeOptions):
    """The attributes of a queue that can be set. A duration: 1.5 (seconds), 250ms, 30s, 5m, 12h, 4d."""


_NO_ATTRIBUTES = Attributes()


@app.command
async def create(
    name: Annotated[str, Parameter(help="1-64 ASCII letters, digits, - and _.")],
    /,
    *,
    ensure: Ensure = False,
    attributes: Attributes = _NO_ATTRIBUTES,
    session: CurrentSession,
) -> None:
    """Create a queue."""
    given = attributes.given()
    async with session.client() as client:
        if ensure:
            with differences_shown(session.output, name):
                info = await client.ensure_queue_info(name, **given)
        else:
            queue = await client.create_queue(name, **given)
            info = msgspec.structs.replace(await queue.attributes(), created=True)
    session.output.result(as_document(info), created_remark("queue", name, info.created))


@app.command(name="list")
async def list_queues(
    *,
    paging: Paging = FIRST_PAGE,
    counts: Annotated[bool, Parameter(help="Show the message counts of each queue.")] = True,
    sort: Annotated[
        QueueSort | None,
        Parameter(help="Sort by this figure, the largest first (names from A to Z); the list then shows all figures."),
    ] = None,
    ascending: Annotated[Flag, Parameter(help="With --sort: the smallest figures first.")] = False,
    only: Annotated[QueueSelection | None, Parameter(help="Only queues of this kind; shows all figures.")] = None,
    session: CurrentSession,
) -> ExitCode:
    """List queues by name, or by a figure."""
    output = session.output
    if ascending and sort is None:
        raise CommandFailed("--ascending needs --sort", ExitCode.USAGE)
    async with session.client() as client:
        if sort is not None or only is not None:
            order = sort or "name"
            descending = not ascending and order != "name"
            summaries = await client.queue_summaries(
                **vars(paging), sort=order, descending=descending, selection=only or "all"
            )
            _show_summaries(output, summaries, order)
            output.remark_rest(paging.offset, len(summaries.queues), summaries.total)
            return ExitCode.OK
        page = await client.queues(**vars(paging))
        infos = await existing(client.queue(name).attributes() for name in page) if counts else []
    documents: list[Any] = [as_document(info) for info in infos] if counts else [{"name": name} for name in page]
    table = table_of(infos, _COLUMNS) if counts else (["name"], [[name] for name in page])
    output.listing({"total": page.total, "queues": documents}, *table)
    output.remark_rest(paging.offset, len(page), page.total)
    return ExitCode.OK


def _show_summaries(output: Output, page: QueueSummaryPage, order: QueueSort) -> None:
    documents: list[Any] = []
    rows: list[list[str]] = []
    for queue in page.queues:
        oldest = None if queue.oldest_message_ms is None else from_ms(queue.oldest_message_ms)
        document = as_document(queue)
        document["name"] = document.pop("queue")
        document["id"] = document.pop("queue_id")
        del document["oldest_message_ms"]
        document["create_time"] = from_ms(document.pop("created_ms"))
        documents.append({**document, "oldest_message_time": oldest})
        age = "-" if oldest is None else show_duration(max(0, round((page.time - oldest).total_seconds())))
        figures = [getattr(queue, field) for field in _FIGURES]
        rows.append([queue.queue, *map(show_count, figures), age])
    columns = ["name", *(f"{label(field)}#" for field in _FIGURES), "age"]
    spare = [f"{label(field)}#" for field in _SPARE if field != order]
    output.listing({"total": page.total, "queues": documents}, columns, rows, spare)


@app.command
async def info(name: QueueName, /, *, session: CurrentSession) -> None:
    """Show the attributes and message counts of a queue."""
    async with session.client() as client:
        _show(session.output, await client.queue(name).attributes())


@app.command
async def locate(name: QueueName, /, *, session: CurrentSession) -> None:
    """Show the server that has a queue: addresses, shard, epoch."""
    async with session.client() as client:
        show_location(session.output, await client.queue(name).locate())


@app.command(name="set")
async def set_attributes(
    name: QueueName, /, *, attributes: Attributes = _NO_ATTRIBUTES, session: CurrentSession
) -> None:
    """Change attributes of a queue; the other attributes stay."""
    given = attributes.given()
    if not given:
        raise CommandFailed("name at least one attribute to change; see: cmq queue set --help", ExitCode.USAGE)
    async with session.client() as client:
        _show(session.output, await client.queue(name).set_attributes(**given))


@app.command
async def delete(
    *names: Annotated[str, Parameter(help="Names of the queues.")], yes: Yes = False, session: CurrentSession
) -> ExitCode:
    """Delete queues with all their messages."""

    async def question(client: Client) -> str:
        infos = await existing(client.queue(name).attributes() for name in names)
        return f"Delete {', '.join(names)} with {counted(sum(map(_stored, infos)), 'message')}?"

    return await delete_each(session, "queue", names, Client.delete_queue, None if yes else question)


@app.command
async def clear(name: QueueName, /, *, yes: Yes = False, session: CurrentSession) -> ExitCode:
    """Drop all messages of a queue, in every state."""
    async with session.client() as client:
        queue = client.queue(name)
        if not yes:
            question = f"Drop all {counted(_stored(await queue.attributes()), 'message')} of {name}?"
            if not await session.output.confirm(question):
                return ExitCode.FAILED
        await queue.clear()
    session.output.result({"cleared": name}, f"queue {name!r} cleared")
    return ExitCode.OK


def _stored(info: QueueInfo) -> int:
    """Return the number of messages that a delete or a clear removes: all states, rewindable messages too."""
    return info.active + info.in_flight + info.delayed + info.half + info.rewindable


def _show(output: Output, info: QueueInfo) -> None:
    show_details(
        output,
        info,
        _FIELDS,
        rewind="" if info.rewind else "off",
        dead_letters_to=_dead_letters_to(info),
        auto_delete=_auto_delete(info),
    )


def _auto_delete(info: QueueInfo) -> str:
    if not info.auto_delete_after:
        return "never"
    condition = "if it is empty" if info.auto_delete_only_empty else "with its messages"
    return f"after {show_duration(info.auto_delete_after)} without use, {condition}"


def _dead_letters_to(info: QueueInfo) -> str:
    if not info.dead_letter_queue:
        return "-"
    if info.dead_letter_max_receives:
        return f"{info.dead_letter_queue}, after {counted(info.dead_letter_max_receives, 'receive')}"
    return f"{info.dead_letter_queue}, after {show_duration(info.dead_letter_after)}"
