"""Side files of sealed segments, read in place of the segments: contents for plans, naming for histories.

A segment without a side file, or with a side file that cannot be used, is opened in its place.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from cmqd_log.errors import FolderError
from cmqd_segment.manifest import SegmentEntry, SideEntry, SourceName
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.side import SideError, SideHistory, SideIds, check_segment, decode_named, decode_plan, names_in

TOGETHER: Final = 16
"""Side files that are read at the same time: over a URL each waits for an answer."""

_log = logging.getLogger("cmqd_log")


class Held(NamedTuple):
    """Messages of a queue or topic in a segment: all positions from the first to below stop."""

    first_position: int
    stop_position: int
    bytes: int


class Contents(NamedTuple):
    """Queues and topics with messages in a sealed segment."""

    names: list[SourceName]
    """Names that are known."""
    held: Mapping[int, Held]
    """By id, of all queues and topics."""


class SideFiles:
    """The side files of a folder. Contents are kept, because a plan asks several times."""

    def __init__(
        self, begin: Callable[[SegmentEntry, SideEntry], bytes], whole: Callable[[SegmentEntry, SideEntry], bytes]
    ) -> None:
        """Take the functions that read part one, or all, of a side file; they raise SideError, FolderError, OSError."""
        self._begin = begin
        self._whole = whole
        self._contents: dict[str, Contents | None] = {}
        """By checksum of the segment."""

    def read_ahead(self, extents: Iterable[SegmentEntry]) -> None:
        """Read the contents of segments, several at the same time."""
        wanted = {extent.sha256: extent for extent in extents if extent.sha256 not in self._contents and extent.side}
        if len(wanted) > 1:
            with ThreadPoolExecutor(min(TOGETHER, len(wanted))) as pool:
                self._contents |= zip(wanted, pool.map(self._read, wanted.values()), strict=True)

    def contents(self, extent: SegmentEntry) -> Contents | None:
        """Return the contents of a segment; None if only the segment tells."""
        if extent.side is None:
            return None
        if extent.sha256 not in self._contents:
            self._contents[extent.sha256] = self._read(extent)
        return self._contents[extent.sha256]

    def named(self, extent: SegmentEntry) -> tuple[SideIds, SideHistory] | None:
        """Return the ids and the named messages of a segment, which are not kept; None if only the segment tells."""
        if extent.side is None:
            return None
        try:
            ids, history = decode_named(self._whole(extent, extent.side))
            check_segment(ids, extent.number, extent.sha256)
        except _FAILURES as error:
            return _warn(extent, error)
        return ids, history

    def _read(self, extent: SegmentEntry) -> Contents | None:
        assert extent.side is not None
        try:
            plan = decode_plan(self._begin(extent, extent.side))
            check_segment(plan, extent.number, extent.sha256)
        except _FAILURES as error:
            return _warn(extent, error)
        return Contents(
            names_in([plan]),
            {
                each.id: Held(each.first_position, each.first_position + each.messages, each.bytes)
                for each in plan.sources
            },
        )


_FAILURES: Final = (FolderError, SideError, NewerFormatError, OSError)


def _warn(extent: SegmentEntry, error: Exception) -> None:
    _log.warning("the side file %s cannot be used, and its segment is read: %s", extent.side_file, error)
