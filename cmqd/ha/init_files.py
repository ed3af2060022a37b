"""The files that ``cmqd ha init`` writes, filled in from ``init_templates``.

In the templates each setting that a promise depends on has its reason beside it.
"""

import shutil
import sys
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

PRIVATE = 0o600
PUBLIC = 0o644
PROGRAM = 0o755


class Node(NamedTuple):
    """A PostgreSQL server with its manager."""

    name: str
    host: str
    port: int
    rest_port: int
    raft_port: int


class Broker(NamedTuple):
    """A broker of the pair."""

    name: str
    host: str
    port: int


class Plan(NamedTuple):
    """All that the files are made from."""

    folder: Path
    is_laptop: bool
    nodes: list[Node]
    brokers: list[Broker]
    etcd: list[str]
    programs: Path
    passwords: dict[str, str]

    @property
    def engine_url(self) -> str:
        """The URL of the brokers."""
        servers = ",".join(f"{node.host}:{node.port}" for node in self.nodes)
        return f"postgresql://cmqd:{self.passwords['cmqd']}@{servers}/cmqd"

    @property
    def context_file(self) -> Path:
        """The context file of both brokers on a laptop."""
        return self.folder / "admin.context.toml"


def _filled(template: str, **values: object) -> str:
    """Return a file of ``init_templates`` with its ``$names`` filled in."""
    return Template((files("cmqd.ha") / "init_templates" / template).read_text()).substitute(values)


def files_of(plan: Plan) -> dict[str, tuple[int, str]]:
    """Return mode and text of each file by its name in the folder."""
    written = {f"patroni/{node.name}.yml": (PRIVATE, _patroni(plan, node)) for node in plan.nodes}
    written |= {f"brokers/{broker.name}.toml": (PRIVATE, _broker(plan, broker)) for broker in plan.brokers}
    written["create-role"] = (0o700, _filled("create-role", programs=plan.programs, password=plan.passwords["cmqd"]))
    if plan.is_laptop:
        written |= {name: (PROGRAM, _laptop_script(plan, name)) for name in ("run", "kill-leader", "kill-primary")}
    else:
        written["systemd/cmqd-postgresql.service"] = (PUBLIC, _filled("cmqd-postgresql.service"))
        written["systemd/cmqd.service"] = (PUBLIC, _filled("cmqd.service"))
    written["README.md"] = (PUBLIC, _readme(plan))
    return written


def _patroni(plan: Plan, node: Node) -> str:
    folder = plan.folder if plan.is_laptop else Path("/var/lib/cmqd-postgresql")
    hosts = sorted({other.host for other in plan.nodes} | {broker.host for broker in plan.brokers})
    if plan.etcd:
        store = "etcd3:\n  hosts: [" + ", ".join(f'"{host}"' for host in plan.etcd) + "]"
    else:
        partners = ", ".join(f'"{other.host}:{other.raft_port}"' for other in plan.nodes if other is not node)
        store = (
            f'raft:\n  data_dir: {folder}/raft-{node.name}\n  self_addr: "{node.host}:{node.raft_port}"\n'
            f"  partner_addrs: [{partners}]\n  password: {plan.passwords['patroni']}"
        )
    return _filled(
        "patroni.yml",
        name=node.name,
        host=node.host,
        port=node.port,
        rest_port=node.rest_port,
        store=store,
        data=folder / f"data-{node.name}",
        programs=plan.programs,
        create_role=plan.folder / "create-role" if plan.is_laptop else "/etc/cmqd/create-role",
        socket_folder=folder if plan.is_laptop else "/var/run/postgresql",
        watchdog="off" if plan.is_laptop else "automatic",
        access="\n".join(
            f"    - host {databases} {user} {host}/32 scram-sha-256"
            for host in hosts
            for databases, user in (("all", "all"), ("replication", "replicator"))
        ),
        memory="32MB" if plan.is_laptop else "512MB",
        **{f"{role}_password": password for role, password in plan.passwords.items()},
    )


def _broker(plan: Plan, broker: Broker) -> str:
    data = plan.folder / f"broker-{broker.name}" if plan.is_laptop else Path("/var/lib/cmqd")
    listen = f"{broker.host}:{broker.port}" if plan.is_laptop else f"0.0.0.0:{broker.port}"
    return _filled(
        "broker.toml",
        data=data,
        # On machines of their own each broker writes the file, with the same content, into its data folder.
        context=f'\ncontext_file = "{plan.context_file}"' if plan.is_laptop else "",
        listen=listen,
        advertise=f"{broker.host}:{broker.port}",
        engine_url=plan.engine_url,
    )


def _laptop_script(plan: Plan, name: str) -> str:
    programs = Path(sys.executable).parent
    patroni = shutil.which("patroni") or (programs / "patroni")
    return _filled(
        name,
        folder=plan.folder,
        patroni=patroni,
        cmqd=shutil.which("cmqd") or (programs / "cmqd"),
        nodes=" ".join(node.name for node in plan.nodes),
        brokers=" ".join(broker.name for broker in plan.brokers),
    )


def _readme(plan: Plan) -> str:
    addresses = ",".join(f"{broker.host}:{broker.port}" for broker in plan.brokers)
    if plan.is_laptop:
        return _filled("README-laptop.md", folder=plan.folder, addresses=addresses, context_file=plan.context_file)
    machines = "\n".join(
        f"| {node.host} | `patroni/{node.name}.yml` |"
        f" {'`brokers/' + plan.brokers[number].name + '.toml`' if number < len(plan.brokers) else '(none)'} |"
        for number, node in enumerate(plan.nodes)
    )
    store = "etcd" if plan.etcd else "Patroni's own Raft (deprecated by Patroni: prefer `--etcd` in production)"
    return _filled("README-machines.md", machines=machines, addresses=addresses, store=store, programs=plan.programs)
