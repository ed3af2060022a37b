"""Conditions of a run."""

import resource
from pathlib import Path

import pytest

from cmqd_bench.machine import conditions as machine
from cmqd_bench.machine.conditions import ConditionsError, conditions, file_system, raise_file_limit, scratch_root

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /mem tmpfs rw 0 0
/dev/vdb /mem/disk\\040one xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/var/lib", ("ext4", "/dev/vda")),
        ("/memory", ("ext4", "/dev/vda")),
        ("/mem", ("tmpfs", "tmpfs")),
        ("/mem/x", ("tmpfs", "tmpfs")),
        ("/mem/disk one/data", ("xfs", "/dev/vdb")),
    ],
)
def test_the_file_system_is_that_of_the_longest_mount_above(path: str, found: tuple[str, str]):
    assert file_system(Path(path), MOUNTS) == found


def test_data_in_memory_is_refused_since_fsync_would_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "MEMORY_FILE_SYSTEMS", frozenset({file_system(tmp_path)[0]}))

    with pytest.raises(ConditionsError, match=r"fsync costs nothing.*--scratch"):
        scratch_root(tmp_path)


def test_a_temporary_folder_in_memory_is_passed_over_for_one_beside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine, "SCRATCH", tmp_path / "scratch")
    memory = tmp_path / "memory"
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(memory))

    def pretended(path: Path) -> tuple[str, str]:
        return ("tmpfs" if path == memory else "ext4", "device")

    monkeypatch.setattr(machine, "file_system", pretended)

    assert scratch_root(None) == tmp_path / "scratch"


def test_conditions_name_all_that_a_figure_depends_on(tmp_path: Path):
    described = conditions(tmp_path)

    assert set(described) >= {"cpu", "cores", "kernel", "python", "sqlite", "versions", "file_system"}
    assert described["file_system"] == file_system(tmp_path)[0]


def test_the_file_limit_is_not_lowered():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)

    assert raise_file_limit(16) >= 16
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft
