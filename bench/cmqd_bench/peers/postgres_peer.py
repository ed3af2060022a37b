"""PostgreSQL as a peer: a queue is a table, consumers lock rows with SKIP LOCKED.

A receive leases rows with ``update ... returning``, a delete removes the rows by their ids: two commits a message, as
of the other peers. PostgreSQL has no waiting receive: a consumer of an empty table asks again after a millisecond.
"""

import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from cmqd_bench.machine.servers import accepts, free_port
from cmqd_bench.peers.errors import PeerFailed
from cmqd_bench.peers.peer import Load, Reader, ServerPeer, connect, first_line
from cmqd_load.native_job import Line, Request

PROTOCOL_VERSION = 3 << 16
BINARY = 1
BYTEA, BYTEA_ARRAY, INT8_ARRAY = 17, 1001, 1016
USER = "bench"
DEBIAN = Path("/usr/lib/postgresql")
SYNC = b"S\0\0\0\4"
ROOT_REFUSED_USER = "nobody"
"""PostgreSQL refuses to run as root: the harness of a root runs it as this user."""
INSERT = "insert into {table} (body) select unnest($1)"
TAKE = (
    "update {table} set leased_until = now() + interval '5 minutes' where id = any (array("
    "select id from {table} where leased_until < now() order by id for update skip locked limit {batch}))"
    " returning id, body"
)
DELETE = "delete from {table} where id = any ($1)"
DONE = "done"
"""The prepared delete, which the generator binds to the ids of received rows."""


def message(kind: bytes, payload: bytes) -> bytes:
    """Return a message of the protocol: kind, length, payload."""
    return kind + struct.pack(">I", len(payload) + 4) + payload


def text(value: str) -> bytes:
    """Return a text with its end."""
    return value.encode() + b"\0"


def parse(name: str, statement: str, types: Sequence[int] = ()) -> bytes:
    """Return the message that prepares a statement."""
    return message(b"P", text(name) + text(statement) + struct.pack(f">H{len(types)}I", len(types), *types))


def run_bound() -> bytes:
    """Return the message that runs the statement that was bound last."""
    return message(b"E", text("") + b"\0\0\0\0")


def execute(name: str, *arguments: bytes) -> bytes:
    """Return the messages that run a prepared statement with binary arguments and binary results."""
    values = b"".join(struct.pack(">I", len(value)) + value for value in arguments)
    formats = struct.pack(">HH", 1, BINARY)
    bind = text("") + text(name) + formats + struct.pack(">H", len(arguments)) + values + formats
    return message(b"B", bind) + run_bound()


