"""Types of fields that bound the memory of a decoded frame.

msgspec checks the limits while decoding, before memory is allocated. The core checks ranges that depend on a queue or a
setting.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

from cmqd_protocol.limits import (
    MAX_ATTRIBUTES,
    MAX_BATCH,
    MAX_DEDUP_ID_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_NAME_BYTES,
    MAX_REJECTION_BYTES,
    MAX_REQUEST_ID,
    MAX_ROUTING_KEY_BYTES,
    MAX_TAG_CHARS,
    MAX_TAGS,
    NONCE_BYTES,
    PROOF_BYTES,
)
from cmqd_types.messages import Headers

Unsigned: TypeAlias = Annotated[int, Meta(ge=0)]
"""0 .. 2**64-1"""
U32: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
RequestId: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_REQUEST_ID)]
Nonce: TypeAlias = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Proof: TypeAlias = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
ShortText: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME_BYTES)]
Bodies: TypeAlias = Annotated[list[bytes], Meta(min_length=1, max_length=MAX_BATCH)]
Handles: TypeAlias = Annotated[list[Unsigned], Meta(min_length=1, max_length=MAX_BATCH)]
HeaderText: TypeAlias = Annotated[str, Meta(max_length=MAX_HEADERS_BYTES)]
HeadersOfOne: TypeAlias = Annotated[Headers, Meta(max_length=MAX_HEADERS)]
HeadersList: TypeAlias = Annotated[list[HeadersOfOne | None], Meta(max_length=MAX_BATCH)]
DedupId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_DEDUP_ID_BYTES)]
DedupIds: TypeAlias = Annotated[list[DedupId | None], Meta(max_length=MAX_BATCH)]
Reasons: TypeAlias = Annotated[
    list[Annotated[str, Meta(max_length=MAX_REJECTION_BYTES)]], Meta(min_length=1, max_length=MAX_BATCH)
]
MessageIds: TypeAlias = Annotated[list[Unsigned], Meta(min_length=1, max_length=MAX_BATCH)]
Delays: TypeAlias = Annotated[list[Unsigned], Meta(max_length=MAX_BATCH)]
AttributeValue: TypeAlias = int | str | bool | None
Tags: TypeAlias = Annotated[list[Annotated[str, Meta(max_length=MAX_TAG_CHARS)]], Meta(max_length=MAX_TAGS)]
TagsList: TypeAlias = Annotated[list[Tags], Meta(max_length=MAX_BATCH)]
RoutingKey: TypeAlias = Annotated[str, Meta(max_length=MAX_ROUTING_KEY_BYTES)]
RoutingKeys: TypeAlias = Annotated[list[RoutingKey], Meta(max_length=MAX_BATCH)]
SubscriptionAttributes: TypeAlias = Annotated[
    dict[str, AttributeValue | Annotated[list[str], Meta(max_length=MAX_TAGS)]], Meta(max_length=MAX_ATTRIBUTES)
]
KeyTexts: TypeAlias = Annotated[list[Annotated[str, Meta(max_length=MAX_NAME_BYTES)]], Meta(max_length=MAX_ATTRIBUTES)]
"""Roles or name patterns of a key."""
Attributes: TypeAlias = Annotated[dict[str, AttributeValue], Meta(max_length=MAX_ATTRIBUTES)]
