"""The two settings of a server by which every commit waits for a named standby, as a condition and as a comparison."""

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from cmqd.engine.database import ONE_NAMED_STANDBY
from cmqd.engine.postgresql.binary_values import value_of

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_NAMES: Final = re.compile(ONE_NAMED_STANDBY, re.IGNORECASE)
_WAIT_FOR_STANDBY: Final = (b"on", b"remote_apply")
IS_SAFE: Final = (
    f"current_setting('synchronous_standby_names') ~* '{ONE_NAMED_STANDBY}'"
    " AND current_setting('synchronous_commit') IN ('on', 'remote_apply')"
)
NAMED_STANDBY: Final = rf"""
    btrim(regexp_replace(current_setting('synchronous_standby_names'), '{ONE_NAMED_STANDBY}', '\3', 'i'), '"')
"""
"""The name itself, of a value that is safe."""
LOOK_BEHIND: Final = b"SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')"
"""Compared here: a comparison by the server would cost the server more than the rest of this statement."""


def is_safe(look: "PGresult") -> bool:
    """Compare the settings of ``LOOK_BEHIND`` as ``IS_SAFE`` does."""
    return value_of(look, 0, 1) in _WAIT_FOR_STANDBY and _is_one_standby(value_of(look, 0, 0))


@lru_cache(maxsize=16)
def _is_one_standby(names: bytes) -> bool:
    """Compare ``synchronous_standby_names``. Behind each commit comes the value that was behind the commit before."""
    return _NAMES.match(names.decode(errors="replace")) is not None
