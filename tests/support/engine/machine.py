"""Every interleaving of brokers and faults, for hypothesis; the promises are those of ``engine_rig.Ledger``."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from cmqd.engine.fencing import FencedEngine
from support.engine.engine_rig import Broker, Worker, cluster_of
from support.engine.memory_engine import Fault, MemorySession

BROKERS = st.sampled_from(["leader", "leader", "leader", "other"])
FAULTS = st.sampled_from([Fault.NONE, Fault.NONE, Fault.LOSE_ANSWER, Fault.LATE_REQUEST])
"""At the step that commits. The rest is left to ``go_to``, because the common faults must stay likely."""
POINTS = st.sampled_from(["end", "append", "commit", "barrier", "epochs", "begin", "primaries", "newest"])


class EngineMachine(RuleBasedStateMachine):
    """Two brokers, of which the first leads at the begin, and three servers. At the end the standby is promoted."""

    engine: type[FencedEngine] | type[MemorySession] = FencedEngine

    @initialize()
    def start(self) -> None:
        self.cluster = cluster_of(self.engine)
        self.brokers = [self.cluster.broker(), self.cluster.broker()]
        self.brokers[0].take()

    def broker(self, role: str) -> Broker:
        """Return the broker with the highest epoch, or the other; one that was fenced is replaced by a new one."""
        for index, broker in enumerate(self.brokers):
            if broker.is_fenced and broker.is_idle:
                broker.kill()
                self.cluster.brokers.remove(broker)
                self.brokers[index] = self.cluster.broker()
        self.brokers.sort(key=lambda broker: -broker.epoch)
        return self.brokers[role == "other"]

    def advance(self, worker: Worker, point: str, fault: Fault, goes_on: bool) -> None:
        """Make steps until the thread stands before a step, and that step with a fault; then to the end, if wanted."""
        if worker.reach(point) and fault is not Fault.NONE:
            worker.step(fault)
        if goes_on:
            worker.run(30)

    # Brokers

    @rule(fault=FAULTS, goes_on=st.booleans())
    def take(self, fault: Fault, goes_on: bool) -> None:
        broker = self.broker("other")
        if broker.is_idle and not broker.epoch:
            broker.begin_take()
            self.advance(broker.rows, "commit", fault, goes_on)

    @rule(role=BROKERS, count=st.integers(1, 2), fault=FAULTS, goes_on=st.booleans())
    def append(self, role: str, count: int, fault: Fault, goes_on: bool) -> None:
        broker = self.broker(role)
        if broker.rows.is_idle and broker.has_copied:
            broker.begin_append(count)
            self.advance(broker.rows, "append", fault, goes_on)

    @rule(role=BROKERS, goes_on=st.booleans())
    def prove(self, role: str, goes_on: bool) -> None:
        broker = self.broker(role)
        if broker.rows.is_idle and broker.has_copied:
            broker.begin_prove()
            self.advance(broker.rows, "barrier", Fault.NONE, goes_on)

    @rule(
        role=BROKERS,
        change=st.sampled_from(["store", "checkpoint", "trim"]),
        lsn=st.integers(1, 6),
        fault=FAULTS,
        goes_on=st.booleans(),
    )
    def change(self, role: str, change: str, lsn: int, fault: Fault, goes_on: bool) -> None:
        broker = self.broker(role)
        if not broker.has_copied or not broker.changes.is_idle:
            return
        if change == "checkpoint":
            broker.begin_checkpoint(lsn)
        elif change == "trim":
            broker.begin_trim(1, lsn)
        else:
            broker.begin_store()
        self.advance(broker.changes, "commit", fault, goes_on)

    @rule()
    def go_on(self) -> None:
        """All threads go on."""
        for broker in self.brokers:
            broker.rows.run(30)
            broker.changes.run(30)

    @rule(role=BROKERS, of_changes=st.booleans(), point=POINTS, fault=FAULTS)
    def go_to(self, role: str, of_changes: bool, point: str, fault: Fault) -> None:
        broker = self.broker(role)
        self.advance(broker.changes if of_changes else broker.rows, point, fault, goes_on=False)

    @rule()
    def late(self) -> None:
        """What was on its way arrives, or its session has ended."""
        self.cluster.database.deliver_late()
        self.cluster.database.end_idle()

    # Servers

    @rule(event=st.sampled_from(["cut", "heal", "mute", "rejoin"]))
    def standby(self, event: str) -> None:
        """Something happens to the standby of the primary."""
        newest = self.cluster.newest()
        names = [name for name in self.cluster.database.servers if name != newest.name]
        for name in names if self.cluster.promotable is None else [self.cluster.promotable]:
            if event == "rejoin" and newest.runs:
                self.cluster.database.follow(name, newest.name)
            else:
                self.cluster.database.link(name, is_cut=event == "cut", is_mute=event == "mute")

    @rule(event=st.sampled_from(["restart", "cancel", "crash"]))
    def primary(self, event: str) -> None:
        """Something happens to the primary."""
        database, name = self.cluster.database, self.cluster.newest().name
        {
            "restart": lambda: database.restart(name),
            "cancel": lambda: database.cancel(name),
            "crash": lambda: database.crash(name),
        }[event]()

    @rule(third_follows=st.booleans(), is_named=st.booleans())
    def promote(self, third_follows: bool, is_named: bool) -> None:
        """The standby is promoted; the old primary lives on, if it lives."""
        if self.cluster.is_promotable:
            self.cluster.promote()
            newest = self.cluster.newest()
            if third_follows:
                self.cluster.database.follow("c" if newest.name != "c" else "a", newest.name)
                if is_named:
                    self.cluster.name_standby("c" if newest.name != "c" else "a")

    @rule(names=st.sampled_from(["", "*", "ANY 1 (a, b, c)", "named", "named"]))
    def name(self, names: str) -> None:
        """The primary gets another value of ``synchronous_standby_names``."""
        newest = self.cluster.newest()
        if names != "named":
            self.cluster.database.base_backup_of = newest.name
            self.cluster.database.name_standby(newest.name, names)
            return
        for name, server in self.cluster.database.servers.items():
            if newest.runs and server.primary is newest and server.runs and len(server.log) == len(newest.log):
                self.cluster.name_standby(name)
                return

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            try:
                self.cluster.judge()
            finally:
                self.cluster.kill()


class HazardMachine(RuleBasedStateMachine):
    """A leader, and few rules without a choice, so that a search comes to every order of them.

    The named standby is promoted at the end.
    """

    engine: type[FencedEngine] | type[MemorySession] = FencedEngine

    @initialize()
    def start(self) -> None:
        self.cluster = cluster_of(self.engine)
        self.leader = self.cluster.leader()
        self.zombie: Broker | None = None

    @rule()
    def append(self) -> None:
        if self.leader.rows.is_idle:
            self.leader.begin_append()
        self.leader.rows.run(20)

    @rule()
    def append_unanswered(self) -> None:
        if self.leader.rows.is_idle:
            self.leader.begin_append()
        if self.leader.rows.reach("append"):
            self.leader.rows.step(Fault.LOSE_ANSWER)

    @rule()
    def cut(self) -> None:
        self.cluster.database.link("b", is_cut=True)

    @rule()
    def restart(self) -> None:
        self.cluster.database.restart("a")

    @rule()
    def cancel(self) -> None:
        self.cluster.database.cancel("a")

    @rule(names=st.sampled_from(["*", "ANY 1 (b, c)"]))
    def name(self, names: str) -> None:
        self.cluster.database.base_backup_of = "a"
        self.cluster.database.name_standby("a", names)

    @rule()
    def take(self) -> None:
        broker = self.cluster.broker()
        broker.begin_take()
        broker.rows.run(30)
        if broker.has_copied:
            self.leader, self.zombie = broker, self.leader
        else:
            broker.kill()
            self.cluster.brokers.remove(broker)

    @rule(is_append=st.booleans())
    def wake(self, is_append: bool) -> None:
        """A former leader goes on."""
        zombie = self.zombie
        if zombie is not None and zombie.is_idle and not zombie.is_fenced:
            if is_append:
                zombie.begin_append()
                zombie.rows.run(20)
            else:
                zombie.begin_checkpoint()
                zombie.changes.run(20)

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            try:
                self.cluster.judge()
            finally:
                self.cluster.kill()