def array_of(bodies: Sequence[bytes]) -> bytes:
    """Return an array of ``bytea`` in the binary format."""
    head = struct.pack(">IIIII", 1, 0, BYTEA, len(bodies), 1)
    return head + b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, of the newest version; None without them."""
    for folder in sorted(DEBIAN.glob("*/bin"), key=lambda folder: int(folder.parent.name), reverse=True):
        if (folder / "initdb").exists():
            return folder
    program = shutil.which("initdb")
    return Path(program).resolve().parent if program else None


class PostgresPeer(ServerPeer):
    """A server of its own, with PostgreSQL's defaults of durability."""

    protocol = "postgres"
    remark = "no waiting receive: a consumer of an empty table asks again after 1 ms"

    stop_signal = signal.SIGINT
    """Ends the sessions at once."""

    def __init__(self) -> None:
        super().__init__("postgresql", "PostgreSQL, SKIP LOCKED", "fsync before the answer (synchronous_commit on)")

    def missing(self) -> str:
        if programs() is None:
            return "initdb is not installed"
        if os.geteuid() == 0 and shutil.which("setpriv") is None:
            return "PostgreSQL refuses root, and setpriv is not installed"
        return ""

    def version(self) -> str:
        folder = programs()
        assert folder is not None
        return first_line(str(folder / "postgres"), "--version").split()[2]

    def start(self, folder: Path) -> None:
        binaries = programs()
        assert binaries is not None
        folder.mkdir(parents=True, exist_ok=True)
        before: list[str] = []
        if os.geteuid() == 0:
            before = [
                "setpriv",
                f"--reuid={ROOT_REFUSED_USER}",
                "--regid=nogroup",
                "--clear-groups",
                "env",
                "-i",
                f"PATH={os.environ['PATH']}",
                "LC_ALL=C",
            ]
            shutil.chown(folder, ROOT_REFUSED_USER)
            # The folder above belongs to the harness; its other folders stay closed by their own modes.
            folder.parent.chmod(0o711)
        data = folder / "data"
        made = subprocess.run(
            [*before, str(binaries / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=folder,
        )
        if made.returncode:
            raise PeerFailed(f"initdb failed:\n{made.stderr.strip()}")
        self._port = free_port()
        settings = {
            "port": self._port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 300,
            "synchronous_commit": "on",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        server = self.launch([*before, str(binaries / "postgres"), "-D", str(data), *options], folder)
        server.wait_until(self._answers, self.name)

    def create_queue(self, queue: str) -> None:
        # Half of a page stays free for leases: an update within a page writes no index entry.
        self._ask(
            f'create table "{queue}" (id bigint generated always as identity primary key, body bytea not null,'
            " leased_until timestamptz not null default '-infinity') with (fillfactor = 50)"
        )

    def drop_queue(self, queue: str) -> None:
        self._ask(f'drop table "{queue}"')

    def messages_left(self, queue: str) -> int:
        return int(self._ask(f'select count(*) from "{queue}"'))

    def open(self, queue: str, *, producers: int, consumers: int, batch: int, body: bytes, outstanding: int) -> Load:
        table = f'"{queue}"'
        insert = parse("insert", INSERT.format(table=table), [BYTEA_ARRAY])
        take = parse("take", TAKE.format(table=table, batch=batch))
        done = parse(DONE, DELETE.format(table=table), [INT8_ARRAY])
        send = Request(execute("insert", array_of([body] * batch)) + SYNC, batch, is_stamped=True)
        receive = Request(execute("take") + SYNC, batch)
        return Load(
            [Line(self._connect([insert]), send) for _ in range(producers)],
            [Line(self._connect([take, done]), receive, run_bound() + SYNC) for _ in range(consumers)],
        )

    def _answers(self) -> bool:
        if not accepts(self._port):
            return False
        try:
            return self._ask("select 1") == "1"
        except PeerFailed:  # "the database system is starting up"
            return False

    def _connect(self, prepared: Iterable[bytes] = ()) -> socket.socket:
        """Open a connection with prepared statements."""
        opened = connect(self._port)
        parameters = text("user") + text(USER) + text("database") + text("postgres") + b"\0"
        opened.sendall(struct.pack(">II", len(parameters) + 8, PROTOCOL_VERSION) + parameters)
        self._until_ready(opened)
        statements = b"".join(prepared)
        if statements:
            opened.sendall(statements + SYNC)
            self._until_ready(opened)
        return opened

    def _until_ready(self, connection: socket.socket) -> list[tuple[bytes, bytes]]:
        """Return the messages up to "ready for query"."""
        reader = Reader(connection)
        messages: list[tuple[bytes, bytes]] = []
        while True:
            kind = reader.exactly(1)
            payload = reader.exactly(int.from_bytes(reader.exactly(4), "big") - 4)
            if kind == b"E":
                fields = {field[:1]: field[1:] for field in payload.split(b"\0") if field}
                connection.close()
                raise PeerFailed(f"PostgreSQL: {fields.get(b'M', b'').decode()}")
            if kind == b"Z":
                return messages
            messages.append((kind, payload))

    def _ask(self, statement: str) -> str:
        """Run a statement; return the first column of the first row, or an empty text."""
        with self._connect() as connection:
            connection.sendall(message(b"Q", text(statement)))
            rows = [payload for kind, payload in self._until_ready(connection) if kind == b"D"]
        return rows[0][6:].decode() if rows else ""
