"""The attributes of queues, topics and subscriptions, with their defaults: records, checkpoints and limits share them.

Every attribute has a default, so that every version reads older logs. ``cmqd.core.limits`` has the ranges of values.
The client has the attributes of a queue in units of its own (``cmqd_client.attributes``).
"""

import msgspec


class QueueAttributes(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """The attributes that the owner of a queue can set; the defaults are those of a new queue (limits in
    ``cmqd.core.limits``).

    Written as a map, so that later versions can add fields.
    """

    polling_wait_ms: int = 200
    visibility_timeout_ms: int = 30_000
    max_message_bytes: int = 65_536
    retention_ms: int = 345_600_000
    delay_ms: int = 0
    max_backlog: int = 100_000_000
    max_delayed: int = 1_000_000
    rewind_ms: int = 0
    """Time after its sending for which a deleted message can be made active again; 0 = not at all."""
    dead_letter_queue: str = ""
    """Name of a queue of the same account; empty = none."""
    dead_letter_max_receives: int = 0
    """Policy 0: move a message when its last lease of this many receives ends; 0 = off."""
    dead_letter_after_ms: int = 0
    """Policy 1: move a message after this time as active; 0 = off."""
    transactional: bool = False
    """Set at creation only."""
    first_check_ms: int = 5_000
    max_checks: int = 15
    auto_delete_after_ms: int = 0
    """Delete the queue after this time without use; 0 = never."""
    auto_delete_only_empty: bool = True
    """A queue with messages is not deleted for lack of use."""


class TopicAttributes(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """The attributes of a topic, with the defaults of a new topic. Written as a map."""

    max_message_bytes: int = 65_536
    filter_type: str = "tag"
    """``tag`` or ``routing``; set at creation only."""


class SubscriptionAttributes(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """The attributes of a subscription. Written as a map."""

    protocol: str = "queue"
    """``queue``, ``http`` or ``https``; set at creation only, as is ``endpoint``."""
    endpoint: str = ""
    """Name of a queue of the same account, or a URL."""
    strategy: str = "exponential_decay"
    """Retry schedule of failed deliveries: ``exponential_decay`` or ``backoff``."""
    content_format: str = "json"
    """Format of a post to a URL: ``json`` or ``simplified`` (the bare body)."""
    filter_tags: list[str] = []
    """Of a subscription to a tag topic; none = every message."""
    binding_keys: list[str] = []
    """Of a subscription to a routing topic."""
    paused: bool = False
    """Deliveries are paused; published messages wait."""
