"""The files that ``cmqd ha init`` writes, as text. Each setting that a promise depends on has its reason beside it."""

import shutil
import sys
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


def files_of(plan: Plan) -> dict[str, tuple[int, str]]:
    """Return mode and text of each file by its name in the folder."""
    files = {f"patroni/{node.name}.yml": (PRIVATE, _patroni(plan, node)) for node in plan.nodes}
    files |= {f"brokers/{broker.name}.toml": (PRIVATE, _broker(plan, broker)) for broker in plan.brokers}
    files["create-role"] = (0o700, _CREATE_ROLE.substitute(programs=plan.programs, password=plan.passwords["cmqd"]))
    if plan.is_laptop:
        files |= {name: (PROGRAM, _laptop_script(plan, script)) for name, script in _LAPTOP_SCRIPTS.items()}
    else:
        files["systemd/cmqd-postgresql.service"] = (PUBLIC, _POSTGRESQL_UNIT)
        files["systemd/cmqd.service"] = (PUBLIC, _BROKER_UNIT)
    files["README.md"] = (PUBLIC, _readme(plan))
    return files


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
    return _PATRONI.substitute(
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
    return _BROKER.substitute(
        data=data,
        # On machines of their own each broker writes the file, with the same content, into its data folder.
        context=f'\ncontext_file = "{plan.context_file}"' if plan.is_laptop else "",
        listen=listen,
        advertise=f"{broker.host}:{broker.port}",
        engine_url=plan.engine_url,
    )


def _laptop_script(plan: Plan, script: Template) -> str:
    programs = Path(sys.executable).parent
    patroni = shutil.which("patroni") or (programs / "patroni")
    return script.substitute(
        folder=plan.folder,
        patroni=patroni,
        cmqd=shutil.which("cmqd") or (programs / "cmqd"),
        nodes=" ".join(node.name for node in plan.nodes),
        brokers=" ".join(broker.name for broker in plan.brokers),
    )


def _readme(plan: Plan) -> str:
    addresses = ",".join(f"{broker.host}:{broker.port}" for broker in plan.brokers)
    if plan.is_laptop:
        return _LAPTOP_README.substitute(folder=plan.folder, addresses=addresses, context_file=plan.context_file)
    machines = "\n".join(
        f"| {node.host} | `patroni/{node.name}.yml` |"
        f" {'`brokers/' + plan.brokers[number].name + '.toml`' if number < len(plan.brokers) else '(none)'} |"
        for number, node in enumerate(plan.nodes)
    )
    store = "etcd" if plan.etcd else "Patroni's own Raft (deprecated by Patroni: prefer `--etcd` in production)"
    return _MACHINES_README.substitute(machines=machines, addresses=addresses, store=store, programs=plan.programs)


_PATRONI = Template("""# Written by cmqd ha init. Holds passwords: mode 0600, owner the user that runs PostgreSQL.
scope: cmqd
name: $name
$store
restapi:
  listen: "$host:$rest_port"
  connect_address: "$host:$rest_port"
  authentication: {username: patroni, password: $patroni_password}
bootstrap:
  dcs:
    # A silent machine is left after ttl seconds; 20 is Patroni's least.
    ttl: 20
    loop_wait: 2
    retry_timeout: 5
    # A crashed primary is not waited for: its standby has every answered row.
    primary_start_timeout: 0
    # The one named standby, and never ANY (synchronous_mode: quorum): only the server whose flush counts is promoted.
    synchronous_mode: true
    synchronous_node_count: 1
    # Without a standby commits wait; without "strict" they would be answered from one copy.
    synchronous_mode_strict: true
    postgresql:
      use_pg_rewind: true
      remove_data_directory_on_rewind_failure: true
      remove_data_directory_on_diverged_timelines: true
      use_slots: true
      parameters:
        fsync: "on"
        full_page_writes: "on"
        synchronous_commit: "on"
        wal_level: replica
        hot_standby: "on"
        max_connections: 50
        max_wal_senders: 10
        wal_keep_size: 256MB
        # A standby that is gone must not fill the disk of the primary; it is copied anew.
        max_slot_wal_keep_size: 4GB
        # A silent machine is noticed in seconds, on both ends.
        wal_receiver_timeout: 5s
        wal_sender_timeout: 5s
        wal_retrieve_retry_interval: 500ms
        tcp_keepalives_idle: 2
        tcp_keepalives_interval: 1
        tcp_keepalives_count: 3
        tcp_user_timeout: 4000
        password_encryption: scram-sha-256
        shared_buffers: $memory
  initdb:
    - encoding: UTF8
    - no-locale
    - data-checksums
  post_bootstrap: $create_role
postgresql:
  listen: "$host:$port"
  connect_address: "$host:$port"
  data_dir: $data
  bin_dir: $programs
  # A new standby does not wait for the end of a spread checkpoint, which takes minutes.
  create_replica_methods: [basebackup]
  basebackup:
    checkpoint: fast
  parameters:
    unix_socket_directories: $socket_folder
  pg_hba:
    - local all all scram-sha-256
$access
  authentication:
    superuser: {username: postgres, password: $postgres_password}
    replication: {username: replicator, password: $replicator_password}
    rewind: {username: rewind, password: $rewind_password}
watchdog:
  mode: "$watchdog"
tags:
  nofailover: false
  nosync: false
""")

_CREATE_ROLE = Template("""#!/bin/sh
# Called by Patroni once, with the URL of the new primary: the role and the database of the brokers.
# synchronous_commit=local: no standby exists yet that could confirm.
export PGOPTIONS="-c synchronous_commit=local"
exec "$programs/psql" -v ON_ERROR_STOP=1 -q "$$1" <<'SQL'
CREATE ROLE cmqd LOGIN PASSWORD '$password';
GRANT pg_monitor TO cmqd;
CREATE DATABASE cmqd OWNER cmqd;
SQL
""")

_BROKER = Template("""# Written by cmqd ha init. Holds a password: mode 0600, owner the user that runs the broker.
[broker]
data = "$data"$context
redundancy = "postgresql"
engine_url = "$engine_url"

[network]
listen = "$listen"
advertise = "$advertise"
""")

_RUN = Template("""#!/bin/bash
# Runs the servers and the brokers of this folder until Ctrl-C, and starts each again when it ends, as systemd does.
# The logs are in logs/; the process ids in pids/.
set -u
cd "$folder" || exit 1
mkdir -p logs pids
keep() { # NAME COMMAND...: starts the command again and again
  local name=$$1 child=""; shift
  trap '[ -z "$$child" ] || kill "$$child" 2>/dev/null; wait; exit 0' TERM INT
  while :; do
    "$$@" >>"logs/$$name.log" 2>&1 & child=$$!
    echo "$$child" >"pids/$$name"
    wait "$$child"
    sleep 1 & wait $$!
  done
}
loops=()
for node in $nodes; do keep "$$node" "$patroni" "patroni/$$node.yml" & loops+=($$!); done
for broker in $brokers; do keep "broker-$$broker" "$cmqd" serve --config "brokers/$$broker.toml" & loops+=($$!); done
trap 'kill "$${loops[@]}" 2>/dev/null; wait; exit 0' TERM INT
echo "three copies of a log and two brokers start; logs in $folder/logs; Ctrl-C ends all"
wait
""")

_KILL_LEADER = Template("""#!/bin/bash
# kill -9 to the broker that leads.
pid=$$("$cmqd" ha status --json --config "$folder/brokers/a.toml" | sed -n 's/.*"process": "\\([0-9]*\\)@.*/\\1/p')
[ -n "$$pid" ] && echo "kill -9 $$pid" && kill -9 "$$pid"
""")

_KILL_PRIMARY = Template("""#!/bin/bash
# kill -9 to the PostgreSQL server that takes writes.
port=$$("$cmqd" ha status --json --config "$folder/brokers/a.toml" | sed -n 's/.*"server": ".*:\\([0-9]*\\)".*/\\1/p')
for file in "$folder"/data-*/postmaster.pid; do
  [ "$$(sed -n 4p "$$file")" = "$$port" ] && pid=$$(head -1 "$$file") && echo "kill -9 $$pid" && kill -9 "$$pid"
done
""")

_LAPTOP_SCRIPTS = {"run": _RUN, "kill-leader": _KILL_LEADER, "kill-primary": _KILL_PRIMARY}

_POSTGRESQL_UNIT = """# A PostgreSQL server under Patroni: /etc/systemd/system/cmqd-postgresql.service
[Unit]
Description=PostgreSQL of cmqd, under Patroni
After=network-online.target
Wants=network-online.target

[Service]
User=postgres
Group=postgres
StateDirectory=cmqd-postgresql
StateDirectoryMode=0700
ExecStart=/opt/cmqd/bin/patroni /etc/cmqd/patroni.yml
ExecReload=/bin/kill -HUP $MAINPID
# PostgreSQL outlives a restart of its manager.
KillMode=process
TimeoutStopSec=60
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""

_BROKER_UNIT = """# A broker of the pair: /etc/systemd/system/cmqd.service
[Unit]
Description=cmqd
After=network-online.target
Wants=network-online.target
# It may end and start again as often as PostgreSQL changes.
StartLimitIntervalSec=0

[Service]
# The broker tells systemd when it listens, as a standby too, and asks for more time while it copies rows.
Type=notify
# Ends a broker whose loop stands still, and which would keep the lead and answer nothing. A silent PostgreSQL and a
# hanging disk do not stop the loop.
WatchdogSec=20
User=cmqd
Group=cmqd
StateDirectory=cmqd
StateDirectoryMode=0700
ExecStart=/opt/cmqd/bin/cmqd serve --config /etc/cmqd/cmqd.toml
ExecReload=/bin/kill -HUP $MAINPID
# Also after exit code 0, the end of a handover, and 7, another broker leads: it is the standby then.
Restart=always
RestartSec=1
TimeoutStopSec=60
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""

_LAPTOP_README = Template("""# A pair of brokers over three PostgreSQL servers, on one machine

    $folder/run                                       # all of it, until Ctrl-C (not as root: PostgreSQL refuses)
    cmqd ha check --config $folder/brokers/a.toml     # safe? a first start takes some 15 s
    cmqd ha status --config $folder/brokers/a.toml    # leader, standby, copies

Both brokers write address and key of the administrator into one file, with both addresses:

    export CMQ_CONTEXT_FILE=$context_file
    cmq queue create orders
    cmq send orders 'first'

Programs name both brokers too: `cmq://ID:KEY@$addresses`.

Break it, while a client sends; `cmq` waits for the takeover, and says so:

    $folder/kill-leader        # kill -9 to the broker that leads: the other one leads within a second
    $folder/kill-primary       # kill -9 to the PostgreSQL that takes writes: the named standby is promoted
    cmqd ha handover --config $folder/brokers/a.toml    # in order; the file of the broker that leads

On one machine this shows how it works; it survives the loss of no machine.
""")

_MACHINES_README = Template("""# A pair of brokers over PostgreSQL servers, one on each machine

| machine | /etc/cmqd/patroni.yml | /etc/cmqd/cmqd.toml |
| --- | --- | --- |
$machines

1. On each machine: PostgreSQL with its programs in `$programs` (Debian: `apt install postgresql`, and disable its own
   cluster), a user `postgres`, and `python3 -m venv /opt/cmqd` with
   `/opt/cmqd/bin/pip install 'cmqd[server,ha]' 'patroni[raft,etcd3,psycopg3]'`. A user `cmqd` where a broker runs.
2. Copy the machine's `patroni/*.yml` to `/etc/cmqd/patroni.yml` and `create-role` to `/etc/cmqd/create-role`, owner
   `postgres`, and `systemd/cmqd-postgresql.service` to `/etc/systemd/system`. The managers agree by $store.
3. `systemctl daemon-reload && systemctl enable --now cmqd-postgresql` on all machines: the first that starts is the
   primary, the next one its named standby.
4. On machines with a broker: its file of `brokers/` to `/etc/cmqd/cmqd.toml`, owner `cmqd`, mode 0600, and
   `systemd/cmqd.service`. Before the start: `cmqd ha check --config /etc/cmqd/cmqd.toml` must say "safe".
   `systemctl enable --now cmqd`.
5. The key of the administrator, with both addresses, is in `/var/lib/cmqd/admin.context.toml` of each of the two.
   Clients: `cmq://ID:KEY@$addresses`. TLS is not in these files: for clients see `tls_certificate`, for PostgreSQL
   `sslmode` in `engine_url`.
6. Delete this folder: it has all passwords.

Keep the clocks of the machines in step (NTP). Never edit `synchronous_standby_names`: Patroni sets it, and commits wait
while it names anything but one standby. Upgrade one broker at a time:
`cmqd ha handover --config /etc/cmqd/cmqd.toml`, then the other one.
""")
