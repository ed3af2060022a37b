"""Printed forms of the ids of queues, topics and subscriptions, as in CMQ: a word and 16 hex digits."""

import re
from typing import Final

QUEUE_ID: Final = re.compile(r"queue-([0-9a-f]{16})")


def queue_id(number: int) -> str:
    """Return the printed form of the id of a queue."""
    return f"queue-{number:016x}"


def topic_id(number: int) -> str:
    """Return the printed form of the id of a topic."""
    return f"topic-{number:016x}"


def subscription_id(number: int) -> str:
    """Return the printed form of the id of a subscription."""
    return f"subsc-{number:016x}"
