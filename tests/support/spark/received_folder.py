"""A data folder with the receives of a model of its own, and the comparison of rows of table ``receives`` with it."""

import asyncio
import random
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cmqd_segment.checkpoint import CheckpointEnd, CheckpointHeader
from cmqd_types.messages import printed_id
from support.core.receive_model import Seen, Work
from support.spark.log_folder import drop_segment, rows_of, write_with_checkpoints

CUT = frozenset({"expired", "cleared", "queue_deleted"})
"""Ends whose records name no lease."""


class ReceivedFolder:
    """The folder of a random work, with segments that are gone; see the module."""

    def __init__(self, folder: Path, seed: int, *, gone: int = 0) -> None:
        """Write the folder; ``gone``: number of segments that are reclaimed."""
        self.folder = folder
        work = Work(seed)
        work.run(500)
        self.log = work.log
        rows = [
            (records, bodies, time_ms)
            for (records, bodies, _), time_ms in zip(rows_of(work.rig), work.log.times, strict=True)
        ]
        checkpoints = {end.lsn: parts for parts in work.checkpoints[-2:] if isinstance(end := parts[-1], CheckpointEnd)}
        last = len(rows)
        ends = {lsn: checkpoints.get(lsn, []) for lsn in sorted({*range(20, last, 20), *checkpoints, last})}
        asyncio.run(write_with_checkpoints(folder, rows, ends))
        header = work.checkpoints[-1][0]
        assert isinstance(header, CheckpointHeader)
        firsts = [1, *(lsn + 1 for lsn in ends if lsn < last)]
        self.missing: set[int] = set()
        below = [(first, end) for first, end in zip(firsts, ends, strict=True) if end <= header.lsn]
        for first, end in random.Random(seed).sample(below, gone):
            drop_segment(folder, first)
            self.missing.update(range(first, end + 1))

    @property
    def seen(self) -> Mapping[int, Seen]:
        """The receives of the model by lease."""
        return self.log.seen

    def assert_equal(self, rows: Collection[Mapping[str, Any]]) -> None:
        """The rows are those of the model: none missing, none twice, none wrong, and nulls where rows are missing."""
        leases = [row["lease"] for row in rows]
        assert len(leases) == len(set(leases))
        assert set(leases) <= self.seen.keys()
        assert {each.lease for each in self.seen.values() if self._must_be_told(each)} <= set(leases)
        for row in rows:
            self._assert_row(row, self.seen[row["lease"]])

    def _must_be_told(self, seen: Seen) -> bool:
        rows = [seen.from_lsn, *seen.changes]
        if not CUT.intersection(seen.hows):
            rows.append(seen.ended_lsn)
        return not seen.hows or any(lsn not in self.missing for lsn in rows)

    def _assert_row(self, row: Mapping[str, Any], seen: Seen) -> None:
        missing = self.missing
        is_begun = seen.from_lsn not in missing
        assert (row["account"], row["queue"], row["queue_id"]) == (seen.account, seen.queue, seen.queue_id)
        assert row["as_of_lsn"] == self.log.last_lsn
        assert (row["from_ts"], row["from_lsn"]) == ((time(seen.from_ms), seen.from_lsn) if is_begun else (None, None))
        last = seen.ended_lsn or self.log.last_lsn
        is_whole = is_begun and not any(seen.from_lsn < lsn <= last for lsn in missing)
        assert row["until_ts"] == time(seen.until_ms) or (row["until_ts"] is None and not is_whole)
        if row["position"] is None:
            assert not is_begun
            assert row["msg_id"] is row["lsn"] is None
        else:
            self._assert_message(row, seen)
        assert row["received_by"] == (seen.received_by or None) or (row["received_by"] is None and not is_begun)
        self._assert_end(row, seen, is_whole=is_whole)

    def _assert_message(self, row: Mapping[str, Any], seen: Seen) -> None:
        assert row["position"] == seen.position
        key = seen.queue_id, seen.position
        if self.log.stored_lsn[key] in self.missing:
            assert row["msg_id"] is row["enqueue_ts"] is row["lsn"] is row["row_index"] is None
        else:
            stored = self.log.stored[key]
            assert (row["msg_id"], row["enqueue_ts"]) == (printed_id(stored.message_id), time(stored.enqueue_ms))
            assert row["lsn"] == self.log.stored_lsn[key]

    def _assert_end(self, row: Mapping[str, Any], seen: Seen, *, is_whole: bool) -> None:
        end = row["how"], row["ended_ts"], row["ended_lsn"], row["ended_by"]
        if not seen.hows:
            assert end == (None, None, None, None)
        elif seen.ended_lsn in self.missing:
            assert end == ("gone", None, None, None)
        elif row["how"] == "gone":
            # A floor and the end of a queue name no lease.
            assert not is_whole
            assert CUT.intersection(seen.hows)
            assert end == ("gone", None, None, None)
        else:
            assert row["how"] in seen.hows
            assert end[1:3] == (time(seen.ended_ms), seen.ended_lsn)
            assert row["ended_by"] == (seen.ended_by or None) or (row["ended_by"] is None and row["position"] is None)


def time(milliseconds: int) -> datetime:
    """Return a time as Arrow shows it."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
