"""``cmq pin``: the standing pins of backups, for which the server keeps consumed segments."""

from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from cmq_cli.exitcodes import ExitCode
from cmq_cli.nouns import as_document, delete_each
from cmq_cli.options import CurrentSession, Yes
from cmq_cli.values import show_count, show_value
from cmqd_client import Client
from cmqd_types.pins import StandingPinInfo
from cmqd_types.sentences import counted

app = App(name="pin", help="The standing pins of backups: the server keeps rows until a backup has copied them.")


@app.command(name="list")
async def list_pins(*, session: CurrentSession) -> None:
    """List standing pins, with the age of the last good copy of each. Only for admin."""
    async with session.client() as client:
        status = await client.status()
    pins = msgspec.convert(status.get("standing_pins", []), list[StandingPinInfo])
    columns = ("backup", "last good copy", "every", "copied up to row#", "gaps#")
    rows = [
        (
            pin.name,
            f"{show_value('_ms', pin.copied_age_ms)} ago{', too old' if pin.is_overdue else ''}",
            show_value("_ms", pin.every_ms),
            show_value("lsn", pin.copied_lsn),
            show_count(pin.gaps_total),
        )
        for pin in pins
    ]
    session.output.listing([as_document(pin) for pin in pins], columns, rows)


@app.command
async def delete(
    *names: Annotated[str, Parameter(help="Names of the standing pins.")], yes: Yes = False, session: CurrentSession
) -> ExitCode:
    """Delete standing pins: the server keeps no rows for these backups any more, and their next copy has a gap."""

    async def delete_pin(client: Client, name: str) -> None:
        await client.pins.delete_standing(name)

    async def question(_: Client) -> str:
        return f"Delete {counted(len(names), 'standing pin')}, {', '.join(names)}?"

    return await delete_each(session, "standing pin", names, delete_pin, None if yes else question)
