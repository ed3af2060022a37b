"""``cmq status``."""

from typing import Annotated, Any, cast

from cyclopts import Parameter

from cmq_cli.session import Session


async def status(*, session: Annotated[Session, Parameter(parse=False)]) -> None:
    """Show what the server tells about itself: version, durability, uptime, counts, storage."""
    async with session.client() as client:
        found = await client.status()
    if session.output.json:
        session.output.document(found)
    else:
        session.output.pairs({name: str(value) for name, value in _flat("", found)})


def _flat(prefix: str, values: dict[str, Any]) -> list[tuple[str, Any]]:
    """Nested names joined by dots."""
    flat: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            flat += _flat(f"{prefix}{name}.", cast("dict[str, Any]", value))
        else:
            flat.append((prefix + name, value))
    return flat
