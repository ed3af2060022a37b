"""What there is to replay: counted in the log at one row, with progress."""

from typing import TYPE_CHECKING

from cmq_cli.replays.order import Order
from cmq_cli.session import Session

if TYPE_CHECKING:
    from pyspark_cmqd.counting import Count
    from pyspark_cmqd.options import Options


def count_log(session: Session, order: Order) -> "tuple[Options, Count]":
    """Look through the log for what an order wants. Raises CmqdSourceError."""
    from pyspark_cmqd.counting import count, plan_count
    from pyspark_cmqd.options import parse_options
    from pyspark_cmqd.replaying import LEFT_OUT, slice_messages

    options = parse_options({**order.source, **order.edges})
    wanted = frozenset(order.events)
    with session.output.progress() as progress:
        task = progress.add_task("looking for segments", total=None, rate="")
        counting = plan_count(options)
        progress.update(task, description="counting", total=len(counting.tasks))

        def tell(segments: int, messages: int) -> None:
            progress.update(task, completed=segments, rate=f"{messages:,} messages")

        found = count(
            counting,
            (lambda name: name in wanted) if wanted else (lambda name: name not in LEFT_OUT),
            slice_messages(order.rate, order.slice),
            tell=tell,
        )
    return options, found
