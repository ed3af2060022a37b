"""The checks of a gateway with programs, a broker and a clock of the test: no socket, no broker."""

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp.transaction_checks import TakeNumber, TransactionChecks

KEY = KeySecret("id", "secret")


class Program:
    """A connection that keeps the checks that it gets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[tuple[str, int]] = []
        self.is_slow = False

    def ask(self, queue: str, message_number: int) -> bool:
        if not self.is_slow:
            self.asked.append((queue, message_number))
        return not self.is_slow

    def __repr__(self) -> str:
        return self.name


class Registered:
    """A registration with a broker of the test."""

    def __init__(self, rig: "ChecksRig", key: KeySecret, queue: str, take: TakeNumber) -> None:
        self.rig = rig
        self.key = key
        self.queue = queue
        self.take = take
        self.half_sends = 0
        self.is_ended = False
        rig.registrations.append(self)

    def half_sent(self) -> None:
        self.half_sends += 1

    def end(self) -> None:
        assert not self.is_ended
        self.is_ended = True
        self.rig.registrations.remove(self)


class ChecksRig:
    """The checks of a gateway, with programs, a broker and a clock of the test."""

    def __init__(self) -> None:
        self.time = 0.0
        self.registrations: list[Registered] = []
        self.checks = TransactionChecks(lambda key, queue, take: Registered(self, key, queue, take), lambda: self.time)

    def log_in(self, name: str, client_id: str = "host@DEFAULT", key: KeySecret = KEY) -> Program:
        program = Program(name)
        self.checks.logged_in(program, key, client_id)
        return program

    def producer(self, name: str, *queues: str, client_id: str = "host@DEFAULT", key: KeySecret = KEY) -> Program:
        program = self.log_in(name, client_id, key)
        for queue in queues or ("tx",):
            assert self.checks.half_sent(program, queue)
        return program

    def end(self, *programs: Program) -> None:
        for program in programs:
            self.checks.ended(program)

    def check(self, number: int = 7, queue: str = "tx") -> None:
        """Check a message, as the broker does."""
        (registered,) = [registered for registered in self.registrations if registered.queue == queue]
        registered.take(number)

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.checks.asked, self.checks.answered, self.checks.unanswered
