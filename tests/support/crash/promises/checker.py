"""Checks a recorded history of a repeatedly killed broker against all its promises."""

from support.crash.promises.broker_time.time_rules import check_broker_time
from support.crash.promises.history import History
from support.crash.promises.lease_rules import check_counts, check_handle_meaning, check_one_lease
from support.crash.promises.ledger import Violation, build_ledger
from support.crash.promises.message_rules import (
    check_batches_whole,
    check_clears_kept,
    check_delays_kept,
    check_deletes_kept,
    check_handles_unique,
    check_ids,
    check_sends_kept,
    check_sent_only,
)
from support.crash.promises.move_rules import (
    check_no_receive_too_many,
    check_one_place,
    check_origins,
    check_rejections_kept,
    check_rewinds_kept,
    check_rewound_in_window,
    check_rewound_once,
)
from support.crash.promises.queue_rules import check_nothing_waits, check_queues
from support.crash.promises.topic_rules import (
    check_drops_kept,
    check_failures_kept,
    check_in_retry_kept,
    check_publish_batches_whole,
    check_published_once,
    check_publishes_kept,
    check_pushed_only,
    check_topics_empty,
    check_waiting_found,
)
from support.crash.promises.transaction_rules import (
    check_checks,
    check_commits_kept,
    check_decisions_kept,
    check_half_hidden,
    check_half_listed,
    check_half_not_listed,
)

_ALWAYS = (
    check_broker_time,
    check_sent_only,
    check_ids,
    check_handles_unique,
    check_deletes_kept,
    check_clears_kept,
    check_delays_kept,
    check_one_lease,
    check_counts,
    check_handle_meaning,
    check_one_place,
    check_origins,
    check_rejections_kept,
    check_no_receive_too_many,
    check_rewound_in_window,
    check_rewound_once,
    check_decisions_kept,
    check_half_hidden,
    check_half_not_listed,
    check_checks,
    check_pushed_only,
    check_published_once,
    check_failures_kept,
    check_in_retry_kept,
    check_drops_kept,
    check_waiting_found,
    check_queues,
)
_AFTER_A_DRAIN = (
    check_sends_kept,
    check_commits_kept,
    check_half_listed,
    check_rewinds_kept,
    check_batches_whole,
    check_publishes_kept,
    check_publish_batches_whole,
    check_topics_empty,
    check_nothing_waits,
)


def check(history: History, *, drained: bool) -> list[Violation]:
    """Return every broken promise.

    Args:
        drained: at the end of the history all pending pushes were made, all half messages were listed and decided, and
            all remaining queues were received and deleted until empty, which shows that no message is missing.

    Raises:
        ValueError: the history contradicts itself (a body in two different sends).
    """
    ledger = build_ledger(history)
    rules = (*_ALWAYS, *_AFTER_A_DRAIN) if drained else _ALWAYS
    return [violation for rule in rules for violation in rule(ledger)]
