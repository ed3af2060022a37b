"""Count the messages to replay, as of a row of the log, with progress."""

from typing import TYPE_CHECKING

from cmq_cli.replays.order import Order, split
from cmq_cli.session import Session
from cmq_cli.spark import show_range

ATTEMPTS = 5
"""Maximum number of attempts to count while the broker reclaims segments."""

if TYPE_CHECKING:
    from cmqd_log.copy.counting import Count
    from cmqd_log.options import Options


def count_log(session: Session, order: Order) -> "tuple[Options, Count]":
    """Count the messages that the order selects.

    Raises:
        CmqdSourceError: the options or the log cannot be used.
    """
    from cmqd_log.copy.counting import count, plan_count
    from cmqd_log.copy.journal import LEFT_OUT, slice_messages
    from cmqd_log.errors import SegmentReclaimedError
    from cmqd_log.options import parse_options

    options = parse_options({**order.source(), **order.bounds()})
    if times := show_range(options.starting_ms, options.ending_ms):
        session.output.remark(times)
    events = frozenset(split(order.event))
    with session.output.progress() as progress:
        task = progress.add_task("looking for segments", total=None, rate="")

        def show_progress(segments: int, messages: int) -> None:
            progress.update(task, completed=segments, rate=f"{messages:,} messages")

        def is_sent(event: str) -> bool:
            return event in events if events else event not in LEFT_OUT

        def count_once() -> "Count":
            plan = plan_count(options)
            progress.update(task, description="counting", total=len(plan.tasks))
            return count(plan, is_sent, slice_messages(order.rate, order.slice_), tell=show_progress)

        for _ in range(ATTEMPTS - 1):
            try:
                return options, count_once()
            except SegmentReclaimedError:
                # Plan again: the new plan has no slice across the reclaimed rows, and refuses a range that names them.
                continue
        return options, count_once()
