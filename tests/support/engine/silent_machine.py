"""A leader whose machine goes silent, for a program in a network namespace of its own, as root:

    unshare -n python -m support.engine.silent_machine

Prints the figures as JSON. The leader runs in a second namespace; its standby, the servers and the callers are here.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from cmqd_bench.machine.broker import Broker
from cmqd_bench.redundancy.callers import Callers
from support.eventually import eventually
from support.postgresql.installation import Installation, find_programs
from support.postgresql.servers import PostgresCluster
from support.processes.network_namespace import ITS_ADDRESS, OUR_ADDRESS, OtherMachine
from support.processes.silent_port import reserve_port

_PATIENCE_SECONDS = 60.0
_HERE = "127.0.0.1"


async def measure(cluster: PostgresCluster, machine: OtherMachine, folder: Path) -> dict[str, float | int | None]:
    """Pull the cable of the leader's machine, and plug it again once the standby leads."""

    def broker(name: str, server_address: str, port: int) -> Broker:
        (folder / name).mkdir()
        servers = ",".join(f"{server_address}:{server.port}" for server in cluster.servers.values())
        made = Broker(folder / name, port=port)
        made.flags = ["--redundancy", "postgresql", "--engine-url", f"postgresql://cmqd@{servers}/postgres"]
        return made

    reserved = reserve_port()
    port: int = reserved.getsockname()[1]
    leader, standby = broker("leader", OUR_ADDRESS, 0), broker("standby", _HERE, port)
    leader.python = machine.write_interpreter(sys.executable, folder / "python")
    leader.flags += ["--listen", f"{ITS_ADDRESS}:0"]
    try:
        ready = await leader.start()
        standby.launch()
        await eventually(lambda: "standby  " in standby.log_file.read_text())
        url = f"{ready.url},{_HERE}:{port}"
        async with Callers(url) as default, Callers(url, _PATIENCE_SECONDS) as patient:
            for callers in (default, patient):
                await callers.wait_for_calls_after(time.monotonic())
            silent = time.monotonic()
            machine.pull_cable()
            await eventually(standby.poll_ready)
            leads = time.monotonic()
            for callers in (default, patient):
                await callers.wait_for_calls_after(leads)
            machine.plug_cable()
            return {
                "leads_after": leads - silent,
                "longest_call": default.longest_since(silent),
                "longest_call_with_patience": patient.longest_since(silent),
                "errors": default.errors_since(silent),
                "errors_with_patience": patient.errors_since(silent),
                "exit_code_of_old_leader": await asyncio.to_thread(leader.wait),
            }
    finally:
        leader.kill()
        standby.kill()
        reserved.close()


def main() -> None:
    programs = find_programs()
    assert programs is not None, "this machine has no PostgreSQL"
    with OtherMachine() as machine, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # The servers are another user's.
        folder.chmod(0o755)
        (folder / "installation").mkdir()
        with PostgresCluster(Installation(programs, folder / "installation", OUR_ADDRESS)) as cluster:
            print(json.dumps(asyncio.run(measure(cluster, machine, folder))))


if __name__ == "__main__":
    main()
