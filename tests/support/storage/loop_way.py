"""The process that commits, as a test decides."""

from cmqd.storage.loop_side.commit_way import CommitWay
from cmqd.storage.loop_side.process_log import StorageProcessLog


class ChosenWay(CommitWay):
    """Changes with the first commit after the test has set ``wanted``; a refusal stays."""

    def __init__(self, *, wanted: bool = True, after: int = 0) -> None:
        """``after``: commits of the storage process before the first change."""
        super().__init__(lambda: 0.0)
        self.wanted = wanted
        self._after = after
        self.noted: list[int] = []
        """Times of the commits so far, in us."""

    def note(self, commit_us: int, size: int) -> bool:
        """Take note of a commit."""
        self.noted.append(commit_us)
        changed = self.by_loop != self.wanted and len(self.noted) > self._after
        self.by_loop = self.by_loop != changed
        return changed

    def refuse(self) -> None:
        """Let the storage process commit."""
        self.by_loop = self.wanted = False


def is_by_loop(log: StorageProcessLog) -> bool:
    """Return whether the loop process commits now."""
    return log._commits.loop_commits is not None  # pyright: ignore[reportPrivateUsage]
