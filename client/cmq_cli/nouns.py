"""Lists, details, creation and deletion of named things: queues, topics, subscriptions and keys.

A command names the fields to show; labels and text of the values follow from the fields, the same for all nouns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from cmq_cli.exitcodes import CommandFailed, ExitCode, exit_code
from cmq_cli.output import Output
from cmq_cli.session import Session
from cmq_cli.values import show_value, typed_duration
from cmqd_client import Client, CmqError
from cmqd_client.errors import AttributesDiffer, QueueNotFound, SubscriptionNotFound, TopicNotFound
from cmqd_client.links.locating import Location

T = TypeVar("T")

_LABELS = {
    "max_message_bytes": "max message size",
    "create_time": "created",
    "modify_time": "modified",
    "filter_type": "filter",
    "dead_letter_sources": "dead letters from",
    "last_error_time": "last error at",
}
"""Labels of fields that differ from the name of the field."""

_HIDDEN = frozenset({"details", "request_id", "secret", "secret_key"})
"""Fields of a reply that are not facts of the thing. A secret is shown by the command that creates it, and never
again."""


def label(field: str) -> str:
    """Return the label of a field."""
    return _LABELS.get(field) or field.removesuffix("_time").replace("_", " ")


def as_document(info: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a reply for JSON; durations are seconds."""
    return {field: value for field, value in msgspec.structs.asdict(info).items() if field not in _HIDDEN}


def show_details(output: Output, info: msgspec.Struct, fields: Iterable[str], **shown: str) -> None:
    """Show fields of a reply, a line each; ``shown`` holds the text of fields that need a form of their own."""
    pairs = {label(field): shown.get(field) or show_value(field, getattr(info, field)) for field in fields}
    output.facts(as_document(info), pairs)


def show_location(output: Output, location: Location) -> None:
    """Show the server of a queue or topic."""
    show_details(output, location, ("addresses", "shard", "epoch"), addresses=", ".join(location.addresses))


def table_of(infos: Iterable[msgspec.Struct], fields: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table; columns of numbers are aligned right."""
    values = [[getattr(info, field) for field in fields] for info in infos]
    columns = [
        label(field) + "#" * any(type(row[number]) is int for row in values) for number, field in enumerate(fields)
    ]
    return columns, [[show_value(field, value) for field, value in zip(fields, row, strict=True)] for row in values]


async def existing(lookups: Iterable[Awaitable[T]]) -> list[T]:
    """Look up several things with one write; things that were deleted meanwhile are left out."""

    async def look_up(lookup: Awaitable[T]) -> T | None:
        try:
            return await lookup
        except (QueueNotFound, TopicNotFound, SubscriptionNotFound):
            return None

    results = await asyncio.gather(*map(look_up, lookups))
    return [result for result in results if result is not None]


@contextmanager
def differences_shown(output: Output, name: str) -> Generator[None]:
    """Show the attributes in which an existing thing differs from the requested thing."""
    try:
        yield
    except AttributesDiffer as error:
        difference = error.difference
        document = {field: {"is": value, "wanted": wanted} for field, (value, wanted) in difference.items()}
        rows = [(field.replace("_", " "), *map(_typed, values)) for field, values in difference.items()]
        output.listing({"name": name, "difference": document}, ("attribute", "is", "wanted"), rows)
        raise


def _typed(value: Any) -> str:
    """Return the value of an attribute as an option accepts it."""
    if isinstance(value, float):
        return typed_duration(value)
    return str(value) if type(value) is int else show_value("", value)


def created_remark(noun: str, name: str, created: bool) -> str:
    """Return the remark at the end of a creation."""
    return f"{noun} {name!r} {'created' if created else 'exists with the same attributes'}"


async def delete_each(
    session: Session,
    noun: str,
    names: Sequence[str],
    delete: Callable[[Client, str], Awaitable[object]],
    question: Callable[[Client], Awaitable[str]] | None,
) -> ExitCode:
    """Delete every name and return the exit code. A failure is reported, and the next name is tried.

    Args:
        session: the session of the command.
        noun: the kind of the names, for messages: ``queue``.
        names: the names to delete.
        delete: deletes a name.
        question: returns the question to answer with yes before the first deletion; None = no question.

    Raises:
        CommandFailed: no name is given, or there is a question and no terminal.
    """
    if not names:
        raise CommandFailed(f"name at least one {noun}", ExitCode.USAGE)
    deleted: list[str] = []
    failed: dict[str, CmqError] = {}
    async with session.client() as client:
        if question is not None and not await session.output.confirm(await question(client)):
            return ExitCode.FAILED
        for name in names:
            try:
                await delete(client, name)
                deleted.append(name)
            except CmqError as error:
                failed[name] = error
    return report_batch(session.output, "deleted", deleted, failed, [f"{noun} {name!r} deleted" for name in deleted])


def report_batch(
    output: Output, verb: str, done: Sequence[str], failed: Mapping[str, CmqError], remarks: Iterable[str] | None = None
) -> ExitCode:
    """Report the entries that are done and the entries that failed, and return the exit code.

    Args:
        output: the output of the command.
        verb: the action: ``rolled back``.
        done: names, ids or handles.
        failed: the error by name, id or handle.
        remarks: remarks about the entries that are done; None = their number.
    """
    if output.json:
        output.document(
            {verb.replace(" ", "_"): done, "failed": {entry: error.name for entry, error in failed.items()}}
        )
    for entry, error in failed.items():
        output.client_error(error, entry)
    if done or not failed:
        for remark in [f"{len(done):,} {verb}"] if remarks is None else remarks:
            output.remark(remark)
    if not failed:
        return ExitCode.OK
    return ExitCode.PARTIAL if done else exit_code(next(iter(failed.values())))
