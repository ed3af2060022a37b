"""Actions on messages: API 3.0 has no receive."""

from collections.abc import Sequence
from typing import Final

from cmqd_gateway.cmq.api3.action import Fields, action, number, text
from cmqd_gateway.cmq.operations import OPERATIONS


def _stored(ids: Sequence[str]) -> Fields:
    return {"Result": True, "MsgId": ids[0]}


ACTIONS: Final = [
    action(
        "SendCmqMsg",
        OPERATIONS["SendMessage"],
        text("QueueName", "queue_name", required=True),
        text("MsgContent", "msg_body", required=True),
        # Required in the documents, with a default beside it.
        number("DelaySeconds", "delay_seconds"),
        encode=_stored,
    ),
]
