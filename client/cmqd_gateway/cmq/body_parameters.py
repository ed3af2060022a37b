"""Bodies of messages in requests."""

from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

from cmqd_gateway.cmq.parameters import Size
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_types.attributes import QUEUE

MAX_BODY_BYTES: Final = QUEUE["max_message_bytes"].high

Body: TypeAlias = Annotated[bytes, Size(0, MAX_BODY_BYTES, Reason.BODY_TOO_LARGE)]
"""A parameter with a body. An empty body is refused later, for a different reason."""


def check_bodies(bodies: Sequence[bytes]) -> None:
    """Check the bodies of a request.

    Raises:
        Refusal: a body is empty.
    """
    if not all(bodies):
        raise Refusal(Reason.BODY_EMPTY)
