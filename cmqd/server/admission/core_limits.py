"""The limits of the core that the settings of a server name."""

from cmqd.core.limits import Limits
from cmqd.server.admission.memory_budget import budget_bytes
from cmqd.settings import Settings


def limits_of(settings: Settings) -> Limits:
    """Return the limits of a broker with these settings; the other limits have their defaults."""
    return Limits(
        max_queues_per_account=settings.max_queues_per_account,
        max_topics_per_account=settings.max_topics_per_account,
        max_in_flight=settings.max_in_flight_per_queue,
        max_delay_ms=settings.max_delay_ms,
        budget_bytes=budget_bytes(settings),
        max_pushes_per_endpoint=settings.max_pushes_per_endpoint,
        max_pushes=settings.max_pushes,
    )
