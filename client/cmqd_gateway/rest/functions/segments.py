"""Segments of the log."""

from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.replies import SegmentList
from cmqd_gateway.rest.types import Nothing, SegmentQuery


async def list_segments(call: Call[SegmentQuery, Nothing]) -> SegmentList:
    """List segments of the log by number, with the reasons that keep a segment on disk. For account `admin`; a key with
    name patterns needs the pattern `*`.

    The broker counts in steps: the counts of two segments show different moments. A page ends before its limit if the
    segments have messages of very many queues; `next` tells.
    """
    return SegmentList.of(await call.client.segments(after=int(call.query.after), limit=call.query.limit))
