"""SEGMENTS.md names all tables, columns and files on disk."""

import re
from pathlib import Path
from typing import get_args

import msgspec

from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.manifest import CheckpointEntry, Manifest, SegmentEntry, SegmentState
from cmqd_segment.records import AnyRecord
from cmqd_segment.schema import ACTORS_TABLE, NAMES_TABLE, TABLES
from cmqd_types.messages import CopyOf, Origin

TEXT = (Path(__file__).parents[3] / "protocol" / "SEGMENTS.md").read_text()


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_every_record_stands_in_the_table_with_its_fields_in_order() -> None:
    for record in get_args(AnyRecord):
        row = next(
            line for line in TEXT.splitlines() if f"| {record.__struct_config__.tag} | {record.__name__} |" in line
        )
        words = re.findall(r"\w+", row)
        places = [words.index(field.name) for field in msgspec.structs.fields(record)]
        assert places == sorted(places), record.__name__


def test_every_part_of_a_checkpoint_is_named() -> None:
    for part in get_args(AnyPart):
        assert f"| {part.__struct_config__.tag} | {part.__name__} |" in TEXT


def test_what_an_origin_holds_is_told_in_its_order() -> None:
    assert f"[{', '.join(Origin.__struct_fields__)}]" in TEXT


def test_what_a_copy_knows_is_told_in_its_order() -> None:
    assert f"[{', '.join(CopyOf.__struct_fields__)} = nil]" in TEXT


def test_a_record_names_the_defaults_of_its_fields() -> None:
    for record in get_args(AnyRecord):
        row = next(line for line in TEXT.splitlines() if f" | {record.__name__} |" in line)
        for field in msgspec.structs.fields(record):
            if not field.required:
                assert f"{field.name} (map) = " in row or f"{field.name} = " in row, (record.__name__, field.name)


def test_the_tables_are_those_of_the_schema() -> None:
    for statement in (*TABLES, NAMES_TABLE, ACTORS_TABLE):
        assert squeezed(statement) in squeezed(TEXT)


def test_every_key_of_the_manifest_and_every_state_is_explained() -> None:
    for struct in (Manifest, SegmentEntry, CheckpointEntry):
        for field in msgspec.structs.fields(struct):
            assert f"`{field.name}`" in TEXT, field.name
    for state in SegmentState:
        assert state in TEXT
