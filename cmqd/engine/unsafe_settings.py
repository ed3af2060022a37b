"""Settings of a PostgreSQL server with which a log in it is not safe, as ``cmqd ha check`` tells them.

A broker itself looks at ``synchronous_standby_names`` in each commit, because the value changes while servers run. The
other settings are an administrator's, and are looked at when asked.
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
    """A setting with which the log is not safe, or less safe than it could be."""

    name: str
    value: str
    reason: str
    is_refused: bool = True
    """False: a warning, nothing that was answered can be lost by this setting alone."""


def find_unsafe(settings: Mapping[str, str], slots: Sequence[str]) -> list[UnsafeSetting]:
    """Return the unsafe settings of a primary.

    Args:
        settings: values by name, as ``pg_settings`` has them; all of ``READ_SETTINGS``.
        slots: names of the replication slots.
    """
    findings: list[UnsafeSetting] = []
    names = settings["synchronous_standby_names"]
    if re.match(ONE_NAMED_STANDBY, names, re.IGNORECASE) is None:
        findings.append(UnsafeSetting("synchronous_standby_names", names, _names_reason(names)))
    for name, reason in _MUST_BE_ON.items():
        if settings[name] != "on":
            findings.append(UnsafeSetting(name, settings[name], reason))
    if settings["synchronous_commit"] not in ("on", "remote_apply"):
        reason = "other programs that write to this server, as a restore does, do not wait for the standby"
        findings.append(UnsafeSetting("synchronous_commit", settings["synchronous_commit"], reason, is_refused=False))
    if slots and settings["max_slot_wal_keep_size"] == "-1":
        reason = f"the log kept for a standby that is gone fills the disk of the primary (slots: {', '.join(slots)})"
        findings.append(UnsafeSetting("max_slot_wal_keep_size", "-1", reason))
    if settings["data_checksums"] != "on":
        reason = "damage of the disk is not noticed (initdb --data-checksums, or pg_checksums --enable)"
        findings.append(UnsafeSetting("data_checksums", settings["data_checksums"], reason, is_refused=False))
    return findings


_MUST_BE_ON: Final = {
    "fsync": "a loss of power takes back what was answered",
    "full_page_writes": "a loss of power during a write can damage the table beyond repair",
}


def _names_reason(names: str) -> str:
    if not names.strip():
        return "a commit waits for no standby: there is one copy"
    if "*" in names:
        return "any stream counts as a standby, a base backup for example, and a promotion loses what another one had"
    if re.match(r"\s*ANY\b", names, re.IGNORECASE):
        return "after a promotion an old primary that hangs goes on with another standby, and its commits are lost"
    return "commits count that the standby to be promoted may not have; name exactly one, as in FIRST 1 (n2)"
