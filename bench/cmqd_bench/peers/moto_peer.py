"""moto's SQS server as a peer: a test double in memory, JSON over kept-alive HTTP connections.

moto is no broker, and stands in the table as the usual replacement of SQS in tests. Its application runs in a threaded
server that keeps connections, because the load does not open a connection per request.
"""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from cmqd_bench.http.load import sqs_head, sqs_post, sqs_queue
from cmqd_bench.machine.servers import accepts, free_port
from cmqd_bench.peers.errors import PeerFailed
from cmqd_bench.peers.job import Line, Request
from cmqd_bench.peers.peer import Load, Reader, ServerPeer, command_of, connect
from cmqd_bench.peers.works import Work

WAIT_SECONDS = 10
PROBE = "import sys; from importlib.util import find_spec as find; sys.exit(not find('moto') or not find('flask'))"
VERSION = "from importlib.metadata import version; print(version('moto'))"
SERVE = """
import io, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from moto.server import DomainDispatcherApplication, create_backend_app

application = DomainDispatcherApplication(create_backend_app)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        environ = {
            "REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "PATH_INFO": self.path, "QUERY_STRING": "",
            "SERVER_NAME": "127.0.0.1", "SERVER_PORT": sys.argv[1], "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_TYPE": self.headers["Content-Type"], "CONTENT_LENGTH": str(length),
            "REMOTE_ADDR": "127.0.0.1", "wsgi.version": (1, 0), "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(self.rfile.read(length)), "wsgi.errors": sys.stderr,
            "wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False,
        }
        for name, value in self.headers.items():
            environ["HTTP_" + name.upper().replace("-", "_")] = value
        started = []
        parts = application(environ, lambda status, headers, error=None: started.extend((status, headers)))
        body = b"".join(parts)
        status, headers = started
        self.send_response_only(int(status.split()[0]))
        for name, value in headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *arguments):
        pass

class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""moto's application behind a small server: the development server of moto closes the connection of every request."""
MAX_CONNECTIONS = 64
"""A thread per connection."""


class MotoPeer(ServerPeer):
    """``moto_server`` with SQS."""

    protocol = "sqs"

    def __init__(self, python: str | None = None) -> None:
        super().__init__("moto-sqs", "moto's SQS server, a test double", "none: messages are in memory")
        self._candidates = [python] if python else [sys.executable, command_of("python3")]

    def missing(self) -> str:
        return "" if self._python() else "no interpreter with moto's server was found; name one with --moto"

    def version(self) -> str:
        done = subprocess.run([self._python() or "", "-c", VERSION], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def refusal(self, work: Work) -> str:
        if work.batch > 1 or work.outstanding > 1:
            return "one request a connection, one message a request"
        if work.fill_per_second:
            return "the filling of a queue would take minutes"
        return "" if work.producers <= MAX_CONNECTIONS else "a thread for each connection"

    def start(self, folder: Path) -> None:
        self._port = free_port()
        server = self.launch([self._python() or "", "-c", SERVE, str(self._port)], folder)
        server.wait_until(lambda: accepts(self._port), self.name)

    def create_queue(self, queue: str) -> None:
        self._ask("CreateQueue", {"QueueName": queue})

    def drop_queue(self, queue: str) -> None:
        self._ask("DeleteQueue", self._url(queue))

    def messages_left(self, queue: str) -> int:
        answer = self._ask("GetQueueAttributes", self._url(queue) | {"AttributeNames": ["All"]})
        attributes = answer["Attributes"]
        return sum(
            int(attributes[name]) for name in ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        )

    def open(self, queue: str, *, producers: int, consumers: int, batch: int, body: bytes, outstanding: int) -> Load:
        url = self._url(queue)
        send = Request(self._post("SendMessage", url | {"MessageBody": body.decode()}), is_stamped=True)
        receive = Request(self._post("ReceiveMessage", url | {"WaitTimeSeconds": WAIT_SECONDS}))
        delete = (
            sqs_head(self._address, "DeleteMessage") + b"\0" + json.dumps(url | {"ReceiptHandle": ""})[:-2].encode()
        )
        return Load(
            [Line(connect(self._port), send) for _ in range(producers)],
            [Line(connect(self._port), receive, delete) for _ in range(consumers)],
        )

    def _python(self) -> str | None:
        for python in self._candidates:
            if python and subprocess.run([python, "-c", PROBE], capture_output=True, check=False).returncode == 0:
                return python
        return None

    @property
    def _address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _url(self, queue: str) -> dict[str, Any]:
        return sqs_queue(self._address, queue)

    def _post(self, action: str, parameters: dict[str, Any]) -> bytes:
        return sqs_post(self._address, action, parameters)

    def _ask(self, action: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Send a request; return the fields of its answer."""
        with connect(self._port) as connection:
            return exchange(connection, self._post(action, parameters))


def exchange(connection: socket.socket, request: bytes) -> dict[str, Any]:
    """Send a request and return the fields of its answer."""
    connection.sendall(request)
    reader = Reader(connection)
    status, length = reader.line(), 0
    while line := reader.line():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    body = reader.exactly(length)
    if b" 200 " not in status:
        raise PeerFailed(f"SQS: {status.decode()}: {body[:200].decode(errors='replace')}")
    return json.loads(body) if body else {}
