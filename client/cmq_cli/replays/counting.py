"""Count the messages to replay, as of one row of the log, with progress."""

from typing import TYPE_CHECKING

from cmq_cli.replays.order import Order
from cmq_cli.session import Session

ATTEMPTS = 5
"""Number of counts of the log while the broker reclaims segments of it."""

if TYPE_CHECKING:
    from pyspark_cmqd.options import Options
    from pyspark_cmqd.replay_count import Count


def count_log(session: Session, order: Order) -> "tuple[Options, Count]":
    """Look through the log for what an order wants. Raises CmqdSourceError."""
    from pyspark_cmqd.errors import SegmentReclaimedError
    from pyspark_cmqd.options import parse_options
    from pyspark_cmqd.replay_count import count, plan_count
    from pyspark_cmqd.replay_journal import LEFT_OUT, slice_messages

    options = parse_options({**order.source, **order.edges})
    wanted = frozenset(order.events)
    with session.output.progress() as progress:
        task = progress.add_task("looking for segments", total=None, rate="")

        def tell(segments: int, messages: int) -> None:
            progress.update(task, completed=segments, rate=f"{messages:,} messages")

        def counted() -> "Count":
            counting = plan_count(options)
            progress.update(task, description="counting", total=len(counting.tasks))
            return count(
                counting,
                (lambda name: name in wanted) if wanted else (lambda name: name not in LEFT_OUT),
                slice_messages(order.rate, order.slice),
                tell=tell,
            )

        for _ in range(ATTEMPTS - 1):
            try:
                return options, counted()
            except SegmentReclaimedError:
                # A new plan knows which rows are gone, and refuses if they were asked for; no slice may span them.
                continue
        return options, counted()
