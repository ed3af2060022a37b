"""fanout: durable publishes to a topic with N queues subscribed, a single request outstanding per connection.

The bytes and rows are counted in the sealed files of the log, after an orderly stop; see bench/README.md. The number of
copies in the files must not be below the number of answered copies.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.session import Session, running
from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.servers import ServerFailed
from cmqd_load.producers import Producer
from cmqd_load.wire import PublishTemplate, random_body
from cmqd_protocol.messages import (
    CreateTopic,
    MessagesPublished,
    PublishMessages,
    Subscribe,
    SubscriptionAttributes,
    reply_decoder,
)
from cmqd_segment.manifest import SegmentEntry, SegmentState, read_manifest
from cmqd_segment.published import count_copies
from cmqd_segment.records import MessagesPublished as PublishedRecord
from cmqd_segment.rows import decode_records
from cmqd_segment.scan import readable_segments
from cmqd_segment.schema import open_read_only

TOPIC = "fanout"
PUBLISHED_TAG, OTHER_TAG = "bench", "nobody"
SEALING_STARTS = 5
"""Largest number of orderly stops: a stop waits a second for its seals, and the next start continues the sealing."""


@dataclass(frozen=True, slots=True)
class Written:
    """The log's content from a run."""

    file_bytes: int
    copies: int
    rows: int
    row_bytes: int
    """Bytes of the rows after the start of the load."""


async def _subscribe(session: Session, options: Options, queues: Sequence[str]) -> None:
    """Create the topic and its subscriptions: for all messages, or for a tag that is never published.

    A message is published to check the number of its copies: a wrong topic would look like a fast topic.
    """
    tags: SubscriptionAttributes = {"filter_tags": [OTHER_TAG]} if options.unmatched else {}
    expected = 0 if options.unmatched else len(queues)
    last = await session.request(
        CreateTopic(1, TOPIC, {"filter_type": "tag"}),
        *(Subscribe(1, TOPIC, queue, {"endpoint": queue, **tags}) for queue in queues),
        PublishMessages(1, TOPIC, [random_body(options.body)], tags=[[PUBLISHED_TAG]]),
    )
    reply = reply_decoder.decode(last)
    assert isinstance(reply, MessagesPublished)
    if reply.matched != [expected]:
        raise RuntimeError(f"a message matched {reply.matched} subscriptions instead of {expected}")


def last_lsn(data: Path) -> int:
    """Return the newest row of a data folder; its broker may be running."""
    newest = 0
    for entry in readable_segments(read_manifest(data)):
        with closing(open_read_only(data / entry.file, sealed=entry.state is SegmentState.SEALED)) as raw:
            newest = max(newest, raw.execute("SELECT coalesce(max(lsn), 0) FROM log").fetchone()[0])
    return newest


async def sealed_segments(broker: Broker) -> list[SegmentEntry]:
    """Stop the server with SIGTERM, repeatedly, until all rows are sealed.

    Raises:
        ServerFailed: rows remain unsealed.
    """
    for _ in range(SEALING_STARTS):
        broker.stop()
        manifest = read_manifest(broker.data)
        if manifest.clean:
            return [entry for entry in manifest.segments if entry.state is SegmentState.SEALED]
        await broker.start()
    raise ServerFailed(f"the log was not sealed after {SEALING_STARTS} orderly stops")


def written(data: Path, segments: Sequence[SegmentEntry], above: int) -> Written:
    """Read sealed segments; rows count from ``above``, copies and files as a whole."""
    copies = rows = row_bytes = 0
    for entry in segments:
        with closing(open_read_only(data / entry.file, sealed=True)) as raw:
            for lsn, queues, meta, data_bytes in raw.execute("SELECT lsn, queues, meta, length(data) FROM log"):
                for record in decode_records(meta):
                    if isinstance(record, PublishedRecord):
                        copies += count_copies(record)
                if lsn > above:
                    rows += 1
                    row_bytes += len(queues) + len(meta) + data_bytes
    return Written(sum(entry.bytes for entry in segments), copies, rows, row_bytes)


async def _load(session: Session, options: Options) -> tuple[Round, int, int]:
    """Publish; return the round, the last row before the load, and the number of answered publishes."""
    queues = [f"fanout-{number}" for number in range(options.subscribers)]
    await session.create_queues(queues or ["unused"])
    await _subscribe(session, options, queues)
    above = last_lsn(session.broker.data)
    template = PublishTemplate(TOPIC, batch=options.batch, size=options.body, tags=[PUBLISHED_TAG])
    for each in await session.connect(options.connections):
        Producer(each, template, session.tally).send()
    await session.guard.sleep(options.warm_up)
    warm = session.tally.sent
    result = await session.measured(replace(options, warm_up=0.0), lambda tally: tally.sent)
    return result, above, warm + session.tally.sent


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; see the module."""
    copied = 0 if options.unmatched else options.subscribers
    async with running(broker) as session:
        result, above, answered = await _load(session, options)
        session.close_all()
        segments = await sealed_segments(broker)
    found = written(broker.data, segments, above)
    if found.copies < answered * copied:
        raise RuntimeError(f"the log holds {found.copies} copies although {answered * copied} were answered")
    copies = result.messages * copied
    return result.with_extra(
        {
            "publishes_per_second": round(result.messages / result.seconds, 1),
            "copies_per_second": round(copies / result.seconds, 1),
            "server_cpu_us_per_copy": round(result.server_cpu_seconds / copies * 1e6, 3) if copies else None,
            "disk_bytes_per_copy": round(found.file_bytes / found.copies, 2) if copied else None,
            "log_rows": found.rows,
            "log_bytes_per_publish": round(found.row_bytes / max(answered, 1), 3),
        }
    )
