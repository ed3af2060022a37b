"""Actions on messages: API 3.0 has no receive."""

from collections.abc import Sequence
from typing import Final

import msgspec

from cmqd_gateway.cmq.api3.action import Fields, action, number, text, texts
from cmqd_gateway.cmq.operations import OPERATIONS
from cmqd_gateway.cmq.operations.publishing import publish_with_entries


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
    action(
        "PublishCmqMsg",
        msgspec.structs.replace(OPERATIONS["PublishMessage"], run=publish_with_entries),
        text("TopicName", "topic_name", required=True),
        text("MsgContent", "msg_body", required=True),
        # Tags, or one routing key.
        texts("MsgTag", "msg_tag"),
        encode=_stored,
        further_names={"routing_key": "MsgTag"},
    ),
]
