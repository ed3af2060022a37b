"""Deleting several things by name: what can be deleted is, and the rest is told."""

from collections.abc import Awaitable, Callable, Sequence

from cmq_cli.exitcodes import CommandFailed, ExitCode, exit_code
from cmq_cli.session import Session
from cmqd_client import Client, CmqError


async def delete_each(
    session: Session,
    noun: str,
    names: Sequence[str],
    delete: Callable[[Client, str], Awaitable[None]],
    *,
    ask: str | None,
) -> ExitCode:
    """Delete each by its name; how it ended.

    Args:
        session: the run.
        noun: what they are: ``queue``.
        names: their names.
        delete: deletes one.
        ask: ask a person before, saying this of the consequences; None = do not.

    Raises:
        CommandFailed: no name is given.
    """
    if not names:
        raise CommandFailed(f"name at least one {noun}", ExitCode.USAGE)
    if ask is not None and not session.output.confirm(f"Delete {', '.join(names)} {ask}".strip() + "?"):
        return ExitCode.FAILED
    deleted: list[str] = []
    failed: dict[str, CmqError] = {}
    async with session.client() as client:
        for name in names:
            try:
                await delete(client, name)
                deleted.append(name)
            except CmqError as error:
                failed[name] = error
                session.output.error(f"{name}: {error}")
    if session.output.json:
        session.output.document({"deleted": deleted, "failed": {name: error.name for name, error in failed.items()}})
    for name in deleted:
        session.output.remark(f"{noun} {name!r} deleted")
    if not failed:
        return ExitCode.OK
    return ExitCode.PARTIAL if deleted else exit_code(next(iter(failed.values())))
