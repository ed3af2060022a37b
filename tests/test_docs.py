"""What the README says is so."""

import re
from pathlib import Path

from cmqd.settings import SETTINGS, SettingInfo
from pyspark_cmqd import options, sinkoptions

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    """A chapter of the README, with what is below it."""
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def shown_default(info: SettingInfo) -> str:
    if info.default in (None, ""):
        return "none"
    return str(info.default).lower() if isinstance(info.default, bool) else str(info.default)


def test_the_readme_lists_every_setting_with_its_default_and_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", section("Settings"), re.MULTILINE)

    assert rows == [(info.name, shown_default(info), info.text) for info in SETTINGS.values()]


def test_the_readme_links_to_files_that_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)

    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_names_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"\bmake ([a-z-]+)", README)) <= targets


def test_the_readme_names_every_option_of_the_spark_source_and_sink() -> None:
    chapter = section("The log in Spark")
    names = {
        name
        for module in (options, sinkoptions)
        for line in re.findall(r"^\| (``.*?) \|", module.__doc__ or "", re.MULTILINE)
        for name in re.findall(r"``(\w+)``", line)
    }

    assert {"path", "writeId"} <= names
    # What one command hands to another job of its own is nobody else's.
    assert {name for name in names - {"statesFile"} if f"`{name}`" not in chapter} == set()
