"""The choice of the connection that is asked: log-ins, half messages, checks, decisions and ends in any order."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from model.judge import profile

from support.gateway.checks_rig import ChecksRig, Program


class AnyOrder(RuleBasedStateMachine):
    """Programs log in, send, decide and end in any order; the broker checks messages of two queues."""

    @initialize()
    def begin(self) -> None:
        self.rig = ChecksRig()
        self.live: dict[Program, str] = {}
        self.senders: dict[str, list[Program]] = {"tx": [], "other": []}
        """Connections that sent a half message of a queue, the last one last."""
        self.sent: set[tuple[str, str]] = set()
        """Client ids of ended connections with their queues."""
        self.last_asked: dict[tuple[str, int], Program] = {}

    @rule(client_id=st.sampled_from("ab"))
    def log_in(self, client_id: str) -> None:
        if len(self.live) < 6:
            self.live[self.rig.log_in(f"{client_id}{len(self.live)}", client_id)] = client_id

    @rule(data=st.data(), queue=st.sampled_from(["tx", "other"]))
    def half_send(self, data: st.DataObject, queue: str) -> None:
        if self.live:
            program = data.draw(st.sampled_from(list(self.live)))
            assert self.rig.checks.half_sent(program, queue)
            if program in self.senders[queue]:
                self.senders[queue].remove(program)
            self.senders[queue].append(program)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.live:
            program = data.draw(st.sampled_from(list(self.live)))
            client_id = self.live.pop(program)
            for queue, senders in self.senders.items():
                if program in senders:
                    senders.remove(program)
                    self.sent.add((client_id, queue))
            before = self._open_checks(), self._registered()
            self.rig.end(program)
            # Each check that waited for this connection goes to another at once, unless a registration has ended.
            assert before == (self._open_checks(), self._registered()) or before[1] != self._registered()

    @rule(number=st.integers(1, 4), queue=st.sampled_from(["tx", "other"]))
    def check(self, number: int, queue: str) -> None:
        registered = [registered for registered in self.rig.registrations if registered.queue == queue]
        counts = {program: len(program.asked) for program in self.live}
        for each in registered:
            each.take(number)
        asked = [program for program, count in counts.items() if len(program.asked) > count]
        assert len(asked) == len(registered)
        for program in asked:
            earlier = [other for other in self.senders[queue] if (queue, number) not in other.asked]
            # A remembered connection is asked only when all connections that sent were asked for the message.
            assert program in self.senders[queue] or not earlier
            self.last_asked[queue, number] = program

    @rule(data=st.data(), number=st.integers(1, 4), queue=st.sampled_from(["tx", "other"]))
    def decide(self, data: st.DataObject, number: int, queue: str) -> None:
        if self.live:
            program = data.draw(st.sampled_from(list(self.live)))
            self.rig.checks.decided(program, queue, [number])
            if self.last_asked.pop((queue, number), None) is program and program not in self.senders[queue]:
                self.senders[queue].append(program)

    def _open_checks(self) -> int:
        asked, answered, unanswered = self.rig.counts
        return asked - answered - unanswered

    def _registered(self) -> list[str]:
        return [registered.queue for registered in self.rig.registrations]

    @invariant()
    def a_queue_is_registered_while_a_connection_can_answer(self) -> None:
        queues = {queue for queue, senders in self.senders.items() if senders}
        remembered = {queue for client_id, queue in self.sent if client_id in self.live.values()}
        assert sorted(self._registered()) == sorted(queues | remembered)
        assert 0 <= self._open_checks() <= 8


TestAnyOrder: Any = AnyOrder.TestCase
TestAnyOrder.settings = profile(104)
