"""Two brokers of one shard: a supervisor starts each again after its end, and the load follows the broker that leads.

The load of a leader runs until that leader's processes have ended. A stopped leader keeps its connections and its
requests without an answer, beside the load of its successor: an answer of a leader that goes on is in the history too.
"""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cmqd.exit_codes import ExitCode
from support.crash.broker import BrokerFailedError, CrashingBroker, Ready, has_ended
from support.crash.link import SessionLostError
from support.crash.load import Worker, work_until_lost
from support.crash.promises.history import History
from support.crash.session import Session
from support.eventually import eventually
from support.postgresql.servers import PostgresCluster

_RECONNECT_SECONDS = 0.05


@dataclass(eq=False)
class SupervisedBroker:
    """A broker with its data folder; signals go to both of its processes."""

    name: str
    """The end of its links, and its role in the servers."""
    broker: CrashingBroker
    lives: int = 0
    """Number of starts."""
    is_leading: bool = False
    """The broker answered clients in this life."""
    may_run: asyncio.Event = field(default_factory=asyncio.Event)
    """A supervisor starts the broker only while this is set."""

    async def kill(self, *, with_folder: bool) -> None:
        """SIGKILL, and keep the broker down until ``may_run`` is set; its folder goes as with its machine."""
        self.may_run.clear()
        pids = self.broker.processes()
        self.signal(signal.SIGKILL)
        await eventually(lambda: all(map(has_ended, pids)))
        if with_folder and self.broker.data.exists():
            lost = self.broker.data.rename(self.broker.data.with_name(f"lost-{self.lives}"))
            await asyncio.to_thread(shutil.rmtree, lost)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to both processes."""
        for pid in self.broker.processes():
            os.kill(pid, number)


class Pair:
    """The brokers ``a`` and ``b`` over the servers of a cluster.

    Args:
        cluster: the servers.
        folder: gets a folder for each broker.
        flags: further flags of ``cmqd serve``.
        history: gets the requests of the load.
    """

    def __init__(self, cluster: PostgresCluster, folder: Path, flags: Sequence[str], history: History) -> None:
        self._history = history
        self._group = asyncio.TaskGroup()
        self._supervisors: list[asyncio.Task[None]] = []
        self._workers: Sequence[Worker] = ()
        self.brokers: list[SupervisedBroker] = []
        for name in ("a", "b"):
            (folder / name).mkdir()
            # A role of its own tells the sessions of a broker from all others.
            cluster.n1.ask(f"CREATE ROLE {name} SUPERUSER LOGIN")
            own = ("--redundancy", "postgresql", "--engine-url", cluster.url(name, role=name))
            self.brokers.append(SupervisedBroker(name, CrashingBroker(folder / name, flags=(*own, *flags))))
        self.leader: SupervisedBroker | None = None
        """The broker that came to lead last; None after its end."""
        self.epochs: dict[int, tuple[str, int]] = {}
        """Epochs that clients were told, with the broker and its life."""
        self.faults: list[str] = []
        """Ends of brokers that no fault explains, and epochs that two leaders told."""
        self.fenced = 0
        """Leaders that ended because another broker led."""
        self.leads = 0

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._supervisors += [self._group.create_task(self._supervise(broker)) for broker in self.brokers]
        return self

    async def __aexit__(self, *error: object) -> None:
        for supervisor in self._supervisors:
            supervisor.cancel()
        self._workers = ()
        for broker in self.brokers:
            broker.thaw()
            broker.signal(signal.SIGKILL)
        await self._group.__aexit__(*error)  # pyright: ignore[reportArgumentType]
        for broker in self.brokers:
            broker.broker.clean_up()

    # ------------------------------------------------------------------ roles

    def start(self) -> None:
        """Let both brokers run."""
        for broker in self.brokers:
            broker.may_run.set()

    async def wait_for_leader(self, *, other_than: SupervisedBroker | None = None) -> SupervisedBroker:
        """Wait until a broker, or the other broker, leads."""
        await eventually(lambda: self.leader not in {None, other_than})
        assert self.leader is not None
        return self.leader

    def standby_of(self, leader: SupervisedBroker) -> SupervisedBroker:
        """Return the other broker."""
        return next(broker for broker in self.brokers if broker is not leader)

    # ------------------------------------------------------------------ the load

    async def load(self, workers: Sequence[Worker]) -> None:
        """Start the load on the leader, and on each later leader."""
        self._workers = workers
        leader = await self.wait_for_leader()
        self._start_load(leader, leader.broker.ready)

    def unload(self) -> None:
        """Give the load no further leader; it ends with the present leader."""
        self._workers = ()

    def _start_load(self, broker: SupervisedBroker, ready: Ready) -> None:
        for worker in self._workers:
            self._group.create_task(self._work(worker, broker, broker.lives, ready.url))

    async def _work(self, worker: Worker, broker: SupervisedBroker, life: int, url: str) -> None:
        while broker.is_leading and broker.lives == life:
            await work_until_lost(url, self._history, [worker])
            await asyncio.sleep(_RECONNECT_SECONDS)

    # ------------------------------------------------------------------ supervision

    async def _supervise(self, supervised: SupervisedBroker) -> None:
        broker = supervised.broker
        while True:
            await supervised.may_run.wait()
            supervised.lives += 1
            broker.spawn()
            with suppress(BrokerFailedError):
                await eventually(broker.look)
                self._lead(supervised, broker.ready)
            await eventually(lambda: broker.exit_code is not None)
            supervised.is_leading = False
            if self.leader is supervised:
                self.leader = None
            self._judge_end(supervised)

    def _lead(self, supervised: SupervisedBroker, ready: Ready) -> None:
        self.leads += 1
        self._history.leads_ns.append(time.monotonic_ns())
        supervised.is_leading = True
        self.leader = supervised
        self._group.create_task(self._note_epoch(supervised, supervised.lives, ready.url))
        self._start_load(supervised, ready)

    async def _note_epoch(self, supervised: SupervisedBroker, life: int, url: str) -> None:
        try:
            session = await Session.connect(url, self._history)
        except SessionLostError:
            return
        session.close()
        leader = (supervised.name, life)
        if self.epochs.setdefault(session.epoch, leader) != leader:
            self.faults.append(f"epoch {session.epoch} was told by {self.epochs[session.epoch]} and {leader}")

    def _judge_end(self, supervised: SupervisedBroker) -> None:
        code = supervised.broker.exit_code
        if code == int(ExitCode.FENCED):
            self.fenced += 1
        elif code != -signal.SIGKILL:
            self.faults.append(f"{supervised.name} ended with {code}\n{supervised.broker.log_tail()}")
