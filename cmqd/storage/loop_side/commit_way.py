"""Decides which process commits: the loop process while commits are short and small, else the storage process.

A commit in the loop process costs no frames, and no second process is woken: a third of the CPU time of a single
message. In return the loop stands still for a commit, a millisecond at most (``loop_commits``). The wait pays while
most commits are shorter. Large commits are better written by the storage process, while the loop works.

The time of a commit tells of the disk, and is measured by either process alike. A single commit of ``HANG_US`` ends the
way at once; otherwise the share of long commits decides, and the mean size. Between a change to the storage process and
the way back is a pause, because each change retires a segment, with a checkpoint. The pause doubles while the loop
process commits for a short time only: a disk that hangs once a minute, or a load that alternates.

The way changes with a switch of segments (``storage.writing.lending``). The answer here is a wish, and the storage
process makes the switch.
"""

from collections.abc import Callable
from typing import Final

LONG_US: Final = 1_000
"""Longest commit for which the loop waits."""
HANG_US: Final = 250_000
"""A single commit of this time ends the commits of the loop process."""
LONG_SHARES: Final = (1 / 2, 3 / 4)
"""Shares of long commits: the loop process begins to commit below the first, and ends above the second (decision 0233).
"""
MEAN_BYTES: Final = (64 * 1024, 128 * 1024)
"""Mean sizes of commits: the loop process begins to commit below the first, and ends above the second."""
WEIGHT: Final = 1 / 32
"""Weight of the newest commit in the share and in the mean."""
LEAST_COMMITS: Final = 128
"""Commits of the storage process at the start: a broker with a short life, as in tests, retires no segment."""
PAUSE_S: Final = 10.0
"""Least pause, and the pause after the loop process has committed for ten times the pause before."""
LONGEST_PAUSE_S: Final = 640.0


class CommitWay:
    """Decides by past commits; see the module."""

    def __init__(self, clock_s: Callable[[], float], least_commits: int = LEAST_COMMITS) -> None:
        """``clock_s`` never goes back."""
        self._clock_s = clock_s
        self._commits_left = least_commits
        self._long_share = 0.0
        self._mean_bytes = 0.0
        self._pause_s = 0.0
        self._since_s = self._not_before_s = float("-inf")
        """The last beginning of the way, and the earliest next beginning."""
        self.by_loop = False
        """The loop process shall commit."""

    def note(self, commit_us: int, size: int) -> bool:
        """Take note of a commit; return whether ``by_loop`` has changed."""
        self._long_share += ((commit_us > LONG_US) - self._long_share) * WEIGHT
        self._mean_bytes += (size - self._mean_bytes) * WEIGHT
        if self.by_loop:
            if commit_us >= HANG_US or self._long_share > LONG_SHARES[1] or self._mean_bytes > MEAN_BYTES[1]:
                self.refuse()
            return not self.by_loop
        if self._commits_left > 0:
            self._commits_left -= 1
            return False
        if self._long_share < LONG_SHARES[0] and self._mean_bytes < MEAN_BYTES[0]:
            now_s = self._clock_s()
            if now_s >= self._not_before_s:
                self.by_loop, self._since_s = True, now_s
        return self.by_loop

    def refuse(self) -> None:
        """Let the storage process commit for a pause: commits are slow or large, the disk is full, or a file cannot be
        opened.
        """
        now_s = self._clock_s()
        if now_s - self._since_s >= 10 * self._pause_s:
            self._pause_s = PAUSE_S
        else:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self.by_loop = False
        self._not_before_s = now_s + self._pause_s
