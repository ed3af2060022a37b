"""A cluster of three PostgreSQL servers that fail to order; see the package.

Signals go only to processes that this module started: a postmaster, and its children as the kernel lists them.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from support.eventually import eventually_elsewhere
from support.postgresql.cut_links import Links
from support.postgresql.installation import Installation
from support.processes.silent_port import reserve_port
from support.processes.stopped_process import stop

NAMES = ("n1", "n2", "n3")
_STATUS_LINE = 7
"""Line of ``postmaster.pid`` with the state of the server, from 0."""


class ServerFailedError(Exception):
    """A server did not start; the text has the end of its log."""


class PostgresServer:
    """A server with its data folder.

    Args:
        name: its ``cluster_name``, by which a primary knows it as a standby.
        folder: gets the data folder and the log.
    """

    def __init__(self, name: str, installation: Installation, folder: Path) -> None:
        self.name = name
        self.data = folder / name
        self._log = folder / f"{name}.log"
        self._installation = installation
        self._process: subprocess.Popen[bytes] | None = None
        self._reservation = reserve_port()
        self.port: int = self._reservation.getsockname()[1]
        self.direct_url = f"postgresql://cmqd@127.0.0.1:{self.port}/postgres"
        """The server's own address, past all links."""

    # ------------------------------------------------------------------ the process

    def start(self) -> None:
        """Start the server, as its supervisor does, and wait until it takes connections.

        Raises:
            ServerFailedError: the server ended.
        """
        # A server that was killed leaves the file behind: its state would be taken for the new server's.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        command = self._installation.command("postgres", "-D", self.data, "-p", str(self.port))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-c", f"cluster_name={self.name}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            )
        eventually_elsewhere(self._has_started)

    def kill(self) -> None:
        """SIGKILL to every process of the server, as if its machine lost power (without its disk's cache)."""
        process = self._running()
        # A stopped postmaster makes no further children.
        stop(process.pid)
        children = _children_of(process.pid)
        for pid in (process.pid, *children):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        eventually_elsewhere(lambda: all(map(_has_ended, children)))

    def freeze(self) -> None:
        """SIGSTOP to every process of the server: it is alive and answers nothing."""
        pid = self._running().pid
        stop(pid)
        for child in _children_of(pid):
            stop(child)

    def thaw(self) -> None:
        """SIGCONT to every process of the server."""
        pid = self._running().pid
        for process in (*_children_of(pid), pid):
            os.kill(process, signal.SIGCONT)

    def clean_up(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._reservation.close()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            raise ServerFailedError(f"{self.name} is not running\n{self._log_tail()}")
        return self._process

    def _has_started(self) -> bool:
        self._running()
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return lines[_STATUS_LINE : _STATUS_LINE + 1] == ["ready   "]

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-25:])

    @property
    def pid(self) -> int:
        """Process id of the running postmaster. Raises ServerFailedError."""
        return self._running().pid

    # ------------------------------------------------------------------ settings and state

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a query past all links, without waiting for a standby, and return its rows."""
        with psycopg.connect(self.direct_url, autocommit=True, row_factory=tuple_row) as connection:
            connection.execute("SET synchronous_commit = local")
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description is not None else []

    def configure(self, **settings: str) -> None:
        """Change settings of the server; of a running server at once, for all its sessions at their next query."""
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        if self._process is not None and self._process.poll() is None:
            self.ask("SELECT pg_reload_conf()")
            for name, value in settings.items():
                eventually_elsewhere(lambda name=name, value=value: self.ask(f"SHOW {name}") == [(value,)])

    def is_followed_by(self, name: str) -> bool:
        """Return True if the server sends its log to the standby of this name, which has all of it."""
        query = "SELECT flush_lsn >= pg_current_wal_flush_lsn() FROM pg_stat_replication WHERE application_name = %s"
        return (True,) in self.ask(f"{query} AND state = 'streaming'", name)


class PostgresCluster:
    """A primary ``n1``, its named synchronous standby ``n2``, and ``n3``, which follows without being waited for."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._folder = Path(tempfile.mkdtemp(prefix="cmqd-cluster-"))
        self._folder.chmod(0o755)
        self._links = Links()
        self.servers = {name: PostgresServer(name, installation, self._folder) for name in NAMES}
        self.n1, self.n2, self.n3 = self.servers.values()

    def __enter__(self) -> "PostgresCluster":
        try:
            for server in self.servers.values():
                self._installation.copy_template(server.data)
            self.n1.configure(synchronous_standby_names="FIRST 1 (n2)")
            for standby in (self.n2, self.n3):
                self.follow(standby, self.n1)
            for server in self.servers.values():
                server.start()
            self.wait_until_followed(self.n1, "n2", "n3")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for server in self.servers.values():
            server.clean_up()
        self._links.close()
        shutil.rmtree(self._folder)

    # ------------------------------------------------------------------ addresses and links

    def url(self, program: str, *names: str, role: str = "cmqd") -> str:
        """Return the URL of the servers (all by default) for a program, through its links."""
        ports = [self._links.join(program, name, self.servers[name].port) for name in names or NAMES]
        return f"postgresql://{role}@{','.join(f'127.0.0.1:{port}' for port in ports)}/postgres"

    def cut(self, *ends: str) -> None:
        """Cut every link between two of these programs and servers."""
        self._links.cut(*ends)

    def isolate(self, *inside: str) -> None:
        """Cut every link between these programs and servers and all others."""
        for name in inside:
            for other in set(self._links.names()) - set(inside):
                self._links.cut(name, other)

    def mend(self) -> None:
        """Undo every cut."""
        self._links.mend()

    def stall(self, *ends: str) -> None:
        """Silence the present connections of every link between two of these programs, for ever; later ones pass."""
        self._links.stall(*ends)

    def reset(self, *ends: str) -> None:
        """Close the connections of every link between two of these programs and servers."""
        self._links.reset(*ends)

    # ------------------------------------------------------------------ roles

    def follow(self, standby: PostgresServer, primary: PostgresServer) -> None:
        """Make a server the standby of another: at once if it is one already, else at its next start."""
        port = self._links.join(standby.name, primary.name, primary.port)
        (standby.data / "standby.signal").touch()
        standby.configure(primary_conninfo=f"host=127.0.0.1 port={port} user=cmqd application_name={standby.name}")

    def promote(self, standby: PostgresServer) -> None:
        """Make a standby a primary, as a manager of the cluster does.

        ``n3`` is its named standby and follows the new primary. The old one is told nothing.
        """
        standby.configure(synchronous_standby_names="FIRST 1 (n3)")
        standby.ask("SELECT pg_promote()")
        if standby is not self.n3:
            self.follow(self.n3, standby)

    def rejoin(self, server: PostgresServer, primary: PostgresServer) -> None:
        """Make a server that is not running a fresh standby of a primary: with a copy of it, as after a loss."""
        port = self._links.join(server.name, primary.name, primary.port)
        shutil.rmtree(server.data)
        self._installation.own(server.data)
        source = f"host=127.0.0.1 port={port} user=cmqd"
        command = ("pg_basebackup", "--pgdata", server.data, "--checkpoint=fast", "--no-sync", "--dbname", source)
        subprocess.run(self._installation.command(*command), check=True, capture_output=True)
        self.follow(server, primary)
        server.start()

    def wait_until_followed(self, primary: PostgresServer, *names: str) -> None:
        """Wait until these standbys have all of the primary's log."""
        for name in names:
            eventually_elsewhere(lambda name=name: primary.is_followed_by(name))


def _has_ended(pid: int) -> bool:
    """Return True of a process that is gone, or that only its new parent has not taken notice of."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _children_of(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += map(int, (task / "children").read_text().split())
    return children
