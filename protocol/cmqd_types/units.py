"""Times and sizes with units: ``30s``, ``7d``, ``1.5GiB``."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

import msgspec

_QUANTITY = re.compile(r"(\d{1,30}(?:\.\d{1,30})?|\.\d{1,30})\s*([A-Za-z]+)", re.ASCII)


class Unit(msgspec.Struct, frozen=True):
    """The units of times or of sizes."""

    plain: str
    """The unit of a plain number."""
    factors: Mapping[str, int]
    """The units as multiples of the plain unit."""
    named: str
    """The units as a refusal lists them."""
    shown: tuple[str, ...]
    """The units of printed values, the largest first."""
    folds_case: bool = False

    def parse(self, text: str) -> int | None:
        """Return the plain number of a quantity; None if the text is not a whole number of plain units."""
        match = _QUANTITY.fullmatch(text.strip())
        if match is None:
            return None
        name = match.group(2)
        factor = self.factors.get(name.lower() if self.folds_case else name)
        if factor is None:
            return None
        number = Fraction(match.group(1)) * factor
        return int(number) if number.denominator == 1 else None

    def format(self, number: int) -> str:
        """Return a plain number in the largest unit that divides it."""
        for name in self.shown:
            factor = self.factors[name.lower() if self.folds_case else name]
            if number and number % factor == 0:
                return f"{number // factor}{name}"
        return f"{number}{self.plain}"


DURATION: Final = Unit(
    "ms",
    {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000},
    "ms, s, m, h, d or w",
    ("d", "h", "m", "s", "ms"),
)
SIZE: Final = Unit(
    "B",
    {"b": 1}
    | {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
    | {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    "B, KiB, MiB, GiB, TiB, kB, MB, GB or TB",
    ("TiB", "GiB", "MiB", "KiB", "B"),
    folds_case=True,
)
