"""Folders of earlier versions are read with the results of the earlier version."""

from pathlib import Path

import pytest

from support.formats.archives import ARCHIVES, differences, unpack
from support.formats.spark_states import spark_rows

pytestmark = pytest.mark.spark
"""No session is needed."""


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_states_of_a_folder_of_an_earlier_format(archive: Path, tmp_path: Path) -> None:
    folder, expected = unpack(archive, tmp_path)

    assert differences(expected.spark, spark_rows(folder)) == []
