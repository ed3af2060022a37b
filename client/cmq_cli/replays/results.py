"""Output of a replay: the counts, and the result of a run; as tables and as JSON documents."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmq_cli.output import Output
from cmq_cli.spark import show_unsealed
from cmq_cli.values import from_ms, show_count, show_size, show_time
from cmqd_types.sentences import counted

if TYPE_CHECKING:
    from cmqd_log.copy.counting import Count
    from cmqd_log.copy.journal import Journal
    from cmqd_log.options import Options

_COLUMNS = ("rows#", "messages#", "bodies#", "first sent", "last sent")


def show_counts(output: Output, options: "Options", count: "Count") -> None:
    """Show the messages to send by source and event, the messages left out, and the rows that were not read."""
    rows = [
        (
            source,
            event,
            show_count(tally.rows),
            show_count(tally.messages),
            show_size(tally.bytes),
            show_time(from_ms(tally.first_ms)),
            show_time(from_ms(tally.last_ms)),
        )
        for (source, event), tally in sorted(count.tallies.items())
    ]
    if rows and not output.json:
        source, event = "topic" if options.topics else "queue", "event" if options.mode == "events" else "state"
        output.table((source, event, *_COLUMNS), rows)
    output.remark(
        f"{count.messages:,} messages, {show_size(count.bytes)}, in {count.rows:,} rows of the log "
        f"(up to row {count.position}), {counted(len(count.slices), 'slice')}"
    )
    for (source, event), messages in sorted(count.left_out.items()):
        output.remark(f"left out: {messages:,} of {source}, {event}")
    if count.unsealed is not None:
        output.remark(show_unsealed(*count.unsealed))


def count_document(count: "Count") -> dict[str, Any]:
    """Return a count for JSON."""
    return {
        "position": count.position,
        "rows": count.rows,
        "messages": count.messages,
        "bytes": count.bytes,
        "slices": len(count.slices),
        "counts": [
            {"source": source, "event": event, "rows": tally.rows, "messages": tally.messages, "bytes": tally.bytes}
            | {"first_sent": from_ms(tally.first_ms), "last_sent": from_ms(tally.last_ms)}
            for (source, event), tally in sorted(count.tallies.items())
        ],
        "left_out": [
            {"source": source, "event": event, "messages": messages}
            for (source, event), messages in sorted(count.left_out.items())
        ],
        "unsealed_rows": count.unsealed,
    }


def show_end(
    output: Output, journal: "Journal", file: Path, count: "Count | None", state: str, before: tuple[int, float]
) -> None:
    """Show the result of a run: the messages sent, and the messages that may be stored twice.

    Args:
        output: the output of the command.
        journal: the journal of the run.
        file: the file of the journal.
        count: the count before the run; None = the run was resumed.
        state: done, stopped or failed.
        before: slices and seconds of the run when this command began.
    """
    under_way = journal.next_slice if journal.attempts and not journal.is_done else None
    seconds = journal.seconds - before[1]
    rate = sum(part.messages for part in journal.slices[before[0] : journal.done]) / seconds if seconds else 0.0
    document = {
        **({} if count is None else count_document(count)),
        "state": state,
        "run": journal.run,
        "journal": str(file),
        "queue": journal.queue or None,
        "topic": journal.topic or None,
        "slices": len(journal.slices),
        "slices_done": journal.done,
        "messages": journal.messages,
        "messages_sent": journal.sent,
        "bytes_sent": journal.sent_bytes,
        "seconds": round(journal.seconds, 3),
        "under_way": under_way,
        "perhaps_twice": journal.doubts,
    }
    pairs = {
        "run": journal.run,
        "state": state,
        "into": journal.target,
        "slices": f"{journal.done:,} of {len(journal.slices):,}",
        "messages": f"{journal.sent:,} of {journal.messages:,}",
        "bodies": show_size(journal.sent_bytes),
        "rate": f"{rate:,.0f}/s",
        "journal": str(file),
        **({} if under_way is None else {"partly sent": str(under_way)}),
        "possibly stored twice": "; ".join(map(str, journal.doubts)) or "none",
    }
    output.facts(document, pairs)
    if under_way is not None:
        output.remark("if the run is resumed within 5 minutes of the start of that slice, no message is stored twice")
    for doubt in journal.doubts:
        output.warning(f"{doubt} may have been stored twice: sent again after {doubt.seconds:.0f} s")
