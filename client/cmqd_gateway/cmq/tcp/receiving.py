"""The further ask of a batch receive: messages that become visible within milliseconds come in a single answer.

CMQ's own test sends three messages in turn with equal delays, and wants all three from a batch receive that waits. Here
their delays end milliseconds apart, so the receive is answered with the first. Such a receive asks once more after
100 ms, if all its messages were delayed or came back. A fresh message is never held back.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from cmqd_client import Message
from cmqd_gateway.cmq.reasons import Refusal

FURTHER_SECONDS: Final = 0.1
"""Pause before the further ask, and the time up to which a receive counts as answered at once."""
OLD_SECONDS: Final = 1.0
"""Time between the store and the receive of a message that was delayed or came back."""

Receive = Callable[[int, int | None], Awaitable["list[Message[bytes]]"]]
"""Receives up to so many messages, with a wait in seconds. Raises Refusal."""


async def receive_batch(
    receive: Receive,
    count: int,
    wait: int | None,
    *,
    now: Callable[[], float],
    wall_clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[Any]],
) -> "list[Message[bytes]]":
    """Return the messages of a batch receive, after a further ask where it is due.

    Args:
        receive: receives messages, which are taken back if the answer is not written.
        count: most messages.
        wait: seconds; None = the wait of the queue.
        now: the clock of the gateway.
        wall_clock: the time of day.
        sleep: pauses for so many seconds.

    Raises:
        Refusal: there is no message.
    """
    began = now()
    messages = await receive(count, wait)
    if len(messages) < count and now() - began > FURTHER_SECONDS and _are_old(messages, wall_clock()):
        await sleep(FURTHER_SECONDS)
        try:
            messages += await receive(count - len(messages), 0)
        except Refusal:
            # Usually because there are no more. The answer has the messages in hand.
            pass
    return messages


def _are_old(messages: "Sequence[Message[bytes]]", wall_time: float) -> bool:
    """Return True if all messages were stored long before this receive."""
    for message in messages:
        # The first receive has the broker's time. Later receives do not, so that the clocks may differ.
        received = message.first_receive_time.timestamp() if message.receive_count == 1 else wall_time
        if received - message.enqueue_time.timestamp() < OLD_SECONDS:
            return False
    return True
