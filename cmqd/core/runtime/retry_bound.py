"""Bound on the messages in retry, counted over all subscriptions: a retry takes memory until its delivery ends.

The retries themselves are facts, in ``cmqd.core.facts.subscription_backlog``.
"""

from cmqd.core.facts.topic import Subscription
from cmqd.core.limits import Limits


class RetryBound:
    """The number of messages in retry, and the resulting bound of every subscription."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._total = 0
        self._noted: dict[int, int] = {}
        """By subscription: its part of the total, as of its last count."""

    def count(self, subscription: Subscription) -> None:
        """Count the messages in retry of a subscription anew."""
        retrying_count = subscription.deliveries.retrying_count
        self._total += retrying_count - self._noted.get(subscription.subscription_id, 0)
        self._noted[subscription.subscription_id] = retrying_count

    def forget(self, subscription: Subscription) -> None:
        """Give back the part of a subscription that ended."""
        self._total -= self._noted.pop(subscription.subscription_id, 0)

    def bound(self, subscription: Subscription) -> None:
        """Stop a subscription from trying new messages when no memory is left to remember their failures."""
        deliveries, limits = subscription.deliveries, self._limits
        has_room = self._total < limits.max_retries_in_all
        deliveries.max_known = limits.max_retries_known if has_room else deliveries.retrying_count
