"""``cmq replay``: send a part of the log again."""

from cmq_cli.exitcodes import ExitCode
from cmq_cli.options import CurrentSession
from cmq_cli.replays.order import Order
from cmq_cli.replays.runs import begin_run, only_count, resume_run
from cmq_cli.spark import connector_errors

_NO_OPTIONS = Order()


def replay(*, order: Order = _NO_OPTIONS, session: CurrentSession) -> ExitCode:
    """Send messages of the log again: to a queue, or published to a topic.

    First the messages are counted, as of a row of the log; later messages are not replayed. Then slice after slice is
    sent, in the order of the log, with a journal. A run that was stopped (Ctrl-C) or killed continues with --resume.

    A replayed message has its body, its headers and, in a topic, its tags or routing key; a new id and time, and no
    delay. Needs the extra cmqd[log]; --master needs cmqd[spark].
    """
    order.check()
    with connector_errors():
        if order.resume is not None:
            return resume_run(session, order.resume, order)
        return only_count(session, order) if order.dry_run else begin_run(session, order)
