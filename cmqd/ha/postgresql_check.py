"""``cmqd ha check``: refuse the settings of PostgreSQL that can lose answered requests, and say why."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from cmqd.engine.database import ConnectionLost
from cmqd.engine.postgresql.added_columns import STANDING_PINS
from cmqd.engine.postgresql.servers import PostgresDatabase
from cmqd.engine.postgresql.session import PostgresSession
from cmqd.engine.postgresql.stamps import STAMPS
from cmqd.engine.postgresql.unsafe_settings import UnsafeSetting
from cmqd.exit_codes import ExitCode
from cmqd.ha.log_state import LOOK_SECONDS, LogState, NoState, read_state
from cmqd.ha.output import Output
from cmqd.ha.status import lines_of
from cmqd_sockets.listening import is_loopback

NO_FENCE = UnsafeSetting(
    "cmqd_rows",
    "without PRIMARY KEY (shard, lsn)",
    "the primary key is what keeps two brokers from writing the same row: two could lead",
    "restore the table from a server that has the key; do not create it over rows that were written without",
)
NO_STAMPS = UnsafeSetting(
    "cmqd_rows",
    f"without the column {STAMPS.name}",
    "if both brokers stop, that time does not count afterwards: delays and leases end later",
    f"as the owner of the table: {STAMPS.statement}",
    is_refused=False,
)
NO_STANDING_PINS = UnsafeSetting(
    STANDING_PINS.table,
    f"without the column {STANDING_PINS.name}",
    "backups at an interval are refused: the next leader would not keep the rows for them",
    f"as the owner of the table: {STANDING_PINS.statement}",
    is_refused=False,
)


GATEWAY_NOTE: Final = (
    "a gateway of 'cmqd serve --http' follows to a broker on another machine only if all brokers have tls_certificate:"
    " a broker gives the secrets of keys over TLS and loopback alone"
)


def check(
    database: PostgresDatabase,
    shard: int,
    output: Output,
    *,
    one_address: bool = False,
    monotonic: Callable[[], float] = time.monotonic,
) -> ExitCode:
    """Print the unsafe settings of every server, the log and its leader; NOT_SAFE if a setting is refused.

    Args:
        database: the servers of the URL.
        shard: number of the shard.
        output: takes the result.
        one_address: the address of the URL follows the primary, so that the URL need not name its standby.
        monotonic: a clock in seconds.
    """
    deadline = monotonic() + LOOK_SECONDS
    sessions = database.servers(lambda _timeline: monotonic() < deadline)
    seen = _survey(sessions)
    findings, roles, problems, lock_holder = seen.findings, seen.roles, seen.problems, seen.lock_holder
    problems += [f"{server} cannot be examined: {reason}" for server, reason in database.unreached.items()]
    primaries = [name for name, role in roles.items() if role.startswith("primary")]
    if len(primaries) > 1:
        problems.append(f"more than one server takes writes: {', '.join(primaries)}; the newest timeline counts")
    if not one_address and not database.unreached:
        problems += _missing_standby(seen.named_standby, seen.standbys)
    state = None
    try:
        state = read_state(database, monotonic)
        if state.waiting_for:
            problems.append(f"commits wait for {state.waiting_for}")
    except NoState as reason:
        if primaries:
            problems.append(str(reason))
        else:
            # The reasons of the servers are above.
            problems.append("no server takes writes")
    ok = not problems and not any(finding.is_refused for listed in findings.values() for finding in listed)
    output.document(
        {
            "ok": ok,
            "shard": shard,
            "log": None if state is None else state.as_table(),
            "lock_holder": lock_holder or None,
            "servers": seen.as_table(),
            "problems": problems,
        }
    )
    seen.print_findings(output)
    for line in [] if state is None else lines_of(state, shard):
        output.line(line)
    output.line(f"lock        {lock_holder or 'held by no session'}")
    if state is not None and _is_on_several_machines(state):
        output.line(f"note        {GATEWAY_NOTE}")
    for problem in problems:
        output.line(f"PROBLEM: {problem}")
    output.line("safe: an answered request is on two machines" if ok else "NOT SAFE: see above")
    return ExitCode.OK if ok else ExitCode.NOT_SAFE


@dataclass
class _Survey:
    """The servers that answered, and the problems of the others."""

    findings: dict[str, list[UnsafeSetting]] = field(default_factory=dict[str, list[UnsafeSetting]])
    roles: dict[str, str] = field(default_factory=dict[str, str])
    standbys: dict[str, str] = field(default_factory=dict[str, str])
    """Names under which standbys answer to their primary, by server."""
    problems: list[str] = field(default_factory=list[str])
    named_standby: str = ""
    """Setting of the primary with the newest timeline."""
    lock_holder: str = ""

    def as_table(self) -> list[dict[str, Any]]:
        """Return the servers with their roles and findings."""
        return [
            {"server": name, "role": self.roles[name], "findings": [_table(finding) for finding in listed]}
            for name, listed in self.findings.items()
        ]

    def print_findings(self, output: Output) -> None:
        """Print the servers with their findings and the cures."""
        for name, listed in self.findings.items():
            output.line(f"server      {name} ({self.roles[name]}): {'safe' if not listed else ''}".rstrip())
            for finding in listed:
                kind = "UNSAFE " if finding.is_refused else "warning"
                output.line(f"  {kind} {finding.name} = {finding.value!r}: {finding.reason}")
                output.line(f"          cure: {finding.cure}")


def _survey(sessions: Iterable[PostgresSession]) -> _Survey:
    """Examine each server; close its session."""
    seen = _Survey()
    timeline = 0
    for session in sessions:
        try:
            if not session.is_primary:
                seen.standbys[session.server] = session.own_name()
            elif session.timeline > timeline:
                found = session.timeline, session.named_standby(), session.lock_holder()
                timeline, seen.named_standby, seen.lock_holder = found
            seen.findings[session.server] = _findings(session)
            role = f"primary, timeline {session.timeline}" if session.is_primary else "standby"
            seen.roles[session.server] = role
        except ConnectionLost as error:
            seen.problems.append(f"{session.server} did not answer: {error}")
        finally:
            session.close()
    return seen


def _is_on_several_machines(state: LogState) -> bool:
    """Return True if the brokers of the log have addresses that other machines can use."""
    return any(not is_loopback(address.rpartition(":")[0].strip("[]")) for address in state.addresses)


def _findings(session: PostgresSession) -> list[UnsafeSetting]:
    findings = session.unsafe_settings()
    if session.lacks_stamps():
        findings.append(NO_STAMPS)
    if session.lacks_standing_pins():
        findings.append(NO_STANDING_PINS)
    return findings if session.has_fence() else [NO_FENCE, *findings]


def _missing_standby(named: str, standbys: dict[str, str]) -> list[str]:
    """Return the problem of a URL that lacks the standby which will be promoted: no broker would find it then.

    Args:
        named: name of the standby, by the primary; empty without a primary, and if the names are not safe, which is a
            finding of its own.
        standbys: names of the standbys of the URL by server; empty names may not be read.
    """
    names = standbys.values()
    if not named or named.lower() in (name.lower() for name in names) or (standbys and not all(names)):
        return []
    known = f"its standbys are {', '.join(sorted(names))}" if standbys else "it names the primary alone"
    return [
        f"engine_url lacks {named}, the standby that will be promoted ({known}): add its address, or give --one-address"
        " if the address of the URL follows the primary"
    ]


def _table(finding: UnsafeSetting) -> dict[str, Any]:
    return finding._asdict()
