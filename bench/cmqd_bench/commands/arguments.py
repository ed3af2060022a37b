"""Flags of the command line as fields of dataclasses: a field declares kind, range, help and default of its flag."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any, TypeVar

T = TypeVar("T")


class WrongArguments(ValueError):
    """The arguments of a command contradict each other, or name something that does not exist."""


def option(
    kind: Callable[[str], object], text: str, default: object = None, *, shown: str = "%(default)s", **further: object
) -> Any:
    """Declare a flag with a value; the help ends with ``shown``, by default the default."""
    help_text = f"{text} ({shown})" if shown else text
    return field(default=default, metadata={"type": kind, "help": help_text, **further})


def switch(text: str) -> Any:
    """Declare a flag without a value."""
    return field(default=False, metadata={"action": "store_true", "help": text})


def add_flags(
    parser: argparse.ArgumentParser, plan: type, names: Iterable[str] = (), defaults: Mapping[str, object] | None = None
) -> None:
    """Add the flags of a dataclass to a parser: those of the named fields, or all; ``defaults`` replaces defaults."""
    by_name = {each.name: each for each in fields(plan)}
    for name in names or by_name:
        default = (defaults or {}).get(name, by_name[name].default)
        parser.add_argument("--" + name.replace("_", "-"), default=default, **by_name[name].metadata)


def plan_from(plan: type[T], arguments: argparse.Namespace) -> T:
    """Return the arguments of a command as an instance of its dataclass."""
    return plan(**{each.name: getattr(arguments, each.name) for each in fields(plan)})  # pyright: ignore[reportArgumentType]


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return an argument type: an integer within a range; a refusal names option, value and limit."""
    return lambda text: int(_within(text.replace("_", "").replace(",", ""), int, "a whole number", low, high))


def decimal(low: float, high: float) -> Callable[[str], float]:
    """Return an argument type: a number within a range."""
    return lambda text: _within(text, float, "a number", low, high)


def _within(text: str, kind: Callable[[str], float], noun: str, low: float, high: float) -> float:
    try:
        value = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {noun}") from None
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{value} is not within {low} .. {high}")
    return value


def names_of(text: str) -> Sequence[str]:
    """Parse an argument: names, separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def some_of(choices: Sequence[str]) -> Callable[[str], Sequence[str]]:
    """Return an argument type: some of the choices, separated by commas."""

    def parse(text: str) -> Sequence[str]:
        names = tuple(part.strip() for part in text.split(","))
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(choices)}")
        return names

    return parse
