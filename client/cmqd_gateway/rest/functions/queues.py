"""Queues: attributes, lists, rewind, dead letters."""

from cmqd_client import QueueInfo as ClientQueueInfo
from cmqd_client.results import NamePage
from cmqd_gateway.rest.attributes import filled, set_fields
from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.problems import invalid
from cmqd_gateway.rest.replies import (
    NameList,
    QueueCounts,
    QueueInfo,
    QueueNames,
    QueueSummaries,
    QueueSummary,
    Redrive,
    RewindPreview,
    Rewound,
)
from cmqd_gateway.rest.types import (
    ListQuery,
    Nothing,
    QueueAttributes,
    QueueSummaryQuery,
    Rewind,
    RewindPreviewQuery,
    StartRedrive,
)


async def list_queues(call: Call[ListQuery, Nothing]) -> NameList:
    """List queues of the account, by name."""
    query = call.query
    page = await call.client.queues(search=query.search, offset=query.offset, limit=query.limit)
    return name_list(page, query.offset)


async def list_queue_summaries(call: Call[QueueSummaryQuery, Nothing]) -> QueueSummaries:
    """List queues of the account with their messages by state, in order of any figure.

    A figure may change between two pages: a queue can be on both pages, or on neither.
    """
    query = call.query
    page = await call.client.queue_summaries(
        search=query.search,
        sort=query.sort,
        descending=query.descending,
        selection=query.selection,
        offset=query.offset,
        limit=query.limit,
    )
    # A page can lack queues that were deleted meanwhile: the next page begins behind the places of this page.
    return QueueSummaries.of(
        page,
        queues=[QueueSummary.of(queue, counts=QueueCounts.of(queue)) for queue in page.queues],
        next_offset=next_offset(query.offset, query.limit, page.total),
    )


async def create_queue(call: Call[Nothing, QueueAttributes]) -> QueueInfo:
    """Create a queue. If a queue of this name exists, the request fails: to accept an equal queue, use PUT.

    A name has 1 to 64 ASCII letters, digits, `-` and `_`, and does not differ only in case from the name of another
    queue.
    """
    return queue_info(await call.client.create_queue_info(call.names["queue"], **set_fields(call.body)))


async def ensure_queue(call: Call[Nothing, QueueAttributes]) -> QueueInfo:
    """Create a queue, or check that the existing queue has the given attributes. Safe to repeat.

    Attributes that the request omits are not compared. 201 = the queue was created, 200 = it existed.
    """
    return queue_info(await call.client.ensure_queue_info(call.names["queue"], **set_fields(call.body)))


async def get_queue(call: Call[Nothing, Nothing]) -> QueueInfo:
    """Return the attributes and the exact counts of a queue."""
    return queue_info(await call.client.queue(call.names["queue"]).attributes())


async def set_queue(call: Call[Nothing, QueueAttributes]) -> QueueInfo:
    """Change the given attributes in one step, all or none; other attributes stay."""
    return queue_info(await call.client.queue(call.names["queue"]).set_attributes(**set_fields(call.body)))


async def delete_queue(call: Call[Nothing, Nothing]) -> None:
    """Delete a queue with all its messages. A queue that serves as a dead-letter queue cannot be deleted."""
    await call.client.delete_queue(call.names["queue"])


async def clear_queue(call: Call[Nothing, Nothing]) -> None:
    """Drop every message sent before this request, in every state, in one step; receipt handles become invalid."""
    await call.client.queue(call.names["queue"]).clear()


async def rewind_queue(call: Call[Nothing, Rewind]) -> Rewound:
    """Make deleted messages active again that were sent at or after a time. Needs a rewind window (`rewind`)."""
    body = call.body
    if (body.time is None) == (body.ago is None):
        raise invalid("time", "a rewind has exactly one of the fields time and ago")
    if body.ago is not None and body.ago < 0:
        raise invalid("ago", f"ago must not be negative, not {body.ago}", value=body.ago)
    rewound = await call.client.queue(call.names["queue"]).rewind(body.time, ago=body.ago, strict=body.strict)
    return Rewound.of(rewound)


async def preview_rewind(call: Call[RewindPreviewQuery, Nothing]) -> RewindPreview:
    """Count the messages that a rewind would bring back now, and return the possible times. Nothing changes.

    The count is exact. A time that a rewind would refuse is refused.
    """
    query = call.query
    if query.time is not None and query.ago is not None:
        raise invalid("time", "a preview has at most one of the fields time and ago")
    if query.ago is not None and query.ago < 0:
        raise invalid("ago", f"ago must not be negative, not {query.ago}", value=query.ago)
    return RewindPreview.of(await call.client.queue(call.names["queue"]).preview_rewind(query.time, ago=query.ago))


async def list_dead_letter_sources(call: Call[Nothing, Nothing]) -> QueueNames:
    """List the queues that use this queue as their dead-letter queue."""
    return QueueNames(names=list(await call.client.queue(call.names["queue"]).dead_letter_sources()))


async def start_redrive(call: Call[Nothing, StartRedrive]) -> Redrive:
    """Start to move the messages of a dead-letter queue back to their origins, or all of them to a target.

    The broker continues by itself, also after a restart.
    """
    body = call.body
    queue = call.client.queue(call.names["queue"])
    return Redrive.of(await queue.redrive(body.target, max_per_second=body.max_per_second))


async def get_redrive(call: Call[Nothing, Nothing]) -> Redrive:
    """Return the progress of the current redrive, or the result of the last redrive."""
    return Redrive.of(await call.client.queue(call.names["queue"]).redrive_status())


async def cancel_redrive(call: Call[Nothing, Nothing]) -> Redrive:
    """End the current redrive; messages already moved stay moved."""
    return Redrive.of(await call.client.queue(call.names["queue"]).cancel_redrive())


def name_list(page: NamePage, offset: int) -> NameList:
    """Convert a page of names."""
    return NameList(names=page.names, total=page.total, next_offset=next_offset(offset, len(page.names), page.total))


def next_offset(offset: int, count: int, total: int) -> int | None:
    """Return the offset of the next page, or None at the end."""
    return offset + count if count and offset + count < total else None


def queue_info(info: ClientQueueInfo) -> QueueInfo:
    """Return the view of a queue, with its attributes and counts as objects of their own."""
    attributes = filled(QueueAttributes, info.attributes())
    return QueueInfo.of(info, attributes=attributes, counts=QueueCounts.of(info))
