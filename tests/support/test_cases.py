import pytest

from support.cases import each_case

RAN: list[tuple[int, str]] = []


@each_case("number", [1, 2])
@each_case("word", ["a", "b"])
def fill(number: int, word: str) -> None:
    RAN.append((number, word))
    assert (number, word) != (2, "a")


def test_a_failure_names_its_case_and_the_cases_before_it_ran() -> None:
    RAN.clear()

    with pytest.raises(AssertionError) as failed:
        fill()

    assert RAN == [(1, "a"), (1, "b"), (2, "a")]
    assert failed.value.__notes__ == ["case: 'a'", "case: 2"]


async def test_a_coroutine_is_awaited_for_each_case_with_its_fixtures() -> None:
    seen: list[tuple[str, int, int]] = []

    @each_case(("first", "second"), [(1, 2), (3, 4)], ids=["small", "large"])
    async def collect(fixture: str, first: int, second: int) -> None:
        seen.append((fixture, first, second))
        if first == 3:
            pytest.fail("no")

    with pytest.raises(pytest.fail.Exception) as failed:
        await collect(fixture="f")

    assert seen == [("f", 1, 2), ("f", 3, 4)]
    assert failed.value.__notes__ == ["case: large"]


@each_case("size", [1, 2])
def test_a_test_with_a_fixture_runs_once(size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert size
    assert tmp_path_factory.getbasetemp()


def test_no_cases_are_refused() -> None:
    with pytest.raises(AssertionError, match="without cases"):
        each_case("size", [])
