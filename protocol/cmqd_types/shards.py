"""The shards of a region: logs that share the names of queues and topics."""

from typing import Final

SHARD_SHIFT: Final = 52
"""Bits of the counter in a message id and in a lease; the 12 bits above are the shard, so that the numbers of all
shards of a region differ without a common counter."""

MAX_SHARD: Final = 2 ** (64 - SHARD_SHIFT) - 1
