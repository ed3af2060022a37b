"""The order for a new run: what the options say."""

from pathlib import Path

import msgspec


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The order for a new run."""

    source: dict[str, str]
    """Options of the source; they go into the journal."""
    edges: dict[str, str]
    """Options of the source as well: where it begins and ends."""
    events: list[str]
    """Events, or states, that are sent; none = all that were ever to be delivered."""
    into: str
    """A queue, or "" for a topic; a dry run may name neither."""
    into_topic: str
    create: bool
    mark: bool
    allow_data_loss: bool
    rate: int | None
    parallel: int
    slice: int | None
    master: str
    state: Path | None
