"""Retry schedule of a subscription: the time of the next attempt after a delivery failed.

- ``backoff``: up to three retries, each 10 to 20 s after the failure; then the message is dropped.
- ``exponential_decay``: up to 176 retries, 1, 2, 4 ... 512, 512 ... s after the start of the failed attempt; then the
  message is exhausted and stays until it expires.

The functions know times and numbers of attempts alone. :mod:`cmqd.core.facts.subscription_backlog` has the messages,
and the order in which each strategy tries them.
"""

EXPONENTIAL_DECAY = "exponential_decay"
BACKOFF = "backoff"

BACKOFF_ATTEMPTS = 4
"""The first attempt and three retries."""
BACKOFF_MS = (10_000, 20_000)
"""Shortest and longest pause under ``backoff``: a range, so that messages that failed together come back apart."""
DECAY_ATTEMPTS = 177
"""The first attempt and 176 retries; the last is 86,015 s after the first, just under a message's life of a day."""
LONGEST_GAP_MS = 512_000
_MASK = (1 << 64) - 1


def next_attempt_ms(strategy: str, attempts: int, started_ms: int, now_ms: int, pause_ms: int) -> int | None:
    """Return the time of the next attempt after ``attempts`` attempts failed, the last begun at ``started_ms``.

    The time is 0 if the message is exhausted, None if it is dropped. ``pause_ms`` is the pause under ``backoff``.
    """
    if strategy == BACKOFF:
        return now_ms + pause_ms if attempts < BACKOFF_ATTEMPTS else None
    if attempts >= DECAY_ATTEMPTS:
        return 0
    # From the start of the attempt and not from its end: a target that takes long to fail would else be asked ever
    # more seldom. Never in the past, or a slow failure would be followed by a burst of retries.
    return max(started_ms + gap_ms(attempts), now_ms)


def gap_ms(attempts: int) -> int:
    """Return the time from the start of failed attempt ``attempts`` to the next attempt, under exponential decay."""
    return min(1000 << (attempts - 1), LONGEST_GAP_MS)


def backoff_pause_ms(seed: int, subscription_id: int, position: int, attempt: int) -> int:
    """Return the pause before a retry under ``backoff``, spread evenly by a mix of numbers (Steele, Lea and Flood
    2014, SplitMix). The core has no randomness: the same calls give the same pauses.
    """
    # Subscription, message and attempt all count. With the same pause for all, messages that failed in one outage
    # would come back at the same moment.
    mixed = (seed + (subscription_id << 40) + (position << 8) + attempt) & _MASK
    mixed = (mixed + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    low, high = BACKOFF_MS
    return low + (mixed ^ (mixed >> 31)) % (high - low + 1)
