"""Lists of queues with their figures, in any order."""

from datetime import datetime

import msgspec

from cmqd_client.links.channel import Channel
from cmqd_client.replies.conversions import converted
from cmqd_protocol import operations
from cmqd_types.queues import QueueSelection, QueueSort, QueueSummary


class QueueSummaryPage(msgspec.Struct, frozen=True):
    """A page of queues with their figures."""

    time: datetime
    """Broker time of the reply."""
    queues: list[QueueSummary]
    total: int
    """Number of matching queues, on this page or not."""
    request_id: int


async def ask_summaries(
    channel: Channel,
    search: str,
    sort: QueueSort,
    descending: bool,
    selection: QueueSelection,
    offset: int,
    limit: int,
) -> QueueSummaryPage:
    """Ask for a page; see ``Client.queue_summaries``."""
    reply = await channel.ask(
        operations.LIST_QUEUE_SUMMARIES,
        *(search, sort, descending, offset, limit, selection),
    )
    return converted(QueueSummaryPage, reply)
