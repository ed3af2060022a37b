"""Tests of ``cmqd_segment.checksums``: the numbers are those of zlib, with and without the package isal."""

import importlib
import sys
import zlib
from types import ModuleType

import pytest

from cmqd_segment import checksums

# The value that every description of CRC-32 (ISO 3309) gives.
CHECK_INPUT, CHECK_VALUE = b"123456789", 0xCBF43926


@pytest.fixture
def without_isal(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("isal", "isal.isal_zlib"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, checksums.__name__)
    return importlib.import_module(checksums.__name__)


def test_the_checksum_is_crc_32():
    assert checksums.crc32(CHECK_INPUT) == CHECK_VALUE
    assert checksums.crc32(memoryview(CHECK_INPUT)[4:], checksums.crc32(CHECK_INPUT[:4])) == CHECK_VALUE


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 255, 256, 65_535, 65_536, 1_048_576])
def test_the_checksum_equals_that_of_zlib_at_all_sizes_and_alignments(size: int):
    data = bytes(number * 131 % 251 for number in range(4096)) * (size // 4096 + 2)

    for start in (0, 1, 7, 63):
        piece = memoryview(data)[start : start + size]
        assert checksums.crc32(piece) == zlib.crc32(piece)
        assert checksums.crc32(piece, 0xDEADBEEF) == zlib.crc32(piece, 0xDEADBEEF)


def test_isal_computes_the_checksum_where_it_is_installed():
    isal_zlib = pytest.importorskip("isal.isal_zlib")

    assert checksums.crc32 is isal_zlib.crc32


def test_zlib_computes_the_checksum_without_isal(without_isal: ModuleType):
    assert without_isal.crc32 is zlib.crc32
    assert without_isal.crc32(CHECK_INPUT) == CHECK_VALUE
