"""The failures of a batch whose items succeed and fail independently."""

from collections.abc import Mapping
from typing import Final

import msgspec

from cmqd_gateway.cmq.reasons import Refusal


class Failures(msgspec.Struct, frozen=True):
    """The items of a batch that failed."""

    count: int
    """Number of different items of the batch."""
    refusals: Mapping[str, Refusal]
    """By receipt handle or message id."""

    @property
    def are_all(self) -> bool:
        """True if no item succeeded."""
        return len(self.refusals) == self.count


NO_FAILURES: Final = Failures(0, {})
"""Of a batch or a single item without a failure."""
