"""Pages of the names of queues and topics."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from cmqd_client.results import NamePage
from cmqd_gateway.cmq.parameters import OperationRequest, Whole


class ListRequest(OperationRequest, frozen=True):
    """Parameters of ListQueue and ListTopic."""

    search_word: str = ""
    offset: Annotated[int, Whole(0, 2**31 - 1)] = 0
    limit: Annotated[int, Whole(0, 50)] = 20


class Listed(msgspec.Struct, frozen=True):
    """A page of names, in their order."""

    total: int
    """All that match."""
    entries: Sequence[tuple[int, str]]
    """Id and name."""


def listed(page: NamePage, limit: int) -> Listed:
    """Return a page with at most this number of entries."""
    return Listed(page.total, list(zip(page.ids, page.names, strict=True))[:limit])
