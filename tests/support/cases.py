"""Many small cases of a test in a single node: for tables of hundreds of inputs, where nodes cost more than cases."""

import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

EXAMPLES = "TEST_EXAMPLES"
"""Environment variable: the number of examples of a search by Hypothesis that names none, 25 by default. The examples
are others in each run, but always the same in CI. The parts of ``make test-all`` with all fast tests have 100."""


@contextmanager
def naming(case: object) -> Generator[None]:
    """Name the case in the report of a failure inside the block."""
    try:
        yield
    except BaseException as error:  # the failures of pytest.raises and pytest.fail are no Exception
        error.add_note(f"case: {case}")
        raise


def each_case(
    names: str | Sequence[str], cases: Iterable[Any], *, ids: Iterable[str] | Callable[[Any], str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test for all cases as a single node, where ``pytest.mark.parametrize`` makes a node of each case.

    The first failure ends the node and names the case. Fixtures are shared: a case must leave the fixtures as the next
    case needs them. Several decorators make the product of the cases.
    """
    parameters = [names] if isinstance(names, str) else list(names)
    values = [(case,) if isinstance(names, str) else tuple(case) for case in cases]
    shown = list(_shown(values, ids))
    assert values, "a test without cases passes whatever the code does"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        async def run_coroutine(*arguments: Any, **fixtures: Any) -> None:
            for name, case in zip(shown, values, strict=True):
                with naming(name):
                    await test(*arguments, **fixtures, **dict(zip(parameters, case, strict=True)))

        @functools.wraps(test)
        def run_function(*arguments: Any, **fixtures: Any) -> None:
            for name, case in zip(shown, values, strict=True):
                with naming(name):
                    test(*arguments, **fixtures, **dict(zip(parameters, case, strict=True)))

        run: Callable[..., Any] = run_coroutine if inspect.iscoroutinefunction(test) else run_function
        # pytest reads the names of the fixtures from the signature.
        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in parameters]
        vars(run)["__signature__"] = signature.replace(parameters=fixtures)
        return run

    return decorate


def _shown(values: list[tuple[Any, ...]], ids: Iterable[str] | Callable[[Any], str] | None) -> Iterator[str]:
    if ids is None:
        return (", ".join(map(repr, case)) for case in values)
    if callable(ids):
        return (" ".join(ids(value) for value in case) for case in values)
    return iter(ids)
