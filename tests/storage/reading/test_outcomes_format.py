"""The file of outcomes: its entries come back, and other bytes are refused."""

import random
from pathlib import Path

import msgspec
import pytest

from cmqd_segment.checkpoint_file import frame
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.outcomes import (
    MAGIC,
    Outcome,
    OutcomesError,
    OutcomesHeader,
    counted,
    encode_outcomes,
    pack_counts,
    read_outcomes,
)
from cmqd_segment.records import pack_runs
from support.cases import each_case

HEADER = OutcomesHeader(7, 100, 3)


def outcome(lsn: int, record: int = 0) -> Outcome:
    return Outcome(1, lsn, record, "deleted", 5, [lsn, 1], [1])


def test_the_entries_of_all_parts_come_back(tmp_path: Path):
    entries = [outcome(lsn, record) for lsn in range(1, 1_500) for record in (0, 1)]
    path = tmp_path / "file"
    path.write_bytes(encode_outcomes(HEADER, entries))

    assert list(read_outcomes(path, 7, 100, 3)) == entries


def test_each_flipped_or_missing_byte_is_found(tmp_path: Path):
    content = encode_outcomes(HEADER, [outcome(1), outcome(2)])
    path = tmp_path / "file"

    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        with pytest.raises(OutcomesError):
            list(read_outcomes(path, 7, 100, 3))
        path.write_bytes(content[:place])
        with pytest.raises(OutcomesError):
            list(read_outcomes(path, 7, 100, 3))


@pytest.mark.parametrize("wanted", [(8, 100, 3), (7, 101, 3), (7, 100, 2)])
def test_a_file_of_another_segment_or_generation_is_refused(tmp_path: Path, wanted: tuple[int, int, int]):
    path = tmp_path / "file"
    path.write_bytes(encode_outcomes(HEADER, []))

    with pytest.raises(OutcomesError, match="is not generation"):
        list(read_outcomes(path, *wanted))


@pytest.mark.parametrize(
    "entry",
    [
        Outcome(1, 4, 0, "deleted", 5, [], [1]),
        Outcome(1, 4, 0, "deleted", 5, [1, 2, 3], [1]),
        Outcome(1, 4, 0, "deleted", 5, [1, 3], [2, 1]),
        Outcome(1, 3, 0, "deleted", 5, [1, 3], [1]),
    ],
)
def test_an_entry_that_cannot_be_is_refused(tmp_path: Path, entry: Outcome):
    path = tmp_path / "file"
    path.write_bytes(encode_outcomes(HEADER, [outcome(3, 1), entry]))

    with pytest.raises(OutcomesError, match="cannot be"):
        list(read_outcomes(path, 7, 100, 3))


def test_a_part_of_a_newer_version_is_not_damage(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(MAGIC + frame(msgspec.msgpack.encode(HEADER)) + frame(msgspec.msgpack.encode([99, 0])))

    with pytest.raises(NewerFormatError):
        list(read_outcomes(path, 7, 100, 3))


@each_case("seed", range(200))
def test_the_counts_of_an_entry_come_back(seed: int):
    choose = random.Random(seed)
    numbers = sorted(choose.sample(range(40), choose.randrange(1, 30)))
    told = {number: choose.choice([1, 1, 1, 2, 3]) for number in numbers}
    differing = {number: count for number, count in told.items() if count != 1}

    positions = pack_runs(numbers)
    entry = Outcome(1, 1, 0, "deleted", 5, positions, pack_counts(positions, differing, 1))

    assert {number: count for start, stop, count in counted(entry) for number in range(start, stop)} == told
    if len(set(told.values())) == 1:
        assert entry.receive_counts == [told[numbers[0]]]
