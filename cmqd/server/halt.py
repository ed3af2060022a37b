"""The halt of all acknowledgements after a failure: the storage failed, or a bug showed in the core.

Index and log may differ then. No further reply of a request leaves but ``outcome_unknown``, and the next start takes
the state from the log.
"""

from collections.abc import Callable

from cmqd.log.log_errors import LogFailed
from cmqd.server.admission.fairness import CommitRoom
from cmqd.server.admission.request_admission import Admission
from cmqd.server.broker_logger import get_logger
from cmqd.server.clients.client_events import ClientEvents
from cmqd.server.handlers.publishing import Publishes
from cmqd.server.log_upkeep.checkpoints import Checkpoints
from cmqd.server.log_upkeep.reclaim import Reclaim
from cmqd.server.loop.agenda_timer import AgendaTimer
from cmqd.server.loop.io_batch import IoBatch
from cmqd.server.part import part
from cmqd.server.push.outbox import Outbox
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.reply_gate import ReplyGate
from cmqd.server.requests.collecting import Collector
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode

_log = get_logger()


@part
class Halt:
    """Ends all acknowledgements, once; see the module."""

    on_failed: Callable[[Exception], None]
    """Called once with the reason: a LogFailed, or a bug."""
    agenda_timer: AgendaTimer
    checkpoints: Checkpoints
    reclaim: Reclaim
    outbox: Outbox
    answering: Answering
    admission: Admission
    commit_room: CommitRoom
    collector: Collector
    publishes: Publishes
    replies: ReplyGate
    client_events: ClientEvents
    io_batch: IoBatch

    def __post_init__(self) -> None:
        self.failure: Exception | None = None
        """The reason; None while replies are acknowledged."""

    def fail(self, failure: Exception) -> None:
        """Stop all acknowledgements, and answer every open request ``outcome_unknown``."""
        if self.failure is not None:
            return
        self.failure = failure
        reason = failure_text(failure)
        _log.error("failed", reason=reason)
        self.agenda_timer.stop()
        self.checkpoints.stop()
        self.reclaim.stop()
        self.outbox.stop()
        # Halted before any answer: an answer may call back, and no call may reach core or log any more.
        self.answering.is_halted = self.commit_room.is_halted = True
        self.admission.refuse_all(ErrorCode.OUTCOME_UNKNOWN, reason)
        self.collector.drop_all(reason)
        self.publishes.drop_all(reason)
        for client, reply in self.replies.take_all():
            client.answer(error(reply.request_id, ErrorCode.OUTCOME_UNKNOWN, reason))
        self.client_events.end_waits(ErrorCode.OUTCOME_UNKNOWN, reason)
        self.io_batch.schedule()
        self.on_failed(failure)


def failure_text(failure: Exception) -> str:
    """Return the reason of the halt of all acknowledgements, in a line for clients and operators."""
    if isinstance(failure, LogFailed):
        return f"the storage failed: {failure}"
    return f"internal error ({type(failure).__name__}); the broker stops and recovers from its log"
