"""Refused values of any length: the work for an error, and its size, have a bound (issue 36, item 1)."""

from typing import Any

import msgspec
import pytest

from cmqd_gateway.rest.problems import ProblemError
from cmqd_gateway.rest.reading import read_body
from cmqd_gateway.rest.types import QueueAttributes
from support.cases import each_case
from support.gateway.rest_calls import RestCalls

LENGTHS = (33_000, 200_000)


@pytest.mark.parametrize("operation", ["ensure_queue", "set_queue", "create_queue"])
@pytest.mark.parametrize("length", LENGTHS)
async def test_a_long_name_of_a_dead_letter_queue_is_refused_by_its_form(
    rest: RestCalls, operation: str, length: int
) -> None:
    """The name once came back whole in a comparison, and two patterns looked through it for minutes."""
    if operation != "create_queue":
        await rest.ok("create_queue", queue="q")

    refusal = await rest.refused(operation, queue="q", body={"dead_letter_queue": "a" * length})

    assert (refusal.status, refusal.name, refusal.field) == (400, "invalid_argument", "dead_letter_queue")
    assert refusal.detail.endswith("is not the name of a queue: a name has 1 to 64 ASCII letters, digits, '-' or '_'")
    assert len(msgspec.json.encode(refusal)) < 1000


@pytest.mark.parametrize("length", LENGTHS)
async def test_a_long_name_in_a_path_is_shown_cut(rest: RestCalls, length: int) -> None:
    # aiohttp refuses a request line over 8 KiB itself.
    refusal = await rest.refused("get_queue", queue="a" * min(length, 7000))

    assert (refusal.status, refusal.name) == (404, "queue_not_found")
    assert len(refusal.detail) < 150


PATH = " - at `$"


@each_case("count", [100, 100_000])
@each_case("text", [PATH, "` - at `$.a", "Expected `", ", got `", "[0]", ".a"])
def test_an_unknown_field_of_any_length_is_shown_cut(text: str, count: int) -> None:
    body = msgspec.json.encode({text * count: 1})

    refusal = _refused(body)

    assert (refusal.problem.status, refusal.problem.name) == (400, "invalid_argument")
    assert len(refusal.problem.detail) < 1000
    assert len(refusal.problem.field or "") <= 100


def _refused(body: bytes) -> ProblemError:
    with pytest.raises(ProblemError) as raised:
        read_body("application/json", None, body, QueueAttributes)
    refusal: Any = raised.value
    return refusal
