"""The folders of earlier versions, as kept in ``tests/formats``."""

import tarfile
from pathlib import Path
from typing import Any, cast

import msgspec

from cmqd_segment.manifest import CACHE_FORMATS
from support.formats.content import Kept

ARCHIVES = sorted((Path(__file__).parents[2] / "formats").glob("format-*.tar.xz"))


class Expected(msgspec.Struct):
    """Facts about a folder, as reported by the version that wrote the folder."""

    kept: Kept
    spark: dict[str, list[dict[str, Any]]]
    answers: dict[str, Any]


def format_of(archive: Path) -> int:
    return int(archive.name.removeprefix("format-").removesuffix(".tar.xz"))


def is_cache(archive: Path) -> bool:
    """Return whether a broker opens the folder with an engine."""
    return format_of(archive) in CACHE_FORMATS


OWN_LOGS = [archive for archive in ARCHIVES if not is_cache(archive)]
"""The folders that a broker without redundancy opens."""


def unpack(archive: Path, target: Path) -> tuple[Path, Expected]:
    """Unpack a folder below ``target``; returns the folder and its expected facts."""
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="tar")
    return target / "data", msgspec.json.decode((target / "expected.json").read_bytes(), type=Expected)


def differences(expected: Any, told: Any, place: str = "") -> list[str]:
    """Return the paths where ``told`` differs from the expected facts. Fields that were appended later do not count."""
    if isinstance(expected, dict) and isinstance(told, dict):
        wanted, given = cast("dict[str, Any]", expected), cast("dict[str, Any]", told)
        found: list[str] = []
        for name, value in wanted.items():
            if name in given:
                found += differences(value, given[name], f"{place}/{name}")
            else:
                found.append(f"{place}/{name} is missing")
        return found
    if isinstance(expected, list) and isinstance(told, list):
        items, others = cast("list[Any]", expected), cast("list[Any]", told)
        if len(items) != len(others):
            return [f"{place} has {len(others)} entries instead of {len(items)}"]
        pairs = zip(items, others, strict=True)
        return [text for index, pair in enumerate(pairs) for text in differences(*pair, f"{place}/{index}")]
    return [] if expected == told else [f"{place} is {told!r} instead of {expected!r}"]
