"""A real ``cmqd-gateway`` in a process of its own, before a real broker; on a free port.

    with RunningServer(tmp_path) as server, RunningGateway(tmp_path, server) as gateway:
        Account(gateway.url, gateway.secret_id, gateway.secret_key) ...

The gateway's log is ``<folder>/gateway.log``; its last lines are in the text of every failure.
"""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cmqd_client import sync
from cmqd_client.address import parse_address
from support.processes.environment import plain_environment
from support.processes.forked_program import ForkedProgram
from support.processes.running_server import RunningServer, ServerFailedError

_POLL_SECONDS = 0.01


class RunningGateway:
    """``cmqd-gateway``, started on entering and ended on leaving: by SIGTERM after a success, else by SIGKILL."""

    def __init__(self, folder: Path, server: RunningServer, *flags: str) -> None:
        self._folder = folder
        self._server = server
        self._flags = flags
        self._process: ForkedProgram | None = None
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> Self:
        address = parse_address(self._server.url)
        self.secret_id, self.secret_key = address.secret_id, address.secret_key
        key_file, ready_file = self._folder / "gateway.key", self._folder / "gateway.json"
        with sync.connect(self._server.url) as client:
            own = client.accounts.create_key(roles=["gateway"])
        self.own_key = f"{own.secret_id}:{own.secret_key}"
        key_file.touch(mode=0o600)
        key_file.write_text(f"{self.own_key}\n")
        arguments = ["--broker", f"cmq://{address.host}:{address.port}", "--key-file", str(key_file)]
        arguments += ["--listen", "127.0.0.1:0", "--ready-file", str(ready_file), *self._flags]
        with self.log_file.open("ab") as log:
            self._process = ForkedProgram("cmqd_gateway", arguments, output=log, environment=plain_environment())
        try:
            # The gateway listens before it has the broker, and refuses requests until then.
            while not (ready_file.exists() and "broker_connected" in self.log):
                if self._process.poll() is not None:
                    raise ServerFailedError(f"the gateway ended with code {self._process.returncode}:\n{self.log}")
                time.sleep(_POLL_SECONDS)
        except BaseException:  # also the time limit of the suite: outside ``with`` no other code ends the process
            self._process.kill()
            self._process.wait()
            raise
        self.ready = json.loads(ready_file.read_bytes())
        return self

    @property
    def process(self) -> ForkedProgram:
        assert self._process is not None, "it was not started"
        return self._process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None
        if kind is None:
            process.terminate()
            code = process.wait()
            assert code == 0, f"the gateway ended with code {code}:\n{self.log}"
        else:
            process.kill()
            process.wait()

    @property
    def host(self) -> str:
        """``host:port`` of the HTTP listener."""
        return f"{self.ready['host']}:{self.ready['port']}"

    @property
    def url(self) -> str:
        """The endpoint for SDKs."""
        return f"http://{self.host}"

    @property
    def log_file(self) -> Path:
        return self._folder / "gateway.log"

    @property
    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""
