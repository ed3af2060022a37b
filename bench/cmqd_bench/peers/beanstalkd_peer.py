"""The peer beanstalkd: put, reserve and delete; the log is synced at the write of each job."""

import socket
from pathlib import Path

from cmqd_bench.machine.servers import accepts, free_port
from cmqd_bench.peers.errors import PeerFailed
from cmqd_bench.peers.job import Line, Request
from cmqd_bench.peers.peer import Load, Reader, ServerPeer, connect, first_line
from cmqd_bench.peers.works import Work

PRIORITY, DELAY, TIME_TO_RUN = 0, 0, 600
STATES = ("current-jobs-ready", "current-jobs-reserved", "current-jobs-delayed", "current-jobs-buried")


class BeanstalkdPeer(ServerPeer):
    """``beanstalkd`` with a write-ahead log."""

    protocol = "beanstalkd"
    command = "beanstalkd"
    fastest = 1_500
    remark = "a reserve is not written to the log"

    def __init__(self) -> None:
        super().__init__("beanstalkd", "beanstalkd", "fsync at every write of the log (-f0), before the answer")

    def version(self) -> str:
        return first_line(self.command, "-v").split()[-1]

    def refusal(self, work: Work) -> str:
        return "" if work.batch == 1 else "a put or a reserve takes a single job, and each put has an fsync of its own"

    def start(self, folder: Path) -> None:
        self._port = free_port()
        log = folder / "log"
        log.mkdir(parents=True)
        command = [self.command, "-l", "127.0.0.1", "-p", str(self._port), "-b", str(log), "-f0"]
        self.launch(command, folder).wait_until(lambda: accepts(self._port), self.name)

    def create_queue(self, queue: str) -> None:
        """Do nothing: a tube exists while jobs or connections use the tube."""

    def drop_queue(self, queue: str) -> None:
        # A tube cannot be dropped: its jobs are deleted one by one.
        with self._connect(queue) as connection:
            reader = Reader(connection)
            while True:
                connection.sendall(b"peek-ready\r\n")
                words = reader.line().split()
                if words[0] != b"FOUND":
                    return
                reader.exactly(int(words[2]) + 2)
                connection.sendall(b"delete %b\r\n" % words[1])
                reader.line()

    def messages_left(self, queue: str) -> int:
        with self._connect(queue) as connection:
            reader = Reader(connection)
            connection.sendall(f"stats-tube {queue}\r\n".encode())
            words = reader.line().split()
            if words[0] != b"OK":
                raise PeerFailed(f"beanstalkd: {words[0].decode()}")
            lines = reader.exactly(int(words[1])).decode().splitlines()
        figures = dict(line.split(": ", 1) for line in lines if ": " in line)
        return sum(int(figures[state]) for state in STATES)

    def open(self, queue: str, *, producers: int, consumers: int, batch: int, body: bytes, outstanding: int) -> Load:
        put = f"put {PRIORITY} {DELAY} {TIME_TO_RUN} {len(body)}\r\n".encode() + body + b"\r\n"
        send = Request(put * batch, batch, replies=batch, is_stamped=True)
        return Load(
            [Line(self._connect(queue), send) for _ in range(producers)],
            [Line(self._connect(queue), Request(b"reserve\r\n")) for _ in range(consumers)],
        )

    def _connect(self, queue: str) -> socket.socket:
        """Open a connection that uses a tube and watches only this tube."""
        opened = connect(self._port)
        reader = Reader(opened)
        for command in (f"use {queue}", f"watch {queue}", "ignore default"):
            opened.sendall(f"{command}\r\n".encode())
            line = reader.line()
            if not line.startswith((b"USING", b"WATCHING")):
                raise PeerFailed(f"beanstalkd: {line.decode()}")
        return opened
