"""Every interleaving of brokers and faults, for hypothesis; the promises are those of ``engine_rig.Ledger``."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cmqd.engine.fencing import FencedEngine
from cmqd.engine.memory import Fault, MemorySession
from support.engine_rig import Broker, Worker, cluster_of

BROKERS = st.integers(0, 2)
ROLES = st.sampled_from(["primary", "standby", "third"])
FAULTS = st.sampled_from(
    [
        Fault.NONE,
        Fault.LOSE_ANSWER,
        Fault.LATE_REQUEST,
        Fault.LOSE_REQUEST,
        Fault.HIDE_NEWEST,
    ]
)


class EngineMachine(RuleBasedStateMachine):
    """Three brokers, three servers; the first broker leads at the begin."""

    engine: type[FencedEngine] | type[MemorySession] = FencedEngine

    @initialize()
    def start(self) -> None:
        self.cluster = cluster_of(self.engine)
        self.brokers = [self.cluster.broker() for _ in range(3)]
        self.brokers[0].take()
        self.brokers[0].append()

    def broker(self, index: int) -> Broker:
        """Return a broker; one that was fenced is replaced by a new one."""
        broker = self.brokers[index]
        if broker.is_fenced and broker.is_idle:
            broker.kill()
            self.cluster.brokers.remove(broker)
            self.brokers[index] = broker = self.cluster.broker()
        return broker

    def advance(self, worker: Worker, steps: int, fault: Fault) -> None:
        """Make steps, the last of them with a fault."""
        for index in range(steps):
            if worker.is_idle:
                return
            worker.step(fault if index == steps - 1 else Fault.NONE)

    def name_of(self, role: str) -> str:
        """Return the server that has a role now."""
        primary = self.cluster.newest().name
        others = [name for name in self.cluster.database.servers if name != primary]
        if self.cluster.promotable in others:
            others.sort(key=lambda name: name != self.cluster.promotable)
        return {"primary": primary, "standby": others[0], "third": others[1]}[role]

    # Brokers

    @rule(index=BROKERS, steps=st.integers(0, 30), fault=FAULTS)
    def take(self, index: int, steps: int, fault: Fault) -> None:
        broker = self.broker(index)
        if broker.is_idle and not broker.epoch:
            broker.begin_take()
            self.advance(broker.rows, steps, fault)

    @rule(index=BROKERS, count=st.integers(1, 3), steps=st.integers(0, 6), fault=FAULTS)
    def append(self, index: int, count: int, steps: int, fault: Fault) -> None:
        broker = self.broker(index)
        if broker.rows.is_idle and broker.has_copied:
            broker.begin_append(count)
            self.advance(broker.rows, steps, fault)

    @rule(index=BROKERS, steps=st.integers(0, 6), fault=FAULTS)
    def prove(self, index: int, steps: int, fault: Fault) -> None:
        broker = self.broker(index)
        if broker.rows.is_idle and broker.has_copied:
            broker.begin_prove()
            self.advance(broker.rows, steps, fault)

    @rule(
        index=BROKERS,
        change=st.sampled_from(["checkpoint", "trim", "store"]),
        lsn=st.integers(1, 12),
        steps=st.integers(0, 10),
        fault=FAULTS,
    )
    def change(self, index: int, change: str, lsn: int, steps: int, fault: Fault) -> None:
        broker = self.broker(index)
        if not broker.has_copied or not broker.changes.is_idle:
            return
        if change == "checkpoint":
            broker.begin_checkpoint(lsn)
        elif change == "trim":
            broker.begin_trim(1, lsn)
        else:
            broker.begin_store()
        self.advance(broker.changes, steps, fault)

    @rule(index=BROKERS, of_changes=st.booleans(), steps=st.integers(1, 30), fault=FAULTS)
    def go_on(self, index: int, of_changes: bool, steps: int, fault: Fault) -> None:
        broker = self.brokers[index]
        self.advance(broker.changes if of_changes else broker.rows, steps, fault)

    # Servers

    @rule(role=ROLES, is_cut=st.booleans(), is_mute=st.booleans())
    def link(self, role: str, is_cut: bool, is_mute: bool) -> None:
        self.cluster.database.link(self.name_of(role), is_cut=is_cut, is_mute=is_mute)

    @rule(role=ROLES)
    def restart(self, role: str) -> None:
        self.cluster.database.restart(self.name_of(role))

    @rule(role=ROLES)
    def crash(self, role: str) -> None:
        self.cluster.database.crash(self.name_of(role))

    @rule(role=ROLES)
    def cancel(self, role: str) -> None:
        self.cluster.database.cancel(self.name_of(role))

    @rule()
    def end_idle(self) -> None:
        self.cluster.database.end_idle()

    @rule()
    def deliver_late(self) -> None:
        self.cluster.database.deliver_late()

    @precondition(lambda self: self.cluster.is_promotable)
    @rule()
    def promote(self) -> None:
        self.cluster.promote()

    @rule(role=ROLES)
    def follow(self, role: str) -> None:
        newest = self.cluster.newest()
        name = self.name_of(role)
        if newest.runs and newest.name != name:
            self.cluster.database.follow(name, newest.name)

    @rule(role=ROLES)
    def name_standby(self, role: str) -> None:
        newest = self.cluster.newest()
        name = self.name_of(role)
        server = self.cluster.database.servers[name]
        if newest.runs and server.primary is newest and server.runs and len(server.log) == len(newest.log):
            self.cluster.name_standby(name)

    @rule(names=st.sampled_from(["", "*", "ANY 1 (b, c)"]), has_base_backup=st.booleans())
    def name_unsafe(self, names: str, has_base_backup: bool) -> None:
        newest = self.cluster.newest()
        if not newest.waiting:
            self.cluster.database.base_backup_of = newest.name if has_base_backup else None
            self.cluster.database.name_standby(newest.name, names)

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            try:
                self.cluster.judge()
            finally:
                self.cluster.kill()
