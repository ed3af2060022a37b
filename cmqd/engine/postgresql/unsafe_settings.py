"""Settings of a PostgreSQL server that endanger a log on the server, for a check of a cluster by its administrator.

A commit of the broker checks ``synchronous_standby_names``, because the value changes while servers run. No commit
checks the other settings.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cmqd.engine.database import ONE_NAMED_STANDBY

READ_SETTINGS: Final = (
    "data_checksums",
    "fsync",
    "full_page_writes",
    "max_slot_wal_keep_size",
    "synchronous_commit",
    "synchronous_standby_names",
)
"""Names of the settings that ``find_unsafe`` reads."""


class UnsafeSetting(NamedTuple):
    """A setting that endangers the log, or a setting with a safer value."""

    name: str
    value: str
    reason: str
    cure: str
    """What an administrator does about it."""
    is_refused: bool = True
    """False: a warning; this setting alone loses no answered request."""


def find_unsafe(settings: Mapping[str, str], slots: Sequence[str], *, is_primary: bool = True) -> list[UnsafeSetting]:
    """Return the unsafe settings of a server.

    Args:
        settings: values by name, as ``pg_settings`` has them; all of ``READ_SETTINGS``.
        slots: names of the replication slots.
        is_primary: False: the names of a standby's own standbys are left out, which hold from its promotion on.
    """
    findings: list[UnsafeSetting] = []
    names = settings["synchronous_standby_names"]
    if is_primary and re.match(ONE_NAMED_STANDBY, names, re.IGNORECASE) is None:
        cure = "name the one standby that will be promoted: FIRST 1 (NAME), or synchronous_mode: true in Patroni"
        findings.append(UnsafeSetting("synchronous_standby_names", names, _names_reason(names), cure))
    for name, reason in _MUST_BE_ON.items():
        if settings[name] != "on":
            findings.append(UnsafeSetting(name, settings[name], reason, f"set {name} = on"))
    if settings["synchronous_commit"] not in ("on", "remote_apply"):
        reason = "other programs that write to this server, as a restore does, do not wait for the standby"
        value, cure = settings["synchronous_commit"], "set synchronous_commit = on"
        findings.append(UnsafeSetting("synchronous_commit", value, reason, cure, is_refused=False))
    if slots and settings["max_slot_wal_keep_size"] == "-1":
        reason = f"the log kept for a standby that is gone fills the disk of the primary (slots: {', '.join(slots)})"
        cure = "set max_slot_wal_keep_size to a size that the disk has, such as 4GB"
        findings.append(UnsafeSetting("max_slot_wal_keep_size", "-1", reason, cure))
    if settings["data_checksums"] != "on":
        value, reason = settings["data_checksums"], "damage of the disk is not noticed"
        cure = "stop the server and run pg_checksums --enable; new servers: initdb --data-checksums"
        findings.append(UnsafeSetting("data_checksums", value, reason, cure, is_refused=False))
    return findings


_MUST_BE_ON: Final = {
    "fsync": "a loss of power takes back answered requests",
    "full_page_writes": "a loss of power during a write can damage the table beyond repair",
}


def _names_reason(names: str) -> str:
    if not names.strip():
        return "a commit waits for no standby: there is one copy"
    if "*" in names:
        return "any stream counts as a standby, such as a base backup; a promotion loses commits that only it received"
    if re.match(r"\s*ANY\b", names, re.IGNORECASE):
        return "after a promotion an old primary that hangs goes on with another standby, and its commits are lost"
    return "commits count that the standby to be promoted may not have; name exactly one, as in FIRST 1 (n2)"
