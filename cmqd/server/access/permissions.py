"""The permissions of a restricted key: roles, and patterns of names.

A key with every role (but ``gateway``) and every name is *unrestricted* and has no ``Permissions``: its requests pay
only for a comparison with None.

A pattern is a name in which each ``*`` stands for any characters, also none. Names tell upper from lower case, and so
do patterns. A pattern becomes a regular expression without backtracking (atomic groups): a pattern with many stars
costs no more than the length of pattern and name.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from cmqd.core.domain_errors import InvalidArgument, shown
from cmqd.core.names import MAX_NAME_BYTES
from cmqd_types.keys import EVERY_NAME, EVERY_ROLE, MAX_PATTERNS, Role

_ANY: Final = "[A-Za-z0-9_-]"
"""A character that a star stands for: a name has no other characters."""
_PATTERN: Final = re.compile(rf"[A-Za-z0-9_*-]{{1,{MAX_NAME_BYTES}}}", re.ASCII)
_PATTERN_LIMIT: Final = f"1 to {MAX_NAME_BYTES} ASCII letters, digits, '-', '_' or '*'"

MAX_NAMES_AT_ONCE: Final = 2000
"""Names of a slice of a long look-up."""
_STARS_AT_ONCE: Final = 20_000
"""Stars of patterns times names of a slice, about 1 ms: a comparison takes up to 0.05 us for each star. Without the
limit, 2,000 names take 100 ms with 50 patterns of many stars."""


class Permissions:
    """Roles and name patterns of a restricted key; see the module."""

    __slots__ = ("_match", "names", "names_at_once", "roles")

    def __init__(self, roles: Sequence[Role], names: Sequence[str]) -> None:
        self.roles = frozenset(roles)
        self.names = tuple(names)
        stars = sum(pattern.count("*") for pattern in names)
        self.names_at_once = min(MAX_NAMES_AT_ONCE, _STARS_AT_ONCE // max(1, stars))
        """Names that a slice of a long look-up compares with the patterns."""
        self._match = None if EVERY_NAME[0] in names else re.compile("|".join(map(_expression, names))).fullmatch

    def __repr__(self) -> str:
        return f"<Permissions {roles_text(self.roles)} of {names_text(self.names)}>"

    @property
    def covers_every_name(self) -> bool:
        """True if the patterns match all names, also names that do not exist yet."""
        return self._match is None

    @property
    def sees_hosts(self) -> bool:
        """True if lists and histories show the addresses of the clients of the account."""
        return self.covers_every_name and Role.MANAGE in self.roles

    def allows_name(self, name: str) -> bool:
        """Return True if a pattern matches the whole name."""
        return self._match is None or self._match(name) is not None


def permissions_of(roles: Sequence[Role], names: Sequence[str]) -> Permissions | None:
    """Return the permissions of a key with these roles and patterns; None = unrestricted."""
    return None if is_unrestricted(roles, names) else Permissions(roles, names)


def is_unrestricted(roles: Iterable[Role], names: Sequence[str]) -> bool:
    """Return True for the roles and patterns of a key that was created without roles."""
    return set(roles) == set(EVERY_ROLE) and EVERY_NAME[0] in names


def checked_roles(roles: Sequence[str]) -> tuple[Role, ...]:
    """Return roles of a request in the order of ``Role``, each once.

    Raises:
        InvalidArgument: there is no role, or a word is not a role.
    """
    words = {str(role) for role in Role}
    for word in roles:
        if word not in words:
            raise InvalidArgument(
                f"{shown(word)} is not a role; the roles are {', '.join(Role)}",
                field="roles",
                value=word,
                limit=f"some of {', '.join(Role)}",
            )
    if not roles:
        raise InvalidArgument(
            f"a key needs at least one role; the roles are {', '.join(Role)}",
            field="roles",
            value=[],
            limit="at least one role",
        )
    return tuple(role for role in Role if role in roles)


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return name patterns of a request, each once; ``("*",)`` if a pattern matches every name.

    Raises:
        InvalidArgument: there is no pattern, there are too many, or a pattern can match no name.
    """
    if not 1 <= len(names) <= MAX_PATTERNS:
        raise InvalidArgument(
            f"a key has 1 to {MAX_PATTERNS} name patterns, not {len(names)}; '*' stands for every name",
            field="names",
            value=len(names),
            limit=f"1 to {MAX_PATTERNS} patterns",
        )
    for pattern in names:
        if _PATTERN.fullmatch(pattern) is None:
            raise InvalidArgument(
                f"{shown(pattern)} is not a name pattern: a pattern has {_PATTERN_LIMIT}",
                field="names",
                value=pattern,
                limit=_PATTERN_LIMIT,
            )
    if any(set(pattern) == {"*"} for pattern in names):
        return EVERY_NAME
    return tuple(dict.fromkeys(names))


def roles_text(roles: Iterable[Role]) -> str:
    """Return "role send" or "roles send and read", in the order of ``Role``."""
    words = [str(role) for role in Role if role in set(roles)]
    if len(words) == 1:
        return f"role {words[0]}"
    return f"roles {', '.join(words[:-1])} and {words[-1]}"


def names_text(names: Sequence[str]) -> str:
    """Return the patterns for a sentence; of many patterns the first few."""
    listed = ", ".join(repr(pattern) for pattern in names[:5])
    return listed if len(names) <= 5 else f"{listed} and {len(names) - 5} more"


def _expression(pattern: str) -> str:
    """Return the regular expression of a pattern. Each star takes the shortest text that the next piece follows, and
    keeps its choice: a longer choice could only make the rest shorter.
    """
    first, *pieces = (re.escape(piece) for piece in pattern.split("*"))
    if not pieces:
        return first
    *middle, last = pieces
    return first + "".join(f"(?>{_ANY}*?{piece})" for piece in middle if piece) + f"{_ANY}*{last}"
