"""Brokers over a database in memory, one step at a time: a test decides which thread makes its next step, and its fate.

Each broker is a ``FencedEngine`` with two threads. A thread stops before every step, in every wait and in every pause,
until ``Worker.step``: so every interleaving can be ordered, among them zombies, and all of them are deterministic.

``Ledger`` has the promises: what was answered, and what was believed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Semaphore, Thread, current_thread
from typing import Any

from cmqd.engine.engine_errors import AccountsConflict, Fenced
from cmqd.engine.fencing import FencedEngine
from cmqd.engine.interface import EngineRow, StoredAccounts, StoredCheckpoint, Taken
from support.engine.memory_engine import Fault, MemoryDatabase, MemoryServer, MemorySession


class Abandoned(BaseException):
    """Raised in a thread whose broker was killed."""


class Worker:
    """A thread of a broker."""

    def __init__(self) -> None:
        self.point: tuple[str, str] | None = None
        """The server and the step before which the thread stands; None while it has no call."""
        self._fault = Fault.NONE
        self._to_worker = Semaphore(0)
        self._to_test = Semaphore(0)
        self._call: Callable[[], object] | None = None
        self._failure: BaseException | None = None
        self._is_abandoned = False
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.worker = self  # type: ignore[attr-defined]
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        return self.point is None

    def begin(self, call: Callable[[], object]) -> None:
        """Begin a call, up to its first step."""
        assert self.is_idle
        self._call = call
        self._go()

    def step(self, fault: Fault = Fault.NONE) -> None:
        """Make one step."""
        assert not self.is_idle
        self._fault = fault
        self._go()

    def run(self, limit: int = 60) -> bool:
        """Make steps to the end of the call; return False if it goes on."""
        for _ in range(limit):
            if self.is_idle:
                return True
            self.step()
        return self.is_idle

    def reach(self, step: str) -> bool:
        """Make steps until the thread stands before one; return False if it does not come there."""
        for _ in range(30):
            if self.point is None or self.point[1] == step:
                break
            self.step()
        return self.point is not None and self.point[1] == step

    def run_to(self, step: str) -> None:
        """Make steps until the thread stands before one."""
        assert self.reach(step), f"never came to {step}, stands before {self.point}"

    def abandon(self) -> None:
        """End the thread without another step, as a kill does."""
        self._is_abandoned = True
        self._to_worker.release()
        self._thread.join()
        self.point = None

    def stop_at(self, point: tuple[str, str]) -> Fault:
        """Wait for the test; called in the thread."""
        self.point = point
        self._to_test.release()
        self._to_worker.acquire()
        if self._is_abandoned:
            raise Abandoned
        return self._fault

    def _go(self) -> None:
        self._to_worker.release()
        self._to_test.acquire()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _work(self) -> None:
        while True:
            self._to_worker.acquire()
            if self._is_abandoned:
                return
            assert self._call is not None
            try:
                self._call()
            except Abandoned:
                return
            except BaseException as error:
                self._failure = error
            self.point = None
            self._to_test.release()


def stop_here(server: str, step: str) -> Fault:
    worker: Worker | None = getattr(current_thread(), "worker", None)
    return Fault.NONE if worker is None else worker.stop_at((server, step))


@dataclass
class Ledger:
    """What the engine has promised, and the checks of the promises."""

    answered: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Content of the rows whose append returned."""
    believed: dict[int, EngineRow] = field(default_factory=dict[int, EngineRow])
    """Rows that a read returned."""
    takes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Time of the end and epoch of each take."""
    trims: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Ranges that leaders, and no zombies, have asked to remove."""
    zombie_data: set[bytes] = field(default_factory=set[bytes])
    """Checkpoints and accounts of calls that began after a later leader had taken."""
    checkpoint_lsn: int = 0
    """The highest checkpoint that was answered or believed."""
    accounts_version: int = 0
    """The highest version that was answered or believed."""
    loads: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Epoch and version of the accounts that each new leader has loaded."""

    def is_zombie(self, epoch: int) -> bool:
        """Return whether a later leader has taken."""
        return any(later > epoch for _time, later in self.takes)

    def took(self, taken: Taken, time: int) -> None:
        assert all(taken.epoch != epoch for _time, epoch in self.takes), f"two leaders have the epoch {taken.epoch}"
        self.takes.append((time, taken.epoch))

    def led_at(self, epoch: int, time: float) -> None:
        """Check that a leader has proved its lead for a time."""
        later = [(end, other) for end, other in self.takes if other > epoch and end < time]
        assert not later, f"epoch {epoch} has proved its lead at {time}, after the takes {later}"

    def appended(self, lsn: int, data: bytes) -> None:
        assert lsn not in self.answered, f"row {lsn} was answered twice"
        self.answered[lsn] = data

    def stored_accounts(self, epoch: int, version: int) -> None:
        for later, loaded in self.loads:
            assert later <= epoch or version <= loaded, f"epoch {epoch} stored accounts after epoch {later} loaded them"
        self.accounts_version = max(self.accounts_version, version)

    def read_accounts(self, epoch: int, stored: StoredAccounts | None, floor: int) -> None:
        """Check accounts that were loaded; ``floor`` is ``accounts_version`` at the begin of the call."""
        version = 0 if stored is None else stored.version
        assert version >= floor, f"accounts {floor} were undone: {version}"
        assert stored is None or stored.data not in self.zombie_data, "a zombie has stored accounts"
        self.accounts_version = max(self.accounts_version, version)
        self.loads.append((epoch, version))

    def put_checkpoint(self, lsn: int) -> None:
        self.checkpoint_lsn = max(self.checkpoint_lsn, lsn)

    def read_checkpoint(self, stored: StoredCheckpoint | None, floor: int) -> None:
        """Check a checkpoint that was read; ``floor`` is ``checkpoint_lsn`` at the begin of the call."""
        lsn = 0 if stored is None else stored.lsn
        assert lsn >= floor, f"checkpoint {floor} was replaced by {lsn}"
        assert stored is None or stored.data not in self.zombie_data, "a zombie has stored a checkpoint"
        self.checkpoint_lsn = max(self.checkpoint_lsn, lsn)

    def read_all(self, fence: int, rows: list[EngineRow], checkpoint: StoredCheckpoint | None) -> None:
        """Check the rows that a new leader has copied."""
        found = {row.lsn: row for row in rows}
        below = [row for row in rows if row.lsn <= fence]
        contents = [row.data for row in rows if not row.is_fence]
        assert len(contents) == len(set(contents)), "a row is there twice"
        epochs = [row.epoch for row in rows]
        assert epochs == sorted(epochs), f"epochs are out of order: {epochs}"
        fences = [row.lsn for row in rows if row.is_fence]
        for row in below:
            expected = max((lsn for lsn in fences if lsn <= row.lsn), default=0)
            assert row.epoch == expected, f"row {row.lsn} has epoch {row.epoch}, the fence below is {expected}"
        covered = 0 if checkpoint is None else checkpoint.lsn
        for lsn in range(1, fence + 1):
            if lsn in found:
                continue
            assert any(first <= lsn <= last for first, last in self.trims), f"row {lsn} is missing, none has trimmed it"
            assert lsn <= covered, f"row {lsn} was trimmed above the checkpoint {covered}"
            self.answered.pop(lsn, None)
            self.believed.pop(lsn, None)
        for lsn, data in self.answered.items():
            if lsn <= fence:
                assert found[lsn].data == data, f"row {lsn} was answered with {data!r} and is {found[lsn].data!r}"
        for row in below:
            assert self.believed.setdefault(row.lsn, row) == row, f"row {row.lsn} has changed"


class Broker:
    """A broker: an engine with its threads and the numbers of its log."""

    def __init__(self, cluster: "Cluster", engine_class: type[FencedEngine]) -> None:
        self.cluster = cluster
        self.is_stopping = False
        self.engine = engine_class(
            cluster.database,
            monotonic=cluster.tick,
            sleep=lambda _seconds: stop_here("", "sleep") and None,
            stopping=lambda: self.is_stopping,
            new_log_id=cluster.new_log_id,
            wall_ms=lambda: 0,
        )
        self.rows = Worker()
        self.changes = Worker()
        self.epoch = 0
        self.last_lsn = 0
        self.version = 0
        self.is_fenced = False
        self.has_copied = False
        """The broker leads, as far as it knows, and has read the log."""

    @property
    def is_idle(self) -> bool:
        return self.rows.is_idle and self.changes.is_idle

    def kill(self) -> None:
        """End the broker at once; the servers see its connections end."""
        self.rows.abandon()
        self.changes.abandon()
        self.engine.close()

    def begin_take(self) -> None:
        """Take the lead, and copy the log."""

        def call() -> None:
            taken = self.engine.take()
            self.epoch = self.last_lsn = taken.epoch
            ledger = self.cluster.ledger
            ledger.took(taken, self.cluster.now)
            floor = ledger.checkpoint_lsn
            ledger.read_checkpoint(self.engine.newest_checkpoint(), floor)
            floor = ledger.accounts_version
            accounts = self.engine.load_accounts()
            ledger.read_accounts(self.epoch, accounts, floor)
            self.version = 0 if accounts is None else accounts.version
            rows = list(self.engine.rows(0))
            ledger.read_all(self.epoch, rows, self.engine.newest_checkpoint())
            self.has_copied = True

        self.begin(self.rows, call)

    def begin_append(self, count: int = 1) -> None:
        rows = [
            EngineRow(lsn, 0, 1000, 1, b"\x90", b"\x90", self.cluster.new_data())
            for lsn in range(self.last_lsn + 1, self.last_lsn + 1 + count)
        ]
        is_zombie = self.cluster.ledger.is_zombie(self.epoch)

        def call() -> None:
            self.engine.append(rows)
            assert not is_zombie, f"an append of the zombie {self.epoch} was answered"
            self.last_lsn = rows[-1].lsn
            for row in rows:
                self.cluster.ledger.appended(row.lsn, row.data)
            self.cluster.ledger.led_at(self.epoch, self.engine.proved_at)

        self.begin(self.rows, call)

    def begin_prove(self) -> None:
        is_zombie = self.cluster.ledger.is_zombie(self.epoch)

        def call() -> None:
            self.engine.prove()
            assert not is_zombie, f"the zombie {self.epoch} has proved its lead"
            self.cluster.ledger.led_at(self.epoch, self.engine.proved_at)

        self.begin(self.rows, call)

    def begin_checkpoint(self, lsn: int | None = None) -> None:
        lsn = self.last_lsn if lsn is None else min(lsn, self.last_lsn)
        data = self._data_of_change()

        def call() -> None:
            self.engine.put_checkpoint(lsn, data)
            assert data not in self.cluster.ledger.zombie_data, "a checkpoint of a zombie was answered"
            self.cluster.ledger.put_checkpoint(lsn)

        self.begin(self.changes, call)

    def begin_store(self) -> None:
        data = self._data_of_change()

        def call() -> None:
            try:
                self.version = self.engine.store_accounts(data, expected_version=self.version)
            except AccountsConflict:
                if not self.cluster.ledger.is_zombie(self.epoch):
                    raise
                return
            assert data not in self.cluster.ledger.zombie_data, "accounts of a zombie were answered"
            self.cluster.ledger.stored_accounts(self.epoch, self.version)

        self.begin(self.changes, call)

    def begin_trim(self, first: int = 1, last: int = 1_000_000) -> None:
        is_zombie = self.cluster.ledger.is_zombie(self.epoch)
        if not is_zombie:
            self.cluster.ledger.trims.append((first, last))

        def call() -> None:
            self.engine.trim([(first, last)])
            assert not is_zombie, "a trim of a zombie was answered"

        self.begin(self.changes, call)

    # To the end

    def take(self) -> None:
        self.begin_take()
        assert self.rows.run(), f"waits at {self.rows.point}: {self.engine.waiting_for}"

    def append(self, count: int = 1) -> None:
        self.begin_append(count)
        assert self.rows.run(), f"waits at {self.rows.point}: {self.engine.waiting_for}"

    def change(self, begin: Callable[..., None], *arguments: Any) -> None:
        begin(*arguments)
        assert self.changes.run(), f"waits at {self.changes.point}"

    def _data_of_change(self) -> bytes:
        data = self.cluster.new_data()
        if self.cluster.ledger.is_zombie(self.epoch):
            self.cluster.ledger.zombie_data.add(data)
        return data

    def begin(self, worker: Worker, call: Callable[[], object]) -> None:
        def guarded() -> None:
            try:
                call()
            except Fenced:
                self.is_fenced = True

        worker.begin(guarded)


class Cluster:
    """Servers, brokers, and the manager that promotes servers."""

    def __init__(self, engine_class: type[FencedEngine] = FencedEngine) -> None:
        self.engine_class = engine_class
        self.database = MemoryDatabase(pause=lambda: stop_here("", "pause") and None)
        self.database.on_step = stop_here
        self.ledger = Ledger()
        self.now = 0
        self.brokers: list[Broker] = []
        self.promotable: str | None = "b"
        """The named standby of the newest primary: the only server that may be promoted."""
        self._data = 0

    def tick(self) -> int:
        self.now += 1
        return self.now

    def new_data(self) -> bytes:
        self._data += 1
        return b"%d" % self._data

    def new_log_id(self) -> str:
        return "log-" + self.new_data().decode()

    def broker(self) -> Broker:
        """Start a broker."""
        broker = Broker(self, self.engine_class)
        self.brokers.append(broker)
        return broker

    def leader(self) -> Broker:
        """Start a broker that takes the lead."""
        broker = self.broker()
        broker.take()
        return broker

    def newest(self) -> MemoryServer:
        """Return the primary with the highest timeline, whether it runs or not."""
        return max((s for s in self.database.servers.values() if s.is_primary), key=lambda server: server.timeline)

    @property
    def is_promotable(self) -> bool:
        """There is a standby that may be promoted, and it runs."""
        if self.promotable is None:
            return False
        server = self.database.servers[self.promotable]
        return server.runs and not server.is_primary

    def promote(self) -> None:
        """Promote the named standby; the next standby is not named yet."""
        assert self.promotable is not None
        self.database.promote(self.promotable)
        self.promotable = None

    def name_standby(self, name: str) -> None:
        """Name a standby of the newest primary that has its whole log."""
        newest = self.newest()
        self.database.name_standby(newest.name, name)
        self.promotable = name

    def repair(self) -> None:
        """Mend everything: the newest primary with two standbys, one of them named."""
        newest = self.newest()
        if not newest.runs:
            self.database.restart(newest.name)
        for name in self.database.servers:
            if name != newest.name:
                self.database.follow(name, newest.name)
        self.name_standby(next(name for name in self.database.servers if name != newest.name))
        self.database.base_backup_of = None
        self.database.end_idle()

    def judge(self) -> None:
        """Kill all brokers, lose the primary if its standby may follow, and check what is there; late requests come at
        the worst moment.
        """
        self.kill()
        if self.is_promotable:
            self.promote()
        self.repair()
        leader = self.leader()
        leader.append()
        self.database.deliver_late()
        leader.append()
        self.leader().append()
        self.database.promote(self.promotable or "")
        self.promotable = None
        self.repair()
        self.leader().append()
        self.leader()
        self.kill()

    def kill(self) -> None:
        """Kill all brokers."""
        for broker in self.brokers:
            broker.kill()
        self.brokers.clear()


def cluster_of(engine: type[FencedEngine] | type[MemorySession]) -> Cluster:
    """Return a cluster with another engine, or with other sessions of its database."""
    if issubclass(engine, FencedEngine):
        return Cluster(engine)
    cluster = Cluster()
    cluster.database.session_class = engine
    return cluster
