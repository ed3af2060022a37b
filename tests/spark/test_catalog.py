"""Tags of records and of parts of a checkpoint are told without decoding them."""

import msgspec
import pytest
from msgspec.structs import fields

from cmqd_segment import checkpoint, records
from pyspark_cmqd.catalog import tag_of

KINDS = [
    kind
    for module in (checkpoint, records)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(kind.__struct_config__.tag, int)
]


def test_all_kinds_are_looked_at():
    assert {checkpoint.QueueSlice, records.QueueCreated, records.MessagesPublished} <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_tag_is_found_however_many_fields_there_are(kind: type[msgspec.Struct]):
    packed = msgspec.msgpack.encode(kind(*(None for _ in fields(kind))))

    assert tag_of(packed) == kind.__struct_config__.tag
    assert tag_of(memoryview(packed)) == kind.__struct_config__.tag
