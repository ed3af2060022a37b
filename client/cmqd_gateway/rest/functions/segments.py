"""Segments of the log."""

from cmqd_client.administration.segments import Segment as ClientSegment
from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.types import Nothing, Segment, SegmentHolder, SegmentList, SegmentQuery


async def list_segments(call: Call[SegmentQuery, Nothing]) -> SegmentList:
    """List segments of the log by number, with the reasons that keep a segment on disk. For account `admin`; a key with
    name patterns needs the pattern `*`.

    The broker counts in steps: the counts of two segments show different moments. A page ends before its limit if the
    segments have messages of very many queues; `next` tells.
    """
    page = await call.client.segments(after=int(call.query.after), limit=call.query.limit)
    return SegmentList(
        time=page.time,
        segments=[_segment(segment) for segment in page.segments],
        next=None if page.next is None else str(page.next),
        total=page.total,
        keep_history=page.keep_history.total_seconds(),
        covered_lsn=str(page.covered_lsn),
        log_bytes=page.log_bytes,
        history_bytes=page.history_bytes,
        free_bytes=page.free_bytes,
        sends_refused_reason=page.sends_refused_reason,
    )


def _segment(segment: ClientSegment) -> Segment:
    return Segment(
        number=str(segment.number),
        state=segment.state,
        first_lsn=str(segment.first_lsn),
        last_lsn=str(segment.last_lsn),
        first_time=segment.first_time,
        last_time=segment.last_time,
        bytes=segment.bytes,
        messages=segment.messages,
        kept_for=segment.kept_for,
        live=segment.live,
        rewindable=segment.rewindable,
        undelivered=segment.undelivered,
        holders=[
            SegmentHolder(
                account=holder.account,
                name=holder.name,
                is_topic=holder.is_topic,
                live=holder.live,
                rewindable=holder.rewindable,
            )
            for holder in segment.holders
        ],
        holder_count=segment.holder_count,
    )
