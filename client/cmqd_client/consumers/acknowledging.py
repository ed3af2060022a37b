"""Deletes that ride in a receive (``acknowledge``), over all attempts of that receive.

The server carries out the deletes before the receive, and the reply to the receive has their result. An attempt without
a reply leaves the deletes uncertain: the next attempt then finds the handles of carried-out deletes invalid, and the
server says that they were deleted, which is no failure (as for a repeated delete, see
:mod:`cmqd_client.links.retry`). After a reply, further attempts of the receive leave the deletes out.
"""

import msgspec

from cmqd_client.errors import Failure
from cmqd_client.results import failure, was_done_before
from cmqd_protocol.messages import HandleFailure
from cmqd_types.messages import GONE_DELETED


class Acknowledgement(msgspec.Struct):
    """The deletes of a receive, and their result so far."""

    handles: list[int]
    """1 to 256 receipt handles, each once."""
    is_done: bool = False
    """A reply has come: all deletes but ``failures`` are done, durably."""
    is_uncertain: bool = False
    """An attempt without a reply may have carried out the deletes."""
    failures: list[Failure] = []
    """Handles that failed."""

    def answered(
        self, failed: list[HandleFailure], request_id: int, connection_id: int | None, *, uncertain: bool
    ) -> None:
        """Take the handles that the server refused; ``uncertain``: an earlier attempt may have made them invalid."""
        self.is_done = True
        self.failures = [
            failure(refusal, request_id, connection_id)
            for refusal in failed
            if not (uncertain and was_done_before(refusal, GONE_DELETED))
        ]

    @property
    def done(self) -> list[int]:
        """The handles of deleted messages."""
        failed = {entry.receipt_handle for entry in self.failures}
        return [handle for handle in self.handles if handle not in failed]
