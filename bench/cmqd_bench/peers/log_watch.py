"""Counts seals, checkpoints and drops of a running broker's log, in its manifest."""

import threading
from collections.abc import Mapping
from pathlib import Path

from cmqd_bench.peers.errors import PeerFailed
from cmqd_segment.manifest import Manifest, SegmentState, read_manifest

LOOK_SECONDS = 0.1


class LogActivity:
    """Numbers of sealed segments, dropped segments and checkpoints, gathered from manifests in their order.

    The first manifest is the start: its seals and checkpoints happened before.
    """

    def __init__(self, start: Manifest) -> None:
        self._old_checkpoints = {entry.number for entry in start.checkpoints}
        self._old_sealed = {entry.number for entry in start.segments if entry.state is SegmentState.SEALED}
        self._listed = {entry.number for entry in start.segments}
        self._checkpoints: set[int] = set()
        self._sealed: set[int] = set()
        self._dropped: set[int] = set()

    def add(self, manifest: Manifest) -> None:
        """Compare a later manifest with the manifests before."""
        listed = {entry.number for entry in manifest.segments}
        self._dropped |= self._listed - listed
        self._listed |= listed
        self._sealed |= {entry.number for entry in manifest.segments if entry.state is SegmentState.SEALED}
        self._checkpoints |= {entry.number for entry in manifest.checkpoints}

    def counts(self) -> Mapping[str, int]:
        """Return the counts since the start, by name."""
        return {
            "segments sealed": len(self._sealed - self._old_sealed),
            "checkpoints written": len(self._checkpoints - self._old_checkpoints),
            "segments dropped": len(self._dropped),
        }


class LogWatch:
    """A thread that reads the manifest of a data folder ten times a second, from now to ``end``."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._activity = LogActivity(read_manifest(data))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> str:
        """Return the counts as a text.

        Raises:
            PeerFailed: a count is 0; figures beside a log at rest would not show what the row is about.
        """
        self._ended.set()
        self._thread.join()
        self._activity.add(read_manifest(self._data))
        counts = self._activity.counts()
        text = ", ".join(f"{count} {name}" for name, count in counts.items())
        if not all(counts.values()):
            raise PeerFailed(f"in the measured time: {text}; a row needs at least one of each")
        return text

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._activity.add(read_manifest(self._data))
