"""The secrets of subscriptions to URLs: each subscription has one, and no other subscription has any."""

from cmqd.core.broker import Broker
from cmqd.server.access.accounts import Accounts
from cmqd.server.broker_logger import get_logger
from cmqd.server.loop.clock import BrokerClock
from cmqd.server.part import part
from cmqd.server.push.outbox import Outbox

_log = get_logger()


@part
class SubscriptionSecrets:
    """Reads and repairs the secrets; see the module."""

    broker: Broker
    accounts: Accounts
    clock: BrokerClock
    outbox: Outbox

    def secrets_of(self, subscription_id: int) -> list[str]:
        """Return the secrets that sign a push now, the newest first."""
        return self.accounts.secrets_of(subscription_id, self.clock.now_ms())

    async def match(self) -> None:
        """Make the missing secrets of the recovered subscriptions to URLs, and drop all other secrets.

        Raises:
            OSError: the accounts file cannot be written.
        """
        to_urls = [
            subscription_id
            for subscription_id, subscription in self.broker.subscriptions.items()
            if subscription.attributes.protocol != "queue"
        ]
        created, forgotten = await self.accounts.match_secrets(to_urls)
        if created:
            _log.warning(
                "subscription_secrets_made",
                subscription_ids=created[:100],
                count=len(created),
                text="a crash or a loss left these without a secret; each has a new secret, which a rotation shows",
            )
        if forgotten:
            _log.info("subscription_secrets_forgotten", count=len(forgotten))
        if to_urls and not self.outbox.can_push:
            _log.warning("push_unavailable", subscriptions=len(to_urls), text="install the extra cmqd[http]")
