"""Parts are filled by type, values by name."""

from collections.abc import Callable
from typing import Protocol

import pytest

from cmqd.server.assembly import Assembly, IncompleteError
from cmqd.server.part import part


class Sounding(Protocol):
    def sound(self) -> str: ...


class Horn:
    def sound(self) -> str:
        return "horn"


@part
class Wheel:
    size: int


@part
class Car:
    wheel: Wheel
    horn: Sounding
    now_ms: Callable[[], int]
    seats: int = 4


def test_a_part_is_filled_by_type_and_a_value_by_name() -> None:
    assembly = Assembly(now_ms=lambda: 7, size=17)
    horn, wheel = assembly.add(Horn(), Sounding), assembly.make(Wheel)

    car = assembly.make(Car)

    assert (car.wheel, car.horn, car.now_ms(), car.seats, wheel.size) == (wheel, horn, 7, 4, 17)
    assert assembly.get(Car) is car


def test_a_given_argument_comes_first() -> None:
    assembly = Assembly(now_ms=lambda: 7, size=17)
    assembly.add(Horn(), Sounding)
    assembly.make(Wheel)
    spare = Wheel(size=15)

    car = assembly.make(Car, wheel=spare, seats=2)

    assert (car.wheel, car.seats) == (spare, 2)


def test_a_need_that_nothing_meets_is_named() -> None:
    assembly = Assembly(size=17)
    assembly.make(Wheel)

    with pytest.raises(IncompleteError, match=r"^Car needs horn: .*Sounding, and no such part or value was made"):
        assembly.make(Car)


def test_an_interface_takes_the_newest_part() -> None:
    class Bell(Horn):
        pass

    assembly = Assembly(now_ms=lambda: 7, size=17)
    assembly.make(Wheel)
    assembly.add(Horn(), Sounding)
    bell = assembly.add(Bell(), Sounding)

    assert assembly.make(Car).horn is bell
    assert assembly.get(Horn) is not bell


def test_a_function_is_filled_like_a_part() -> None:
    def sized(wheel: Wheel, size: int) -> int:
        return wheel.size + size

    assembly = Assembly(size=17)
    assembly.make(Wheel)

    assert assembly.make(sized, size=1) == 18
