"""The driver of a stream over a URL: a segment stays for its batches, and goes with the last of them."""

# pyspark tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingModuleSource=false

from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from cmqd_log.options import parse_options
from pyspark_cmqd.reading.stream import CmqdStreamReader
from support.spark.log_folder import queue_created, sends, write_folder
from support.spark.log_store import serving
from support.storage.log_rig import NOW_MS

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""No session is needed."""


def test_small_batches_do_not_fetch_their_segment_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "store" / "data"
    created = ([queue_created(7, "orders")], [], NOW_MS)
    rows = [sends(7, 10 * number, 10) for number in range(8)]
    write_folder(folder, [[created, *rows[:4]], rows[4:]])
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with serving(folder.parent) as store:
        options = parse_options({"path": store.url, "maxMessagesPerTrigger": "10"})
        reader = CmqdStreamReader(options, StructType([StructField("lsn", LongType())]))
        offset = reader.initialOffset()
        kept: list[int] = []
        ends: list[int] = []
        while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
            reader.partitions(offset, end)
            kept.append(len(list(temporary.rglob("*.db"))))
            ends.append(int(end["lsn"]))
            offset = end

        assert ends == [2, 3, 4, 5, 6, 7, 8, 9]
        assert kept == [1, 1, 1, 0, 1, 1, 1, 0]
        assert store.fetched() == 3, "the second segment tells the end of the fourth batch, too"
        reader.stop()
        assert list(temporary.iterdir()) == []
