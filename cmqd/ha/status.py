"""``cmqd ha status``: the leader, the newest row and the standbys of a log."""

from cmqd.engine.database import Database
from cmqd.exit_codes import ExitCode
from cmqd.ha.log_state import LogState, NoState, read_state
from cmqd.ha.output import Output
from cmqd.log.values import BrokerSeen


def status(database: Database, shard: int, output: Output) -> ExitCode:
    """Print the state of a shard's log; NOT_SAFE if commits wait or no broker leads or follows."""
    try:
        state = read_state(database)
    except NoState as reason:
        output.refuse(str(reason), shard=shard)
        return ExitCode.NOT_SAFE
    problems = problems_of(state)
    output.document({"ok": not problems, "shard": shard, **state.as_table(), "problems": problems})
    for line in lines_of(state, shard):
        output.line(line)
    for problem in problems:
        output.line(f"PROBLEM: {problem}")
    return ExitCode.NOT_SAFE if problems else ExitCode.OK


def problems_of(state: LogState) -> list[str]:
    """Return the reasons why the log cannot be written, or would not survive the loss of a machine."""
    problems: list[str] = []
    if state.waiting_for:
        problems.append(f"commits wait for {state.waiting_for}")
    if state.is_retired:
        problems.append("the log is retired: it was exported to a data folder, and no broker leads it here")
        return problems
    if state.leader is None:
        problems.append("no broker leads")
    if not state.view.standbys:
        problems.append("no broker follows as standby")
    return problems


def lines_of(state: LogState, shard: int) -> list[str]:
    """Return the state as lines for people."""
    view, leader = state.view, state.leader
    lines = [
        f"shard       {shard}, log {state.log_id or '(none yet)'} on {state.server}",
        f"leader      {'none' if leader is None else f'{leader.address} (process {leader.process}{_clock(leader)})'},"
        f" epoch {view.epoch}, clients reach it at {', '.join(state.addresses) or '(not known)'}",
        f"rows        newest {view.newest_lsn}, checkpoint {state.checkpoint_lsn}",
    ]
    lines += [
        f"standby     {broker.address} (process {broker.process}{_clock(broker)}), {view.rows_behind(broker)} rows"
        " behind"
        for broker in view.standbys
    ]
    for copy in view.copies:
        role = "second copy" if copy.is_second else "copy       "
        lag = "lag not readable (GRANT pg_monitor)"
        if copy.bytes_behind is not None:
            lag = f"{copy.bytes_behind} bytes behind, {copy.ms_behind} ms at its last flush"
        lines.append(f"{role} {copy.name}, {lag}")
    return lines


def _clock(broker: BrokerSeen) -> str:
    """Return the offset of a broker's clock; empty of an older broker, which does not tell."""
    if broker.clock_offset_ms is None:
        return ""
    return f", clock {broker.clock_offset_ms / 1000:+.1f} s from the primary's"
