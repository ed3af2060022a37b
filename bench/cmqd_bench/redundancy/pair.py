"""Two brokers over three PostgreSQL servers, made by the tests' ``tests/support/postgresql``."""

import json
import socket
import sys
import tempfile
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import uvloop

from cmqd_bench.commands.plans import OnDisk
from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.conditions import ConditionsError, conditions, scratch_root

_TESTS = Path(__file__).resolve().parents[3] / "tests"
sys.path.append(str(_TESTS))

from support.eventually import eventually  # noqa: E402
from support.mixed_faults.roles import Roles  # noqa: E402
from support.postgresql.installation import Installation, find_programs  # noqa: E402
from support.postgresql.servers import PostgresCluster  # noqa: E402
from support.processes.silent_port import reserve_port  # noqa: E402

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


class Pair:
    """The brokers; ``leader`` answers, ``standby`` follows the leader."""

    def __init__(self, cluster: PostgresCluster, folder: Path) -> None:
        self._reserved = [reserve_port() for _ in range(2)]
        self._ports = [reserved.getsockname()[1] for reserved in self._reserved]
        brokers: list[Broker] = []
        for name, port in zip("ab", self._ports, strict=True):
            (folder / name).mkdir()
            broker = Broker(folder / name, port=port)
            broker.flags = ["--redundancy", "postgresql", "--engine-url", cluster.url(name)]
            brokers.append(broker)
        self.leader, self.standby = brokers
        self.cluster = cluster
        self.roles = Roles(cluster)

    @property
    def url(self) -> str:
        """URL of both brokers, for clients."""
        credentials = self.leader.ready.url.rpartition("@")[0]
        return f"{credentials}@{','.join(f'127.0.0.1:{port}' for port in self._ports)}"

    async def start(self, *, with_standby: bool) -> None:
        """Start the leader, and the standby if there is to be one."""
        await self.leader.start()
        if with_standby:
            await self.start_standby()

    async def start_standby(self) -> None:
        """Start the standby, and wait for its first refusal of a client: the standby then follows the leader."""
        self.standby.launch()
        port = self._ports[0] if self.standby.folder.name == "a" else self._ports[1]
        await eventually(lambda: _listens(port))

    async def wait_for_takeover(self) -> None:
        """Wait until the standby leads; the brokers change their roles."""
        await eventually(self.standby.poll_ready)
        self.leader, self.standby = self.standby, self.leader

    def close(self) -> None:
        """End both brokers."""
        self.leader.kill()
        self.standby.kill()
        for reserved in self._reserved:
            reserved.close()


@contextmanager
def pair_of_brokers(folder: Path) -> Generator[Pair]:
    """Start the servers, and end servers and brokers afterwards.

    Raises:
        ConditionsError: this machine has no PostgreSQL.
    """
    programs = find_programs()
    if programs is None:
        raise ConditionsError("this machine has no PostgreSQL; make setup-postgresql installs one")
    (folder / "installation").mkdir()
    # If this process is root's, the servers belong to a different user.
    folder.chmod(0o755)
    with PostgresCluster(Installation(programs, folder / "installation")) as cluster:
        pair = Pair(cluster, folder)
        try:
            yield pair
        finally:
            pair.close()


def print_measured(
    plan: OnDisk,
    measure: Callable[[Pair, Path], Coroutine[None, None, list[T]]],
    name: str,
    show: Callable[[list[T]], None],
) -> None:
    """Measure over a new pair, and print the conditions and the rows: as JSON under ``name``, or by ``show``."""
    root = scratch_root(plan.scratch)
    facts = conditions(root)
    with tempfile.TemporaryDirectory(dir=root) as folder, pair_of_brokers(Path(folder)) as pair:
        rows = uvloop.run(measure(pair, Path(folder)))
    if plan.json:
        print(json.dumps({"conditions": facts, name: [asdict(row) for row in rows]}))
        return
    print(", ".join(f"{fact}: {value}" for fact, value in facts.items()))
    show(rows)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
