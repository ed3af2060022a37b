"""Roles and name patterns of a key, apart from requests."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd.core.domain_errors import InvalidArgument
from cmqd.server.access.permissions import Permissions, checked_names, checked_roles, permissions_of
from cmqd_types.keys import EVERY_NAME, EVERY_ROLE, MAX_PATTERNS, Role


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("orders", ["orders"], ["Orders", "orders2", "my-orders", ""]),
        ("orders-*", ["orders-", "orders-eu", "orders-eu-1"], ["orders", "my-orders-eu", "Orders-eu"]),
        ("*-dead", ["-dead", "orders-dead", "a-dead-dead"], ["orders-deadly", "dead"]),
        ("a*b", ["ab", "axb", "a-b-b"], ["b", "axc", "xab"]),
        ("*a*b*", ["ab", "xaxbx", "ba-ab"], ["ba", "bbb"]),
        ("a*a", ["aa", "aba"], ["a"]),
        ("a*aa", ["aaa", "aaaa", "abaa"], ["aa"]),
        ("a**b", ["ab", "axxb"], ["a"]),
        ("*ab*ba*", ["abba", "xabxbax"], ["aba"]),
        ("a_b-c", ["a_b-c"], ["axb-c", "a_b_c"]),
    ],
)
def test_a_star_stands_for_any_characters_and_everything_else_for_itself(
    pattern: str, matching: list[str], other: list[str]
) -> None:
    permissions = Permissions([Role.SEND], [pattern])

    assert [name for name in [*matching, *other] if permissions.allows_name(name)] == matching


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", max_size=10))
def test_patterns_match_as_the_shell_matches_them(pattern: str, name: str) -> None:
    assert Permissions([Role.SEND], [pattern]).allows_name(name) == (fnmatchcase(name, pattern))


def test_a_name_is_allowed_if_any_pattern_matches_it() -> None:
    permissions = Permissions([Role.SEND], ["orders-*", "billing"])

    assert permissions.allows_name("orders-eu")
    assert permissions.allows_name("billing")
    assert not permissions.allows_name("billing-eu")
    assert not permissions.allows_name("orders-eu\n")


def test_a_pattern_of_many_stars_is_compared_without_backtracking() -> None:
    """With backtracking this comparison takes longer than the age of the universe."""
    permissions = Permissions([Role.SEND], ["*a" * 31 + "*b"])

    assert not permissions.allows_name("a" * 64)


def test_every_role_but_gateway_with_every_name_is_unrestricted() -> None:
    assert permissions_of(EVERY_ROLE, EVERY_NAME) is None
    for restricted in (
        permissions_of(EVERY_ROLE[1:], EVERY_NAME),
        permissions_of((*EVERY_ROLE, Role.GATEWAY), EVERY_NAME),
        permissions_of(EVERY_ROLE, ("orders",)),
    ):
        assert restricted is not None


def test_roles_are_kept_once_and_in_one_order() -> None:
    assert checked_roles(["read", "send", "read"]) == (Role.SEND, Role.READ)


@pytest.mark.parametrize(("roles", "text"), [([], "at least one role"), (["root"], "'root' is not a role")])
def test_roles_that_are_no_roles_are_refused(roles: list[str], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text) as refused:
        checked_roles(roles)

    assert refused.value.details["field"] == "roles"


def test_patterns_are_kept_once_and_a_pattern_of_stars_alone_is_every_name() -> None:
    assert checked_names(["b", "a-*", "b"]) == ("b", "a-*")
    assert checked_names(["b", "**"]) == EVERY_NAME


@pytest.mark.parametrize("names", [[], ["a"] * (MAX_PATTERNS + 1), [""], ["a b"], ["ä"], ["x" * 65], ["a.b"], ["a\n"]])
def test_patterns_that_no_name_can_match_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        checked_names(names)

    assert refused.value.details["field"] == "names"
